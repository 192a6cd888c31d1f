"""On the CPU a step is computed in the thread that asks for it: no second thread takes the core and the caches."""

import os
import subprocess
import sys

import pytest

from isthmus.runtime.system.processes import ONE_THREAD

pytestmark = [pytest.mark.process, pytest.mark.long]

LARGE_OPERATIONS = """
import jax, jax.numpy as jnp, numpy as np, optax

def init(key): return {"w": jax.random.normal(key, (1 << 20,))}
def loss(p, batch): return jnp.tanh(jnp.tanh(jnp.tanh(p["w"] * batch))).mean()
def batch(at): return np.ones((), np.float32)

task = Task(init, loss, batch, tokens_per_batch=1, optimizer=optax.sgd(1e-9))
"""
MANY_SMALL_PRODUCTS = """
from isthmus.programs.language_model import task as shipped

task = shipped(width=32, layers=1, context=16, heads=2, optimizer="muon", data=({file!r},))
"""
SHARE = """
import time
from isthmus.ops.data.batches import At
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus import Task
{task}
batch = task.batch(At(0, 0, 0))
learner = Learner(task, (), life=LearnerLife(0, 0, 1))
learner.compile(batch)
learner.begin()
mine, all_of_them = time.thread_time(), time.process_time()
for _ in range(50):
    learner.step(batch, 0.0)
print((time.thread_time() - mine) / (time.process_time() - all_of_them))
"""


def compiled() -> dict[str, str]:
    """Where programs are that were compiled before: a step is what counts."""
    return {name: value for name, value in os.environ.items() if name.startswith("JAX_")}


@pytest.mark.parametrize("task", [LARGE_OPERATIONS, MANY_SMALL_PRODUCTS])
def test_a_step_costs_no_other_thread_anything(task: str) -> None:
    environment = {**ONE_THREAD, "NPROC": "1", "PATH": "", **compiled()}
    command = [sys.executable, "-c", SHARE.format(task=task.replace("{file!r}", repr(__file__)))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.97, "share of the CPU time that the calling thread has used"
