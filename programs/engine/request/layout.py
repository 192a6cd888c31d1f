"""Calls of a user's functions, whose errors are reported with the file and line that they come from.

Whether loss and optimizer, or step and evaluate, fit the result of `init` and each other: run on shapes alone.

Loaded leaves have to be requested: leaf by leaf, and one at a time in memory.

The leaves of a task's model: their names, and whether each is covered by a rule and can follow it.

Checks of a task's first step, for faults that shapes do not show.

`without_gradient` traces the gradient, and computes nothing: a parameter that no path leads to from the loss has zeros
in the traced program itself, for any batch. Batch statistics and buffers are such, and so is a layer that was
forgotten. It is a warning: a task may well keep something among its parameters that is not to be trained.

`check_loss` computes the loss of the first batch, where the program is so small that it is compiled in a third of a
second: a loss that is not finite there is none after any number of steps. Larger ones find that in their first step.

The layout of a task: the names, shapes and dtypes of its tensors.

`layout` runs the task once under `jax.eval_shape`, so nothing is computed and nothing is allocated but a few batches.
It is at the same time the check of everything about a task that can be known before a run: any error of a learner's
first step appears here, with the user's own file and line. This module imports jax, and so is imported in a child
process of the submitting command only.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path
from types import CodeType
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.ops.data.batches import EMPTY_MAX, At, Tokens, first_batch, next_batch, nothing_in, opened, tokens_in
from isthmus.ops.data.corpus import DataError
from isthmus.ops.exchange.fragments import ROWS
from isthmus.ops.exchange.parameter_trees import idle_rules, named_leaves
from isthmus.ops.island.recipe import LOCAL, Leaf, Now, abstract_key, with_scalars
from isthmus.programs.task import AnyTask, StepTask, Task
from isthmus.runtime.errors import ConfigError, Fault, nearest
from isthmus.runtime.graph.template import TensorSpec
from isthmus.runtime.system.files import is_text

_MESSAGE_LENGTH_MAX: Final = 300


def call(
    name: str, function: Callable[..., Any], run: Callable[[], Any], expected_errors: type[Exception] | tuple[()] = ()
) -> Any:
    """The result of `run`, which calls the user's `function`; ConfigError with file and line for its errors.

    Errors of types `expected_errors`, which have a clear message already, are raised as they are.
    """
    try:
        return run()
    except expected_errors:
        raise
    except Exception as error:
        message = " ".join(str(error).split())[:_MESSAGE_LENGTH_MAX]
        error_text = f"{type(error).__name__}: {message} ({_place(function, error)})"
        raise ConfigError(f"Running {name}", "a result", error_text, "Correct the function there.") from error


def _place(function: Callable[..., Any], error: Exception) -> str:
    """file:line of the error in the user's function, else of its definition, else of the last line that was run."""
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


MERGED_DTYPES: Final = ("float32", "bfloat16", "float16")
_NAMES_MAX: Final = 4
_DOING: Final = "Running task.init(key)"
_READING: Final = "Reading merge= of the task"


def merged_leaves(task: AnyTask) -> list[Leaf]:
    """All leaves of the model, with their kinds; ConfigError, with every fault, if leaves and rules do not match."""
    model = call("task.init(key)", task.init, partial(jax.eval_shape, task.init, abstract_key()))
    leaves = task.recipe().leaves() if named_leaves(model) else []
    faults = [*_leaf_faults(leaves), *_rule_faults(task, leaves), *_mesh_faults(task, leaves)]
    if faults:
        raise ConfigError.of(faults)
    return leaves


def form(leaf: Any) -> str:
    """A leaf in words: 'float32[4, 2]'; 'absent' for None."""
    if leaf is None:
        return "absent"
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "shape") else type(leaf).__name__


def forms(tree: Any) -> list[str]:
    """All leaves of a tree in words, with their names."""
    return [f"{name} {form(leaf)}" for name, leaf in named_leaves(tree)]


