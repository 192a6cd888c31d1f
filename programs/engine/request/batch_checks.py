"""The batches of a task: whether they are arrays, of one form, and the same each time; and how many tokens they have.

Batches are trees that any framework's model takes, so nothing here imports one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import ml_dtypes
import numpy as np

from isthmus.ops.data.batches import EMPTY_MAX, At, Tokens, next_batch, nothing_in, opened, tokens_in
from isthmus.ops.data.corpus import DataError
from isthmus.ops.data.held_out_sets import TextSet
from isthmus.ops.exchange.parameter_trees import named_leaves, structure_of
from isthmus.programs.engine.request.leaf_checks import form
from isthmus.programs.settings import collecting
from isthmus.programs.task import AnyTask, HeldOutSet
from isthmus.programs.user_calls import call
from isthmus.runtime.errors import ConfigError, Fault, shortened

_NUMBERS: Final = "a list of numbers"
_COUNTED_BATCHES: Final = 8
"""Batches with which the tokens of a counted batch are estimated, for the number of steps of a run."""


def tokens_mean(task: AnyTask, learners: int, seed: int) -> int:
    """The tokens of a step, in whole tokens, on average over `learners` learners or, where they are counted, over the
    first batches of slot 0 that have any. ConfigError if none has, or a count is not valid."""
    tokens = task.tokens_per_batch
    if not isinstance(tokens, Tokens):
        return task.tokens_mean(learners)
    try:
        return _counted_mean(task, tokens, seed)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error


def _counted_mean(task: AnyTask, tokens: Tokens, seed: int) -> int:
    stream = None if task.stream is None else opened(task, 0, 1, seed)
    counts: list[int] = []
    for position in range(EMPTY_MAX):
        batch = task.batch(At(seed, 0, position)) if stream is None else next_batch(stream, position)
        doing = f"count(batch) of Tokens, on batch {position} of slot 0"
        counts.append(call(doing, tokens.count, partial(tokens_in, batch, tokens, 0), DataError))
        if len(counts) >= _COUNTED_BATCHES and any(counts):
            return max(1, round(sum(counts) / sum(map(bool, counts))))
    raise nothing_in(EMPTY_MAX, 0)


def check_data(task: AnyTask, seed: int) -> Any:
    """The batch at the beginning; ConfigError, with every fault, for a task whose batches a learner cannot use."""
    batch = _check_batches(task, seed) if task.stream is None else _check_stream(task, seed)
    check_sets(task, seed)
    return batch


def check_sets(task: AnyTask, seed: int) -> None:
    """ConfigError, with every fault, for held-out sets on whose batches the task cannot be evaluated."""
    faults: list[Fault] = []
    for name, make in task.held_out_sets:
        doing = f"Running task.sets[{name!r}]()"
        with collecting(faults):
            try:
                first = call(f"task.sets[{name!r}]()", make, partial(_first_of, make), DataError)
            except DataError as error:
                raise ConfigError(error.action, error.expected, error.found, error.remedy) from error
            if first is None:
                do = "Return a list of batches, made as task.batch makes them."
                raise ConfigError(doing, "a batch at least", "none", do)
            if isinstance(make, TextSet):
                continue  # Of windows as the run's own data are; beside those of texts the ones of chats have weights.
            found = list(_array_faults(first, doing))
            faults += found or _set_faults(task.batch(At(seed, 0, 0, "evaluation")), first, doing)
    if faults:
        raise ConfigError.of(faults)


def _first_of(make: HeldOutSet) -> Any:
    """The first batch of a held-out set; None without any."""
    return next(iter(make()), None)


def _set_faults(held_out: Any, batch: Any, doing: str) -> Iterator[Fault]:
    """Faults of a batch of a set that is not like one of the evaluation; it may have another length."""
    do = "Make its batches as task.batch makes those of the evaluation."
    expected, found = (_forms(each) for each in (held_out, batch))
    for name in sorted({*expected, *found}):
        if expected.get(name) != found.get(name):
            yield Fault(doing, f"{name!r} as in the evaluation, {expected.get(name)}", str(found.get(name)), do)


def _forms(batch: Any) -> dict[str, str]:
    """The dtype and the number of axes of each array of a batch."""
    return {name: f"{leaf.dtype} of {leaf.ndim} axes" for name, leaf in named_leaves(batch, "batch")}


def _check_batches(task: AnyTask, seed: int) -> Any:
    """The batch at the beginning; ConfigError if batches elsewhere are not like it."""
    first = At(seed, 0, 0)
    others = [At(seed, 0, 1), At(seed, 0, 0, "evaluation")]
    if not isinstance(task.tokens_per_batch, tuple):
        others.append(At(seed, 1, 0))

    def make(at: At) -> Any:
        return call(f"task.batch({at})", task.batch, partial(task.batch, at))

    batch, again, rest = make(first), make(first), [make(at) for at in others]
    faults = list(_array_faults(batch))
    if not faults:
        for at, other in zip(others, rest, strict=True):
            # Extracts of a held-out text are cut into batches of their own size (`ops.data.held_out`).
            is_extract = at.split == "evaluation" and task.extract is not None
            pair = [_first_rows(batch), _first_rows(other)] if is_extract else [batch, other]
            faults += _difference_faults(first, pair[0], at, pair[1])
        faults += _purity_faults(first, batch, again)
    if isinstance(task.tokens_per_batch, tuple):
        for slot in range(1, len(task.tokens_per_batch)):
            at, later = At(seed, slot, 0), At(seed, slot, 1)
            faults += _difference_faults(at, make(at), later, make(later))
    if faults:
        raise ConfigError.of(faults)
    return batch


def _check_stream(task: AnyTask, seed: int) -> Any:
    """The first batch of a stream; ConfigError if it has no state, if that does not bring it back, or if batches differ
    in form."""
    assert task.stream is not None
    doing, held_out = "Reading task.stream(0, 1, seed)", At(seed, 0, 0, "evaluation")
    try:
        stream = call("task.stream(0, 1, seed)", task.stream, lambda: opened(task, 0, 1, seed), DataError)
        batch = call("next() of task.stream", task.stream, lambda: next_batch(stream, 0), DataError)
        state = call("get_state() of task.stream", task.stream, stream.get_state)
        later = call("next() of task.stream", task.stream, lambda: next_batch(stream, 1), DataError)
        call("set_state(state) of task.stream", task.stream, lambda: stream.set_state(state))
        again = call("next() of task.stream", task.stream, lambda: next_batch(stream, 1), DataError)
        anew = call("task.stream(0, 1, seed)", task.stream, lambda: next_batch(opened(task, 0, 1, seed), 0), DataError)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error
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
        if not _is_array(leaf) or not _is_numeric(leaf.dtype):
            leaf_text = (
                f"dtype {leaf.dtype}" if hasattr(leaf, "dtype") else f"{type(leaf).__name__} {shortened(str(leaf), 40)}"
            )
            yield Fault(doing, f"a numeric array at {name!r}", _NUMBERS if leaf is _NUMBERS else leaf_text, do)


def _with_lists_named(batch: Any) -> Any:
    """A batch in which each list of numbers is one leaf, so that messages name it as one."""
    if _is_numbers(batch):
        return _NUMBERS
    if isinstance(batch, dict):
        return {key: _with_lists_named(value) for key, value in batch.items()}
    if type(batch) in (list, tuple):
        return type(batch)(map(_with_lists_named, batch))
    return batch


def _is_numbers(value: Any) -> bool:
    """Whether this is a list of numbers, or of such lists: a tree of scalars, and to its author an array."""
    if not isinstance(value, list | tuple) or not value:
        return False
    return all(isinstance(item, bool | int | float | complex) or _is_numbers(item) for item in value)


def _is_array(leaf: Any) -> bool:
    """Whether a leaf is an array of NumPy, or of jax where the task has imported that."""
    if isinstance(leaf, np.ndarray | np.generic):
        return True
    if "jax" not in sys.modules:
        return False
    import jax

    return isinstance(leaf, jax.Array)


def _is_numeric(dtype: Any) -> bool:
    """Whether NumPy computes with a dtype, or with its values by ml_dtypes."""
    return getattr(dtype, "kind", "none") in "biufc" or (isinstance(dtype, np.dtype) and hasattr(ml_dtypes, dtype.name))


def _difference_faults(first: At, batch: Any, at: At, other: Any, doing: str = "") -> Iterator[Fault]:
    doing = doing or f"Running task.batch({at})"
    do = "Return the same shapes for every at: pad or drop what does not fit."
    expected, actual = dict(named_leaves(batch, "batch")), dict(named_leaves(other, "batch"))
    same = True
    for name in sorted({*expected, *actual}):
        here, there = form(expected.get(name)), form(actual.get(name))
        if here != there:
            same = False
            yield Fault(doing, f"{name!r} as at {first}, {here}", there, do)
    structures = [structure_of(tree) for tree in (batch, other)]
    if same and structures[0] != structures[1]:
        yield Fault(doing, structures[0], structures[1], do)


def _first_rows(batch: Any) -> Any:
    """The first row of each array of a batch, where it is a dict of arrays."""
    if not isinstance(batch, dict):
        return batch
    return {name: leaf[:1] if isinstance(leaf, np.ndarray) and leaf.ndim else leaf for name, leaf in batch.items()}


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
