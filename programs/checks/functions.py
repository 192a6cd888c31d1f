"""Whether loss and optimizer, or step and evaluate, fit the result of `init` and each other: run on shapes alone.

Loaded leaves have to be requested: leaf by leaf, and one at a time in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.ops.island.recipe import LOCAL, Leaf, Now, abstract_key, with_scalars
from isthmus.programs.checks.calls import call
from isthmus.programs.checks.leaves import form, forms
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, Fault

METRICS_MAX: Final = 32
"""Scalars of a step: each is read, reported and written separately."""
_STEP: Final = "task.step(state, batch, now)"
_EVALUATE: Final = "task.evaluate(state, batch)"
_RESTART: Final = "task.restart(state, key)"


def check_loss(task: Task, batch: Any) -> None:
    """ConfigError unless the loss is a scalar that can be differentiated, and the optimizer takes its gradient."""
    assert task.loss is not None
    params = jax.eval_shape(task.init, abstract_key())
    name = "task.loss(params, batch)"
    found = call(name, task.loss, partial(jax.eval_shape, task.loss, params, batch))
    value, told = found if _has_scalars(found) else (found, {})
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        do = "Return the mean over the batch, for example with jnp.mean; beside it a dict of scalars, or nothing."
        found = "None" if value is None else form(value)
        raise ConfigError(f"Running {name}", "one scalar of a floating dtype", found, do)
    if faults := list(_metric_faults(name, {"loss": value, **told})):
        raise ConfigError.of(faults)
    gradient = jax.grad(partial(with_scalars, task.loss), has_aux=True)
    call(f"the gradient of {name}", task.loss, partial(jax.eval_shape, gradient, params, batch))
    _check_optimizer(task.optimizer, params)


def _has_scalars(found: Any) -> bool:
    """Whether a loss gives scalars by name beside the value to minimise."""
    return isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], Mapping)


def _check_optimizer(given: Any, params: Any) -> None:
    optimizer = optax.with_extra_args_support(given)
    state = call("task.optimizer.init", given.init, partial(jax.eval_shape, optimizer.init, params))

    def step(grads: Any, state: Any, params: Any, progress: jax.Array) -> Any:
        updates, state = optimizer.update(grads, state, params, progress=progress)
        return optax.apply_updates(params, updates), state

    run = partial(jax.eval_shape, step, params, state, params, np.zeros((), np.float32))
    updated, after = call("task.optimizer.update", given.update, run)
    for what, here, there in (("parameters", params, updated), ("optimizer state", state, after)):
        if changed := _changed(here, there):
            do = "Use a transformation that leaves shapes and dtypes as they are."
            raise ConfigError("Running task.optimizer.update", f"{what} of the same form", changed, do)


def check_step(task: Task, batch: Any) -> None:
    """ConfigError unless step, evaluate and restart take the state of `init`, and give valid results."""
    assert task.step is not None
    assert task.evaluate is not None
    state = jax.eval_shape(task.init, abstract_key())
    now = Now(abstract_key(), np.float32(0.0))
    stepped = call(_STEP, task.step, partial(jax.eval_shape, task.step, state, batch, now))
    if not isinstance(stepped, tuple) or len(stepped) != 2:
        do = "Return both: state, {'loss': loss}."
        raise ConfigError(f"Running {_STEP}", "a state and a dict of scalars", type(stepped).__name__, do)
    _check_same(_STEP, state, stepped[0])
    metrics = call(_EVALUATE, task.evaluate, partial(jax.eval_shape, task.evaluate, state, batch))
    faults = [*_metric_faults(_STEP, stepped[1]), *_metric_faults(_EVALUATE, metrics)]
    if faults:
        raise ConfigError.of(faults)
    if task.restart is not None:
        again = call(_RESTART, task.restart, partial(jax.eval_shape, task.restart, state, abstract_key()))
        _check_same(_RESTART, state, again)


def _check_same(name: str, before: Any, after: Any) -> None:
    if changed := _changed(before, after):
        do = "Return a state of the structure, shapes and dtypes that init gives: cast what a step computes to them."
        raise ConfigError(f"Running {name}", "a state of the form that it was given", changed, do)


def _changed(before: Any, after: Any) -> str | None:
    """The first leaf that is another afterwards, in words; None if the trees have one form."""
    for old, new in zip_longest(forms(before), forms(after)):
        if old != new:
            return f"{old or 'nothing'} becomes {new or 'nothing'}"
    structures = [str(jax.tree.structure(tree)) for tree in (before, after)]
    return None if structures[0] == structures[1] else f"{structures[0]} becomes {structures[1]}"


def _metric_faults(name: str, metrics: Any) -> Iterator[Fault]:
    doing = f"Running {name}"
    if not isinstance(metrics, Mapping) or "loss" not in metrics:
        found = f"{sorted(map(str, metrics))}" if isinstance(metrics, Mapping) else type(metrics).__name__
        yield Fault(doing, "a dict of scalars with a 'loss'", found, "Return {'loss': loss}, and more beside it.")
        return
    if len(metrics) > METRICS_MAX:
        yield Fault(doing, f"at most {METRICS_MAX} scalars", str(len(metrics)), "Return those that are to be plotted.")
    for key, value in metrics.items():
        is_loss = key == "loss"
        is_number = getattr(value, "shape", None) == () and _is_real(value.dtype)
        if not is_number or not isinstance(key, str) or (is_loss and not jnp.issubdtype(value.dtype, jnp.floating)):
            expected = "one scalar of a floating dtype" if is_loss else "one number"
            yield Fault(doing, f"{expected} for {key!r}", form(value), "Return a mean over the batch, or leave it out.")


def _is_real(dtype: Any) -> bool:
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer)) or dtype == np.bool_


def check_load(task: Task, leaves: Sequence[Leaf]) -> None:
    """ConfigError, with every fault, for arrays from `load` that do not fit their leaves."""
    if task.load is None:
        return
    faults = []
    for name, shape, kind, _ in leaves:
        if kind == LOCAL:
            continue
        doing = f"task.load({name!r}, {form(shape)})"
        value = call(doing, task.load, partial(_loaded, task.load, name, shape))
        if value is not None and (value.shape != shape.shape or not _is_real(value.dtype)):
            do = "Load what this leaf is called in the checkpoint, transposed if need be, or return None for init's."
            faults.append(Fault(f"Running {doing}", f"an array like it, {form(shape)}", form(value), do))
    if faults:
        raise ConfigError.of(faults)


def _loaded(load: Callable[[str, Any], Any], name: str, shape: Any) -> Any:
    value = load(name, shape)
    return None if value is None else np.asarray(value)
