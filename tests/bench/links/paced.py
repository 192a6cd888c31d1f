"""Models whose steps take PACED_STEP_SECONDS of waiting, so that many learners share few cores, and links or deaths,
not cores, decide how fast a run is: the tasks of the plans beside this file, named by their square tensors, and of
`bench_storm.py` and `bench_two_levels.py`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Task

ROWS = 4
STEP_SECONDS = float(os.environ.get("PACED_STEP_SECONDS", "0.05"))
STAMPS = os.environ.get("PACED_STAMPS", "")
"""A folder: a file for each process, with a line for the begin of each step, of those that sleep themselves."""


@dataclass(frozen=True)
class Paced:
    """Batches for training, each after the seconds of a step."""

    batch: Callable[[Any], Any]

    def __call__(self, at: Any) -> Any:
        """The batch at a place."""
        if at.split != "evaluation":
            time.sleep(STEP_SECONDS)
        return self.batch(at)


def paced(tensors: int, width: int) -> Task:
    """Of so many tensors, width x width each."""

    def init(key: Any) -> Any:
        keys = jax.random.split(key, tensors)
        return {f"layer{i:02}": jax.random.normal(keys[i], (width, width)) / width for i in range(tensors)}

    def loss(params: Any, batch: Any) -> Any:
        return jnp.mean((batch["x"] @ sum(params.values()) - batch["y"]) ** 2)

    def batch(at: Any) -> Any:
        x = at.rng().normal(size=(ROWS, width)).astype(np.float32)
        return {"x": x, "y": x.sum(1, keepdims=True) * np.ones((1, width), np.float32)}

    return Task(init, loss, Paced(batch), tokens_per_batch=ROWS, optimizer=optax.adamw(1e-2))


def asleep(task: Task) -> Task:
    """The same, whose inner steps sleep themselves, and not the batches that they wait for: so that the sleep counts as
    time of steps, and what a learner does between two steps, as taking a snapshot, is not hidden behind it."""

    def sleep(seconds: Any, x: Any) -> Any:
        if STAMPS and seconds > 0:
            with Path(STAMPS, str(os.getpid())).open("a") as file:
                file.write(f"{time.monotonic():.6f}\n")
        time.sleep(float(seconds))
        return x

    def loss(params: Any, batch: Any) -> Any:
        form = jax.ShapeDtypeStruct(batch["x"].shape, batch["x"].dtype)
        x = jax.pure_callback(sleep, form, batch["seconds"], batch["x"])
        return task.loss(params, {**batch, "x": x})

    def batch(at: Any) -> Any:
        return {**task.batch.batch(at), "seconds": np.float32(0.0 if at.split == "evaluation" else STEP_SECONDS)}

    return replace(task, loss=loss, batch=batch)


def nano() -> Task:
    """The shipped model, in batches of 8."""
    from isthmus.programs import language_model

    shipped = language_model.task(batch=8)
    return replace(shipped, batch=Paced(shipped.batch))


small = paced(8, 16)
small_asleep = asleep(small)
eight = paced(8, 128)
regions = paced(24, 72)
regions_half = paced(12, 72)
million = asleep(paced(16, 256))
fifty_million = asleep(replace(paced(48, 1024), optimizer=optax.sgd(1e-3)))
"""Without moments: two of 200 MB a learner would be most of what this machine has."""
