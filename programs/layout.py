"""What a task is made of: the names, shapes and dtypes of its tensors.

`layout` runs the task once under `jax.eval_shape`, so nothing is computed and nothing is allocated but a few batches.
It is at the same time the check of everything about a task that can be known before a run: whatever would fail in the
first step of a learner fails here, with the user's own file and line. This module imports jax, and so is imported in a
child process of the submitting command only.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.ops.data import At
from isthmus.ops.tree import named_leaves
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, Fault, nearest
from isthmus.runtime.graph import TensorSpec

_MESSAGE_LENGTH_MAX = 300


def layout(task: Task, seed: int = 0) -> tuple[TensorSpec, ...]:
    """The tensors of `task.init`'s pytree, in the order of `jax.tree.leaves`; ConfigError for a task that cannot train.

    A name is the path of keys, indices and attributes, joined by '/'. What is checked: `init` gives float32 arrays
    with names of their own; `loss` gives a scalar that can be differentiated; `batch` gives the same arrays twice for
    one `at`, and the same structure, shapes and dtypes at another position, slot and split; the optimizer accepts the
    gradients; every name in `embeddings` is one of a tensor or of a folder of tensors.
    """
    batch = _check_batches(task, seed)
    params = _call("task.init(key)", task.init, partial(jax.eval_shape, task.init, jax.random.key(seed)))
    named = named_leaves(params)
    faults = [*_tensor_faults(named), *_embedding_faults(task, named)]
    if faults:
        raise ConfigError.of(faults)
    _check_loss(task, params, batch)
    _check_optimizer(task, params)
    return tuple(
        TensorSpec(name, tuple(leaf.shape), str(leaf.dtype), averaged=any(_covers(e, name) for e in task.embeddings))
        for name, leaf in named
    )


def _covers(entry: str, name: str) -> bool:
    """Whether an entry of `embeddings` is the tensor's name or one of its folders."""
    return name == entry or name.startswith(entry + "/")


def _tensor_faults(named: list[tuple[str, Any]]) -> Iterator[Fault]:
    doing = "Running task.init(key)"
    if not named:
        yield Fault(doing, "a pytree with at least one array", "no array", "Return the parameters from init.")
    seen = set()
    for name, leaf in named:
        if leaf.dtype != jnp.float32:
            do = "Return float32 parameters; a loss may cast them, to bfloat16 for example."
            yield Fault(doing, f"float32 in tensor {name!r}", str(leaf.dtype), do)
        if not leaf.size:
            yield Fault(doing, f"elements in tensor {name!r}", f"shape {leaf.shape}", "Leave the empty tensor out.")
        if name in seen:
            yield Fault(doing, "a name of its own for each tensor", f"two named {name!r}", "Avoid '/' in dict keys.")
        seen.add(name)


def _embedding_faults(task: Task, named: list[tuple[str, Any]]) -> Iterator[Fault]:
    names = [name for name, _ in named]
    folders = {name[:end] for name in names for end, letter in enumerate(name) if letter == "/"}
    for entry in task.embeddings:
        if not any(_covers(entry, name) for name in names):
            expected = "names of tensors, or of folders of tensors"
            yield Fault("Reading Task(embeddings=...)", expected, repr(entry), nearest(entry, folders.union(names)))


def _check_batches(task: Task, seed: int) -> Any:
    """The batch at the beginning; ConfigError if batches elsewhere are not like it."""
    first = At(seed, 0, 0)
    others = [At(seed, 0, 1), At(seed, 0, 0, "evaluation")]
    if isinstance(task.tokens_per_batch, int):
        others.append(At(seed, 1, 0))

    def make(at: At) -> Any:
        return _call(f"task.batch({at})", task.batch, partial(task.batch, at))

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


def _array_faults(batch: Any) -> Iterator[Fault]:
    doing = "Running task.batch(at)"
    named = named_leaves(batch, "batch")
    if not named:
        yield Fault(doing, "a pytree with at least one array", repr(batch), "Return the arrays that the loss reads.")
    for name, leaf in named:
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array) or not _is_numeric(leaf.dtype):
            found = f"dtype {leaf.dtype}" if hasattr(leaf, "dtype") else f"{type(leaf).__name__} {str(leaf)[:40]}"
            yield Fault(doing, f"a numeric array at {name!r}", found, "Return numpy arrays, made with np.asarray.")


def _is_numeric(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number) or dtype == np.bool_


