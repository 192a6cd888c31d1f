"""A program of a made model: one shard publishes version after version of each fragment, and nobody computes anything.

All its states have the same memory, so that the home of a run, which takes them, can be measured with a model that no
learner of this machine could train.

    isthmus train tests/bench/memory/made_shard.py:build --task tests/bench/memory/made_shard.py:MADE_2GB --learners 1
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Every, Graph, Job, Latest, Task, milliseconds
from isthmus.ops.exchange.fragments import Fragment, partition

LAYERS = 120


def _made(rows: int, width: int) -> Task:
    def loss(parameters: Any, batch: Any) -> Any:
        return sum(jnp.sum(layer[0, :1]) for layer in parameters.values()) + 0.0 * jnp.sum(batch)

    return Task(
        init=lambda _: {f"layer-{n:03}": jnp.zeros((rows, width), jnp.float32) for n in range(LAYERS)},
        loss=loss,
        batch=lambda _: np.zeros(1, np.float32),
        optimizer=optax.sgd(0.1),
        tokens_per_batch=1,
        evaluation=1,
    )


MADE_2GB = _made(4096, 1024)
MADE_31KB = _made(8, 8)
"""For a home that has no model to speak of."""


class MadeLearner:
    """Reports tokens, as of steps that it does not make."""

    outputs = ("report",)
    collects = ("update",)

    def __init__(self, *, fragments: tuple[Fragment, ...]) -> None:
        self._fragments, self._tokens, self.is_finished = len(fragments), 0, False

    def __call__(self, update: Any = None, control: Any = None) -> dict[str, Any]:
        """One report."""
        self._tokens += 1
        self.is_finished = control is not None and control["stop"]
        phase = "final" if self.is_finished else "stepping"
        report = {"tokens": self._tokens, "step": self._tokens, "phase": phase, "versions": [[1, 1]] * self._fragments}
        return {"report": {**report, "accounts": [[self._tokens, 0, 0, 0, 0]] * self._fragments}}


class MadeShard:
    """Publishes the next version of a fragment at each call, and the last of all once the run is to end."""

    outputs = ("state", "published", "final")
    collects = ("kept", "held")

    def __init__(self, fragments: tuple[Fragment, ...]) -> None:
        self._fragments, self._count, self.is_finished = fragments, 0, False
        self._zeros = np.zeros(max(fragment.size for fragment in fragments), np.float32)

    def __call__(self, kept: Any = None, held: Any = None, control: Any = None) -> list[tuple[str, Any]]:
        """States of the versions that are due."""
        if control is not None and control["stop"]:
            self.is_finished = True
            last = self._count // len(self._fragments) + 1
            return [("state", self._state(p, last, "final")) for p in range(len(self._fragments))]
        count, p = divmod(self._count, len(self._fragments))
        self._count += 1
        return [("state", self._state(p, count, "merge" if count else "initial"))]

    def _state(self, p: int, count: int, kind: str) -> dict[str, Any]:
        values = self._zeros[: self._fragments[p].size]
        return {
            "fragment": p,
            "version": [1, count],
            "kind": kind,
            "values": values,
            "clock": [[0, 1, count]],
            "positions": [[0, count]],
            "totals": [[0, 1, count]],
            "refused": [],
            "tensors": {"momentum": values},
            "lengths": [],
        }


def build(job: Job, *, fragments: int = 8, milliseconds_each: int = 100) -> Graph:
    """A learner, and a shard with a version every so many milliseconds."""
    graph, parts = Graph("made-shard"), partition(job.layout, fragments)
    learner, syncer = graph.role("learner", replicas=(1, 1)), graph.role("syncer", replicas=(1, 1))
    every = Every(milliseconds(milliseconds_each))
    step = learner.node("step", partial(MadeLearner, fragments=parts), fires=every)
    shard = syncer.node("outer-step", partial(MadeShard, parts), fires=every)
    graph.edge(shard["published"], step["update"], Latest("fragment"), to=learner.all)
    graph.train(reports=step["report"], control=[step["control"], shard["control"]], model=shard["final"])
    graph.hold(
        state=shard["state"],
        kept=shard["kept"],
        published=shard["published"],
        copies=[step["update"]],
        held=[shard["held"]],
    )
    return graph
