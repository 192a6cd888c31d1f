"""The examples of loops: how many of their lines name us, that they train, and that they are scripts without them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isthmus.runtime.system.processes import ONE_THREAD
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import ISTHMUS, assert_is_whole

pytestmark = [pytest.mark.torch, pytest.mark.process]

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
OURS = re.compile(r"\b(isthmus|island)\b")
LINES_MAX = 6


def code_of(name: str) -> list[str]:
    """The lines behind the docstring."""
    text = (EXAMPLES / name).read_text()
    return text[text.index('"""', 3) + 3 :].splitlines()


def test_a_loop_of_the_shape_of_nanogpt_trains_and_six_of_its_lines_are_ours(tmp_path: Path) -> None:
    assert len([line for line in code_of("nanogpt_loop.py") if OURS.search(line)]) <= LINES_MAX
    script = str(EXAMPLES / "nanogpt_loop.py")
    command = [str(ISTHMUS), "train", "--loop", script, "--learners", "2", "--tokens", "60000", "--run-dir", "run"]
    arguments = ["--max-iters", "100000", "--eval-interval", "5", "--eval-iters", "1"]
    done = subprocess.run(
        [*command, "--", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert not done.returncode, (done.stdout, done.stderr)
    summary = assert_is_whole(tmp_path / "run")
    assert summary["outcome"] == "done"
    assert "step 5: train" in (tmp_path / "run" / "logs" / "learner-0.log").read_text()
    assert "step 5: train" not in (tmp_path / "run" / "logs" / "learner-1.log").read_text()
    assert (tmp_path / "out" / "ckpt.pt").exists()


def test_without_our_lines_it_is_a_script_that_trains_alone(tmp_path: Path) -> None:
    lines = code_of("nanogpt_loop.py")
    opened = [re.sub(r"with isthmus.*:$", "if True:", line) for line in lines]
    opened = [re.sub(r"not island.is_over", "True", line) for line in opened]
    text = "\n".join(line for line in opened if not OURS.search(line))
    (tmp_path / "alone.py").write_text(text)
    options = ["--data", str(EXAMPLES), "--max-iters", "6", "--eval-interval", "3", "--eval-iters", "1"]
    variables = {**os.environ, **ONE_THREAD}
    command = [sys.executable, "alone.py", *options, "--batch", "2", "--dtype", "bfloat16"]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert not done.returncode, done.stderr
    assert "step 6: train" in done.stdout
    resumed = subprocess.run(
        [*command, "--resume"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert not resumed.returncode, resumed.stderr


def test_a_loop_with_fsdp_trains_in_ranks_and_six_of_its_lines_are_ours(tmp_path: Path) -> None:
    assert len([line for line in code_of("fsdp_loop.py") if OURS.search(line)]) <= LINES_MAX
    script = str(EXAMPLES / "fsdp_loop.py")
    options = ["--ranks", "2", "--learners", "1", "--tokens", "40000", "--run-dir", "run"]
    command = [str(ISTHMUS), "train", "--loop", script, *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert not done.returncode, (done.stdout, done.stderr)
    assert assert_is_whole(tmp_path / "run")["outcome"] == "done"
    assert "step 0: loss" in (tmp_path / "run" / "logs" / "learner-0.log").read_text()
    state = torch.load(tmp_path / "fsdp_loop.pt", weights_only=True)
    assert {name: tuple(leaf.shape) for name, leaf in state.items()}["0.weight"] == (64, 32)


def test_without_our_lines_torchrun_runs_it(tmp_path: Path) -> None:
    opened = [re.sub(r"with isthmus.*:$", "if True:", line) for line in code_of("fsdp_loop.py")]
    opened = [re.sub(r"island\(range\((.*)\)\):", r"range(\1):", line) for line in opened]
    opened = [line.replace(" and island.slot == 0", "") for line in opened]
    (tmp_path / "alone.py").write_text("\n".join(line for line in opened if not OURS.search(line)))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, "alone.py", "--steps", "3"]
    variables = {**os.environ, **ONE_THREAD}
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert not done.returncode, done.stderr
    assert "step 0: loss" in done.stdout
    assert (tmp_path / "fsdp_loop.pt").exists()
