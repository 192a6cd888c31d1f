"""The device side of inner-step: the jitted functions, and the state that only they touch.

Buffers. The state is donated to every step, so nothing outside may hold one of its leaves. A fragment leaves through
its own jitted `extract`, dispatched before the next step by the thread that owns the state; its result is a new array.
An update enters through `adopt`, which donates the leaves it replaces; the update's own buffer is never written again,
for JAX may alias it for ever. Compiled functions are shared by all learners of a process that train one task.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.ops.fragment import Fragment, Unit
from isthmus.ops.items import Vector
from isthmus.ops.tree import named_leaves
from isthmus.ops.turnstile import CORES

_COMPILING = threading.Lock()
"""Learners of one process would each compile the same function if they asked at once."""


def compute_in_the_calling_thread() -> None:
    """Let XLA's CPU computations run in the thread that asks for them, not in one of XLA's own.

    Whoever asks waits for the result anyway, and two threads would hand each other the core twice a step. jax reads
    this when it makes its first device: later calls, or calls in a process that has used one, have no effect.
    Source: docs/decisions/0017.
    """
    config: Any = jax.config
    config.update("jax_cpu_enable_async_dispatch", False)


class Functions:
    """The compiled functions of one (task, fragments, alpha)."""

    def __init__(self, task: Any, fragments: tuple[Fragment, ...], alpha: float) -> None:
        self.shapes = shapes_of(task)
        names = [name for name, _ in named_leaves(self.shapes)]
        self.treedef = jax.tree.structure(self.shapes)
        self.optimizer = optax.with_extra_args_support(task.optimizer)
        self.first: jax.stages.Wrapped = jax.jit(lambda key: jax.tree.leaves(task.init(key)))
        self.moments: jax.stages.Wrapped = jax.jit(
            lambda leaves: self.optimizer.init(jax.tree.unflatten(self.treedef, leaves))
        )
        self.step: jax.stages.Wrapped = jax.jit(partial(self._step, task.loss), donate_argnums=0)
        self.copy: jax.stages.Wrapped = jax.jit(lambda leaves: [jnp.copy(leaf) for leaf in leaves])
        self._sizes = [fragment.size for fragment in fragments]
        index = {name: i for i, name in enumerate(names)}
        self.touched = [sorted({index[unit.tensor] for unit in fragment.units}) for fragment in fragments]
        self.extract: list[jax.stages.Wrapped] = []
        self.adopt: list[jax.stages.Wrapped] = []
        self.replace: list[jax.stages.Wrapped] = []
        for fragment, touched in zip(fragments, self.touched, strict=True):
            places = {names[i]: place for place, i in enumerate(touched)}
            self.extract.append(jax.jit(partial(_extract, fragment, places)))
            self.replace.append(jax.jit(partial(_adopt, fragment, places, 0.0), donate_argnums=0))
            self.adopt.append(
                jax.jit(partial(_adopt, fragment, places, alpha), donate_argnums=0) if alpha else self.replace[-1]
            )

    def trace(self, batch: Any) -> None:
        """Trace everything that every learner will call: what there is to do before a device is there."""
        leaves = jax.tree.leaves(self.shapes)
        moments = jax.eval_shape(self.moments, leaves)
        self.moments.trace(leaves)
        self.step.trace((leaves, moments), batch, np.float32(0.0))
        self.copy.trace(leaves)
        for p, touched in enumerate(self.touched):
            self.extract[p].trace([leaves[i] for i in touched])
            for adopt in dict.fromkeys((self.replace[p], self.adopt[p])):
                adopt.trace([leaves[i] for i in touched], np.zeros(self._sizes[p], np.float32))

    def _step(self, loss_of: Callable[..., Any], state: tuple[Any, Any], batch: Any, progress: Any) -> Any:
        """One inner step: (leaves, optimizer state) -> the same, and the loss before the step."""
        leaves, moments = state
        parameters = jax.tree.unflatten(self.treedef, leaves)
        loss, gradients = jax.value_and_grad(loss_of)(parameters, batch)
        updates, moments = self.optimizer.update(gradients, moments, parameters, progress=progress)
        return (jax.tree.leaves(optax.apply_updates(parameters, updates)), moments), loss


def shapes_of(task: Any) -> Any:
    """The parameters of a task, as shapes and dtypes; no device is needed."""
    return jax.eval_shape(task.init, _abstract_key())


def _abstract_key() -> Any:
    return jax.eval_shape(partial(jax.random.key, 0))


@lru_cache(maxsize=8)
def functions_of(task: Any, fragments: tuple[Fragment, ...], alpha: float) -> Functions:
    """The functions of a task, the same object for the same arguments."""
    return Functions(task, fragments, alpha)


class Learner:
    """The state of one learner: parameters and optimizer moments, on the device. The parameters are zeros before
    `begin`, or until all have been adopted: then `reset_moments` makes the state whole."""

    def __init__(self, task: Any, fragments: Sequence[Fragment], *, seed: int, alpha: float = 0.0) -> None:
        compute_in_the_calling_thread()
        with _COMPILING:
            self._functions = functions_of(task, tuple(fragments), alpha)
        shapes = jax.tree.leaves(self._functions.shapes)
        self._seed = seed
        self._leaves: list[Any] = [jax.device_put(np.zeros(each.shape, each.dtype)) for each in shapes]
        self._moments: Any = None
        self.reset_moments()
        self._shares_cores = jax.default_backend() == "cpu"
        CORES.join()
        self._under_way: jax.Array | None = None

    def begin(self) -> None:
        """Make the first parameters of the task, the same for the same seed."""
        # Copies, because no two leaves may be one buffer, which donation would give away twice.
        self._leaves = self._functions.copy(self._functions.first(jax.random.key(self._seed)))
        self.reset_moments()

    def compile(self, batch: Any) -> None:
        """Compile everything that this learner will call, on a copy of its state."""
        with _COMPILING:
            functions = self._functions
            state = (functions.copy(self._leaves), jax.tree.map(jnp.copy, self._moments))
            (leaves, _), loss = functions.step(state, batch, np.float32(0.0))
            for p, touched in enumerate(functions.touched):
                values = functions.extract[p]([leaves[i] for i in touched])
                for adopt in dict.fromkeys((functions.replace[p], functions.adopt[p])):
                    for i, leaf in zip(touched, adopt([leaves[i] for i in touched], np.asarray(values)), strict=True):
                        leaves[i] = leaf
            for leaf in [*leaves, loss]:
                leaf.block_until_ready()

    def step(self, batch: Any, progress: float) -> jax.Array:
        """One inner step; the result is its loss. On the CPU it takes a turn at the cores, until it is computed;
        otherwise it is dispatched, and the step before it is waited for, so that one at most is on its way."""
        if not self._shares_cores:
            before, self._under_way = self._under_way, self.dispatch(batch, progress)
            if before is not None:
                before.block_until_ready()
            return self._under_way
        if not CORES.is_needed:
            return self._computed(batch, progress)
        with CORES:
            return self._computed(batch, progress)

    def dispatch(self, batch: Any, progress: float) -> jax.Array:
        """One inner step, on its way; the result is its loss."""
        state = (self._leaves, self._moments)
        (self._leaves, self._moments), loss = self._functions.step(state, batch, np.float32(progress))
        return loss  # type: ignore[no-any-return]

    def _computed(self, batch: Any, progress: float) -> jax.Array:
        """One inner step, and its loss, when it is there."""
        loss: Any = self.dispatch(batch, progress)
        if not loss.is_ready():  # This process had a device before: XLA computes in threads of its own.
            loss.block_until_ready()
        return loss  # type: ignore[no-any-return]

    def extract(self, fragment: int) -> jax.Array:
        """The values of a fragment after the steps dispatched so far, float32[n], on its way to the host."""
        touched = self._functions.touched[fragment]
        values = self._functions.extract[fragment]([self._leaves[i] for i in touched])
        if not self._shares_cores:
            values.copy_to_host_async()
        return values  # type: ignore[no-any-return]

    def adopt(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by alpha times itself and 1 - alpha times `values`, float32[n]."""
        self._write(fragment, self._functions.adopt[fragment], values)

    def replace(self, fragment: int, values: Vector) -> None:
        """Replace a fragment by `values`, float32[n], whatever alpha is."""
        self._write(fragment, self._functions.replace[fragment], values)

    def _write(self, fragment: int, adopt: jax.stages.Wrapped, values: Vector) -> None:
        touched = self._functions.touched[fragment]
        for i, leaf in zip(touched, adopt([self._leaves[i] for i in touched], values), strict=True):
            self._leaves[i] = leaf

    def adopt_tree(self, parameters: Any) -> None:
        """Replace all parameters by a tree of the same structure."""
        self._leaves = [jnp.array(leaf) for leaf in jax.tree.leaves(parameters)]

    def copy(self) -> list[jax.Array]:
        """A copy of all parameters after the steps dispatched so far, as leaves."""
        return self._functions.copy(self._leaves)  # type: ignore[no-any-return]

    def tree(self, leaves: Sequence[Any]) -> Any:
        """Leaves as the task's tree, in NumPy arrays of their own."""
        return jax.tree.unflatten(self._functions.treedef, [np.array(leaf) for leaf in leaves])

    def reset_moments(self) -> None:
        """Start the optimizer anew at the present parameters."""
        self._moments = self._functions.moments(self._functions.copy(self._leaves))

    @property
    def device_kind(self) -> str:
        """What the accelerator calls itself."""
        return str(jax.local_devices()[0].device_kind)


