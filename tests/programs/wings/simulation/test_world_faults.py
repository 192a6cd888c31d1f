"""Whole programs in virtual time, with faults: what they cost whom, and that they are counted."""

from __future__ import annotations

import pytest

from isthmus import Program, Task
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.errors import RunError
from isthmus.runtime.sim.faults import Blackout, Cut, Kill, Pause
from tests.programs.wings.simulation.test_world import LINEAR

PROGRAM = Program("decoupled-diloco", fragments=2)


@pytest.fixture(scope="module")
def linear() -> Task:
    names: dict[str, Task] = {}
    exec(LINEAR, names)
    return names["task"]


@pytest.mark.further
@pytest.mark.slow
def test_a_dead_learner_is_missed_by_nobody(world: Worlds, linear: Task) -> None:
    result = world.run(PROGRAM, task=linear, learners=4, steps=200, faults=[Kill("learner/2", at_step=80)])
    assert result.faults == {"kill": 1}
    assert result.waits == 0
    assert [result.slots[slot].restarts for slot in range(4)] == [0, 0, 1, 0]
    assert result.eval_loss is not None
    assert result.eval_loss < 0.5 * result.summary["eval_loss_initial"]
    for account in result.summary["fragment_accounts"]:
        parts = [account[part] for part in ("merged", "overlapped", "refused", "lost", "pending")]
        assert sum(parts) == account["trained"]
        assert min(parts) >= 0


@pytest.mark.slow
def test_a_fault_that_did_not_happen_fails_the_run(world: Worlds, linear: Task) -> None:
    with pytest.raises(RunError, match=r"before these happened: Kill\(.*at_step=100000"):
        world.run(PROGRAM, task=linear, learners=2, steps=30, faults=[Kill("learner/1", at_step=100_000)])
    with pytest.raises(RunError, match=r"Pause\('learner/1', at=1000\.0\)"):
        world.run(PROGRAM, task=linear, learners=2, steps=30, faults=[Pause("learner/1", at=1000.0)])


@pytest.mark.slow
def test_a_learner_behind_a_cut_goes_on_alone_and_comes_back(world: Worlds, linear: Task) -> None:
    cut = Cut("learner-1", at=1.5, seconds=4.0)
    result = world.run(PROGRAM, task=linear, learners=3, steps=60, step_ms=100, faults=[cut])
    assert result.faults == {"cut": 1}
    assert result.waits == 0
    assert result.slots[1].restarts == 0
    assert result.slots[1].steps > 0.8 * result.slots[0].steps
    assert result.summary["tokens_lost"] == 0


@pytest.mark.long
@pytest.mark.slow
def test_the_same_seed_and_faults_give_the_same_tapes(world: Worlds, linear: Task) -> None:
    def tapes(seed: int) -> dict[str, bytes]:
        faults = [Kill("syncer/0", at=1.5), Kill("learner/0", at_step=20)]
        return world.run(PROGRAM, task=linear, learners=2, steps=80, seed=seed, faults=faults).tapes

    first = tapes(3)
    assert {"syncer/0#2", "learner/0#1", "learner/0#2"} <= first.keys()
    assert first == tapes(3) != tapes(4)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("program", ["decoupled-diloco", "docs/examples/gossip.py:build"])
def test_a_learner_that_never_comes_back_does_not_keep_the_run_from_its_end(
    world: Worlds, linear: Task, program: str
) -> None:
    gone = Blackout("learner-2", at_step=75, seconds=1e6)
    result = world.run(program, task=linear, learners=4, steps=150, faults=[gone], seconds_max=60)
    assert (result.faults["blackout"], result.summary["outcome"]) == (1, "done")
    assert 0 < result.slots[2].tokens < min(result.slots[slot].tokens for slot in (0, 1, 3))
