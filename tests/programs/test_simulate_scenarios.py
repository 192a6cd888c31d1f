"""Universes with a name: what a cluster has to survive, made to happen, with all checkers looking on."""

from __future__ import annotations

import pytest

from isthmus.ops import accounts
from isthmus.programs import Program
from isthmus.programs.simulate import Outcome, Shape, outcome_of
from isthmus.runtime.sim import Climate, Cut, Fault, Kill, Slow


def survive(*faults: Fault, learners: int = 4, shards: int = 1, steps: int = 40, step_ms: float = 100.0) -> Outcome:
    return outcome_of(
        Shape(
            seed=1,
            learners=learners,
            steps=steps,
            step_ms=step_ms,
            program=Program("decoupled-diloco", fragments=2, interval=8, shards=shards),
            climate=Climate(),
            speeds=(1.0,) * learners,
            faults=faults,
        )
    )


def test_a_building_is_cut_off_with_half_the_learners_and_one_of_two_shards() -> None:
    inside, outside = ("learner-2", "learner-3", "syncer-1"), ("home", "learner-0", "learner-1", "syncer-0")
    wall = [Cut(machine, other, 10.0, at=2.0) for machine in inside for other in outside]
    outcome = survive(*wall, shards=2, steps=60, step_ms=200.0)
    assert outcome.violation is None
    assert outcome.faults["cut"] == len(wall)
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}


def test_a_slot_is_claimed_twice_while_its_former_process_lives_behind_a_partition() -> None:
    outcome = survive(Cut("learner-1", None, 30.0, at=2.0), learners=2, steps=100, step_ms=400.0)
    assert outcome.violation is None
    assert {"learner/1#1", "learner/1#2"} <= set(outcome.lives)
    assert "learner/0#2" not in outcome.lives


def test_a_shard_is_served_elsewhere_while_its_former_process_lives_behind_a_partition() -> None:
    outcome = survive(Cut("syncer-0", None, 40.0, at=2.0), learners=2, steps=120, step_ms=400.0)
    assert outcome.violation is None
    assert {"syncer/0#1", "syncer/0#2"} <= set(outcome.lives)


def test_one_learner_is_ten_times_slower_but_alive() -> None:
    outcome = survive(Slow("learner/3", 10.0, 100.0, at=0.0))
    assert outcome.violation is None
    assert "learner/3#2" not in outcome.lives


@pytest.mark.parametrize("later", [0.0, 0.005, 0.02, 0.05])
def test_a_learner_and_a_shard_die_in_the_final_phase(later: float) -> None:
    hosts = ("learner/0", "syncer/0")
    outcome = survive(*(Kill(host, at_phase="final", later=later) for host in hosts), shards=2)
    assert outcome.violation is None
    assert outcome.phases["kill", "final"] == 2
    assert {"learner/0#2", "syncer/0#2"} <= set(outcome.lives)


@pytest.mark.parametrize("later", [0.0, 0.05, 0.15, 0.3])
def test_recorder_and_evaluator_die_in_the_final_phase(later: float) -> None:
    """A recorder that died with the final evaluation on its way once left a run without an end."""
    outcome = survive(*(Kill(host, at_phase="final", later=later) for host in ("recorder/0", "evaluator/0")))
    assert outcome.violation is None


FORK: tuple[Fault, ...] = (
    Cut("syncer-0", "learner-1", 4.5, is_one_way=True, at=4.6),
    Kill("syncer/0", at=8.1),
    Cut("learner-0", None, 3.0, at=8.1),
)
"""Learner 0 alone gets the newest versions, and is away while the shard comes back with what learner 1 holds."""


def test_what_was_trained_on_a_version_that_is_lost_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert survive(*FORK, learners=2, step_ms=400.0).violation is None
    monkeypatch.setattr(accounts.FragmentAccount, "knows", lambda self, version: True)
    broken = survive(*FORK, learners=2, step_ms=400.0).violation
    assert broken is not None
    assert "is merged on version" in broken
