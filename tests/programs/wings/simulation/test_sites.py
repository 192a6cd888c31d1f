"""Universes whose machines are sites: their weights in a merge, and some that have trained their data often enough."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from isthmus import Program
from isthmus.programs.wings.simulation.toy_task import TENFOLD, TOKENS_PER_BATCH
from isthmus.programs.wings.simulation.universe import machine_of
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.checkers import Checker
from isthmus.runtime.sim.faults import Kill, KillDaemon, PreemptionNotice
from isthmus.runtime.sim.universe import HOME, Universe
from isthmus.runtime.supervision.incidents import DataSpent, Happened
from tests.effort import long
from tests.programs.wings.simulation.scenarios import Witness, assert_exact, survive


class Leavers(Checker):
    """Who has left because its data were spent."""

    def __init__(self) -> None:
        self.left: dict[str, DataSpent] = {}

    def happened(self, universe: Universe, happened: Happened) -> None:
        if isinstance(happened.incident, DataSpent):
            self.left[str(happened.member)] = happened.incident


SITE = machine_of(Replica("learner", 0))
THERE = machine_of(Replica("learner", 3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("site_weight", "expected"),
    [
        long(None, [1 / 103, 1 / 103, 1 / 103, 100 / 103]),
        ("equal", [1 / 4] * 4),
        long({SITE: 3.0}, [1 / 2, 1 / 6, 1 / 6, 1 / 6]),
    ],
)
def test_sites_of_one_to_ten_in_tokens_share_a_merge_by_their_weights(site_weight: Any, expected: Any) -> None:
    """The checkers of every universe compute the shares by themselves; where all four are in a merge, after as many
    steps, they are those."""
    witness = Witness()
    settings = {} if site_weight is None else {"site_weight": site_weight}
    outcome = survive(task=TENFOLD, witness=witness, quorum=4, **settings)
    assert (outcome.violation, outcome.outcome) == (None, "done")
    shares = defaultdict(list)
    for _, merge in witness.merges.values():
        if merge["kind"] == "merge" and merge["voters"] == [0, 1, 2, 3]:
            for slot, weight in enumerate(merge["weights"]):
                shares[slot].append(weight)
    assert len(shares[0]) >= 3
    medians = [sorted(shares[slot])[len(shares[slot]) // 2] for slot in range(4)]
    assert medians == pytest.approx(expected, rel=0.2 if site_weight is None else 1e-9)


@pytest.mark.slow
def test_a_site_that_has_spent_its_data_leaves_in_order_and_the_others_go_on() -> None:
    leavers = Leavers()
    outcome = survive(task=TENFOLD, steps=130, epochs_max=2, witness=leavers)
    assert (outcome.violation, outcome.outcome) == (None, "done")
    assert leavers.left == {"learner/3#1": DataSpent(1200, 600, 2.0)}
    assert all(life.endswith("#1") for life in outcome.lives), "no next life"
    learners = outcome.status["learners"]
    assert learners[3]["tokens"] == 1200
    # All of it is in the model, or was overwritten by updates: its last steps were not lost with it.
    assert [account[4] for account in learners[3]["accounts"]] == [0, 0]
    assert_exact(outcome)
    assert outcome.status["tokens"] >= 4 * 130 * TOKENS_PER_BATCH, "the others make up for it"


@pytest.mark.slow
def test_once_all_sites_have_spent_their_data_the_run_comes_to_its_end() -> None:
    leavers = Leavers()
    outcome = survive(task=TENFOLD, epochs_max=0.2, steps=200, witness=leavers)
    assert (outcome.violation, outcome.outcome) == (None, "stopped")
    assert {life: (spent.tokens, spent.of_tokens) for life, spent in leavers.left.items()} == {
        "learner/0#1": (120, 600), "learner/1#1": (120, 600), "learner/2#1": (120, 600), "learner/3#1": (80, 600),
    }  # fmt: skip
    assert [spent.is_last for spent in leavers.left.values()][-1]
    assert_exact(outcome)


@pytest.mark.long
@pytest.mark.slow
def test_a_slot_counts_what_its_former_lives_have_trained() -> None:
    leavers = Leavers()
    outcome = survive(Kill("learner/3", at_step=8), task=TENFOLD, steps=130, epochs_max=2, witness=leavers)
    assert (outcome.violation, outcome.outcome) == (None, "done")
    assert list(leavers.left) == ["learner/3#2"]
    # What a life trained after its last report is known to nobody.
    assert 1200 - 2 * 80 <= leavers.left["learner/3#2"].tokens <= 1200


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "life"),
    [
        ((Kill("syncer/0", at_step=15),), 1),
        ((Kill("recorder/0", at_step=15),), 1),
        ((Kill("learner/3", at_step=14),), 2),
        ((KillDaemon(HOME, at=2.6),), 1),
        ((KillDaemon(THERE, at=2.6),), 1),
        ((PreemptionNotice(THERE, 14.0, 3.0, at_step=8),), 2),
        ((PreemptionNotice(THERE, 14.0, 3.0, at_step=30),), 2),
    ],
    ids=["syncer", "recorder", "learner", "home", "daemon", "left-and-back", "gone-and-back"],
)
def test_whatever_dies_meanwhile_a_site_leaves_once_and_the_run_is_whole(faults: Any, life: int) -> None:
    """A machine that comes back after its site's data were spent begins a life, which leaves without a step."""
    leavers = Leavers()
    outcome = survive(*faults, task=TENFOLD, steps=130, epochs_max=2, witness=leavers)
    assert (outcome.violation, outcome.outcome) == (None, "done")
    assert list(leavers.left) == [f"learner/3#{life}"]
    assert_exact(outcome)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("processes", [(1, 1, 1, 2), (2, 2, 2, 2)])
def test_an_island_of_several_processes_leaves_as_a_whole(processes: tuple[int, ...]) -> None:
    leavers = Leavers()
    outcome = survive(task=TENFOLD, steps=130, epochs_max=2, witness=leavers, processes=processes)
    assert (outcome.violation, outcome.outcome) == (None, "done")
    assert leavers.left == {"learner/3#1": DataSpent(1200, 600, 2.0)}
    assert all(life.endswith("#1") for life in outcome.lives)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("epochs_max", "end"), [(2, "done"), (0.2, "stopped")])
def test_sites_leave_regions_too(epochs_max: float, end: str) -> None:
    leavers = Leavers()
    program = Program("regional-diloco", fragments=2, interval=8, epochs_max=epochs_max)
    outcome = survive(task=TENFOLD, steps=130 if end == "done" else 200, program=program, witness=leavers)
    assert (outcome.violation, outcome.outcome) == (None, end)
    assert len(leavers.left) == (1 if end == "done" else 4)
    assert_exact(outcome)
