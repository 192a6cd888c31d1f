"""Universes with a name, about machines that join while others leave."""

from __future__ import annotations

import pytest

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim import Clog, Cut, Join, Kill
from isthmus.runtime.sim.faults import check
from tests.programs.simulation.scenarios import Witness, assert_exact, survive


def test_a_joiner_and_a_death_in_the_same_open_round() -> None:
    witness, died = Witness(), 3.15
    clog = Clog("learner-2", 0.2, 60.0, at=1.0)  # So that rounds are open for a while.
    outcome = survive(clog, Join("learner/4", at=2.6), Kill("learner/1", at=died), steps=60, witness=witness)
    assert outcome.violation is None
    stepping = min(at for at, _ in witness.steps["learner/4#1"])
    both = [
        merge
        for key, (closed, merge) in witness.merges.items()
        if witness.opened[key] < min(died, stepping) and max(died, stepping) < closed
    ]
    assert len(both) == 1
    assert 1 not in both[0]["voters"]
    assert 4 in {*both[0]["voters"], *both[0]["left_out"]}
    later = witness.merges_between("syncer/0#1", 5.0, 1e9)
    assert {1, 4} <= {slot for merge in later for slot in merge["voters"]}
    assert_exact(outcome)


def test_a_fault_of_somebody_that_there_is_not_is_told_at_once() -> None:
    faults = Kill("learner/9", at=1.0), Join("learner/1", at=1.0), Cut("learner-0", "attic", at=1.0)
    replicas = [Replica("learner", 0), Replica("learner", 1)]
    with pytest.raises(ConfigError) as caught:
        check(faults, ["learner"], replicas, ["home", "learner-0", "learner-1"])
    assert len(caught.value.faults) == 3
    assert all(each in str(caught.value) for each in ("'learner/9'", "'learner/1'", "'attic'"))
    check((Join("learner/2", at=1.0), Kill("learner/2", at=2.0)), ["learner"], replicas, ["home"])
