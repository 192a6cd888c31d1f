"""The shipped language model as a task that brings its step: what bench_learner compares with its bare loop."""

from __future__ import annotations

from typing import Any

import jax
import optax

from isthmus import Task
from isthmus.programs.language_model import task


def nano(*, batch: int) -> Task:
    """Parameters are merged as the shipped task merges them; moments are local."""
    shipped = task(batch=batch)
    optimizer = optax.with_extra_args_support(shipped.optimizer)

    def init(key: Any) -> Any:
        params = shipped.init(key)
        return {"params": params, "moments": optimizer.init(params)}

    def step(state: Any, batch: Any, now: Any) -> Any:
        loss, gradient = jax.value_and_grad(shipped.loss)(state["params"], batch)
        updates, moments = optimizer.update(gradient, state["moments"], state["params"], progress=now.progress)
        return {"params": optax.apply_updates(state["params"], updates), "moments": moments}, {"loss": loss}

    return Task.of_step(
        init,
        step,
        lambda state, batch: {"loss": shipped.loss(state["params"], batch)},
        shipped.batch,
        tokens_per_batch=shipped.tokens_per_batch,
        evaluation=shipped.evaluation,
        merge={"params/embedding": "average", "params/head": "average", "params/**": "rda", "**": "local"},
    )
