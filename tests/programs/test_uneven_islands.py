"""Learners on islands of 1, 2, 4 and 8 devices train one model together; a command leaves the devices to its hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.patience import PATIENCE

TOGETHER = """
    import json, sys
    import jax
    sizes = list(map(int, sys.argv[3:]))
    jax.config.update("jax_num_cpu_devices", sum(sizes))
    from isthmus.programs.engine.request.request import Program
    from isthmus.programs.engine.request.request import prepare
    from isthmus.programs.engine.run.in_process import run_inproc
    from isthmus.runtime.host.contract import IslandDevices
    from isthmus.runtime.ids import Replica

    settings = {"layers": 1, "context": 16, "batch": 8, "data": (sys.argv[2],)}
    given = {"tokens": 16 * 8 * 60 * len(sizes), "learners": len(sizes)}
    request = prepare(Program(fragments=2), run=given, task_settings=settings, run_dir=sys.argv[1])
    begins = [sum(sizes[:n]) for n in range(len(sizes))]
    islands = {Replica("learner", n): IslandDevices(("cpu",), sizes[n], begin) for n, begin in enumerate(begins)}
    print(json.dumps(run_inproc(request.with_folder(), watch=None, islands=islands).summary))
"""
APART = """
    import jax, sys
    from isthmus.programs.engine.request.environment import has_backend
    from isthmus.programs.engine.request.request import prepare
    from isthmus.programs.engine.run.in_processes import submit_in_child

    settings = {"data": (sys.argv[2],)}
    made = submit_in_child(lambda: prepare("decoupled-diloco", run_dir=sys.argv[1], task_settings=settings))
    assert made.job.layout and not has_backend()
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-c", dedent(script), *arguments]
    given = os.environ | {"JAX_PLATFORMS": "cpu"}
    told = subprocess.run(command, env=given, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert told.returncode == 0, told.stderr
    return told.stdout


def text(folder: Path) -> str:
    path = folder / "text.txt"
    path.write_text("The sea is wide, and the land between two seas is narrow. " * 400)
    return str(path)


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.parametrize("sizes", [(1, 2), (1, 2, 4, 8)], ids=str)
def test_islands_of_several_sizes_train_together(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    told = run(TOGETHER, str(tmp_path / "run"), text(tmp_path), *map(str, sizes))
    summary = json.loads(told.splitlines()[-1])
    assert summary["outcome"] == "done"
    assert all(learner["tokens"] for learner in summary["per_learner"])
    assert summary["contributors_mean"] > len(sizes) / 2
    assert summary["eval_loss_final"] < summary["eval_loss_initial"] - 0.5


@pytest.mark.long
@pytest.mark.process
def test_preparing_a_run_starts_no_backend(tmp_path: Path) -> None:
    run(APART, str(tmp_path / "run"), text(tmp_path))
