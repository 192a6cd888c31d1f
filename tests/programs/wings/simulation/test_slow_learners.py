"""Whole runs in virtual time whose learners are of unlike speeds: slow ones count by themselves, others are as ever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from isthmus import Program
from isthmus.programs.wings.simulation.pytest_plugin import WorldResult, Worlds
from isthmus.runtime.sim.faults import Slow
from tests.programs.family import ADAM, recorded

OFF = {"carry": False, "steps_by_speed": False}


def trained(world: Worlds, speeds: Sequence[float], steps: int = 160, *, faults: Any = (), **settings: Any) -> Any:
    """The result of a run in 8 fragments, H = 24."""
    program = Program("decoupled-diloco", fragments=8, interval=24, outer_lr=0.7, outer_momentum=0.3, **settings)
    return world.run(program, task=ADAM, learners=len(speeds), steps=steps, speeds=speeds, faults=faults)


def merged_share(result: WorldResult, slot: int) -> float:
    """The share of a learner's tokens that is merged."""
    accounts = result.status["learners"][slot]["accounts"]
    return sum(account[0] for account in accounts) / sum(map(sum, accounts))


def changed(result: WorldResult) -> list[tuple[int, str]]:
    """Whose pace changed, and why."""
    return [(row["slot"], row["reason"]) for row in result.status["changes"]["last"] if row["setting"] == "pace"]


@pytest.mark.further
@pytest.mark.slow
@pytest.mark.parametrize(
    ("speeds", "slow"),
    [((1.0, 1.0, 1.0, 0.1), [3]), pytest.param((1.0, 1.0, 0.5, 0.25), [2, 3], marks=pytest.mark.long)],
)
def test_the_work_of_slow_learners_is_merged(world: Worlds, speeds: Sequence[float], slow: list[int]) -> None:
    by_default, off = trained(world, speeds), trained(world, speeds, **OFF)
    assert changed(by_default) == [(slot, "slow steps") for slot in slow]
    assert changed(off) == []
    assert by_default.summary["merged_share"] > off.summary["merged_share"]
    assert by_default.summary["contributors_mean"] > off.summary["contributors_mean"]
    for slot in slow:
        # The rest it trained before it was known to be slow.
        assert merged_share(by_default, slot) > max(0.95, merged_share(off, slot) + 0.08)
    assert by_default.waits == 0


@pytest.mark.long
@pytest.mark.slow
def test_a_learner_that_is_faster_than_all_others_makes_none_of_them_slow(world: Worlds) -> None:
    runs = []
    for settings in ({}, OFF):
        with recorded() as record:
            result = trained(world, (10.0, 1.0, 1.0, 1.0), **settings)
        runs.append((record.updates, record.answers, result.summary["merged_share"]))
        assert changed(result) == []
    assert runs[0] == runs[1]


@pytest.mark.long
@pytest.mark.slow
def test_learners_of_like_speeds_answer_as_they_do_without_any_of_it(world: Worlds) -> None:
    runs = []
    for settings in ({}, OFF):
        with recorded() as record:
            trained(world, (1.0, 0.9, 0.7, 0.6), **settings)
        runs.append((record.updates, record.answers))
    assert len(runs[0][0][0]) > 3
    assert runs[0] == runs[1]


@pytest.mark.long
@pytest.mark.slow
def test_a_machine_that_slows_down_in_the_midst_is_slow_from_then_on_and_while_it_lasts(world: Worlds) -> None:
    slow = Slow(host="learner/3", factor=10.0, at=2.0, seconds=1.5)
    result = trained(world, (1.0,) * 4, 500, faults=[slow])
    assert changed(result) == [(3, "slow steps"), (3, "usual steps")]
    times = [row["time"] for row in result.status["changes"]["last"]]
    assert 1.0 < times[0] < 2.5 < times[1]
