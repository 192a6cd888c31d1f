"""Universes with a name, about networks that let only daemons speak to each other: heartbeats come, and no data."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Kill, Mute, RefuseStarts
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.incidents import (
    Condemned,
    CutOff,
    Ended,
    Happened,
    Incident,
    NotStarted,
    Reached,
    Unreached,
    Unserved,
)
from tests.programs.wings.simulation.scenarios import assert_exact, survive

FOREVER = 10_000.0


class Chronicle(Checker):
    """Objects to nothing; `lines` has (seconds, member, incident) of all that homes wrote down, `states` how the home
    called each host."""

    def __init__(self) -> None:
        self.lines: list[tuple[float, str, Incident]] = []
        self.states: set[tuple[str, str]] = set()
        self.failures: list[Any] = []

    def happened(self, universe: Universe, happened: Happened) -> None:
        self.lines.append((happened.at / 1e9, str(happened.member), happened.incident))

    def finished(self, universe: Universe, home: Home) -> None:
        if home.failure is not None:
            self.failures.append(home.failure)

    def polled(self, universe: Universe) -> None:
        for daemon in universe.daemons:
            if daemon.home is not None and not daemon.clock.is_dead:
                self.states |= {(str(each), daemon.home.state(each)) for each in daemon.home.lives}

    def of(self, kind: type[Incident], life: str = "") -> list[tuple[float, str, Incident]]:
        """What was written down of this kind, of a life or of any."""
        return [each for each in self.lines if isinstance(each[2], kind) and life in ("", each[1])]


@pytest.mark.further
@pytest.mark.slow
def test_a_learner_that_only_its_daemon_hears_is_told_replaced_and_keeps_no_round_open() -> None:
    seen = Chronicle()
    outcome = survive(Mute("learner-1", FOREVER, at=2.0), learners=3, steps=60, step_ms=400.0, late=60.0, witness=seen)
    assert outcome.violation is None
    assert outcome.outcome == "done"
    assert ("learner/1", "cut off") in seen.states
    assert {life for _, life, _ in seen.of(CutOff)} <= {"learner/1#1", "learner/1#2", "learner/1#3"}
    [(at, _, incident)] = seen.of(Condemned, "learner/1#1")
    assert isinstance(incident, Condemned)
    assert isinstance(incident.verdict, Unreached)
    assert 20.0 < at - 2.0 < 30.0
    assert "learner/1#2" in outcome.lives
    assert_exact(outcome)


@pytest.mark.slow
def test_final_rounds_wait_only_briefly_for_a_learner_whose_data_does_not_come() -> None:
    seen = Chronicle()
    outcome = survive(Mute("learner-1", FOREVER, at=4.0), learners=3, steps=60, late=60.0, witness=seen)
    assert outcome.violation is None
    assert outcome.outcome == "done"
    assert [life for _, life, _ in seen.of(Condemned)] == ["learner/1#1"]
    assert outcome.seconds < 20.0


@pytest.mark.long
@pytest.mark.slow
def test_who_is_reached_again_goes_on() -> None:
    seen = Chronicle()
    outcome = survive(Mute("syncer-0", 15.0, at=2.0), learners=3, steps=60, step_ms=400.0, late=20.0, witness=seen)
    assert outcome.violation is None
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}
    assert [life for _, life, _ in seen.of(CutOff)] == [life for _, life, _ in seen.of(Reached)] == ["syncer/0#1"]
    assert seen.of(Condemned) == seen.of(Ended) == []


@pytest.mark.long
@pytest.mark.slow
def test_where_half_of_all_hosts_hear_none_no_host_is_at_fault() -> None:
    seen = Chronicle()
    walls = [Mute(f"learner-{slot}", 60.0, at=2.0) for slot in range(3)]
    outcome = survive(*walls, learners=3, steps=60, step_ms=400.0, late=60.0, witness=seen)
    assert outcome.violation is None
    assert seen.of(CutOff) == seen.of(Condemned) == []


@pytest.mark.long
@pytest.mark.slow
def test_a_home_that_hears_no_other_host_fails_once_nobody_trains_any_more() -> None:
    seen = Chronicle()
    outcome = survive(Mute("home", FOREVER, at=2.0), learners=3, steps=60, late=100.0, witness=seen)
    assert outcome.violation is None, outcome.violation
    assert outcome.outcome == "failed"
    assert [failure for failure in seen.failures if isinstance(failure, Unserved)] == seen.failures != []
    assert {failure.host for failure in seen.failures} == {"recorder/0"}
    assert 60.0 < outcome.seconds < 100.0


@pytest.mark.long
@pytest.mark.slow
def test_a_home_that_has_no_room_for_a_recorder_fails_once_nobody_trains_any_more() -> None:
    seen = Chronicle()
    faults = *(RefuseStarts("home", at=1.5) for _ in range(9)), Kill("recorder/0", at=2.0)  # One each eight seconds.
    outcome = survive(*faults, learners=3, steps=60, late=100.0, witness=seen)
    assert outcome.violation is None, outcome.violation
    assert outcome.outcome == "failed"
    [failure] = seen.failures
    assert isinstance(failure, Unserved)
    assert isinstance(failure.why, Ended)
    assert isinstance(failure.why.end, NotStarted)
    assert outcome.seconds < 100.0
