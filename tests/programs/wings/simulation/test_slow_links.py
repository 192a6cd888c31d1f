"""Universes with a name, about those that are slow, but alive: nobody waits for them, and they are not lost."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.programs.wings.simulation.toy_task import WIDE
from isthmus.runtime.sim.faults import Slow, Throttle
from tests.programs.wings.simulation.scenarios import Witness, assert_exact, survive

WINDOW_BYTES = 64 << 10
"""Two fragments, as the window of a real run is to fragments of a real model."""
RUN: dict[str, Any] = {"steps": 160, "step_ms": 200.0, "task": WIDE, "window_bytes": WINDOW_BYTES}


@pytest.mark.long
@pytest.mark.slow
def test_a_link_is_slower_than_one_fragment_an_interval() -> None:
    """Two fragments of 30 kB are due every 1.6 s, for which this link takes 3.2 s, each way. Whoever is behind it steps
    on and is merged, if less often, memory stays flat, and all is as before as soon as the link carries what is due."""
    witness, begin, end = Witness(), 2.0, 22.0
    slow = Throttle("learner-3", kbits=150.0, seconds=end - begin, at=begin)
    outcome = survive(slow, **RUN, witness=witness, carry=False)
    assert outcome.violation is None
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}
    assert witness.intervals == {8}
    assert witness.steps_between("learner/3#1", begin, end) > 0.9 * (end - begin) / 0.2
    assert len(witness.merges_between("syncer/0#1", begin, end)) > 0.8 * (end - begin) / 0.8
    merges = witness.merges_between("syncer/0#1", begin, end)
    assert sum(3 in merge["voters"] for merge in merges) >= len(merges) // 5
    assert any("late for the round before, and counted here: 1" in merge["reason"] for merge in merges)
    later = witness.merges_between("syncer/0#1", end + 1.0, 1e9)
    assert len(later) > 5
    assert sum(3 in merge["voters"] for merge in later) > 0.7 * len(later)
    for life in ("learner/3#1", "syncer/0#1"):
        early, late = (
            [n for at, who, n in witness.held if who == life and a <= at < b] for a, b in ((2, 12), (12, 22))
        )
        # Beside that a shard keeps the records of its last merges, for a recorder that comes back.
        records = len(witness.merges_between(life, 2.0, end)) if life.startswith("syncer") else 0
        assert max(late) <= max(early) + records + 5
    assert_exact(outcome)


@pytest.mark.long
@pytest.mark.slow
def test_behind_such_a_link_more_is_merged_where_work_is_carried_over() -> None:
    """As by default at this interval: in fewer merges, each of which has more."""
    slow = Throttle("learner-3", kbits=150.0, seconds=20.0, at=2.0)
    shares = []
    for settings in ({"carry": False}, {}):
        outcome = survive(slow, **RUN, **settings)
        assert_exact(outcome)
        accounts = [outcome.status["learners"][slot]["accounts"] for slot in range(4)]
        shares.append([sum(fates[0] for fates in each) / sum(map(sum, each)) for each in accounts])
    overwriting, carrying = shares
    assert carrying[3] > max(0.5, overwriting[3])
    assert min(carrying[:3]) > 0.95 > max(overwriting[:3])


@pytest.mark.long
@pytest.mark.slow
def test_one_learner_is_ten_times_slower_but_alive() -> None:
    """H stays what was asked for, and nobody is waited for; the slow one is merged, too."""
    witness = Witness()
    outcome = survive(Slow("learner/3", 10.0, 100.0, at=0.0), steps=120, interval=24, witness=witness)
    assert outcome.violation is None
    assert "learner/3#2" not in outcome.lives
    assert witness.intervals == {24}
    reports = outcome.status["learners"]
    assert all(reports[slot]["step"] > 4 * reports[3]["step"] and reports[slot]["waited"] == 0 for slot in range(3))
    assert all(account[0] > 0.5 * reports[3]["tokens"] for account in reports[3]["accounts"])
    assert_exact(outcome)
