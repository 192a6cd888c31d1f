"""Universes with a name, about partitions: what is cut off goes on, and comes back without a fork."""

from __future__ import annotations

import pytest

from isthmus.ops.exchange import token_accounts
from isthmus.runtime.sim.faults import Cut, Fault, Kill
from tests.programs.wings.simulation.scenarios import Witness, assert_exact, survive

MINUTES = 600.0


@pytest.mark.soak
def test_a_building_is_cut_off_for_ten_minutes_with_half_the_learners_and_one_of_two_shards() -> None:
    """Both sides step and merge; whoever was inside begins a new life, and equal versions are equal bytes."""
    inside, outside = ("learner-2", "learner-3", "syncer-1"), ("home", "learner-0", "learner-1", "syncer-0")
    begin, witness = 20.0, Witness()
    end = begin + MINUTES
    wall = [Cut(machine, other, MINUTES, at=begin) for machine in inside for other in outside]
    outcome = survive(*wall, shards=2, steps=190, step_ms=2000.0, late=265.0, witness=witness)
    assert outcome.violation is None
    assert outcome.faults["cut"] == len(wall)
    for slot in range(4):
        assert witness.steps_between(f"learner/{slot}#1", begin, end) > 0.9 * MINUTES / 2.0
    for shard, learners in (("syncer/0#1", {0, 1}), ("syncer/1#1", {2, 3}), ("syncer/1#2", {0, 1})):
        merges = witness.merges_between(shard, begin + 60.0, end)
        assert len(merges) > 0.8 * (MINUTES - 60.0) / 16.0
        assert {slot for merge in merges for slot in merge["voters"]} == learners
    begun = {life.partition("#")[0] for life in outcome.lives if life.endswith("#2")}
    assert begun == {"learner/2", "learner/3", "syncer/1"}
    assert {0, 1, 2, 3} == {
        slot for merge in witness.merges_between("syncer/1#2", end, 1e9) for slot in merge["voters"]
    }
    assert_exact(outcome)


@pytest.mark.long
@pytest.mark.slow
def test_a_building_is_cut_off_for_less_than_anybody_is_given_up_after() -> None:
    inside, outside = ("learner-2", "learner-3", "syncer-1"), ("home", "learner-0", "learner-1", "syncer-0")
    wall = [Cut(machine, other, 10.0, at=2.0) for machine in inside for other in outside]
    outcome = survive(*wall, shards=2, steps=60, step_ms=200.0)
    assert outcome.violation is None
    assert {life.partition("#")[2] for life in outcome.lives} == {"1"}


@pytest.mark.further
@pytest.mark.slow
def test_a_slot_is_claimed_twice_while_its_former_process_lives_behind_a_partition() -> None:
    outcome = survive(Cut("learner-1", None, 30.0, at=2.0), learners=2, steps=100, step_ms=400.0)
    assert outcome.violation is None
    assert {"learner/1#1", "learner/1#2"} <= set(outcome.lives)
    assert "learner/0#2" not in outcome.lives


@pytest.mark.long
@pytest.mark.slow
def test_a_shard_is_served_elsewhere_while_its_former_process_lives_behind_a_partition() -> None:
    outcome = survive(Cut("syncer-0", None, 40.0, at=2.0), learners=2, steps=120, step_ms=400.0)
    assert outcome.violation is None
    assert {"syncer/0#1", "syncer/0#2"} <= set(outcome.lives)


FORK: tuple[Fault, ...] = (
    Cut("syncer-0", "learner-1", 4.5, is_one_way=True, at=4.6),
    Cut("syncer-0", "home", 4.5, is_one_way=True, at=4.6),
    Kill("syncer/0", at=8.1),
    Cut("learner-0", None, 3.0, at=8.1),
)
"""Learner 0 alone gets the newest versions, also neither evaluator nor recorder, and it is away while the shard comes
back with what learner 1 holds."""


@pytest.mark.further
@pytest.mark.slow
def test_what_was_trained_on_a_version_that_is_lost_is_not_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    assert survive(*FORK, learners=2, step_ms=400.0).violation is None
    monkeypatch.setattr(token_accounts.FragmentAccount, "knows", lambda self, version: True)
    broken = survive(*FORK, learners=2, step_ms=400.0).violation
    assert broken is not None
    assert "is merged on version" in broken
