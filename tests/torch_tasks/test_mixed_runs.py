"""Islands in jax and in PyTorch that train one model in one run, in real processes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch

import isthmus
from isthmus.ops.data.batches import At
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.task_checks import check_alike, layout_of
from tests.programs.engine.run.process_run import FOREVER, TASK, Run
from tests.torch_tasks.torch_models import EXAMPLE

pytestmark = [pytest.mark.torch, pytest.mark.process]

IN_TORCH = """
import time
import numpy as np, torch
from isthmus.torch import Task

class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.b = torch.nn.Parameter(torch.randn(32, 1)), torch.nn.Parameter(torch.zeros(1))

def loss(model, batch): return ((batch["x"] @ model.w + model.b - batch["y"]) ** 2).mean()
def batch(at):
    time.sleep(0.004)
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}
def optimizer(model): return torch.optim.AdamW(model.parameters(), lr=1e-2)

task = Task(Linear, loss, batch, tokens_per_batch=64, optimizer=optimizer)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []
    (tmp_path / "in_torch.py").write_text(IN_TORCH)

    def begin(*tasks: str, **options: Any) -> Run:
        words = [word for task in tasks for word in ("--task", task)]
        runs.append(Run(tmp_path, *words, task=TASK, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def frameworks(pid: int) -> set[str]:
    """Those whose libraries a process has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return {name for name, library in (("jax", "jaxlib"), ("torch", "libtorch")) if library in maps}


@pytest.mark.parametrize("home", ["jax", "torch"])
def test_each_process_has_one_framework_and_both_contribute(start: Callable[..., Run], home: str) -> None:
    files = {"jax": "paced.py:task", "torch": "in_torch.py:task"}
    other = next(name for name in files if name != home)
    run = start(files[home], files[other], tokens=FOREVER)
    run.wait_for(lambda: run.merges() and [0, 1] in run.voters()[-8:])
    pids = run.pids()
    assert frameworks(pids["learner/0"]) == frameworks(pids["evaluator/0"]) == {home}
    assert frameworks(pids["learner/1"]) == {other}
    assert not any(frameworks(pids[name]) for name in ("syncer/0", "recorder/0", "daemon"))
    run.kill("learner/1")
    run.wait_for(lambda: run.host("learner/1").get("incarnation") == 2)
    run.wait_for(lambda: run.steps().get("learner/1", 0) > 3 and run.host("learner/1")["phase"] == "stepping")
    assert frameworks(run.pids()["learner/1"]) == {other}
    assert "from nothing" not in (run.folder / "logs" / "daemon.log").read_text()  # Both were forked.
    run.stop()


def test_what_they_have_trained_is_the_homes_model(start: Callable[..., Run]) -> None:
    run = start("in_torch.py:task", "paced.py:task", tokens=60_000)
    summary = run.finish("done")
    module = isthmus.load(run.folder)
    assert type(module).__name__ == "Linear"
    assert summary["eval_loss_final"] < 0.1 * summary["eval_loss_initial"]
    assert any(voters == [0, 1] for voters in run.voters())
    lines = map(json.loads, (run.folder / "metrics.jsonl").read_text().splitlines())
    assert {line["learner"] for line in lines if "learner" in line} == {0, 1}


def test_the_examples_are_one_model() -> None:
    """The loss of the first batch, from the same weights."""
    in_jax, in_torch = (
        reference.load(f"{EXAMPLE.with_name(name)}:task", "") for name in ("jax_nano.py", "torch_nano.py")
    )
    check_alike(in_jax, layout_of(in_jax, 0), "torch_nano.py:task", in_torch, layout_of(in_torch, 0))
    first = in_jax.batch(At(0, 0, 0))
    np.testing.assert_array_equal(first["tokens"], in_torch.batch(At(0, 0, 0))["tokens"])
    weights = in_jax.init(jax.random.key(0))
    module = in_torch.model({name: np.asarray(leaf) for name, leaf in named_leaves(weights)}, 0)
    with torch.no_grad():
        loss = float(in_torch.loss(module, {"tokens": torch.from_numpy(first["tokens"])}))
    assert abs(float(in_jax.loss(weights, first)) - loss) < 1e-5
