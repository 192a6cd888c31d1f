"""Universes with a name, about the end of a run: who dies in its last phase, or is dead when somebody asks for it."""

from __future__ import annotations

import pytest

from isthmus.programs.wings.simulation.searches import deadly, shape_of
from isthmus.programs.wings.simulation.universe import outcome_of
from isthmus.runtime.sim.faults import Kill, Stop
from tests.programs.wings.simulation.scenarios import Witness, assert_exact, survive


@pytest.mark.long
@pytest.mark.parametrize("later", [0.0, 0.005, 0.02, 0.05])
def test_a_learner_and_a_shard_die_in_the_final_phase(later: float) -> None:
    hosts = ("learner/0", "syncer/0")
    outcome = survive(*(Kill(host, at_phase="final", later=later) for host in hosts), shards=2)
    assert outcome.violation is None
    assert outcome.phases["kill", "final"] == 2
    assert {"learner/0#2", "syncer/0#2"} <= set(outcome.lives)


@pytest.mark.slow
def test_all_die_in_the_final_phase_and_only_the_next_lives_of_learners_know_what_they_have_trained() -> None:
    """Each claims that of its own slot: were it to stop by that, the shards, which have not heard of it, would wait."""
    assert outcome_of(shape_of(815)).violation is None


@pytest.mark.long
def test_the_next_life_of_a_global_shard_goes_on_from_a_version_before_the_last_that_was_published() -> None:
    """All die with the last version: what it had of learners is undone, and the books say so."""
    assert outcome_of(deadly(30020, "regional-diloco")).violation is None


@pytest.mark.long
@pytest.mark.parametrize("later", [0.0, 0.05, 0.15, 0.3])
def test_recorder_and_evaluator_die_in_the_final_phase(later: float) -> None:
    """A recorder that died with the final evaluation on its way once left a run without an end."""
    outcome = survive(*(Kill(host, at_phase="final", later=later) for host in ("recorder/0", "evaluator/0")))
    assert outcome.violation is None


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("later", [0.0, 0.1, 0.6])
def test_somebody_asks_for_the_end_while_a_shard_is_down(later: float) -> None:
    """The shard comes back, hears of it, and its fragments are merged a last time, like those of the other."""
    witness = Witness()
    outcome = survive(Kill("syncer/1", at=3.0), Stop(at=3.0 + later), shards=2, steps=400, witness=witness)
    assert outcome.violation is None
    assert outcome.status["phase"] == "done"
    assert outcome.seconds < 10.0
    assert {shard for (shard, _), (_, merge) in witness.merges.items() if merge["kind"] == "final"} == {
        "syncer/0#1",
        "syncer/1#2",
    }
    assert_exact(outcome)
