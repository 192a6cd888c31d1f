"""A few worlds with the shipped language model, made tiny: real arithmetic in jax, under faults."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from isthmus import Program, Task
from isthmus.programs.language_model import task
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.sim.faults import Blackout, Cut, Fault, Join, Kill, Reset

WORLDS: tuple[tuple[Fault, ...], ...] = (
    (Kill("learner/1", at_step=10), Kill("syncer/0", at_step=14)),
    (Cut("learner-0", at_step=8, seconds=1.0), Reset("syncer-0", at_step=20), Blackout("learner-1", at_step=24)),
    (Join("learner/2", at_step=8), Kill("learner/0", at_phase="final")),
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder: Path = tmp_path_factory.mktemp("text")
    (folder / "text").write_bytes(b"It is a truth universally acknowledged. " * 500)
    return task(layers=1, width=16, heads=2, context=16, batch=2, data=(str(folder / "text"),))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("faults", WORLDS, ids=["deaths", "ways", "joining"])
def test_the_shipped_model_learns_under_faults(world: Worlds, tiny: Task, faults: tuple[Fault, ...]) -> None:
    result = world.run(
        Program("decoupled-diloco", fragments=2, interval=6),
        task=tiny,
        learners=2,
        steps=40,
        step_ms=50.0,
        faults=faults,
    )
    assert result.faults == Counter(fault.kind for fault in faults)
    assert result.waits == 0
    assert result.eval_loss is not None
    assert result.eval_loss < result.summary["eval_loss_initial"]
    assert (2 in result.slots) == any(isinstance(fault, Join) for fault in faults)
    for account in result.summary["fragment_accounts"]:
        assert (
            sum(account[part] for part in ("merged", "overlapped", "refused", "lost", "pending")) == account["trained"]
        )
