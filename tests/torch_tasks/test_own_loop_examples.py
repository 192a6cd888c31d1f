"""The examples of loops: how many of their lines name us, that they train, and that they are scripts without them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from isthmus.ops.learner.local_copies import newest_copy
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.processes import ONE_THREAD
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import FOREVER, ISTHMUS, Run, assert_is_whole

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


EPOCHS, BATCHES = 3, 600
"""An epoch of so many steps lasts for seconds; the state of an island is copied every second."""


def test_a_loop_over_epochs_goes_on_after_a_kill_in_the_epoch_and_batch_where_it_was(tmp_path: Path) -> None:
    options = ("--epochs", str(EPOCHS), "--samples", str(32 * BATCHES))
    script = str(EXAMPLES / "epochs_loop.py")
    run = Run(tmp_path, "--loop", script, tokens=FOREVER, after=("--", *options))
    try:
        # In the second epoch; in the third, where no copy was made in the second.
        run.wait_for(lambda: (copy := newest_copy(run.folder, DISK, 1, 1000, lambda: 0)) and copy.step > BATCHES)
        run.kill("learner/1")
        summary = run.finish("stopped")
    finally:
        run.close()
    assert [row["restarts"] for row in summary["per_learner"]] == [0, 1]
    assert summary["scripts_unfinished"] == []

    logs = [(run.folder / "logs" / f"learner-{slot}.log").read_text() for slot in (0, 1)]
    places = re.findall(r"begins at epoch (\d+), batch (\d+)", logs[1])
    first, next_life = [(int(epoch), int(batch)) for epoch, batch in places]
    assert first == (0, 0)
    assert next_life[0] in (1, 2)
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    of_next = [line for line in lines if (line["learner"], line["incarnation"]) == (1, 2) and line.get("began")]
    how, life, step = of_next[0]["began"]
    assert how in ("memory", "copy")  # As what it had trained is in no version, or all of it is.
    assert life == 1
    # The first step of a run, which tells of the model, is the loop's, and does not count.
    assert next_life[0] * BATCHES + next_life[1] == step + 1

    for slot, log in enumerate(logs):
        evaluated = [int(epoch) for epoch in re.findall(rf"slot {slot}, epoch (\d+):", log)]
        assert sorted(set(evaluated)) == list(range(EPOCHS)), log
        assert f"slot {slot} at its end:" in log
        for epoch in range(EPOCHS):
            torch.load(tmp_path / f"epoch-{epoch}-slot-{slot}.pt", weights_only=True)
