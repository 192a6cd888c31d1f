"""Where a life begins, by what all shards say."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.ops.data.positions import Beginning, beginning


def place(shard: int, position: int, *, shards: int = 2, incarnation: int = 2, state: Any = None, at: int = 0) -> Any:
    return {
        "slot": 1,
        "incarnation": incarnation,
        "shard": shard,
        "shards": shards,
        "position": position,
        "state_position": at,
        "state": state,
    }


def test_a_life_begins_after_the_furthest_of_all_shards_once_all_have_spoken() -> None:
    assert beginning([], 1, 2) is None
    assert beginning([place(0, 5)], 1, 2) is None
    assert beginning([place(0, 5), place(0, 7)], 1, 2) is None  # Two lives of one shard.
    assert beginning([place(0, 5), place(1, 9)], 1, 2) == Beginning(9, 0, None)


def test_what_is_for_another_life_or_slot_is_not_heard() -> None:
    assert beginning([place(0, 5, incarnation=3), place(1, 9)], 1, 2) is None
    assert beginning([place(0, 5), place(1, 9)], 2, 2) is None


def test_the_newest_state_before_the_beginning_is_taken() -> None:
    old, new = np.zeros(1, np.uint8), np.ones(1, np.uint8)
    found = beginning([place(0, 5, state=old, at=3), place(1, 9, state=new, at=8)], 1, 2)
    assert found is not None
    assert (found.position, found.state_position) == (9, 8)
    assert found.state is new