def _leaf_faults(leaves: Sequence[Leaf]) -> Iterator[Fault]:
    if not leaves:
        yield Fault(_DOING, "a pytree with at least one array", "no array", "Return the parameters from init.")
    seen = set()
    for name, shape, kind, _ in leaves:
        if kind is not None and kind != LOCAL and str(shape.dtype) not in MERGED_DTYPES:
            do = f"Merge floating-point leaves only, and keep this one local: merge={{{name!r}: 'local', ...}}."
            yield Fault(_DOING, f"{_listed(MERGED_DTYPES)} in {name!r}, which is merged", str(shape.dtype), do)
        if kind != LOCAL and not shape.size:
            yield Fault(_DOING, f"elements in tensor {name!r}", f"shape {shape.shape}", "Leave the empty tensor out.")
        if kind != LOCAL and (why := _unstorable(name)):
            do = "Rename it, or keep it local: the files of the model have tensors by name."
            yield Fault(_DOING, "a name with which a tensor can be stored and read back", f"{name!r}, {why}", do)
        if name in seen:
            yield Fault(_DOING, "a name of its own for each tensor", f"two named {name!r}", "Avoid '/' in dict keys.")
        seen.add(name)


def _unstorable(name: str) -> str:
    """Why a model with a tensor of this name could not be read back; empty if it could."""
    if name == "__metadata__":
        return "which safetensors has for itself"
    if ROWS.fullmatch(name):
        return "which would be rows of another tensor"
    return "" if is_text(name) else "which is not Unicode text"


def _rule_faults(task: AnyTask, leaves: Sequence[Leaf]) -> Iterator[Fault]:
    names = [leaf.name for leaf in leaves]
    folders = {f"{name[:end]}/**" for name in names for end, letter in enumerate(name) if letter == "/"}
    for pattern, before in idle_rules(task.rules, names):
        if before is None:
            yield Fault(_READING, "patterns that match leaves", repr(pattern), nearest(pattern, folders.union(names)))
        else:
            order_text = f"{before!r} before {pattern!r}, which takes all that it matches"
            yield Fault(_READING, "rules in the order in which they hold", order_text, f"Put {pattern!r} first.")
    bare = [leaf.name for leaf in leaves if leaf.kind is None]
    if bare:
        more = f" and {len(bare) - _NAMES_MAX} more" if len(bare) > _NAMES_MAX else ""
        do = 'Say what happens to them: end with "**": "local", for example.'
        order_text = f"none for {_listed(tuple(map(repr, bare[:_NAMES_MAX])))}{more}"
        yield Fault(_READING, "a rule for every leaf", order_text, do)
    elif leaves and all(leaf.kind == LOCAL for leaf in leaves):
        do = 'Merge what is trained: "params/**": "rda", for example. Without that every learner trains alone.'
        yield Fault(_READING, "at least one leaf that is merged", "all of them local", do)


def _mesh_faults(task: AnyTask, leaves: Sequence[Leaf]) -> Iterator[Fault]:
    """Faults of rules in `shard` and `stacked` that match no leaf, or an unsuitable one."""
    names = [leaf.name for leaf in leaves]
    recipe = task.recipe()
    stacked = tuple((pattern, True) for pattern in recipe.stacked)
    for what, rules in (("shard", recipe.shard), ("stacked", stacked)):
        for pattern, before in idle_rules(rules, names):
            if before is None:
                doing = f"Reading {what}= of the task"
                yield Fault(doing, "patterns that match leaves", repr(pattern), nearest(pattern, names))
    for leaf in leaves:
        if leaf.is_stacked and len(leaf.shape.shape) < 2:
            do = "Leave it out of stacked=: it has no rows."
            yield Fault("Reading stacked= of the task", f"at least 2 axes in {leaf.name!r}", form(leaf.shape), do)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)


