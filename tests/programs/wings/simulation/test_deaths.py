"""Everything dies at once, at each step of a snapshot, and goes on; or the home is lost, and another machine is it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from isthmus.programs.engine.snapshots.snapshots import Found, Snapshots
from isthmus.programs.wings.simulation.searches import DEATH_KINDS, STEPS, deadly, rare_steps, run_deadly
from isthmus.programs.wings.simulation.seeds import shape_of
from isthmus.programs.wings.simulation.universe import Outcome, Shape, outcome_of
from isthmus.runtime.sim.faults import DieAll, Fault, MoveHome
from isthmus.runtime.sim.universe import HOME
from isthmus.runtime.supervision import lives
from tests.effort import examples, long, soaked

SEED = 3


def calm(*faults: Fault) -> Shape:
    """A run of some seconds with these faults alone."""
    return replace(shape_of(SEED), faults=faults, storms=(), steps=40, step_ms=100.0)


def dying(step: str, at: float = 2.0, *, keeps_power: bool = False) -> DieAll:
    """Everything dies at a step of the first snapshot from then on."""
    found = STEPS[step]
    return DieAll(HOME, step, found.operation, found.name, 1.0, found.then, keeps_power, at=at)


def passed(outcome: Outcome) -> Outcome:
    """An outcome that nobody objects to, of a run in which all happened that was to."""
    assert outcome.violation is None, (outcome.violation, outcome.story)
    assert outcome.missed == []
    return outcome


TRIED = ("manifest, rename", "fragment, write", "retention")
QUICK = TRIED[:1]
LONG = [long(step) for step in TRIED[1:]]


@pytest.mark.slow
@pytest.mark.parametrize("step", [*QUICK, *LONG, *(soaked(step) for step in STEPS if step not in TRIED)])
def test_a_run_goes_on_from_its_snapshot_after_the_death_of_everything_at_each_step_of_one(step: str) -> None:
    outcome = passed(outcome_of(calm(dying(step))))
    assert outcome.outcome == "done"
    assert outcome.faults[f"death of all: {step}"] == 1
    lives = Counter(life.partition("#")[0] for life in outcome.lives)
    assert set(lives.values()) == {2}


@pytest.mark.long
@pytest.mark.slow
def test_the_same_seed_dies_the_same_deaths_byte_for_byte() -> None:
    shape = calm(dying("manifest, rename"), dying("retention", 4.0, keeps_power=True))
    first, second = passed(outcome_of(shape)), outcome_of(shape)
    assert (first.tape_digest, first.lives) == (second.tape_digest, second.lives)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "lasts"),
    [("learner-0", 12.0), soaked("learner-0", 1.0), soaked("syncer-0", 1.0), soaked("syncer-0", 12.0)],
)
def test_another_machine_becomes_the_home_and_the_lost_one_finds_it(machine: str, lasts: float) -> None:
    outcome = passed(outcome_of(calm(MoveHome(machine, 2.0, lasts, at=2.0))))
    assert outcome.outcome == "done"
    learners = [life for life in outcome.lives if life.startswith("learner/")]
    assert all(life.endswith("#1") for life in learners)  # None of them was begun again.
    assert any(life.startswith("recorder/0#10000") for life in outcome.lives)
    assert outcome.guards["orders of a former home"]


@pytest.mark.long
def test_seeds_of_deaths_are_passed() -> None:
    for seed in range(examples(5, least=2)):
        outcome = run_deadly(seed)
        assert outcome.violation is None, (seed, outcome.violation, outcome.story)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "ends"), [(12_200_152, "failed"), (12_210_230, "failed"), (13_000_532, "done")])
def test_what_searches_have_found_stays_mended(seed: int, ends: str) -> None:
    """12,200,152: everything died before the first snapshot was there, and after the last merge.

    The evaluation of a model that no host held was waited for, for ten minutes; it is lost, and that ends the run.
    12,210,230: the end of a run without processes came before the checker knew that it was asked for. 13,000,532:
    everything died after the last evaluation, and a shard of the next lives went back to a version before the final one
    as the run ended: books and final model would have differed.
    """
    outcome = run_deadly(seed)
    assert (outcome.violation, outcome.outcome) == (None, ends), outcome.story


def test_steps_at_which_nothing_died_are_told() -> None:
    one = Counter({(DEATH_KINDS[0], "stepping"): 2, (DEATH_KINDS[0], "final"): 1})
    told = rare_steps(one, 3)
    assert len(told) == len(DEATH_KINDS) - 1
    assert told[0] == f"{DEATH_KINDS[1]}: 0 times, at least 3 are asked for"
    assert {fault.point for fault in deadly(1).faults if isinstance(fault, DieAll)} <= set(STEPS)


@pytest.mark.slow
def test_a_snapshot_that_was_taken_and_is_not_read_is_objected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Snapshots, "recall", lambda self: Found(None, {}, [], {}))
    violation = outcome_of(calm(dying("after", 4.0))).violation
    assert violation is not None
    assert "goes on from snapshot" in violation or "of which snapshot" in violation


@pytest.mark.slow
def test_a_former_home_that_does_not_give_way_is_objected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "yield_home", lambda run, by, term: None)
    violation = outcome_of(calm(MoveHome("learner-0", 2.0, 8.0, at=2.0))).violation
    assert violation is not None
    assert "the run is over, and" in violation or "not over after" in violation
