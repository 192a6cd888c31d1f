"""Items: their leaves, sizes, digests, and the fields that cores see."""

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


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


def test_leaves_come_in_order_of_insertion() -> None:
    found = [leaf if not codec.is_array(leaf) else leaf.shape for leaf in codec.leaves(ITEM)]
    assert found == [(2, 3), 1.5, "x", (4,), None]
    assert list(codec.leaves(MappingProxyType({"a": 1}))) == [1]
    assert list(codec.leaves("text")) == ["text"]


def test_the_size_is_that_of_the_arrays_and_eight_bytes_for_anything_else() -> None:
    assert codec.size_bytes(ITEM) == 24 + 8 + 8 + 4 + 8
    assert codec.size_bytes(np.float32(1)) == 4
    assert codec.size_bytes({}) == 0


@pytest.mark.parametrize("function", [codec.size_bytes, codec.freeze, codec.digest])
def test_nesting_is_bounded(function: Any) -> None:
    function(deep(codec.DEPTH_MAX))
    with pytest.raises(ValueError, match="an item is nested deeper than 32 levels"):
        function(deep(codec.DEPTH_MAX + 1))
    table: Any = 1
    for _ in range(codec.DEPTH_MAX):
        table = {"a": table}
    function(table)
    with pytest.raises(ValueError, match="an item is nested deeper than 32 levels"):
        function({"a": table})
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="deeper"):
        function(cycle)


def test_freezing_makes_every_array_read_only_and_nothing_else() -> None:
    item = {"a": [np.zeros(3)], "b": (np.zeros((2, 2)).T, "x", 1), "c": Foreign(np.zeros(2))}
    codec.freeze(item)
    for array in (item["a"][0], item["b"][0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    codec.freeze(item)
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
]


def test_items_that_differ_have_different_digests() -> None:
    digests = {codec.digest(item) for item in DIFFERENT}
    assert len(digests) == len(DIFFERENT)
    assert all(0 <= digest < 1 << 64 for digest in digests)


def test_items_that_are_alike_have_the_same_digest() -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    rows = array[::2]
    assert codec.digest(rows) == codec.digest(np.ascontiguousarray(rows)) == codec.digest(rows.copy("F"))
    assert codec.digest(rows) == codec.digest(Foreign(rows))
    assert codec.digest((1, 2)) == codec.digest([1, 2])
    assert codec.digest(MappingProxyType({"a": 1})) == codec.digest({"a": 1})


def test_the_digest_is_what_it_was() -> None:
    item = {"round": 3, "data": np.arange(5, dtype=np.float32), "list": [1, "x", None, 2.5]}
    assert codec.digest(item) == 13935555507076725698


@given(st.binary(min_size=1, max_size=40), st.data())
def test_a_bit_that_changes_changes_the_digest(data: bytes, draw: st.DataObject) -> None:
    array = np.frombuffer(data, np.uint8)
    changed = array.copy()
    changed[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    assert codec.digest({"a": array}) != codec.digest({"a": changed})


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
