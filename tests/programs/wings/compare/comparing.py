"""A task that takes next to nothing, for comparisons."""

from __future__ import annotations

from pathlib import Path

TASK = """
import jax, jax.numpy as jnp, numpy as np, optax
from isthmus import Task

def init(key): return {"w": jax.random.normal(key, (32, 1)), "b": jnp.zeros(1)}
def loss(params, batch):
    off = batch["x"] @ params["w"] + params["b"] - batch["y"]
    return jnp.mean(off ** 2), {"largest": jnp.max(jnp.abs(off))}
def batch(at):
    x = at.rng().normal(size=(64, 32)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True)}

task = Task(init, loss, batch, tokens_per_batch=64, optimizer=optax.adamw(1e-2), evaluation=2)
"""


def written(folder: Path) -> str:
    """The task, in a file of a folder, as `--task` takes it."""
    (folder / "line.py").write_text(TASK)
    return f"{folder / 'line.py'}:task"
