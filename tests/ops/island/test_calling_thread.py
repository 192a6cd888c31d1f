"""On the CPU a step is computed in the thread that asks for it: no second thread takes the core and the caches."""

import subprocess
import sys

SHARE = """
import time
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus.ops.island.life import Life
from isthmus.ops.island.jax_learner import Learner
from isthmus.programs import Task

def init(key): return {"w": jax.random.normal(key, (1 << 20,))}
def loss(p, batch): return jnp.tanh(jnp.tanh(jnp.tanh(p["w"] * batch))).mean()
def batch(at): return np.ones((), np.float32)

task = Task(init, loss, batch, tokens_per_batch=1, optimizer=optax.sgd(1e-9))
learner = Learner(task, (), life=Life(0, 0, 1))
learner.compile(batch(None))
learner.begin()
mine, all_of_them = time.thread_time(), time.process_time()
for _ in range(50):
    learner.step(batch(None), 0.0)
print((time.thread_time() - mine) / (time.process_time() - all_of_them))
"""


def test_a_step_costs_no_other_thread_anything() -> None:
    flags = {"NPROC": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "PATH": ""}
    done = subprocess.run([sys.executable, "-c", SHARE], env=flags, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0.9, "share of the CPU time that the calling thread has used"
