"""Universes of the program of two levels: regions that are cut off, syncers that die on either level."""

from __future__ import annotations

import pytest

from isthmus import Program
from isthmus.programs.engine.recorder.accounts import entries
from isthmus.programs.wings.simulation.searches import run_deadly
from isthmus.programs.wings.simulation.seeds import run
from isthmus.programs.wings.simulation.universe import Outcome
from isthmus.runtime.sim.faults import Cut, Fault, Kill
from tests.effort import long, seeds
from tests.programs.wings.simulation.scenarios import Witness, assert_exact, survive

PROGRAM = Program("regional-diloco", fragments=2, interval=8, exchange=2)
INSIDE, OUTSIDE = ("region-1", "learner-1", "learner-3"), ("home", "syncer-0", "region-0", "learner-0", "learner-2")


def two_levels(*faults: Fault, witness: Witness, steps: int = 60, step_ms: float = 200.0) -> Outcome:
    outcome = survive(*faults, steps=steps, step_ms=step_ms, witness=witness, program=PROGRAM)
    assert outcome.violation is None
    assert outcome.outcome == "done"
    assert_exact(outcome)
    return outcome


def lost(outcome: Outcome) -> int:
    """The tokens that are lost, of all fragments, by the books, which add up."""
    rows = entries(outcome.status, 2)
    assert not any(row.difference for row in rows)
    assert not any(row.pending for row in rows)
    return sum(row.lost for row in rows)


@pytest.mark.further
def test_a_region_that_is_cut_off_goes_on_and_is_merged_when_it_is_back() -> None:
    witness = Witness()
    wall = [Cut(machine, other, 8.0, at=8.0) for machine in INSIDE for other in OUTSIDE]
    outcome = two_levels(*wall, witness=witness, steps=110)
    for slot in (1, 3):
        assert witness.steps_between(f"learner/{slot}#1", 8.5, 15.5) > 0.8 * 7.0 / 0.2
    alone = [merge["voters"] for merge in witness.merges_between("syncer/0#1", 9.5, 15.5)]
    assert alone
    assert [1] not in alone
    assert {0, 1} == {slot for merge in witness.merges_between("syncer/0#1", 17.5, 1e9) for slot in merge["voters"]}
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}
    assert lost(outcome) == 0


@pytest.mark.further
@pytest.mark.slow
def test_what_a_region_alone_has_merged_is_lost_with_its_syncer() -> None:
    witness = Witness()
    outcome = two_levels(Kill("region/1", at=5.0), witness=witness)
    assert "region/1#2" in outcome.lives
    assert {0, 1} == {slot for merge in witness.merges_between("syncer/0#1", 9.0, 1e9) for slot in merge["voters"]}
    trained = sum(report["tokens"] for report in outcome.status["learners"].values())
    assert 0 < lost(outcome) < trained  # Of two fragments: less than half of the work.


@pytest.mark.slow
def test_regions_outlive_the_global_syncer() -> None:
    witness = Witness()
    outcome = two_levels(Kill("syncer/0", at=5.0), witness=witness)
    assert "syncer/0#2" in outcome.lives
    assert witness.merges_between("syncer/0#2", 0.0, 1e9)
    assert witness.steps_between("learner/0#1", 5.0, 7.0) > 8


@pytest.mark.further
@pytest.mark.slow
def test_a_shard_that_dies_on_either_level_stops_no_other() -> None:
    """Fragment 1 is of shard 1 of each region, region/2 and region/3, and of syncer/1."""
    witness = Witness()
    outcome = survive(
        Kill("region/3", at=5.0),
        Kill("syncer/1", at=7.0),
        steps=60,
        step_ms=200.0,
        witness=witness,
        program=Program("regional-diloco", fragments=2, interval=8, exchange=2, shards=2, region_shards=2),
    )
    assert (outcome.violation, outcome.outcome) == (None, "done")
    assert_exact(outcome)
    again = {"region/3#2", "syncer/1#2"}
    assert again <= {*outcome.lives}
    assert {life.partition("#")[2] for life in {*outcome.lives} - again} == {"1"}
    for shard, hosts in (("syncer/0#1", {0, 1}), ("syncer/1#2", {2, 3})):
        voters = [merge["voters"] for merge in witness.merges_between(shard, 9.0, 1e9)]
        assert {slot for each in voters for slot in each} == hosts
    trained = sum(report["tokens"] for report in outcome.status["learners"].values())
    assert 0 < lost(outcome) < trained / 2  # Of one fragment of two, by one region of two.


