"""Items: that they are frozen, and the fields that cores see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.items import layout
from isthmus.runtime.items.encoding import encode


def deep(levels: int) -> Any:
    return [deep(levels - 1)] if levels else 1


def test_nesting_is_bounded() -> None:
    layout.freeze(deep(layout.DEPTH_MAX))
    with pytest.raises(ValueError, match="an item is nested deeper than 32 levels"):
        layout.freeze(deep(layout.DEPTH_MAX + 1))
    table: Any = 1
    for _ in range(layout.DEPTH_MAX):
        table = {"a": table}
    layout.freeze(table)
    with pytest.raises(ValueError, match="an item is nested deeper than 32 levels"):
        layout.freeze({"a": table})


def test_an_item_without_an_end_is_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(ValueError, match="deeper"):
        layout.freeze(cycle)


@pytest.mark.parametrize("function", [layout.freeze, encode])
def test_every_array_becomes_read_only_and_nothing_else(function: Any) -> None:
    item = {"a": [np.zeros(3)], "b": (np.zeros((2, 2)).T, "x", 1), "c": {"d": np.float32(1)}}
    function(item)
    for array in (item["a"][0], item["b"][0]):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    function(item)
    item["a"].append(2)


# -- fields ------------------------------------------------------------------------------------------------------------


def test_fields_are_those_of_an_item_that_is_a_dict() -> None:
    item: Mapping[str, Any] = {"round": 3, "members": [[0, 1], (1, 2)], "data": np.zeros(3), "grace": None, "why": "x"}
    assert layout.fields(item, ("round", "members", "grace", "attempt")) == {
        "round": 3,
        "members": [[0, 1], [1, 2]],
        "grace": None,
    }
    for other in (np.zeros(3), [1], 1, None, "round"):
        assert layout.fields(other, ("round",)) == {}


@pytest.mark.parametrize("value", [np.int64(3), True, 0.5, {"a": 1}, [[np.int32(1)]], 1 << 63, -(1 << 63) - 1, b"x"])
def test_fields_are_plain(value: Any) -> None:
    with pytest.raises(LocalProtocolError, match="an item's field 'round', which cores read: expected integers, texts"):
        layout.fields({"round": value}, ("round",))


def test_the_bounds_of_a_field() -> None:
    most = {"a": (1 << 63) - 1, "b": -(1 << 63)}
    assert layout.fields(most, ("a", "b")) == most