def _extract(fragment: Fragment, places: dict[str, int], leaves: list[Any]) -> jax.Array:
    """The flat float32 payload of a fragment."""
    return jnp.concatenate([jnp.ravel(_rows(unit, leaves[places[unit.tensor]])) for unit in fragment.units]).astype(
        jnp.float32
    )


def _adopt(fragment: Fragment, places: dict[str, int], alpha: float, leaves: list[Any], values: Any) -> list[Any]:
    """The touched leaves with a fragment's payload written into them."""
    result = list(leaves)
    for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
        place = places[unit.tensor]
        leaf = result[place]
        new = values[begin:end].reshape(unit.values_shape).astype(leaf.dtype)
        if alpha:
            new = alpha * _rows(unit, leaf) + (1.0 - alpha) * new
        result[place] = leaf.at[unit.start : unit.stop].set(new) if unit.is_split else new
    return result


def _rows(unit: Unit, leaf: Any) -> Any:
    return leaf[unit.start : unit.stop] if unit.is_split else leaf


@lru_cache(maxsize=8)
def loss_of(task: Any) -> jax.stages.Wrapped:
    """The compiled loss of a task, the same object for the same task."""
    return jax.jit(task.loss)


def trace_evaluation(task: Any) -> None:
    """Trace what an evaluation calls."""
    loss_of(task).trace(shapes_of(task), next(task.evaluation_batches(0)))


