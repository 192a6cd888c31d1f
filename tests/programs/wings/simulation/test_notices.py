"""Machines that are told to leave, the home among them: they give what they have, come back, and the run goes on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.programs.wings.simulation import searches
from isthmus.programs.wings.simulation.places import machine_of
from isthmus.programs.wings.simulation.seeds import shape_of
from isthmus.programs.wings.simulation.universe import outcome_of
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Fault, Pause, PreemptionNotice
from isthmus.runtime.sim.universe import HOME, Universe
from isthmus.runtime.supervision.incidents import Departed, Ended, Exited, Happened, HomeSetAside, MachineTaken
from tests.effort import soaked

LEARNER = Replica("learner", 0)
LEAVES = machine_of(LEARNER)


class Left(Checker):
    """Objects to nothing. How lives ended, in order, and whether the home was set aside."""

    def __init__(self) -> None:
        self.ends: list[tuple[str, object]] = []
        self.is_set_aside = False
        self.seconds: dict[str, float] = {}
        self.noticed = 0.0

    def polled(self, universe: Universe) -> None:
        story = [at for at, fault in universe.injector.story if "PreemptionNotice" in fault]
        self.noticed = story[0] / 1e9 if story else 0.0

    def happened(self, universe: Universe, happened: Happened) -> None:
        if isinstance(happened.incident, Ended):
            self.ends.append((str(happened.member), happened.incident.end))
            self.seconds[str(happened.member)] = universe.clock.now() / 1e9
        self.is_set_aside |= isinstance(happened.incident, HomeSetAside)


def left(*faults: Fault) -> Left:
    """What a run with these faults alone comes to, which is done without a violation."""
    seen = Left()
    outcome = outcome_of(replace(shape_of(7), faults=faults, storms=()), seen)
    assert outcome.violation is None, outcome.violation
    return seen


def test_a_learner_that_is_told_to_leave_exits_by_itself_and_returns_to_its_slot() -> None:
    seen = left(PreemptionNotice(LEAVES, 14.0, 20.0, at_step=8))
    assert seen.ends[0] == (f"{LEARNER}#1", Departed(LEAVES, Exited(0)))
    assert not seen.is_set_aside


def test_a_home_that_is_told_to_leave_ends_with_its_hosts_and_goes_on_with_the_next_daemon() -> None:
    seen = left(PreemptionNotice(HOME, 14.0, 20.0, at_step=8))
    assert seen.is_set_aside
    assert ("recorder/0#1", Departed("", Exited(0))) in seen.ends
    assert not any(isinstance(end, MachineTaken) for _, end in seen.ends)


def test_one_that_is_killed_before_it_has_left_is_as_one_that_was_killed() -> None:
    left(PreemptionNotice(LEAVES, 14.0, 0.02, at_step=8), PreemptionNotice(HOME, 14.0, 0.02, at_step=16))


def test_one_that_does_not_answer_is_ended_within_the_grace() -> None:
    seen = left(Pause(str(LEARNER), 30.0, at=2.4), PreemptionNotice(LEAVES, 1.0, 25.0, at=2.6))
    ends = [(who, end) for who, end in seen.ends if who == f"{LEARNER}#1"]
    assert ends == [(f"{LEARNER}#1", Exited(signal="SIGKILL"))]
    assert 0 < seen.seconds[f"{LEARNER}#1"] - seen.noticed < 1.2


@pytest.mark.slow
def test_a_run_that_is_to_stop_waits_for_machines_that_come_back_where_the_last_learner_forges() -> None:
    """Before a first version: without them no learner could give one, and the forger was the last of its role."""
    assert searches.run_noticed(913009).violation is None


@pytest.mark.long
def test_checkers_hear_what_the_daemon_of_the_home_records_by_itself() -> None:
    """Of a learner that is alone, because the other one's machine is told to leave, no share is bounded."""
    assert searches.run_noticed(7016).violation is None


@pytest.mark.further
@pytest.mark.parametrize("seeds", [range(6), soaked(range(6, 200))], ids=str)
def test_notices_of_seeds_break_nothing(seeds: range) -> None:
    for seed in seeds:
        outcome = searches.run_noticed(seed)
        assert outcome.violation is None, (seed, outcome.violation)
