"""Checks of a task's first step, for faults that shapes do not show.

`without_gradient` traces the gradient, and computes nothing: a parameter that no path leads to from the loss has zeros
in the traced program itself, for any batch. Batch statistics and buffers are such, and so is a layer that was
forgotten. It is a warning: a task may well keep something among its parameters that is not to be trained.

`check_loss` computes the loss of the first batch, where the program is so small that it is compiled in a third of a
second: a loss that is not finite there is none after any number of steps. Larger ones find that in their first step.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.data.batches import first_batch
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.island.recipe import LOCAL, Now, abstract_key, with_scalars
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, Fault

PARAMETERS_MAX: Final = 1 << 20
BATCH_BYTES_MAX: Final = 1 << 22
OPERATIONS_MAX: Final = 300
"""Beyond any of these the loss of the first batch is left to the first step. A transformer of two layers has 500
operations, and takes two seconds to compile."""
_OPTIONS: Final = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""It runs once: half of the compile time would go into its speed."""


def warnings(task: Task, seed: int) -> tuple[Fault, ...]:
    """Oddities of a task that can train."""
    names = without_gradient(task, seed) if task.loss is not None else untouched(task, seed)
    if not names:
        return ()
    told = ", ".join(map(repr, names))
    if task.loss is None:
        do = "Have the step change them, or say that they are local."
        return (Fault("Running task.step(state, batch, now)", "every merged leaf changed", f"as it was: {told}", do),)
    do = "They stay as init makes them. Statistics that loss computes are not kept: compute them from the batch."
    return (
        Fault("Running the gradient of task.loss(params, batch)", "one for every parameter", f"none for {told}", do),
    )


def without_gradient(task: Task, seed: int) -> list[str]:
    """The names of the parameters whose gradient is zero for every batch."""
    assert task.loss is not None
    params = jax.eval_shape(task.init, abstract_key())
    gradient = jax.grad(partial(with_scalars, task.loss), has_aux=True)
    traced = jax.make_jaxpr(lambda *given: gradient(*given)[0])(params, first_batch(task, seed)).jaxpr
    made = {variable: equation for equation in traced.eqns for variable in equation.outvars}
    outputs = zip(named_leaves(params), traced.outvars, strict=True)
    return [name for (name, _), variable in outputs if _is_zero(variable, made)]


def untouched(task: Task, seed: int) -> list[str]:
    """The names of the merged leaves that a step returns unchanged, whatever the batch is."""
    assert task.step is not None
    state, now = jax.eval_shape(task.init, abstract_key()), Now(abstract_key(), np.float32(0.0))
    traced = jax.make_jaxpr(task.step)(state, first_batch(task, seed), now).jaxpr
    leaves = zip(task.recipe().leaves(), traced.invars, traced.outvars, strict=False)
    return [leaf.name for leaf, before, after in leaves if leaf.kind != LOCAL and before is after]


def _is_zero(variable: Any, made: dict[Any, Any]) -> bool:
    """Whether an output of a traced program is zeros that depend on nothing."""
    while not hasattr(variable, "val"):  # A literal has a value.
        equation = made.get(variable)
        if equation is None or equation.primitive.name not in ("broadcast_in_dim", "convert_element_type", "copy"):
            return False
        variable = equation.invars[0]
    return bool(np.all(np.asarray(variable.val) == 0))


def check_loss(task: Task, seed: int) -> None:
    """ConfigError if the loss of the first parameters on the first batch is not finite."""
    batch = first_batch(task, seed)

    def first(key: Any, batch: Any) -> tuple[Any, Any]:
        model = task.init(key)
        if task.step is None:
            assert task.loss is not None
            loss = with_scalars(task.loss, model, batch)[0]
        else:
            loss = task.step(model, batch, Now(key, jnp.float32(0.0)))[1]["loss"]
        return loss, jax.tree.map(_is_finite, model)

    traced = jax.jit(first).trace(abstract_key(), batch)
    size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(task.init, abstract_key())))
    size_bytes = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(batch))
    if size > PARAMETERS_MAX or size_bytes > BATCH_BYTES_MAX or _operations(traced.jaxpr.jaxpr) > OPERATIONS_MAX:
        return
    with jax.default_device(_cpu()):
        loss, are_finite = traced.lower().compile(_OPTIONS)(jax.random.key(seed), batch)
    if math.isfinite(float(loss)):
        return
    odd = [name for name, is_finite in named_leaves(are_finite) if not is_finite]
    odd += [name for name, leaf in named_leaves(batch, "batch") if not np.isfinite(np.asarray(leaf, float)).all()]
    where = f", and not finite either: {', '.join(map(repr, odd))}" if odd else ""
    do = "Look at what loss divides by, and takes roots and logarithms of; no step can mend this."
    name = "task.loss(params, batch)" if task.loss is not None else "task.step(state, batch, now)"
    raise ConfigError(f"Running {name} on the first batch", "a finite loss", f"{loss}{where}", do)


def _cpu() -> Any:
    """The CPU; None, for jax's default device, if its configured platforms exclude the CPU."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def _is_finite(leaf: Any) -> Any:
    """Whether a leaf is finite, as keys and integers are."""
    leaf = jnp.asarray(leaf)
    return jnp.isfinite(leaf).all() if jnp.issubdtype(leaf.dtype, jnp.inexact) else jnp.bool_(True)


def _operations(traced: Any) -> int:
    """The number of operations of a traced program, with those of the programs that it calls."""
    count = 0
    for equation in traced.eqns:
        count += 1
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inside = getattr(inner, "jaxpr", inner)
                count += _operations(inside) if hasattr(inside, "eqns") else 0
    return count