METRICS_MAX: Final = 32
"""Scalars of a step: each is read, reported and written separately."""
_STEP: Final = "task.step(state, batch, now)"
_EVALUATE: Final = "task.evaluate(state, batch)"
_RESTART: Final = "task.restart(state, key)"


def check_loss(task: Task, batch: Any) -> None:
    """ConfigError unless the loss is a scalar that can be differentiated, and the optimizer takes its gradient."""
    params = jax.eval_shape(task.init, abstract_key())
    name = "task.loss(params, batch)"
    result = call(name, task.loss, partial(jax.eval_shape, task.loss, params, batch))
    value, metrics = result if _has_scalars(result) else (result, {})
    if getattr(value, "shape", None) != () or not jnp.issubdtype(value.dtype, jnp.floating):
        do = "Return the mean over the batch, for example with jnp.mean; beside it a dict of scalars, or nothing."
        result = "None" if value is None else form(value)
        raise ConfigError(f"Running {name}", "one scalar of a floating dtype", result, do)
    if faults := list(_metric_faults(name, {"loss": value, **metrics})):
        raise ConfigError.of(faults)
    gradient = jax.grad(partial(with_scalars, task.loss), has_aux=True)
    call(f"the gradient of {name}", task.loss, partial(jax.eval_shape, gradient, params, batch))
    _check_optimizer(task.optimizer, params)


def _has_scalars(result: Any) -> bool:
    """Whether a loss gives scalars by name beside the value to minimise."""
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)


def _check_optimizer(pair: Any, params: Any) -> None:
    optimizer = optax.with_extra_args_support(pair)
    state = call("task.optimizer.init", pair.init, partial(jax.eval_shape, optimizer.init, params))

    def step(grads: Any, state: Any, params: Any, progress: jax.Array) -> Any:
        updates, state = optimizer.update(grads, state, params, progress=progress)
        return optax.apply_updates(params, updates), state

    run = partial(jax.eval_shape, step, params, state, params, np.zeros((), np.float32))
    updated, after = call("task.optimizer.update", pair.update, run)
    for what, here, there in (("parameters", params, updated), ("optimizer state", state, after)):
        if changed := _changed(here, there):
            do = "Use a transformation that leaves shapes and dtypes as they are."
            raise ConfigError("Running task.optimizer.update", f"{what} of the same form", changed, do)


def check_step(task: StepTask, batch: Any) -> None:
    """ConfigError unless step, evaluate and restart take the state of `init`, and give valid results."""
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
        metrics_text = f"{sorted(map(str, metrics))}" if isinstance(metrics, Mapping) else type(metrics).__name__
        yield Fault(
            doing, "a dict of scalars with a 'loss'", metrics_text, "Return {'loss': loss}, and more beside it."
        )
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


def check_load(task: AnyTask, leaves: Sequence[Leaf]) -> None:
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


PARAMETERS_MAX: Final = 1 << 20
BATCH_BYTES_MAX: Final = 1 << 22
OPERATIONS_MAX: Final = 300
"""Beyond any of these the loss of the first batch is left to the first step. A transformer of two layers has 500
operations, and takes two seconds to compile."""
_OPTIONS: Final = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
"""It runs once: half of the compile time would go into its speed."""


def warnings(task: AnyTask, seed: int) -> tuple[Fault, ...]:
    """Oddities of a task that can train."""
    names = without_gradient(task, seed) if isinstance(task, Task) else untouched(task, seed)
    if not names:
        return ()
    names_text = ", ".join(map(repr, names))
    if isinstance(task, StepTask):
        do = "Have the step change them, or say that they are local."
        return (
            Fault("Running task.step(state, batch, now)", "every merged leaf changed", f"as it was: {names_text}", do),
        )
    do = "They stay as init makes them. Statistics that loss computes are not kept: compute them from the batch."
    return (
        Fault(
            "Running the gradient of task.loss(params, batch)", "one for every parameter", f"none for {names_text}", do
        ),
    )


