"""Models whose step takes 50 ms of waiting and little else, so that many learners share few cores, and links, not
cores, decide how fast a run is: the tasks of the plans beside this file, named by their square tensors."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Task

ROWS = 4
STEP_SECONDS = 0.05


def paced(tensors: int, width: int) -> Task:
    """Of so many tensors, width x width each."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key, tensors)
        return {f"layer{i:02}": jax.random.normal(keys[i], (width, width)) / width for i in range(tensors)}

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch["x"] @ sum(params.values()) - batch["y"]) ** 2)

    def batch(at: Any) -> Any:
        time.sleep(STEP_SECONDS)
        x = at.rng().normal(size=(ROWS, width)).astype(np.float32)
        return {"x": x, "y": x.sum(1, keepdims=True) * np.ones((1, width), np.float32)}

    return Task(init, loss, batch, tokens_per_batch=ROWS, optimizer=optax.adamw(1e-2))


eight = paced(8, 128)
regions = paced(24, 72)
regions_half = paced(12, 72)
