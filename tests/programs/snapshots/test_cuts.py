"""Cuts: at which version, when whole, and when given up."""

from __future__ import annotations

from typing import Any

from isthmus.programs.snapshots.cuts import AHEAD, AHEAD_MAX, PATIENCE_NS, Cuts


def state(count: int) -> Any:
    return {"fragment": 0, "version": [1, count]}


def own(slot: int, life: int, count: int) -> Any:
    return {"slot": slot, "incarnation": life, "count": count}


def test_a_cut_is_whole_once_all_that_live_have_sent_theirs_of_its_version() -> None:
    cuts, living = Cuts(), {(0, 1), (1, 2)}
    assert cuts.want(3) == 3 + AHEAD
    cuts.hear([state(4)], [own(0, 1, 4), own(0, 1, 5), own(1, 1, 5)])
    assert cuts.whole(living) is None  # The model is of another version, and slot 1 has a later life.
    cuts.hear([state(5)], [own(1, 2, 5)])
    assert cuts.whole(set()) is None
    assert cuts.whole(living) == (state(5), {0: own(0, 1, 5), 1: own(1, 2, 5)})
    assert not cuts.is_under_way


def test_one_that_does_not_come_is_given_up_and_the_next_is_further_ahead() -> None:
    cuts, ahead = Cuts(), [AHEAD]
    for _ in range(8):
        count = cuts.want(10)
        assert count == 10 + ahead[-1]
        assert not cuts.is_given_up(count - 1, PATIENCE_NS)
        assert not cuts.is_given_up(count, PATIENCE_NS)  # From the version on it may take some time.
        assert not cuts.is_given_up(count + 9, 2 * PATIENCE_NS - 1)
        assert cuts.is_given_up(count + 9, 2 * PATIENCE_NS)
        ahead.append(min(2 * ahead[-1], AHEAD_MAX))
    cuts.hear([state(10 + cuts.want(0))], [])
    assert cuts.want(10) == 10 + AHEAD_MAX
    cuts.hear([state(10 + AHEAD_MAX)], [own(0, 1, 10 + AHEAD_MAX)])
    assert cuts.whole({(0, 1)}) is not None
    assert cuts.want(10) == 10 + AHEAD
