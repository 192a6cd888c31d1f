"""A small task for programs of the family, and a record of what their learners and syncers said."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from safetensors.numpy import load_file

from isthmus import Task
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.ops.syncer.outer_step import OuterStep

WIDTHS = (8, 6, 5, 7, 3, 4)


def _init(key: Any) -> Any:
    keys = jax.random.split(key, len(WIDTHS))
    pairs = zip(keys, WIDTHS, (*WIDTHS[1:], 1), strict=True)
    return {f"layer-{i}": jax.random.normal(k, (m, n)) / m**0.5 for i, (k, m, n) in enumerate(pairs)} | {
        f"bias-{i}": jnp.zeros(n) for i, n in enumerate((*WIDTHS[1:], 1))
    }


def _loss(params: Any, batch: Any) -> Any:
    x = batch["x"]
    for i in range(len(WIDTHS)):
        x = jnp.tanh(x @ params[f"layer-{i}"] + params[f"bias-{i}"])
    return jnp.mean((x - batch["y"]) ** 2)


def _batch(at: Any) -> Any:
    x = at.rng().normal(size=(16, WIDTHS[0])).astype(np.float32)
    return {"x": x, "y": np.sin(x.sum(1, keepdims=True)).astype(np.float32)}


def task(optimizer: Any) -> Task:
    """Twelve tensors, none embedding-like; an optimizer that does not follow the run's progress, which travels with
    messages and so depends on when they come."""
    return Task(_init, _loss, _batch, tokens_per_batch=16, optimizer=optimizer, evaluation=2)


ADAM = task(optax.adamw(1e-2))
SGD = task(optax.sgd(0.05))


@dataclass
class Record:
    """Bits, in the order in which they were made: updates by fragment, outer gradients by learner and fragment."""

    updates: dict[int, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[tuple[int, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))


@contextmanager
def recorded() -> Iterator[Record]:
    """Record what outer steps publish and learners answer, before the last phase."""
    record = Record()
    outer_step, send = OuterStep.__call__, FragmentSend.__call__

    def publish(self: Any, gradient: Any, kept: Any = None, wanted: Any = None) -> Any:
        emitted = outer_step(self, gradient, kept, wanted)
        if gradient["kind"] != "final" and "update" in emitted:
            record.updates[gradient["fragment"]].append(emitted["update"]["values"].tobytes())
        return emitted

    def answer(self: Any, fragment: Any) -> Any:
        for emitted in send(self, fragment):
            for _, item in emitted:
                if item["kind"] == "merge":
                    record.answers[item["slot"], item["fragment"]].append(item["gradient"].tobytes())
            yield emitted

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OuterStep, "__call__", publish)
        patch.setattr(FragmentSend, "__call__", answer)
        yield record


def final_model(folder: Path) -> dict[str, Any]:
    """The tensors of the trained model."""
    tensors: dict[str, Any] = {}
    for path in sorted((folder / "snapshots" / "final").glob("*.safetensors")):
        tensors |= load_file(path)
    return tensors
