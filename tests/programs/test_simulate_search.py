"""The search itself: what goes wrong in it is told with the seed, and never ends it."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from isthmus.programs.command import coverage, spread
from isthmus.programs.program import DEFAULT
from isthmus.programs.simulate import run, shape_of
from isthmus.programs.universes import Outcome, outcome_of
from isthmus.runtime.ids import Member
from isthmus.runtime.lowering import EdgePlan
from isthmus.runtime.sim import Checker, Kill, Universe
from isthmus.runtime.sim.life import Life


class _Mistaken(Checker):
    """A checker with a slip of its own."""

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        raise KeyError("nothing of this name")


class _LateMistake(Checker):
    def ended(self, universe: Universe) -> None:
        raise TypeError("a number was expected")


@pytest.mark.parametrize(("checker", "kind"), [(_Mistaken(), "KeyError"), (_LateMistake(), "TypeError")])
def test_what_a_checker_raises_by_mistake_is_a_violation_with_its_place(checker: Checker, kind: str) -> None:
    outcome = outcome_of(shape_of(0), checker)
    assert outcome.violation is not None
    first, *where = outcome.violation.splitlines()
    assert first.startswith(f"{kind}: ")
    assert re.search(r"test_simulate_search\.py\", line \d+, in (sent|ended)", "\n".join(where))
    assert len(where) <= 6


def test_what_is_raised_before_a_universe_begins_is_a_violation_too() -> None:
    outcome = outcome_of(replace(shape_of(0), faults=(Kill("learner/9", at=1.0),)))
    assert outcome.violation is not None
    assert "'learner/9'" in outcome.violation


def test_a_fault_that_never_happened_is_told() -> None:
    outcome = outcome_of(replace(shape_of(0), faults=(Kill("learner/0", at_step=100_000),)))
    assert outcome.violation is None
    assert [missed.partition("(")[0] for missed in outcome.missed] == ["Kill"]


def _die_at_five(seed: int) -> Outcome:
    if seed == 5:
        os._exit(3)
    return Outcome(seed, None)


def test_a_process_that_dies_is_told_with_its_seed_and_the_others_go_on() -> None:
    outcomes = sorted(spread.outcomes(_die_at_five, range(3, 12), apart_min=1), key=lambda outcome: outcome.seed)
    assert [outcome.seed for outcome in outcomes] == list(range(3, 12))
    assert [outcome.seed for outcome in outcomes if outcome.violation is not None] == [5]
    assert "died" in str(outcomes[2].violation)


def test_what_happened_too_rarely_is_told() -> None:
    phases = Counter({(kind, phase): 20 for kind in coverage.kinds_of(DEFAULT) for phase in coverage.PHASES})
    assert coverage.rare(phases, DEFAULT, 20) == []
    phases["reset", "final"] = 19
    assert coverage.rare(phases, DEFAULT, 20) == ["reset in phase final: 19 times, at least 20 are asked for"]
    assert "join" not in coverage.kinds_of("data-parallel")


@pytest.mark.parametrize("seed", [5337, 5703, 160_283])
def test_what_soaks_have_found_stays_mended(seed: int) -> None:
    """A model that was given up when a clock leapt; data after the end of a control connection; a run without begin."""
    assert run(seed).violation is None


@pytest.mark.parametrize("program", ["streaming-diloco", "diloco", "elastic-data-parallel", "data-parallel"])
def test_other_programs_live_under_the_faults_that_they_can_survive(program: str) -> None:
    faults: Counter[str] = Counter()
    for seed in range(6):
        outcome = run(seed, program)
        assert outcome.violation is None, (seed, outcome.violation)
        faults += outcome.faults
    assert len(faults) >= 6
