"""Universes in which the machine of a learner lies: it costs itself, and the others train and merge to the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.programs.wings.simulation.searches import lying, run_lying
from isthmus.programs.wings.simulation.universe import Outcome, outcome_of
from isthmus.runtime.ids import Party
from isthmus.runtime.sim.faults import KillDaemon, Lie
from isthmus.runtime.sim.lies import ANY, VALUES
from isthmus.runtime.sim.universe import HOME
from isthmus.runtime.supervision.parties import Parties
from tests.effort import long, seeds, soaked

pytestmark = pytest.mark.slow


def outcome(claim: str, value: Any = 0, *more: Any, seed: int = 7, **changed: Any) -> Outcome:
    """The outcome of a run in which the machine of learner 0 lies from the beginning."""
    faults = (Lie("learner-0", claim, VALUES.index(value), 30.0, at=0.0), *more)
    done = outcome_of(replace(lying(seed), faults=faults, storms=(), **changed))
    assert done.faults["lie"] == 1
    return done


@pytest.mark.parametrize(
    ("claim", "value"),
    [
        ("end", 0),
        long("refusals", 0),
        soaked("stamp", 0),
        soaked("quick steps", 0),
        soaked("failures", 0),
        soaked("ends of others", 0),
        long("report.lives.heartbeat.endpoints", ["x"]),
        long("report.obeyed.epoch", (1 << 64) - 1),
        long("report.lives.heartbeat.busy", -1),
        (ANY, 0),
    ],
)
def test_a_machine_that_lies_ends_neither_the_run_nor_a_life_of_another(claim: str, value: Any) -> None:
    """Each of these ended the run, a life elsewhere, or the daemon, before reports were bounded."""
    done = outcome(claim, value)
    assert done.violation is None, done.violation
    assert done.outcome == "done"


@pytest.mark.long
@pytest.mark.parametrize("claim", ["lives", soaked("next lives")])
def test_after_a_lost_ledger_a_machine_has_the_lives_that_it_may_have_and_no_others(claim: str) -> None:
    dies = KillDaemon(HOME, 1.0, loses_ledger=True, at_step=4)
    done = outcome(claim, 0, dies, steps=40, step_ms=400.0)
    assert (done.violation, done.faults["lost ledger"]) == (None, 1)


@pytest.mark.long
def test_seeds_of_lies_lose_no_token_of_the_others() -> None:
    for seed in seeds(100, least=6):
        done = outcome_of(lying(seed))
        assert done.violation is None, (seed, done.violation)


@pytest.mark.further
@pytest.mark.slow
def test_a_liar_may_accuse_in_the_name_of_a_host_that_has_not_begun() -> None:
    assert run_lying(8).violation is None


@pytest.mark.long
def test_machines_that_count_one_by_one_would_be_believed_in_their_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machines of one invitation accuse others together; `isthmus simulate world --liars` finds it at once."""
    monkeypatch.setattr(Parties, "of", lambda self, machine: Party(machine))
    told = run_lying(0).violation
    assert told is not None
    assert "Misbehaved" in told