def _difference_faults(first: At, batch: Any, at: At, other: Any) -> Iterator[Fault]:
    doing, do = f"Running task.batch({at})", "Return the same shapes for every at: pad or drop what does not fit."
    expected, found = dict(named_leaves(batch, "batch")), dict(named_leaves(other, "batch"))
    same = True
    for name in sorted({*expected, *found}):
        here, there = _form(expected.get(name)), _form(found.get(name))
        if here != there:
            same = False
            yield Fault(doing, f"{name!r} as at {first}, {here}", there, do)
    structures = [str(jax.tree.structure(tree)) for tree in (batch, other)]
    if same and structures[0] != structures[1]:
        yield Fault(doing, structures[0], structures[1], do)


def _form(leaf: Any) -> str:
    if leaf is None:
        return "absent"
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "shape") else type(leaf).__name__


def _purity_faults(first: At, batch: Any, again: Any) -> Iterator[Fault]:
    doing, do = f"Running task.batch({first}) twice", "Draw random numbers from at.rng() only, and keep no state."
    if [_form(leaf) for _, leaf in named_leaves(again, "batch")] != [
        _form(leaf) for _, leaf in named_leaves(batch, "batch")
    ]:
        yield Fault(doing, "the same batch", "arrays of other shapes", do)
        return
    for (name, one), (_, two) in zip(named_leaves(batch, "batch"), named_leaves(again, "batch"), strict=True):
        if np.asarray(one).tobytes() != np.asarray(two).tobytes():
            yield Fault(doing, f"the same {name!r}, because batch is a pure function of at", "other values", do)


def _check_loss(task: Task, params: Any, batch: Any) -> None:
    name = "task.loss(params, batch)"
    value = _call(name, task.loss, partial(jax.eval_shape, task.loss, params, batch))
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        do = "Return the mean over the batch, for example with jnp.mean, and nothing else."
        found = "None" if value is None else _form(value)
        raise ConfigError(f"Running {name}", "one scalar of a floating dtype", found, do)
    _call(f"the gradient of {name}", task.loss, partial(jax.eval_shape, jax.grad(task.loss), params, batch))


def _check_optimizer(task: Task, params: Any) -> None:
    optimizer = optax.with_extra_args_support(task.optimizer)
    state = _call("task.optimizer.init", task.optimizer.init, partial(jax.eval_shape, optimizer.init, params))

    def step(grads: Any, state: Any, params: Any, progress: jax.Array) -> Any:
        updates, state = optimizer.update(grads, state, params, progress=progress)
        return optax.apply_updates(params, updates), state

    run = partial(jax.eval_shape, step, params, state, params, np.zeros((), np.float32))
    updated, after = _call("task.optimizer.update", task.optimizer.update, run)
    for what, here, there in (("parameters", params, updated), ("optimizer state", state, after)):
        changed = [f"{old} becomes {new}" for old, new in zip_longest(_forms(here), _forms(there)) if old != new]
        if changed:
            do = "Use a transformation that leaves shapes and dtypes as they are."
            raise ConfigError("Running task.optimizer.update", f"{what} of the same form", changed[0], do)


def _forms(tree: Any) -> list[str]:
    return [f"{name} {_form(leaf)}" for name, leaf in named_leaves(tree)]


def _call(name: str, function: Callable[..., Any], run: Callable[[], Any]) -> Any:
    """The result of `run`, which calls the user's `function`; ConfigError with file and line for what it raises."""
    try:
        return run()
    except Exception as error:
        message = " ".join(str(error).split())[:_MESSAGE_LENGTH_MAX]
        found = f"{type(error).__name__}: {message} ({_place(function, error)})"
        raise ConfigError(f"Running {name}", "a result", found, "Correct the function there.") from error


def _place(function: Callable[..., Any], error: Exception) -> str:
    """file:line in the user's function, or where it is defined, or the last line that was run."""
    frames = traceback.extract_tb(error.__traceback__)
    code = _code(function)
    if code is None:
        return f"{frames[-1].filename}:{frames[-1].lineno}"
    inside = [frame.lineno for frame in frames if Path(frame.filename) == Path(code.co_filename)]
    return f"{code.co_filename}:{inside[-1] if inside else code.co_firstlineno}"


def _code(function: Any) -> CodeType | None:
    """The code of a function, behind decorators, `partial`, methods and callable objects; None if it is not Python."""
    function = inspect.unwrap(function)
    while isinstance(function, partial):
        function = inspect.unwrap(function.func)
    for holder in (getattr(function, "__func__", function), type(function).__call__):
        if isinstance(code := getattr(holder, "__code__", None), CodeType):
            return code
    return None