class Evaluation:
    """The mean loss of a task over its evaluation batches."""

    def __init__(self, task: Any, seed: int) -> None:
        compute_in_the_calling_thread()
        self._batches = list(task.evaluation_batches(seed))
        self._loss = loss_of(task)
        self._shapes = shapes_of(task)
        CORES.join()

    def loss(self, parameters: Any) -> float:
        """Of a tree of parameters, in the task's own unit."""
        return float(np.mean([self._loss_of(parameters, batch) for batch in self._batches]))

    def _loss_of(self, parameters: Any, batch: Any) -> float:
        with CORES:
            return float(self._loss(parameters, batch))

    def assemble(self, fragments: Sequence[Fragment], values: dict[int, Vector]) -> Any:
        """The parameter tree that the fragments make up, in NumPy arrays."""
        tensors = {name: np.empty(leaf.shape, leaf.dtype) for name, leaf in named_leaves(self._shapes)}
        for fragment in fragments:
            write(fragment, values[fragment.index], tensors)
        return jax.tree.unflatten(jax.tree.structure(self._shapes), list(tensors.values()))


def write(fragment: Fragment, values: Vector, tensors: dict[str, Any]) -> None:
    """Write a fragment's payload into NumPy tensors by name."""
    for unit, begin, end in zip(fragment.units, fragment.offsets, fragment.offsets[1:], strict=False):
        tensor = tensors[unit.tensor]
        if unit.is_split:
            tensor[unit.start : unit.stop] = values[begin:end].reshape(unit.values_shape)
        else:
            tensor[...] = values[begin:end].reshape(unit.values_shape)
