"""Whole runs of islands whose layers lie on four stages: of one process each, and of two."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus import load
from tests.patience import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.long]

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "staged.py"
COMMAND = (sys.executable, "-c", "from isthmus.programs.command.main import main; main()", "train")
RUNS = {
    "two islands, in one process": (8, ("--transport", "inproc", "--learners", "2", "--set", "program.push=int4")),
    "an island of two processes": (2, ("--learners", "1", "--set", "run.processes=[2]")),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_ends_with_the_model_of_the_task(tmp_path: Path, name: str) -> None:
    devices, options = RUNS[name]
    folder = tmp_path / "run"
    given = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    command = [*COMMAND, "--task", f"{EXAMPLE}:task", "--tokens", "20000", "--run-dir", str(folder), *options]
    told = subprocess.run(
        command, env=given, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert told.returncode == 0, told.stderr
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["outcome"] == "done"
    assert summary["eval_loss_final"] < 0.7 * summary["eval_loss_initial"]
    assert {leaf: array.shape for leaf, array in load(folder).items()} == {
        "first": (32, 32),
        "layers": (8, 32, 32),
        "last": (32, 1),
    }
