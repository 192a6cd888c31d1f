"""The device side of data-parallel training: the gradient of a batch, and the step along a mean of gradients.

The same parameters, optimizer and schedule as in `jax_learner`, cut in two where the learners exchange gradients. A
gradient leaves as one flat float32 vector: the leaves of the parameter tree, raveled in C order, one after another. The
state is donated to every step, so nothing outside may hold a part of it. On an island of several devices each has all
of the state, and its part of every batch.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.ops.exchange.messages import Vector
from isthmus.ops.gang.mesh_devices import devices_of, unless_usual
from isthmus.ops.gang.mesh_island import LearnerDevices
from isthmus.ops.gang.mesh_layout import lying
from isthmus.ops.island.compiling import compile_all, lowered
from isthmus.ops.island.functions import compute_in_the_calling_thread, functions_of
from isthmus.ops.island.life import CORES, DeviceCall

_COMPILING = threading.Lock()
"""Learners of one process would each compile the same function if they called it at the same time."""


class _Functions:
    """The compiled functions of one task, on these devices; on jax's default for None."""

    def __init__(self, task: Any, devices: tuple[Any, ...] | None) -> None:
        self.base = functions_of(task, (), 0.0, devices)
        self._everywhere = None if self.base.layout is None else self.base.layout.replicated
        self._loss, self._optimizer = self.base.recipe.loss, self.base.recipe.optimizer
        self._shapes = self.base.shapes
        self._ends = list(itertools.accumulate(shape.size for shape in self._shapes))
        self.gradient: jax.stages.Wrapped = jax.jit(self._gradient, out_shardings=self._everywhere)
        self.apply: jax.stages.Wrapped = jax.jit(self._apply, donate_argnums=0, out_shardings=self._everywhere)
        self.moments: jax.stages.Wrapped = jax.jit(
            lambda leaves: self._optimizer.init(self._tree(leaves)), out_shardings=self._everywhere
        )

    def put(self, state: Any) -> Any:
        """A state on its devices."""
        return state if self._everywhere is None else jax.device_put(state, self._everywhere)

    def trace(self, batch: Any) -> None:
        """Trace every function that a step calls, which needs no device."""
        for call in self.calls(batch):
            if call.is_step:
                call.function.trace(*call.arguments)

    def calls(self, batch: Any) -> Iterator[DeviceCall]:
        """The functions that a learner calls, for batches like this one."""
        leaves = self._lying(self._shapes)
        moments = self._lying(jax.eval_shape(self.moments, self._shapes))
        layout = self.base.layout
        if layout is not None:
            batch = jax.tree.map(lying, jax.tree.map(np.asarray, batch), layout.of_batch(batch))
        vector = lying(np.broadcast_to(np.float32(0), self._ends[-1]))
        yield DeviceCall("moments", self.moments, (leaves,))
        yield DeviceCall("gradient", self.gradient, (leaves, batch), is_step=True, batch=1)
        yield DeviceCall("apply", self.apply, ((leaves, moments), vector, np.float32(0.0)), is_step=True)

    def _lying(self, shapes: Any) -> Any:
        """Shapes of a state, with their shardings."""
        return shapes if self._everywhere is None else jax.tree.map(lambda leaf: lying(leaf, self._everywhere), shapes)

    def _gradient(self, leaves: list[Any], batch: Any) -> tuple[Any, Any]:
        """The scalars, and the gradient as one vector."""
        assert self._loss is not None  # A program that averages gradients takes no other task.
        parameters = self._tree(leaves)
        with self.base.stages():
            gradient, scalars = jax.grad(self._loss, has_aux=True)(parameters, batch)
        pieces = [jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(gradient)]
        return scalars, jnp.concatenate(pieces)

    def _apply(self, state: tuple[Any, Any], vector: Any, progress: Any) -> tuple[Any, Any]:
        """(leaves, optimizer state) after a step along a mean gradient."""
        leaves, moments = state
        parameters = self._tree(leaves)
        pieces = jnp.split(vector, self._ends[:-1])
        gradient = self._tree(
            [piece.reshape(each.shape).astype(each.dtype) for piece, each in zip(pieces, self._shapes, strict=True)]
        )
        updates, moments = self._optimizer.update(gradient, moments, parameters, progress=progress)
        return jax.tree.leaves(optax.apply_updates(parameters, updates)), moments

    def _tree(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self.base.model_treedef, leaves)


@lru_cache(maxsize=8)
def _functions_of(task: Any, devices: tuple[Any, ...] | None) -> _Functions:
    return _Functions(task, devices)


def trace(task: Any, batch: Any) -> None:
    """Trace every function that the learners of a task will call."""
    _functions_of(task, None).trace(batch)


def calls(task: Any, batch: Any, devices: tuple[Any, ...] | None) -> Iterator[DeviceCall]:
    """The functions that every learner of a task calls on these devices, on jax's default for None."""
    return _functions_of(task, devices).calls(batch)


class GradientLearner:
    """The state of one learner: parameters and optimizer moments, the same in all learners after the same steps."""

    def __init__(self, task: Any, seed: int, batch: Any, island: LearnerDevices | None = None) -> None:
        """Compile everything, and create the task's initial parameters, the same for the same seed."""
        compute_in_the_calling_thread()
        CORES.join()
        self._devices = devices_of(island)
        with _COMPILING:
            self._functions = _functions_of(task, unless_usual(self._devices))
            calls = self._functions.calls(batch)
            compile_all(lowered(calls))
            self._begin(seed)
            _, vector = self.gradient(batch)
            self.apply(vector, 0.0)
        self._begin(seed)

    def _begin(self, seed: int) -> None:
        base = self._functions.base
        self._leaves: list[Any] = self._functions.put(base.first_leaves(seed))
        # Of a copy, because an optimizer may give back what it is given, which donation would give away twice.
        self._moments: Any = self._functions.moments(base.copy(self._leaves))

    def gradient(self, batch: Any) -> tuple[Mapping[str, float], Vector]:
        """The scalars of a batch, and its gradient, float32[n], in host memory."""
        with CORES if self._devices[0].platform == "cpu" else nullcontext():
            scalars, vector = self._functions.gradient(self._leaves, self._functions.base.put_batch(batch))
            return {name: float(value) for name, value in scalars.items()}, np.array(vector)

    def apply(self, vector: Vector, progress: float) -> None:
        """Step along a gradient; `progress` is the share of the token budget that is spent, at most 1."""
        with CORES if self._devices[0].platform == "cpu" else nullcontext():
            state = self._functions.apply((self._leaves, self._moments), vector, np.float32(progress))
            self._leaves, self._moments = state
            for leaf in self._leaves:
                leaf.block_until_ready()

    def tree(self) -> Any:
        """The parameters as the task's tree, in NumPy arrays of their own."""
        return jax.tree.unflatten(self._functions.base.model_treedef, [np.array(leaf) for leaf in self._leaves])

    def state(self) -> list[np.ndarray[Any, np.dtype[Any]]]:
        """Parameters and moments, in NumPy arrays of their own: all from which another learner can continue."""
        return [np.array(leaf) for leaf in jax.tree.leaves((self._leaves, self._moments))]

    def restore(self, state: Sequence[Any]) -> None:
        """Replace parameters and moments by those of another learner."""
        treedef = jax.tree.structure((self._leaves, self._moments))
        restored = jax.tree.unflatten(treedef, [jnp.array(leaf) for leaf in state])
        self._leaves, self._moments = self._functions.put(restored)

    @property
    def device_kind(self) -> str:
        """The accelerator's name, as its driver reports it."""
        return str(self._devices[0].device_kind)
