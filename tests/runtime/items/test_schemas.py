"""What an item must be, and what is said of one that is not."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from isthmus.runtime.graph.body import schemas_of
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import attested, compiled

SENDER = Member(Replica("learner", 2), 3)
VECTOR = Annotated[NDArray[np.float32], ("sizes", None)]


class Row(TypedDict):
    """One field."""

    x: int


class Some(TypedDict):
    """A field that may be absent."""

    a: NotRequired[int]
    b: str


class Partial(Some, total=False):
    """A field that may be absent as all of its class, and those of another class."""

    c: float


class Span(TypedDict):
    """A field whose rule is given elsewhere."""

    begin: int
    steps: int
    end: int


@pytest.mark.parametrize(
    ("rule", "right", "wrong"),
    [
        (Any, [None, "x", {}], []),
        (int, [0, -5, 1 << 62], [1.0, True, "1", None, 1 << 63]),
        (Annotated[int, ("range", 1)], [1, 7], [0, -1]),
        (Annotated[int, ("range", 1, 3)], [1, 3], [0, 4]),
        (Annotated[float, ("range",)], [0, -0.5], [math.nan, math.inf, "1", True]),
        (Annotated[float, ("range", 0)], [0.0], [-0.1]),
        (float, [0, math.nan, -math.inf], ["nan", None, False]),
        (str, ["", "ready"], [1, b"ready", None]),
        (Literal["ready", "final"], ["final"], ["done"]),
        (bool, [True, False], [0, 1, None]),
        (list[int], [[], [1, 2]], [1, "12", {1: 2}, [1, "2"]]),
        (Annotated[list[int], ("length", 2)], [[1, 2], (1, 2)], [[1], [1, 2, 3]]),
        (tuple[int, str], [[1, "a"]], [[1], ["a", 1], "1a"]),
        (Annotated[list[Any], tuple[int, str]], [[1, "a"]], [[1], ["a", 1], "1a"]),
        (dict[str, int], [{}, {"a": 1}], [{"a": "1"}, {1: 1}, [1]]),
        (int | None, [None, 1], ["1"]),
        (int | str, [1, "1"], [1.0, None]),
        (VECTOR, [np.zeros(3, np.float32)], [np.zeros(3), np.zeros((1, 3), np.float32), [0.0]]),
        (Annotated[VECTOR, ("sizes", 2, 3)], [np.zeros((2, 3), np.float32)], [np.zeros((3, 2), np.float32)]),
        (NDArray[np.float32], [np.zeros((2, 3), np.float32)], [np.zeros(3), [0.0]]),
        (Annotated[NDArray[Any], ("sizes", 3)], [np.zeros(3), np.zeros(3, np.int8)], [np.zeros(2), None]),
        (Annotated[NDArray[Any], VECTOR], [np.zeros(3, np.float32)], [np.zeros(3)]),
        (Annotated[int, ("sender", "slot")], [2], [0, 2.0, None]),
        (Annotated[int, ("sender", "incarnation")], [3], [2, 4]),
        (Some, [{"b": ""}, {"a": 1, "b": ""}], [{"a": 1}, {"a": "", "b": ""}]),
        (Row, [{"x": 1}, {"x": 1, "more": "x"}], [{}, {"x": "1"}, [1], None]),
        (Partial, [{"b": ""}, {"b": "", "c": 1.0}], [{"c": 1.0}, {"b": "", "c": ""}]),
        (Annotated[Partial, {"b": int}], [{"b": 1}], [{"b": ""}]),
        (Annotated[Partial, ("needs", "a")], [{"a": 1}], [{"b": ""}]),
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
    check = compiled(TypedDict("Item", {"name": str, "rows": list[tuple[int, Row]]}))
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
    check = compiled(TypedDict("Item", {"values": Annotated[VECTOR, ("sizes", ("by", "part", (4, 6)))]}))
    assert (check({"part": part, "values": np.zeros(size, np.float32)}, {}, SENDER) is None) == is_right


@pytest.mark.parametrize(
    ("number", "tokens", "is_right"), [(8, 24, True), (8, 25, False), ((8, 9, 10), 30, True), ((8, 9), 27, True)]
)
def test_a_count_that_follows_from_another(number: Any, tokens: int, is_right: bool) -> None:
    check = compiled(TypedDict("Item", {"steps": int, "tokens": Annotated[int, ("times", "steps", number)]}))
    assert (check({"steps": 3, "tokens": tokens}, {}, SENDER) is None) == is_right


def test_what_firings_attest_is_known_where_it_is_emitted() -> None:
    step, slot = Annotated[int, ("range", 0), "firings"], Annotated[int, ("sender", "slot")]
    schema = Annotated[Span, ("needs", "begin"), {"steps": step, "begin": slot}]
    assert attested(schema) == ("steps",)
    assert attested(Annotated[Row, {"x": Annotated[int, "firings"]}]) == ("x",)
    assert attested(Any) == attested(None) == ()
    assert compiled(schema)({"steps": 10**9, "begin": 2}, {}, SENDER) is None
    assert compiled(schema)({"steps": -1, "begin": 2}, {}, SENDER) is not None


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        (list[bytes], "bytes"),
        ({"a": int}, "'a'"),
        (Literal[1], "1"),
        (Annotated[list[int], ("lenght", 2)], "lenght"),
        (Annotated[int, ("length", 2)], "length"),
        (Annotated[int, "of the learner"], "of the learner"),
        (Annotated[Row, {"y": int}], "y"),
        (Annotated[Row, ("needs", "y")], "y"),
    ],
)
def test_what_is_no_schema_is_refused_at_once(schema: Any, found: str) -> None:
    with pytest.raises(ValueError, match=f"reading a schema: expected .*{found}"):
        compiled(schema)


def test_a_type_that_names_what_its_module_does_not_have_is_refused() -> None:
    class Local(TypedDict):
        x: Unheard  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ValueError, match=r"expected annotations .* in Local, found Unheard"):
        compiled(Local)


def test_bodies_declare_schemas_as_they_are_or_by_their_arguments() -> None:
    class Plain:
        schemas = {"item": int}  # noqa: RUF012

    class Made:
        @staticmethod
        def schemas(count: int, *, kind: Any) -> dict[str, Any]:
            return {"item": Annotated[list[kind], ("length", count)]}

    assert schemas_of(Plain, (), {}) == {"item": int}
    assert schemas_of(Made, (3,), {"kind": str}) == {"item": Annotated[list[str], ("length", 3)]}
    assert schemas_of(len, (), {}) == {}


@pytest.mark.parametrize(("end", "fits"), [(40, True), (41, False), (24, False), (10**9, False), ("40", False)])
def test_a_product_may_begin_at_another_field(end: Any, fits: bool) -> None:
    check = compiled(Annotated[Span, {"end": Annotated[int, ("times", "steps", 8, "begin")]}])
    mismatch = check({"begin": 16, "steps": 3, "end": end}, {}, Member(Replica("learner", 1), 1))
    assert (mismatch is None) is fits
    assert mismatch is None or (mismatch.field, mismatch.expected) == (
        "end",
        "8 times steps, which is 3, beside begin, which is 16",
    )


def test_a_field_of_another_type_is_checked_after_those_that_it_may_name() -> None:
    check = compiled(Annotated[Span, {"begin": Annotated[int, ("times", "steps", 8)]}])
    mismatch = check({"begin": 8, "steps": "1", "end": 9}, {}, SENDER)
    assert mismatch is not None
    assert mismatch.field == "steps"


@pytest.mark.parametrize(("end", "fits"), [(10, True), (11, True), (34, True), (35, False), (9, False), (12.0, False)])
def test_a_count_may_be_anything_up_to_the_product(*, end: Any, fits: bool) -> None:
    check = compiled(Annotated[Span, {"end": Annotated[int, ("at most times", "steps", 8, "begin")]}])
    mismatch = check({"begin": 10, "steps": 3, "end": end}, {}, SENDER)
    assert (mismatch is None) == fits
    assert mismatch is None or "from 0 to 8 times steps" in mismatch.expected
