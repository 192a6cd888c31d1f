"""A model that is nothing but parameters: its step adds a little to each, so what a run takes is what exchanges take.

`plain.py:task(values = 500_000_000, tensors = 1)` has so many values in so many tensors of one size, and a sample of
COLUMNS values beside them, which the loss is read from: of a tensor that a step both reads the loss from and writes,
XLA makes a copy. A batch takes `seconds` to come, so that a step of few values does not outrun the exchanges.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isthmus import At, Task

COLUMNS = 1000


def task(*, values: int, tensors: int, dtype: str = "float32", seconds: float = 0.0) -> Task:
    """The task; `values` are a multiple of 1,000 in each tensor."""
    rows = values // (COLUMNS * tensors)

    def init(key: Any) -> Any:
        keys = jax.random.split(key, tensors)
        model = {f"tensor{i}": 0.02 * jax.random.normal(keys[i], (rows, COLUMNS), dtype) for i in range(tensors)}
        return {"sample": jnp.zeros(COLUMNS, dtype), **model}

    def loss_of(state: Any) -> Any:
        return jnp.mean(jnp.square(state["sample"].astype(jnp.float32) - 1.0))

    def step(state: Any, batch: Any, now: Any) -> tuple[Any, Mapping[str, Any]]:
        del now
        noise = batch["noise"].astype(dtype)
        return jax.tree.map(lambda leaf: leaf + 0.01 * (1.0 - leaf) + noise, state), {"loss": loss_of(state)}

    def evaluate(state: Any, batch: Any) -> Mapping[str, Any]:
        del batch
        return {"loss": loss_of(state)}

    def batch(at: At) -> Any:
        time.sleep(seconds)
        return {"noise": np.float32(1e-3 * at.rng().standard_normal())}

    return Task.of_step(init, step, evaluate, batch, tokens_per_batch=1, merge={"**": "rda"}, evaluation=1)
