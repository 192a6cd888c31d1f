"""The small changes of the code that `make changed` is checked with."""

from __future__ import annotations

import ast

import pytest

from tests.changed_check import drawn, mutants_of


@pytest.mark.parametrize(
    ("code", "others"),
    [
        ("a == b", {"a != b"}),
        ("(a) is not (b)", {"(a) is (b)"}),
        ("a and b", {"a or b"}),
        ("a * é < b", {"a * é <= b", "a + é < b"}),
        ("7", {"(7 + 1)"}),
        ("True", {"False"}),
        ("'text'", set()),
        ("f'{a + b}'", set()),
        ("a: Literal[7] = None", set()),
        ("def f() -> 7:\n    return None", set()),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("if TYPE_CHECKING:\n    a = 1", set()),
    ],
)
def test_one_operator_constant_or_result_is_another_one(code: str, others: set[str]) -> None:
    source = code.encode()
    assert {mutant.applied(source).decode() for mutant in mutants_of("a.py", source)} == others


def test_a_seed_draws_the_same_mutant_and_another_seed_another_one() -> None:
    assert drawn(1) == drawn(1)
    assert len({drawn(seed).path for seed in range(5)}) > 1
    from tests.changed_check import ROOT

    mutant = drawn(2)
    source = (ROOT / mutant.path).read_bytes()
    assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
