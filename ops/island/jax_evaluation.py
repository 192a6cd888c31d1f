"""The device side of evaluation: a task's scalars on its evaluation batches, as means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import jax

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.frozen_leaves import Digests, digests_of
from isthmus.ops.exchange.messages import Vector
from isthmus.ops.island.assembly import Assembled
from isthmus.ops.island.evaluation_time import whole
from isthmus.ops.island.functions import Functions, compute_in_the_calling_thread, functions_of
from isthmus.ops.island.heap import keep_no_large_blocks
from isthmus.ops.island.life import CORES, Tensors
from isthmus.ops.island.recipe import abstract_key
from isthmus.ops.island.scores import Parts, batches_by_set, parts_by_set


@lru_cache(maxsize=8)
def _evaluate_of(functions: Functions) -> jax.stages.Wrapped:
    """(merged leaves, the model's local leaves, batch) -> scalars by name; compiled once for each task."""

    def evaluate(merged: list[Any], others: list[Any], batch: Any) -> dict[str, Any]:
        return dict(functions.recipe.evaluate(functions.model(merged, others), batch))

    return jax.jit(evaluate)


def trace_evaluation(task: Any) -> None:
    """Trace the function that an evaluation calls."""
    functions = functions_of(task, (), 0.0)
    others = jax.eval_shape(functions.local_of_model, abstract_key()) if functions.has_local_model else []
    _evaluate_of(functions).trace(functions.shapes, others, next(task.evaluation_batches(0)))


class JaxEvaluation:
    """The mean scalars of a task over its evaluation batches, and over those of each held-out set.

    A model's local leaves are those of `init`, and its frozen ones those that it loads, or of `init`, too. `path`: of a
    model made of modules, whose batches; or other `batches`, by set.
    """

    def __init__(self, task: Any, seed: int, path: int = 0, batches: Mapping[str, Sequence[Any]] | None = None) -> None:
        compute_in_the_calling_thread()
        self._batches = batches_by_set(task, task.evaluation_batches(seed, path)) if batches is None else batches
        self._functions = functions_of(task, (), 0.0)
        keep_no_large_blocks(sum(4 * each.size for each in self._functions.shapes))
        self._evaluate = _evaluate_of(self._functions)
        has_others = self._functions.has_local_model
        self._others = jax.jit(self._functions.local_of_model)(jax.random.key(seed)) if has_others else []
        frozen = self._functions.frozen_leaves(seed)
        self._digests = digests_of(frozen)
        for k, leaf in zip(self._functions.frozen, self._functions.put_frozen(frozen), strict=True):
            self._others[k] = leaf
        CORES.join()

    @property
    def count(self) -> int:
        """The number of batches."""
        return sum(map(len, self._batches.values()))

    def metrics(self, tensors: Tensors) -> dict[str, float]:
        """The mean scalars of these merged leaves, in the task's own units: 'loss', and others that it evaluates."""
        return whole(self.parts(tensors))

    def parts(self, tensors: Tensors) -> Parts:
        """The same, a batch after the other."""
        merged = [jax.device_put(tensors[name]) for name in self._functions.names]  # Once for all batches.
        return (yield from parts_by_set(self._batches, partial(self._metrics_of, merged)))

    def _metrics_of(self, merged: list[Any], batch: Any) -> dict[str, float]:
        with CORES:
            return {name: float(value) for name, value in self._evaluate(merged, self._others, batch).items()}

    def model(self, tensors: Tensors) -> Any:
        """The model of these merged leaves, as the task's functions take it."""
        merged = [jax.device_put(tensors[name]) for name in self._functions.names]
        return self._functions.model(merged, self._others)

    def frozen(self) -> Digests:
        """The digests of the frozen leaves, as they were made."""
        return self._digests

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Tensors:
        """The merged leaves that the fragments make up, in NumPy arrays, each made when it is asked for."""
        shapes = zip(self._functions.names, self._functions.shapes, strict=True)
        return Assembled(fragments, values, dict(shapes))
