"""Items: their sizes and digests, that they are frozen, and the fields that cores see."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given

from isthmus.runtime import codec
from isthmus.runtime.errors import LocalProtocolError

ITEM = {"b": [np.ones((2, 3), np.float32), (1.5, "x")], "a": {"c": np.arange(4, dtype=np.int8)}, "d": None}


class Foreign:
    """An array that is not NumPy's."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return self.array


class Named:
    """What is no tree, no scalar and no array is told apart by its words."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"Named({self.name})"


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


def test_the_size_is_that_of_the_arrays_and_of_the_structure() -> None:
    assert codec.seal({}).size_bytes == 1
    assert codec.seal([1, "text", None, 2.5]).size_bytes == 1 + 1 + 5 + 1 + 9
    for array in (np.zeros(1000, np.float32), Foreign(np.zeros((10, 100), np.float32))):
        assert 4000 < codec.seal(array).size_bytes < 4032
        assert 8000 < codec.seal({"a": [array], "b": (array,)}).size_bytes < 8064
    assert 4 < codec.seal(np.float32(1)).size_bytes < 32


def test_nesting_is_bounded() -> None:
    codec.freeze(deep(codec.DEPTH_MAX))
    with pytest.raises(ValueError, match="an item is nested deeper than 32 levels"):
        codec.freeze(deep(codec.DEPTH_MAX + 1))
    table: Any = 1
    for _ in range(codec.DEPTH_MAX):
        table = {"a": table}
    codec.freeze(table)
    with pytest.raises(ValueError, match="an item is nested deeper than 32 levels"):
        codec.freeze({"a": table})


@pytest.mark.parametrize("function", [codec.freeze, codec.seal])
def test_an_item_without_an_end_is_refused(function: Any) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match=r"deeper|recursion limit"):
        function(cycle)


@pytest.mark.parametrize("function", [codec.freeze, codec.seal])
def test_every_array_becomes_read_only_and_nothing_else(function: Any) -> None:
    item = {"a": [np.zeros(3)], "b": (np.zeros((2, 2)).T, "x", 1), "c": Foreign(np.zeros(2))}
    function(item)
    for array in (item["a"][0], item["b"][0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    function(item)
    item["a"].append(2)


DIFFERENT = [
    {},
    [],
    None,
    0,
    False,
    0.0,
    -0.0,
    "",
    "0",
    [0],
    [[]],
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 2},
    {"b": 1, "a": 2},
    {"a": {"b": 1}},
    [12, 3],
    [1, 23],
    [1, 2, 3],
    [[1, 2], 3],
    [1, [2, 3]],
    ["a;", "b"],
    ["a", ";b"],
    np.zeros(2, np.float32),
    np.zeros((1, 2), np.float32),
    np.zeros(1, np.float64),
    np.zeros(2, np.int32),
    np.array(0, np.float32),
    np.zeros(1, np.float32),
    np.zeros((0, 3), np.float32),
    np.zeros((3, 0), np.float32),
    np.arange(6).reshape(2, 3),
    np.arange(6).reshape(3, 2).T,
    np.zeros(2, ml_dtypes.bfloat16),
    np.zeros(2, np.float16),
    b"",
    b"0",
    (1 << 64) - 1,
    1 << 64,
    -(1 << 63),
    -(1 << 63) - 1,
    Named("a"),
    Named("b"),
]


def test_items_that_differ_have_different_digests() -> None:
    digests = {codec.seal(item).digest for item in DIFFERENT}
    assert len(digests) == len(DIFFERENT)
    assert all(0 <= digest < 1 << 64 for digest in digests)


def test_items_that_are_alike_have_the_same_digest() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    rows = array[::2]
    assert codec.seal(rows).digest == codec.seal(np.ascontiguousarray(rows)).digest == codec.seal(rows.copy("F")).digest
    assert codec.seal(rows).digest == codec.seal(Foreign(rows)).digest
    assert codec.seal((1, 2)).digest == codec.seal([1, 2]).digest
    assert codec.seal(MappingProxyType({"a": 1})).digest == codec.seal({"a": 1}).digest


def test_the_digest_is_what_it_was() -> None:
    item = {"round": 3, "data": np.arange(5, dtype=np.float32), "list": [1, "x", None, 2.5]}
    assert codec.seal(item).digest == 5214307853289608724


@given(st.binary(min_size=1, max_size=40), st.data())
def test_a_bit_that_changes_changes_the_digest(data: bytes, draw: st.DataObject) -> None:
    array = np.frombuffer(data, np.uint8)
    changed = array.copy()
    changed[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    assert codec.seal({"a": array}).digest != codec.seal({"a": changed}).digest


# -- fields ------------------------------------------------------------------------------------------------------------


def test_fields_are_those_of_an_item_that_is_a_dict() -> None:
    item: Mapping[str, Any] = {"round": 3, "members": [[0, 1], (1, 2)], "data": np.zeros(3), "grace": None, "why": "x"}
    assert codec.fields(item, ("round", "members", "grace", "attempt")) == {
        "round": 3,
        "members": [[0, 1], (1, 2)],
        "grace": None,
    }
    for other in (np.zeros(3), [1], 1, None, "round"):
        assert codec.fields(other, ("round",)) == {}


@pytest.mark.parametrize("value", [np.int64(3), True, 0.5, {"a": 1}, [[np.int32(1)]], 1 << 63, -(1 << 63) - 1, b"x"])
def test_fields_are_plain(value: Any) -> None:
    with pytest.raises(LocalProtocolError, match="an item's field 'round', which cores read: expected integers, texts"):
        codec.fields({"round": value}, ("round",))


def test_the_bounds_of_a_field() -> None:
    most = {"a": (1 << 63) - 1, "b": -(1 << 63)}
    assert codec.fields(most, ("a", "b")) == most
