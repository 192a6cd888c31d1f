"""Elastic islands in universes: one of their processes dies and returns, and the rest of the run does not notice."""

from __future__ import annotations

import random

import pytest

from isthmus import Program
from isthmus.programs.wings.simulation.universe import Shape, outcome_of
from isthmus.runtime.ids import Replica
from isthmus.runtime.sim.faults import Kill
from isthmus.runtime.sim.network import Climate
from isthmus.runtime.sim.universe import Universe
from isthmus.runtime.supervision.incidents import Happened, Incident, ProcessBack, ProcessLost, Reformed
from tests.effort import soaked
from tests.programs.wings.simulation.scenarios import assert_exact, survive
from tests.programs.wings.simulation.test_gangs import PROCESSES, Began, faults

ELASTIC = ((1, 2, 3), (), (2,))


class Seen(Began):
    """Objects to nothing; what was written down of learner 0, and its lives."""

    def __init__(self) -> None:
        super().__init__()
        self.incidents: list[Incident] = []

    def happened(self, universe: Universe, happened: Happened) -> None:
        super().happened(universe, happened)
        if happened.member.replica == Replica("learner", 0):
            self.incidents.append(happened.incident)


@pytest.mark.slow
def test_an_island_goes_on_without_a_process_and_takes_it_back() -> None:
    seen = Seen()
    outcome = survive(Kill("learner.2/0", at=2.5), learners=3, witness=seen, processes=PROCESSES, elastic=ELASTIC)
    assert outcome.violation is None
    assert outcome.outcome == "done"
    assert seen.bereft == 0
    lives = {str(member) for member in seen.lives[Replica("learner", 0)]}
    assert lives == {"learner/0#1", "learner.1/0#1", "learner.2/0#1", "learner.2/0#2"}
    assert ProcessLost("learner.2/0", 2, 3) in seen.incidents
    assert ProcessBack("learner.2/0", 3, 3) in seen.incidents
    assert [each.processes for each in seen.incidents if isinstance(each, Reformed)][-1] == 3
    assert_exact(outcome)


@pytest.mark.slow
def test_the_others_outlive_their_leader() -> None:
    seen = Seen()
    outcome = survive(Kill("learner/0", at=2.5), learners=3, witness=seen, processes=PROCESSES, elastic=ELASTIC)
    assert outcome.violation is None
    assert outcome.outcome == "done"
    lives = {str(member) for member in seen.lives[Replica("learner", 0)]}
    assert lives == {"learner/0#1", "learner/0#2", "learner.1/0#1", "learner.2/0#1"}
    assert_exact(outcome)


@pytest.mark.long
@pytest.mark.parametrize("seed", [*range(5), *map(soaked, range(5, 60))])
def test_elastic_islands_survive_what_happens_to_their_processes_daemons_and_machines(seed: int) -> None:
    outcome = outcome_of(
        Shape(
            seed=seed,
            learners=3,
            processes=PROCESSES,
            elastic=ELASTIC,
            steps=40,
            step_ms=100.0,
            program=Program("decoupled-diloco", fragments=2, interval=8),
            climate=Climate(),
            speeds=(1.0,) * 3,
            faults=faults(random.Random(f"isthmus {seed} gangs")),
        )
    )
    assert outcome.violation is None
    assert outcome.outcome == "done"
    assert outcome.faults
