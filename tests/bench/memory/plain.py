"""A model that is nothing but parameters: its step adds a little to each, so what a run takes is what exchanges take.

`plain.py:task(values = 500_000_000, tensors = 1)` has so many values in so many tensors of one size.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.programs import At, Task

COLUMNS = 1000
SEEN = 1 << 16
"""Values that the loss is read from."""


def task(*, values: int, tensors: int, dtype: str = "float32") -> Task:
    """The task; `values` are a multiple of 1,000 in each tensor."""
    rows = values // (COLUMNS * tensors)

    def init(key: Any) -> Any:
        keys = jax.random.split(key, tensors)
        return {f"tensor{i}": 0.02 * jax.random.normal(keys[i], (rows, COLUMNS), dtype) for i in range(tensors)}

    def loss_of(state: Any) -> Any:
        return jnp.mean(jnp.square(state["tensor0"].ravel()[:SEEN].astype(jnp.float32) - 1.0))

    def step(state: Any, batch: Any, now: Any) -> tuple[Any, Mapping[str, Any]]:
        del now
        noise = batch["noise"].astype(dtype)
        return jax.tree.map(lambda leaf: leaf + 0.01 * (1.0 - leaf) + noise, state), {"loss": loss_of(state)}

    def evaluate(state: Any, batch: Any) -> Mapping[str, Any]:
        del batch
        return {"loss": loss_of(state)}

    def batch(at: At) -> Any:
        return {"noise": np.float32(1e-3 * at.rng().standard_normal())}

    return Task.of_step(init, step, evaluate, batch, tokens_per_batch=1, merge={"**": "rda"}, evaluation=1)
