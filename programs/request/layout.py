"""The layout of a task: the names, shapes and dtypes of its tensors.

`layout` runs the task once under `jax.eval_shape`, so nothing is computed and nothing is allocated but a few batches.
It is at the same time the check of everything about a task that can be known before a run: any error of a learner's
first step appears here, with the user's own file and line. This module imports jax, and so is imported in a child
process of the submitting command only.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.data.batches import At, first_batch, opened, taken
from isthmus.ops.data.corpus import DataError
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.programs.checks.calls import call
from isthmus.programs.checks.functions import check_load, check_loss, check_step
from isthmus.programs.checks.leaves import form, merged_leaves
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.template import TensorSpec

_NUMBERS = "a list of numbers"


def layout(task: Task, seed: int = 0) -> tuple[TensorSpec, ...]:
    """The merged leaves of `task.init`, in the order of `jax.tree.leaves`; ConfigError for a task that cannot train.

    A name is the path of keys, indices and attributes, joined by '/'. Checks: `init` gives leaves with distinct names,
    each covered by a rule of `merge`, and merged leaves can be merged; `batch` gives the same arrays twice for one
    `at`, and the same structure, shapes and dtypes at another position, slot and split; loss and optimizer, or step and
    evaluate, fit the result of `init`, and each other; leaves from `load` fit.
    """
    batch = _check_batches(task, seed) if task.stream is None else _check_stream(task, seed)
    leaves = merged_leaves(task)
    if task.loss is not None:
        check_loss(task, batch)
    else:
        check_step(task, batch)
    check_load(task, leaves)
    return tuple(
        TensorSpec(name, tuple(shape.shape), str(shape.dtype), kind, is_stacked)
        for name, shape, kind, is_stacked in leaves
        if kind is not None and kind != "local"
    )


def _check_batches(task: Task, seed: int) -> Any:
    """The batch at the beginning; ConfigError if batches elsewhere are not like it."""
    first = At(seed, 0, 0)
    others = [At(seed, 0, 1), At(seed, 0, 0, "evaluation")]
    if isinstance(task.tokens_per_batch, int):
        others.append(At(seed, 1, 0))

    def make(at: At) -> Any:
        return call(f"task.batch({at})", task.batch, partial(task.batch, at))

    batch, again, rest = make(first), make(first), [make(at) for at in others]
    faults = list(_array_faults(batch))
    if not faults:
        for at, other in zip(others, rest, strict=True):
            faults += _difference_faults(first, batch, at, other)
        faults += _purity_faults(first, batch, again)
    if not isinstance(task.tokens_per_batch, int):
        for slot in range(1, len(task.tokens_per_batch)):
            at, later = At(seed, slot, 0), At(seed, slot, 1)
            faults += _difference_faults(at, make(at), later, make(later))
    if faults:
        raise ConfigError.of(faults)
    return batch


def _check_stream(task: Task, seed: int) -> Any:
    """The first batch of a stream; ConfigError if it has no state, if that does not bring it back, or if batches differ
    in form."""
    assert task.stream is not None
    doing, held_out = "Reading task.stream(0, 1, seed)", At(seed, 0, 0, "evaluation")
    try:
        stream = call("task.stream(0, 1, seed)", task.stream, lambda: opened(task, 0, 1, seed), DataError)
        batch = call("next() of task.stream", task.stream, lambda: taken(stream, 0), DataError)
        state = call("get_state() of task.stream", task.stream, stream.get_state)
        later = call("next() of task.stream", task.stream, lambda: taken(stream, 1), DataError)
        call("set_state(state) of task.stream", task.stream, lambda: stream.set_state(state))
        again = call("next() of task.stream", task.stream, lambda: taken(stream, 1), DataError)
        anew = call("task.stream(0, 1, seed)", task.stream, lambda: first_batch(task, seed), DataError)
    except DataError as error:
        raise ConfigError(error.doing, error.expected, error.found, error.do) from error
    faults = list(_array_faults(batch, doing))
    if not faults:
        evaluated = call(f"task.batch({held_out})", task.batch, partial(task.batch, held_out))
        faults += _difference_faults(At(seed, 0, 0), batch, At(seed, 0, 1), later, doing)
        faults += _difference_faults(At(seed, 0, 0), batch, held_out, evaluated)
    if not faults:
        faults += _same_faults(f"{doing} after set_state(get_state())", later, again, "Keep all that matters in it.")
        faults += _same_faults(f"{doing}, made anew", batch, anew, "Let its order follow from slot, slots and seed.")
    if faults:
        raise ConfigError.of(faults)
    return batch


def _array_faults(batch: Any, doing: str = "Running task.batch(at)") -> Iterator[Fault]:
    named = named_leaves(_with_lists_named(batch), "batch")
    if not named:
        yield Fault(doing, "a pytree with at least one array", repr(batch), "Return the arrays that the loss reads.")
    do = "Return numpy arrays, made with np.asarray."
    for name, leaf in named:
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array) or not _is_numeric(leaf.dtype):
            found = f"dtype {leaf.dtype}" if hasattr(leaf, "dtype") else f"{type(leaf).__name__} {str(leaf)[:40]}"
            yield Fault(doing, f"a numeric array at {name!r}", _NUMBERS if leaf is _NUMBERS else found, do)


def _with_lists_named(batch: Any) -> Any:
    """A batch in which each list of numbers is one leaf, so that messages name it as one."""
    return jax.tree.map(lambda leaf: _NUMBERS if _is_numbers(leaf) else leaf, batch, is_leaf=_is_numbers)


def _is_numbers(value: Any) -> bool:
    """Whether this is a list of numbers, or of such lists: to jax a tree of scalars, and to its author an array."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(item, bool | int | float | complex) or _is_numbers(item) for item in value)


def _is_numeric(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_


def _difference_faults(first: At, batch: Any, at: At, other: Any, doing: str = "") -> Iterator[Fault]:
    doing = doing or f"Running task.batch({at})"
    do = "Return the same shapes for every at: pad or drop what does not fit."
    expected, found = dict(named_leaves(batch, "batch")), dict(named_leaves(other, "batch"))
    same = True
    for name in sorted({*expected, *found}):
        here, there = form(expected.get(name)), form(found.get(name))
        if here != there:
            same = False
            yield Fault(doing, f"{name!r} as at {first}, {here}", there, do)
    structures = [str(jax.tree.structure(tree)) for tree in (batch, other)]
    if same and structures[0] != structures[1]:
        yield Fault(doing, structures[0], structures[1], do)


def _purity_faults(first: At, batch: Any, again: Any) -> Iterator[Fault]:
    doing, do = f"Running task.batch({first}) twice", "Draw random numbers from at.rng() only, and keep no state."
    if [form(leaf) for _, leaf in named_leaves(again, "batch")] != [
        form(leaf) for _, leaf in named_leaves(batch, "batch")
    ]:
        yield Fault(doing, "the same batch", "arrays of other shapes", do)
        return
    yield from _same_faults(doing, batch, again, do, ", because batch is a pure function of at")


def _same_faults(doing: str, batch: Any, again: Any, do: str, why: str = "") -> Iterator[Fault]:
    """Faults of arrays with different values in two batches of one form."""
    for (name, one), (_, two) in zip(named_leaves(batch, "batch"), named_leaves(again, "batch"), strict=True):
        if np.asarray(one).tobytes() != np.asarray(two).tobytes():
            yield Fault(doing, f"the same {name!r}{why}", "other values", do)
