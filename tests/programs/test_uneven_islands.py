"""Learners on islands of 1, 2, 4 and 8 devices train one model together; a command leaves the devices to its hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

SECONDS_MAX = 100
TOGETHER = """
    import json, sys
    import jax
    jax.config.update("jax_num_cpu_devices", 15)
    from isthmus.programs.request.program import Program
    from isthmus.programs.request.request import prepare
    from isthmus.programs.run.in_process import run_inproc
    from isthmus.runtime.host.contract import Island
    from isthmus.runtime.ids import Replica

    settings = {"layers": 1, "context": 16, "data": (sys.argv[2],)}
    request = prepare(Program(fragments=2), run={"tokens": 16 * 8 * 240}, task_settings=settings, run_dir=sys.argv[1])
    begins = {0: (0, 1), 1: (1, 2), 2: (3, 4), 3: (7, 8)}
    islands = {Replica("learner", n): Island(("cpu",), size, begin) for n, (begin, size) in begins.items()}
    print(json.dumps(run_inproc(request.with_folder(), watch=None, islands=islands).summary))
"""
APART = """
    import jax, sys
    from isthmus.programs.request.environment import has_backend
    from isthmus.programs.request.request import prepare
    from isthmus.programs.run.in_processes import submit_apart

    settings = {"data": (sys.argv[2],)}
    made = submit_apart(lambda: prepare("decoupled-diloco", run_dir=sys.argv[1], task_settings=settings))
    assert made.job.layout and not has_backend()
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", dedent(script), *arguments]
    given = os.environ | {"JAX_PLATFORMS": "cpu"}
    told = subprocess.run(command, env=given, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


def text(folder: Path) -> str:
    path = folder / "text.txt"
    path.write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    return str(path)


@pytest.mark.process
def test_islands_of_1_2_4_and_8_devices_train_together(tmp_path: Path) -> None:
    summary = json.loads(run(TOGETHER, str(tmp_path / "run"), text(tmp_path)).splitlines()[-1])
    assert summary["outcome"] == "done"
    assert all(learner["tokens"] for learner in summary["per_learner"])
    assert summary["contributors_mean"] > 2.0
    assert summary["eval_loss_final"] < summary["eval_loss_initial"] - 0.5


def test_preparing_a_run_starts_no_backend(tmp_path: Path) -> None:
    run(APART, str(tmp_path / "run"), text(tmp_path))
