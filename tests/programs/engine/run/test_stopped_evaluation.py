"""A run that is stopped while its model is evaluated: it ends, its model is whole, and the evaluation is made later."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import isthmus
from isthmus.programs.engine.request.reference import load
from tests.programs.engine.run.process_run import ISTHMUS, Run

pytestmark = pytest.mark.process

EXAMPLE = Path(__file__).parents[4] / "docs" / "examples" / "numpy_task.py"
PACED = """
import os, time
from pathlib import Path

PACE = float(os.environ.get("PACE", "0"))
SLOW = Path(os.environ.get("SLOW", "never"))


class Slow(Evaluation):
    @property
    def count(self):
        return len(self.batches)

    def parts(self, tensors):
        for _ in self.batches:
            yield
            time.sleep(PACE if SLOW.exists() else 0)
        return self.metrics(tensors)


class Paced(LeastSquares):
    def batch(self, at):
        time.sleep(0.01)
        if at.split != "evaluation" and at.position == LAST:
            SLOW.touch()
        return super().batch(at)

    def evaluator(self, seed):
        return Slow(list(self.evaluation_batches(seed)))


task = Paced(tokens_per_batch=64)
"""
LAST = 150


def evaluated_later(run: Run, *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(ISTHMUS), "evaluate", str(run.folder), *more]
    return subprocess.run(command, cwd=run.here, capture_output=True, text=True, check=False)


def lines(run: Run) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run.folder / "evaluations.jsonl").read_text().splitlines()]


def loss_of_model(run: Run) -> float:
    """What the task says of the model that the run has left."""
    task = load(f"{EXAMPLE}:task", "Loading the example")
    model = isthmus.load(run.folder, task)
    return float(task.evaluator(0).metrics(model)["loss"])


def task(last: int) -> str:
    return EXAMPLE.read_text() + PACED.replace("LAST", str(last))


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file by which an evaluation takes a second a batch, once it is there."""
    monkeypatch.setenv("PACE", "1")
    monkeypatch.setenv("SLOW", str(tmp_path / "slow"))
    return tmp_path / "slow"


@pytest.mark.further
def test_ctrl_c_in_the_final_evaluation_leaves_it_out_and_it_is_made_later(slow: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, tokens=64 * 2 * LAST, task=task(LAST - 5))
    run.wait_for(lambda: (run.status()["training"].get("ending") or {}).get("awaits") == "evaluation")
    shown = subprocess.run(
        [str(ISTHMUS), "status", "run", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(shown.stdout)["training"]["ending"]["is_stopped"] is False
    summary = run.stop()
    assert (summary["final_evaluation"], summary["eval_loss_final"]) == ("left_out", None)
    assert summary["eval_loss_initial"] is not None
    assert summary["evaluated_seconds"] > 0
    assert all(line["kind"] != "final" for line in lines(run))
    slow.unlink()
    done = evaluated_later(run, "--json")
    assert done.returncode == 0, done.stderr
    found, summary = json.loads(done.stdout), run.summary()
    assert found["written"] is True
    assert summary["final_evaluation"] == "later"
    assert found["loss"] == summary["eval_loss_final"] == summary["eval_loss_last"]
    assert summary["eval_loss_final"] == pytest.approx(loss_of_model(run), rel=1e-6)
    (last,) = [line for line in lines(run) if line["kind"] == "final"]
    assert (last["eval_loss"], last["tokens"]) == (found["loss"], summary["eval_tokens_last"])
    again = evaluated_later(run)  # Of a run that has it, and no language model.
    assert again.returncode == 2
    assert run.summary() == summary


@pytest.mark.long
def test_a_batch_that_does_not_end_delays_no_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACE", "600")
    monkeypatch.setenv("SLOW", str(tmp_path / "slow"))
    (tmp_path / "slow").touch()
    run = Run(tmp_path, task=task(-1))
    run.wait_for_merges(4)  # The first evaluation is under way.
    summary = run.stop()
    assert (summary["final_evaluation"], summary["eval_loss_final"]) == ("left_out", None)
    assert isthmus.load(run.folder)["weights"].any()


@pytest.mark.long
def test_a_short_evaluation_is_made_also_of_a_run_that_is_stopped(tmp_path: Path) -> None:
    run = Run(tmp_path, task=task(-1))
    run.wait_for_merges(4)
    summary = run.stop()
    assert summary["final_evaluation"] == "made"
    assert summary["eval_loss_final"] is not None