@pytest.mark.further
@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, *(long(seed) for seed in seeds(20, least=2))])
def test_everything_dies_and_goes_on_from_a_snapshot(seed: int) -> None:
    assert run_deadly(seed, "regional-diloco").violation is None


MENDED = (166,)  # The learners of a region die under its last merge, which it answers with and publishes to nobody.


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*(long(seed) for seed in seeds(100, least=4)), *MENDED])
def test_a_seed(seed: int) -> None:
    assert run(seed, "regional-diloco").violation is None


@pytest.mark.long
def test_a_region_that_is_cut_off_for_longer_than_a_machine_is_lost_keeps_its_lives_and_work() -> None:
    witness = Witness()
    wall = [Cut(machine, other, 45.0, at=8.0) for machine in INSIDE for other in OUTSIDE]
    outcome = two_levels(*wall, witness=witness, steps=400)
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}
    for slot in (1, 3):
        assert witness.steps_between(f"learner/{slot}#1", 8.5, 52.0) > 0.8 * 43.0 / 0.2
    rounds = [at for (who, _), at in witness.opened.items() if who == "region/1#1" and 30.0 <= at <= 52.0]
    assert len(rounds) > 10
    assert {0, 1} == {slot for merge in witness.merges_between("syncer/0#1", 55.0, 1e9) for slot in merge["voters"]}
    assert lost(outcome) == 0


@pytest.mark.long
def test_a_region_that_is_cut_off_stops_at_its_share_of_the_budget() -> None:
    witness = Witness()
    wall = [Cut(machine, other, 60.0, at=8.0) for machine in INSIDE for other in OUTSIDE]
    outcome = two_levels(*wall, witness=witness, steps=200)
    for slot in (1, 3):
        assert 190 <= max(step for _, step in witness.steps[f"learner/{slot}#1"]) < 230
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}


@pytest.mark.long
@pytest.mark.slow
def test_a_syncer_that_dies_while_its_region_is_cut_off_comes_back_with_the_link() -> None:
    """Its learners step on, unmerged; nobody else waits; its next life begins from the global version, and is merged.
    What it had merged alone is lost, and no more: what is trained until then is overwritten. Its new life does not stop
    its learners, of which it hears late."""
    witness = Witness()
    wall = [Cut(machine, other, 15.0, at=8.0) for machine in INSIDE for other in OUTSIDE]
    outcome = two_levels(*wall, Kill("region/1", at=12.0), witness=witness, steps=180)
    assert [life for life in outcome.lives if life.startswith("region/1")] == ["region/1#1", "region/1#2"]
    assert {life.partition("#")[2] for life in outcome.lives if not life.startswith("region/1")} == {"1"}
    for slot in range(4):
        assert witness.steps_between(f"learner/{slot}#1", 8.5, 22.5) > 0.8 * 14.0 / 0.2
        assert outcome.status["learners"][slot]["waited"] == 0
    rounds = [at for (who, _), at in witness.opened.items() if who.startswith("region/1") and 12.5 <= at <= 22.5]
    assert not rounds
    assert {0, 1} == {slot for merge in witness.merges_between("syncer/0#1", 26.0, 1e9) for slot in merge["voters"]}
    alone = 2 * 2 * (12.0 - 8.0 + 2.0) / 0.2  # Of two learners and two fragments, in steps, from the last exchange on.
    tokens_of_step = sum(report["tokens"] for report in outcome.status["learners"].values()) / sum(
        report["step"] for report in outcome.status["learners"].values()
    )
    assert 0 < lost(outcome) < alone * tokens_of_step
