"""Cuts: after which turn, when whole, and when given up."""

from __future__ import annotations

from typing import Any

from isthmus.programs.engine.snapshots.holds import AHEAD, AHEAD_MAX, PATIENCE_NS, Cuts


def state(fragment: int, count: int, epoch: int = 1) -> Any:
    return {"fragment": fragment, "version": [epoch, count]}


def own(slot: int, life: int, *counts: int, epoch: int = 1) -> Any:
    return {"slot": slot, "incarnation": life, "standings": [[epoch, count, None, []] for count in counts]}


def test_a_cut_is_whole_once_all_that_live_have_sent_theirs_of_its_versions() -> None:
    cuts, living = Cuts(), {(0, 1), (1, 2)}
    assert AHEAD == 2
    assert cuts.want([4, 3, 3], 0) == {"fragment": 2, "counts": [4, 4, 4]}
    cuts.add([state(0, 4), state(1, 4), state(2, 3)], [own(0, 1, 4, 4, 3), own(0, 1, 4, 4, 4), own(1, 1, 4, 4, 4)])
    assert cuts.whole(living) is None  # A fragment is of another version, and slot 1 has a later life.
    cuts.add([state(2, 4)], [own(1, 2, 4, 4, 4, epoch=2)])
    assert cuts.whole(living) is None  # It answered to a shard that died before it merged that.
    cuts.add([], [own(1, 2, 4, 4, 4)])
    assert cuts.whole(set()) is None
    whole = {p: state(p, 4) for p in range(3)}, {0: own(0, 1, 4, 4, 4), 1: own(1, 2, 4, 4, 4)}
    assert cuts.whole(living) == whole
    assert not cuts.is_under_way


def test_one_that_does_not_come_is_given_up_and_the_next_is_further_ahead() -> None:
    cuts, ahead = Cuts(), [AHEAD]
    for _ in range(8):
        count = cuts.want([10], 0)["counts"][0]
        assert count == 10 + ahead[-1]
        assert not cuts.is_given_up([count - 1], PATIENCE_NS)
        assert not cuts.is_given_up([count], PATIENCE_NS)  # From the version on it may take some time.
        assert not cuts.is_given_up([count + 9], 2 * PATIENCE_NS - 1)
        assert cuts.is_given_up([count + 9], 2 * PATIENCE_NS)
        ahead.append(min(2 * ahead[-1], AHEAD_MAX))
    wanted = cuts.want([0], 0)["counts"][0]
    assert wanted == AHEAD_MAX
    cuts.add([state(0, wanted)], [own(0, 1, wanted)])
    assert cuts.whole({(0, 1)}) is not None
    assert cuts.want([10], 0)["counts"] == [10 + AHEAD]
