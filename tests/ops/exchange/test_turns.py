"""The order of turns."""

from __future__ import annotations

from isthmus.ops.exchange.messages import after, boundary, last_merged


def test_turns_go_round_and_say_which_versions_there_will_be() -> None:
    assert [boundary(index, 7, 3) for index in (-1, 0, 1, 2, 5)] == [0, 2, 4, 7, 14]
    assert after([1, 0, 0], 0, 0) == (0, [1, 0, 0])
    assert after([1, 0, 0], 0, 1) == (1, [1, 1, 0])
    assert after([1, 0, 0], 0, 4) == (1, [2, 2, 1])
    assert after([5], 0, 3) == (0, [8])


def test_the_last_that_was_merged_has_the_furthest_batches() -> None:
    assert last_merged({}, 3) == 2  # Nothing is merged: the first is next.
    assert last_merged({0: [[0, 6], [1, 6]], 1: [[0, 2], [1, 2]], 2: [[0, 4], [1, 4]]}, 3) == 0
    assert last_merged({0: [[0, 6]], 1: [[0, 8], [1, 3]]}, 3) == 1