def without_gradient(task: Task, seed: int) -> list[str]:
    """The names of the parameters whose gradient is zero for every batch."""
    params = jax.eval_shape(task.init, abstract_key())
    gradient = jax.grad(partial(with_scalars, task.loss), has_aux=True)
    traced = jax.make_jaxpr(lambda *arguments: gradient(*arguments)[0])(params, first_batch(task, seed)).jaxpr
    equations = {variable: equation for equation in traced.eqns for variable in equation.outvars}
    outputs = zip(named_leaves(params), traced.outvars, strict=True)
    return [name for (name, _), variable in outputs if _is_zero(variable, equations)]


def untouched(task: StepTask, seed: int) -> list[str]:
    """The names of the merged leaves that a step returns unchanged, whatever the batch is."""
    state, now = jax.eval_shape(task.init, abstract_key()), Now(abstract_key(), np.float32(0.0))
    traced = jax.make_jaxpr(task.step)(state, first_batch(task, seed), now).jaxpr
    leaves = zip(task.recipe().leaves(), traced.invars, traced.outvars, strict=False)
    return [leaf.name for leaf, before, after in leaves if leaf.kind != LOCAL and before is after]


def _is_zero(variable: Any, equations: dict[Any, Any]) -> bool:
    """Whether an output of a traced program is zeros that depend on nothing."""
    while not hasattr(variable, "val"):  # A literal has a value.
        equation = equations.get(variable)
        if equation is None or equation.primitive.name not in ("broadcast_in_dim", "convert_element_type", "copy"):
            return False
        variable = equation.invars[0]
    return bool(np.all(np.asarray(variable.val) == 0))


def check_first_loss(task: AnyTask, seed: int) -> None:
    """ConfigError if the loss of the first parameters on the first batch is not finite."""
    batch = first_batch(task, seed)

    def first(key: Any, batch: Any) -> tuple[Any, Any]:
        model = task.init(key)
        if isinstance(task, Task):
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
    name = "task.loss(params, batch)" if isinstance(task, Task) else "task.step(state, batch, now)"
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


_NUMBERS = "a list of numbers"


def layout(task: AnyTask, seed: int = 0) -> tuple[TensorSpec, ...]:
    """The merged leaves of `task.init`, in the order of `jax.tree.leaves`; ConfigError for a task that cannot train.

    A name is the path of keys, indices and attributes, joined by '/'. Checks: `init` gives leaves with distinct names,
    each covered by a rule of `merge`, and merged leaves can be merged; `batch` gives the same arrays twice for one
    `at`, and the same structure, shapes and dtypes at another position, slot and split; loss and optimizer, or step and
    evaluate, fit the result of `init`, and each other; leaves from `load` fit.
    """
    batch = _check_batches(task, seed) if task.stream is None else _check_stream(task, seed)
    leaves = merged_leaves(task)
    if isinstance(task, Task):
        check_loss(task, batch)
    else:
        check_step(task, batch)
    check_load(task, leaves)
    return tuple(
        TensorSpec(name, tuple(shape.shape), str(shape.dtype), kind, is_stacked)
        for name, shape, kind, is_stacked in leaves
        if kind is not None and kind != "local"
    )


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
            faults += _difference_faults(first, batch, at, other)
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
        if not isinstance(leaf, np.ndarray | np.generic | jax.Array) or not _is_numeric(leaf.dtype):
            leaf_text = f"dtype {leaf.dtype}" if hasattr(leaf, "dtype") else f"{type(leaf).__name__} {str(leaf)[:40]}"
            yield Fault(doing, f"a numeric array at {name!r}", _NUMBERS if leaf is _NUMBERS else leaf_text, do)


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
    expected, actual = dict(named_leaves(batch, "batch")), dict(named_leaves(other, "batch"))
    same = True
    for name in sorted({*expected, *actual}):
        here, there = form(expected.get(name)), form(actual.get(name))
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
