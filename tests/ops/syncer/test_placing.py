"""When a shard tells a new life of a learner where to begin, and what."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.ops.syncer.schedule import Placing


def reached(fragment: int, *positions: list[int], states: Any = ()) -> Any:
    return {fragment: {"fragment": fragment, "positions": list(positions), "states": list(states)}}


def test_a_life_is_told_the_highest_position_of_any_fragment_once() -> None:
    placing = Placing()
    placing.add_merges(reached(0, [2, 80], [3, 500]))
    placing.add_merges(reached(2, [2, 60]))
    placing.add_learner(2, 2, [])
    (place,) = placing.due([], shard=1, shards=3)
    assert (place["slot"], place["incarnation"], place["position"]) == (2, 2, 80)
    assert (place["shard"], place["shards"], place["state"]) == (1, 3, None)
    placing.add_learner(2, 2, [])
    assert placing.due([]) == []


def test_a_life_waits_for_the_rounds_that_were_open_when_it_was_first_heard_of_and_for_no_others() -> None:
    placing = Placing()
    placing.add_merges(reached(0, [0, 10]))
    placing.add_learner(0, 2, [7, 8])
    assert placing.due([7, 8]) == []
    placing.add_learner(0, 2, [8, 9])
    placing.add_merges(reached(0, [0, 14]))  # The former life's vote was in round 7.
    assert placing.due([8, 9]) == []
    assert [place["position"] for place in placing.due([9])] == [14]


def test_the_first_life_of_a_slot_is_told_nothing_and_a_former_one_no_more() -> None:
    placing = Placing()
    placing.add_learner(0, 1, [])
    assert placing.due([]) == []
    placing.add_learner(1, 2, [5])
    placing.add_learner(1, 4, [6])
    placing.add_learner(1, 3, [])
    assert placing.due([5]) != []  # Of life 4, whose round is over.


def test_a_life_is_told_the_newest_state_of_its_stream() -> None:
    placing, states = Placing(), [np.full(3, value, np.uint8) for value in (1, 2)]
    placing.add_merges(reached(0, [0, 9], states=[[0, 8, states[1]]]))
    placing.add_merges(reached(1, [0, 6], states=[[0, 5, states[0]]]))
    placing.add_learner(0, 2, [])
    (place,) = placing.due([])
    assert (place["position"], place["state_position"]) == (9, 8)
    assert place["state"] is states[1]
