"""Universes with a name, about machines that join while others leave."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.ops.learner.recovery import BORROW_STEPS
from isthmus.ops.recovery.hold import unpacked
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.graph.plans import EdgePlan
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Clog, Cut, Join, Kill, check
from isthmus.runtime.sim.host import Life
from tests.programs.wings.simulation.scenarios import Witness, assert_exact, survive


@pytest.mark.slow
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


class Loans(Checker):
    """Objects to nothing. `wishes` and `given` are (seconds, lender, borrower, step) as the recorder sent them."""

    def __init__(self) -> None:
        self.wishes: list[tuple[float, Any, Any]] = []
        self.given: list[tuple[float, Any, Any, int, int]] = []
        self.over = 0

    def sent(self, life: Life, target: Member, edge: EdgePlan, item: Any) -> None:
        if edge.source_port != "loan":
            return
        now, told = life.true_now() / 1e9, [item["slot"], item["incarnation"]]
        if item["to"] is not None:
            self.wishes.append((now, told, item["to"]))
        elif item["by"] is not None:
            stepped = int(unpacked(item["leaves"][0]))
            self.given.append((now, item["by"], told, item["step"], stepped))
        else:
            self.over += 1


@pytest.mark.long
@pytest.mark.slow
def test_a_learner_that_joins_is_lent_the_moments_of_another_while_it_steps() -> None:
    loans = Loans()
    outcome = survive(Join("learner/4", at=8.5), steps=300, step_ms=50.0, witness=loans)
    assert outcome.violation is None
    (asked,), (given,) = loans.wishes, loans.given
    assert asked[1:] == ([0, 1], [4, 1])
    assert given[1:3] == ([0, 1], [4, 1])
    assert given[3] == given[4] > 2 * BORROW_STEPS  # The toy's local leaf counts the steps of its moments.
    assert given[0] - asked[0] < 1.0
    assert loans.over >= 1
    assert outcome.status["learners"][4]["began"] == ["peer", 0, given[3]]
    assert_exact(outcome)


@pytest.mark.long
@pytest.mark.slow
def test_the_death_of_one_who_is_asked_keeps_nobody_from_stepping() -> None:
    first, join = Loans(), Join("learner/4", at=8.5)
    survive(join, steps=300, step_ms=50.0, witness=first)
    died = first.wishes[0][0] + 0.001
    assert died < first.given[0][0]
    loans = Loans()
    outcome = survive(join, Kill("learner/0", at=died), steps=300, step_ms=50.0, witness=loans)
    assert outcome.violation is None
    assert loans.wishes[0][1:] == ([0, 1], [4, 1])
    assert [0, 1] not in [lender for _, lender, *_ in loans.given]
    assert outcome.status["learners"][4]["step"] > BORROW_STEPS
    assert_exact(outcome)


def test_a_fault_of_somebody_that_there_is_not_is_told_at_once() -> None:
    faults = Kill("learner/9", at=1.0), Join("learner/1", at=1.0), Cut("learner-0", "attic", at=1.0)
    replicas = [Replica("learner", 0), Replica("learner", 1)]
    with pytest.raises(ConfigError) as caught:
        check(faults, ["learner"], replicas, ["home", "learner-0", "learner-1"])
    assert len(caught.value.faults) == 3
    assert all(each in str(caught.value) for each in ("'learner/9'", "'learner/1'", "'attic'"))
    check((Join("learner/2", at=1.0), Kill("learner/2", at=2.0)), ["learner"], replicas, ["home"])
