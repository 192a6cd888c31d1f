"""The evaluator of a large model lets learners go first, in a real run, as the kernel says."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.runtime.system.processes import BESIDE_NICENESS, NICENESS
from tests.programs.engine.run.process_run import TASK, Run

LARGE = """
import time
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jnp.zeros((1000, 1001))}
def loss(params, batch): return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)
def batch(at):
    time.sleep(0.02)
    return {"x": at.rng().normal(size=(1, 1000)).astype(np.float32), "y": np.zeros((1, 1001), np.float32)}

task = Task(init, loss, batch, tokens_per_batch=1, optimizer=optax.sgd(1e-4))
"""
pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this kernel groups no processes by session"),
]


def group_niceness(pid: int) -> int:
    return int(Path(f"/proc/{pid}/autogroup").read_text().rpartition(" ")[2])


def thread_niceness(pid: int) -> set[int]:
    threads = [int(thread) for thread in os.listdir(f"/proc/{pid}/task") if int(thread) != pid]
    return {os.getpriority(os.PRIO_PROCESS, thread) for thread in threads}


@pytest.mark.parametrize(("task", "niceness"), [(LARGE, BESIDE_NICENESS), (TASK, 0)])
def test_the_evaluator_of_a_large_model_goes_after_learners(
    start: Callable[..., Run], task: str, niceness: int
) -> None:
    run = start(task=task, learners=1)
    run.wait_for_merges(8)
    pids = run.pids()
    run.wait_for(lambda: group_niceness(pids["learner/0"]) == NICENESS)
    run.wait_for(lambda: group_niceness(pids["evaluator/0"]) == niceness)
    assert (BESIDE_NICENESS in thread_niceness(pids["evaluator/0"])) == bool(niceness)
    assert os.getpriority(os.PRIO_PROCESS, pids["evaluator/0"]) == 0  # The loop, which answers the daemon.
