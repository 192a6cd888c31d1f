"""Runs of a task in PyTorch, in real processes: no jax in them, a killed learner goes on, and the model is loaded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import isthmus
from isthmus import At
from isthmus.programs.engine.request import reference
from tests.programs.engine.run.process_run import FOREVER, Run
from tests.torch_tasks.torch_models import EXAMPLE

pytestmark = [pytest.mark.torch, pytest.mark.process]

TASK = """
import sys, time
import numpy as np, torch
from isthmus.torch import Task

def build():
    layers = torch.nn.Linear(32, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1)
    return torch.nn.Sequential(*layers)
def loss(model, batch):
    assert "jax" not in sys.modules
    return ((model(batch["x"]) - batch["y"]) ** 2).mean()
def batch(at):
    time.sleep(0.004)
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}

def optimizer(model): return torch.optim.AdamW(model.parameters(), lr=1e-2)

task = Task(build, loss, batch, tokens_per_batch=64, optimizer=optimizer)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    runs: list[Run] = []

    def begin(**options: Any) -> Run:
        runs.append(Run(tmp_path, task=TASK, **options))
        return runs[-1]

    yield begin
    for run in runs:
        run.close()


def reports(run: Run, slot: int) -> list[dict[str, Any]]:
    path = run.folder / "metrics.jsonl"
    lines = map(json.loads, path.read_text().splitlines()) if path.exists() else ()
    return [line for line in lines if line.get("learner") == slot]


def test_a_killed_learner_comes_back_with_its_moments(start: Callable[..., Run]) -> None:
    run = start(tokens=FOREVER)
    run.wait_for(lambda: (run.folder / "local" / "learner-1").exists())
    run.wait_for_merges(10)
    run.kill("learner/1")
    run.wait_for(lambda: run.host("learner/1").get("incarnation") == 2)
    run.wait_for(lambda: run.steps().get("learner/1", 0) > 3 and run.host("learner/1")["phase"] == "stepping")
    run.wait_for(lambda: any(line.get("began") for line in reports(run, 1)))
    run.wait_for_merges(10)
    began = [line["began"][0] for line in reports(run, 1) if line.get("began")]
    assert set(began) <= {"memory", "copy", "snapshot"}
    assert "from nothing" not in (run.folder / "logs" / "daemon.log").read_text()  # It was forked.
    run.stop()


def test_what_a_run_has_trained_is_a_module(start: Callable[..., Run]) -> None:
    run = start(tokens=40_000)
    summary = run.finish("done")
    module = isthmus.load(run.folder)
    assert isinstance(module, torch.nn.Sequential)
    assert not module.training
    task = reference.load(f"{run.here / 'paced.py'}:task", "Loading the task")
    losses = []
    for position in range(16):
        batch = {name: torch.from_numpy(array) for name, array in task.batch(At(0, 0, position, "evaluation")).items()}
        with torch.no_grad():
            losses.append(float(((module(batch["x"]) - batch["y"]) ** 2).mean()))
    assert np.mean(losses) == pytest.approx(summary["eval_loss_final"], rel=1e-6)
    assert summary["eval_loss_final"] < summary["eval_loss_initial"]


def test_the_example_trains_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    program = isthmus.decoupled_diloco(interval=4, fragments=2)
    found = isthmus.train(
        program,
        f"{EXAMPLE}:task",
        tokens=40_000,
        learners=2,
        run_dir=tmp_path / "run",
        transport="inproc",
        quiet=True,
    )
    assert found.summary["eval_loss_final"] < found.summary["eval_loss_initial"] - 1.0
    assert type(found.parameters).__name__ == "Nano"
