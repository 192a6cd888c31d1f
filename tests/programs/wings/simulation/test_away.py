"""Universes with a name, about learners whose users' code keeps them from their next step: nobody waits for them, no
host of theirs is ended, and what they answer when they are back counts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from isthmus.programs.wings.simulation.universe import Outcome
from isthmus.runtime.sim.faults import Away, Kill
from tests.programs.wings.simulation.scenarios import Witness, assert_exact, survive
from tests.programs.wings.simulation.test_mute import Chronicle


class Watched(Witness):
    """Objects to nothing; `told` is what homes wrote down, and how they called each host."""

    def __init__(self) -> None:
        super().__init__()
        self.told = Chronicle()

    def happened(self, universe: Any, happened: Any) -> None:
        self.told.happened(universe, happened)

    def polled(self, universe: Any) -> None:
        super().polled(universe)
        self.told.polled(universe)


@cache
def one_is_away(*, is_idle: bool) -> tuple[Outcome, Watched]:
    """What comes of a run of which learner 1 is away for half a minute, and what was seen of it."""
    watched = Watched()
    away = Away("learner/1", seconds=30.0, is_idle=is_idle, at=4.0)
    return survive(away, learners=3, steps=150, step_ms=400.0, late=30.0, witness=watched), watched


@pytest.mark.further
@pytest.mark.slow
def test_nobody_waits_for_a_learner_that_is_away_and_it_is_not_ended() -> None:
    outcome, watched = one_is_away(is_idle=False)
    assert outcome.violation is None, outcome.violation
    assert outcome.outcome == "done"
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}
    before, meanwhile = (watched.steps_between("learner/0#1", *span) for span in ((2.0, 12.0), (20.0, 30.0)))
    assert meanwhile >= 0.95 * before > 0
    assert watched.steps_between("learner/1#1", 6.0, 33.0) <= 1
    assert_exact(outcome)


@pytest.mark.further
@pytest.mark.slow
@pytest.mark.parametrize("is_idle", [False, True])
def test_the_home_tells_that_it_is_away_and_that_it_is_back(is_idle: bool) -> None:
    outcome, watched = one_is_away(is_idle=is_idle)
    seen = watched.told
    assert outcome.violation is None, outcome.violation
    assert ("learner/1", "away") in seen.states
    assert {state for life, state in seen.states if life == "learner/0"} & {"away", "slow"} == set()
    assert [life for _, life, incident in seen.lines if type(incident).__name__ == "WasAway"] == ["learner/1#1"]


@pytest.mark.further
@pytest.mark.slow
def test_a_learner_that_dies_while_it_is_away_begins_anew() -> None:
    faults = Away("learner/1", seconds=30.0, at=4.0), Kill("learner/1", at=14.0)
    outcome = survive(*faults, learners=3, steps=150, step_ms=400.0, late=30.0)
    assert outcome.violation is None, outcome.violation
    assert outcome.outcome == "done"
    assert "learner/1#2" in outcome.lives
    assert_exact(outcome)
