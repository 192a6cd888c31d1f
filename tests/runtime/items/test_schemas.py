"""What an item must be, and what is said of one that is not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from isthmus.runtime.graph.body import schemas_of
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import attested, compiled

SENDER = Member(Replica("learner", 2), 3)
SIZES = ("of", "part", (4, 6))


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        ("integer", [0, -5, 1 << 62], [1.0, True, "1", None, 1 << 63]),
        (("integer", 1), [1, 7], [0, -1]),
        (("integer", 1, 3), [1, 3], [0, 4]),
        ("number", [0, -0.5], [math.nan, math.inf, "1", True]),
        (("number", 0), [0.0], [-0.1]),
        ("float", [0, math.nan, -math.inf], ["nan", None, False]),
        ("text", ["", "ready"], [1, b"ready", None]),
        (("text", "ready", "final"), ["final"], ["done"]),
        ("flag", [True, False], [0, 1, None]),
        (("list", "integer"), [[], [1, 2]], [1, "12", {1: 2}, [1, "2"]]),
        (("list", "integer", 2), [[1, 2], (1, 2)], [[1], [1, 2, 3]]),
        (("row", "integer", "text"), [[1, "a"]], [[1], ["a", 1], "1a"]),
        (("optional", "integer"), [None, 1], ["1"]),
        (("array", "float32", (None,)), [np.zeros(3, np.float32)], [np.zeros(3), np.zeros((1, 3), np.float32), [0.0]]),
        (("array", "float32", (2, 3)), [np.zeros((2, 3), np.float32)], [np.zeros((3, 2), np.float32)]),
        (("sender", "slot"), [2], [0, 2.0, None]),
        (("sender", "incarnation"), [3], [2, 4]),
        ({"a?": "integer", "b": "text"}, [{"b": ""}, {"a": 1, "b": ""}], [{"a": 1}, {"a": "", "b": ""}]),
        ({"a": "integer"}, [{"a": 1}, {"a": 1, "more": "x"}], [{}, {"a": "1"}, [1], None]),
    ],
)
def test_a_rule_takes_what_is_right_and_nothing_else(rule: Any, right: list[Any], wrong: list[Any]) -> None:
    check = compiled(rule)
    for value in right:
        assert check(value, {}, SENDER) is None, value
    for value in wrong:
        mismatch = check(value, {}, SENDER)
        assert mismatch is not None, value
        assert all(isinstance(part, str) for part in mismatch)
        assert len(mismatch.found) <= 60


def test_a_fault_is_named_by_where_it_is() -> None:
    check = compiled({"name": "text", "rows": ("list", ("row", "integer", {"x": "integer"}))})
    good = {"name": "a", "rows": [[1, {"x": 1}]]}
    assert check(good, {}, SENDER) is None
    for change, field in [
        ({"name": 1}, "name"),
        ({"rows": 1}, "rows"),
        ({"rows": [[1, {"x": 1}], [1]]}, "rows[1]"),
        ({"rows": [[1, {"x": "y" * 500}]]}, "rows[0][1].x"),
        ({"rows": [[1, {}]]}, "rows[0][1].x"),
    ]:
        mismatch = check({**good, **change}, {}, SENDER)
        assert mismatch is not None
        assert mismatch.field == field


@pytest.mark.parametrize(
    ("part", "size", "is_right"), [(0, 4, True), (1, 6, True), (0, 6, False), (2, 6, False), ("0", 4, False)]
)
def test_the_size_of_an_array_depends_on_a_field(part: Any, size: int, is_right: bool) -> None:
    check = compiled({"values": ("array", "float32", (SIZES,))})
    assert (check({"part": part, "values": np.zeros(size, np.float32)}, {}, SENDER) is None) == is_right


@pytest.mark.parametrize(
    ("number", "tokens", "is_right"), [(8, 24, True), (8, 25, False), ((8, 9, 10), 30, True), ((8, 9), 27, True)]
)
def test_a_count_that_follows_from_another(number: Any, tokens: int, is_right: bool) -> None:
    check = compiled({"steps": "integer", "tokens": ("product", "steps", number)})
    assert (check({"steps": 3, "tokens": tokens}, {}, SENDER) is None) == is_right


def test_what_firings_attest_is_known_where_it_is_emitted() -> None:
    rule = {"step": ("firings", ("integer", 0)), "slot": ("sender", "slot")}
    assert attested(rule) == ("step",)
    assert attested("any") == ()
    assert compiled(rule)({"step": 10**9, "slot": 2}, {}, SENDER) is None
    assert compiled(rule)({"step": -1, "slot": 2}, {}, SENDER) is not None


def test_a_rule_that_there_is_not_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="integr"):
        compiled({"a": ("list", "integr")})


def test_bodies_declare_schemas_as_they_are_or_by_their_arguments() -> None:
    class Plain:
        schemas = {"item": "integer"}  # noqa: RUF012

    class Made:
        @staticmethod
        def schemas(count: int, *, kind: str) -> dict[str, Any]:
            return {"item": ("list", kind, count)}

    assert schemas_of(Plain, (), {}) == {"item": "integer"}
    assert schemas_of(Made, (3,), {"kind": "text"}) == {"item": ("list", "text", 3)}
    assert schemas_of(len, (), {}) == {}


@pytest.mark.parametrize(("end", "fits"), [(40, True), (41, False), (24, False), (10**9, False), ("40", False)])
def test_a_product_may_begin_at_another_field(end: Any, fits: bool) -> None:
    check = compiled({"begin": "integer", "steps": "integer", "end": ("product", "steps", 8, "begin")})
    mismatch = check({"begin": 16, "steps": 3, "end": end}, {}, Member(Replica("learner", 1), 1))
    assert (mismatch is None) is fits
    assert mismatch is None or (mismatch.field, mismatch.expected) == (
        "end",
        "8 times steps, which is 3, beside begin, which is 16",
    )


@pytest.mark.parametrize(("end", "fits"), [(10, True), (11, True), (34, True), (35, False), (9, False), (12.0, False)])
def test_a_count_may_be_anything_up_to_the_product(*, end: Any, fits: bool) -> None:
    check = compiled({"begin": "integer", "steps": "integer", "end": ("at most", "steps", 8, "begin")})
    mismatch = check({"begin": 10, "steps": 3, "end": end}, {}, SENDER)
    assert (mismatch is None) == fits
    assert mismatch is None or "from 0 to 8 times steps" in mismatch.expected
