"""The device side of data-parallel training: the gradient of a batch, and the step that a mean of gradients makes.

The same parameters, optimizer and schedule as in `training`, cut in two where the learners meet. A gradient leaves as
one flat float32 vector: the leaves of the parameter tree, raveled in C order, one after another. The state is donated
to every step, so nothing outside may hold a part of it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.ops.items import Vector
from isthmus.ops.training import compute_in_the_calling_thread, functions_of
from isthmus.ops.turnstile import CORES

_COMPILING = threading.Lock()
"""Learners of one process would each compile the same function if they asked at once."""


class _Functions:
    """The compiled functions of one task."""

    def __init__(self, task: Any) -> None:
        self.base = functions_of(task, (), 0.0)
        self._loss = task.loss
        self._shapes = jax.tree.leaves(self.base.shapes)
        self._ends = list(itertools.accumulate(shape.size for shape in self._shapes))
        self.gradient: jax.stages.Wrapped = jax.jit(self._gradient)
        self.apply: jax.stages.Wrapped = jax.jit(self._apply, donate_argnums=0)

    def trace(self, batch: Any) -> None:
        """Trace both, which needs no device."""
        leaves = self._shapes
        moments = jax.eval_shape(self.base.moments, leaves)
        self.gradient.trace(leaves, batch)
        self.apply.trace((leaves, moments), np.zeros(self._ends[-1], np.float32), np.float32(0.0))

    def _gradient(self, leaves: list[Any], batch: Any) -> tuple[Any, Any]:
        """The loss and its gradient, as one vector."""
        parameters = jax.tree.unflatten(self.base.treedef, leaves)
        loss, gradient = jax.value_and_grad(self._loss)(parameters, batch)
        return loss, jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(gradient)])

    def _apply(self, state: tuple[Any, Any], vector: Any, progress: Any) -> tuple[Any, Any]:
        """(leaves, optimizer state) after a step along a mean gradient."""
        leaves, moments = state
        parameters = jax.tree.unflatten(self.base.treedef, leaves)
        pieces = jnp.split(vector, self._ends[:-1])
        gradient = jax.tree.unflatten(
            self.base.treedef,
            [piece.reshape(each.shape).astype(each.dtype) for piece, each in zip(pieces, self._shapes, strict=True)],
        )
        updates, moments = self.base.optimizer.update(gradient, moments, parameters, progress=progress)
        return jax.tree.leaves(optax.apply_updates(parameters, updates)), moments


@lru_cache(maxsize=8)
def _functions_of(task: Any) -> _Functions:
    return _Functions(task)


def trace(task: Any, batch: Any) -> None:
    """Trace everything that every learner of a task will call."""
    _functions_of(task).trace(batch)


class GradientLearner:
    """The state of one learner: parameters and optimizer moments, the same in all learners after the same steps."""

    def __init__(self, task: Any, seed: int, batch: Any) -> None:
        """Compile everything, and make the first parameters of the task, the same for the same seed."""
        compute_in_the_calling_thread()
        CORES.join()
        with _COMPILING:
            self._functions = _functions_of(task)
            self._begin(seed)
            _, vector = self.gradient(batch)
            self.apply(vector, 0.0)
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        base = self._functions.base
        # Copies, because no two leaves may be one buffer, which donation would give away twice.
        self._leaves: list[Any] = base.copy(base.first(jax.random.key(seed)))
        self._moments: Any = base.moments(base.copy(self._leaves))

    def gradient(self, batch: Any) -> tuple[float, Vector]:
        """The loss of a batch and its gradient, float32[n], in memory of the host."""
        with CORES if jax.default_backend() == "cpu" else nullcontext():
            loss, vector = self._functions.gradient(self._leaves, batch)
            return float(loss), np.array(vector)

    def apply(self, vector: Vector, progress: float) -> None:
        """Step along a gradient; `progress` is the share of the token budget that is spent, at most 1."""
        with CORES if jax.default_backend() == "cpu" else nullcontext():
            state = self._functions.apply((self._leaves, self._moments), vector, np.float32(progress))
            self._leaves, self._moments = state
            for leaf in self._leaves:
                leaf.block_until_ready()

    def tree(self) -> Any:
        """The parameters as the task's tree, in NumPy arrays of their own."""
        return jax.tree.unflatten(self._functions.base.treedef, [np.array(leaf) for leaf in self._leaves])

    def state(self) -> list[np.ndarray[Any, np.dtype[Any]]]:
        """Parameters and moments, in NumPy arrays of their own: all that another learner needs to go on from here."""
        return [np.array(leaf) for leaf in jax.tree.leaves((self._leaves, self._moments))]

    def restore(self, state: Sequence[Any]) -> None:
        """Take the parameters and moments of another learner."""
        treedef = jax.tree.structure((self._leaves, self._moments))
        self._leaves, self._moments = jax.tree.unflatten(treedef, [jnp.array(leaf) for leaf in state])

    @property
    def device_kind(self) -> str:
        """What the accelerator calls itself."""
        return str(jax.local_devices()[0].device_kind)
