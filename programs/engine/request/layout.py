"""Whether a task in jax can train, and the tensors of its model.

Whether loss and optimizer, or step and evaluate, fit the result of `init` and each other: run on shapes alone.

Loaded leaves have to be requested: leaf by leaf, and one at a time in memory.

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

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import zip_longest
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.ops.data.batches import first_batch
from isthmus.ops.exchange.frozen_leaves import Digests, digests_of
from isthmus.ops.exchange.merge_rules import FROZEN, LOCAL, is_merged
from isthmus.ops.exchange.parameter_trees import Rules, named_leaves
from isthmus.ops.island.functions import functions_of
from isthmus.ops.island.recipe import Leaf, Now, abstract_key, trained_part, with_part, with_scalars
from isthmus.programs.engine.request.batch_checks import check_data
from isthmus.programs.engine.request.environment import computed_apart
from isthmus.programs.engine.request.leaf_checks import form, leaf_faults, rule_faults, stacked_faults, unmatched
from isthmus.programs.job import TensorSpec
from isthmus.programs.task import METRICS_MAX, JaxTask, ModelLeaf, StepTask, Task
from isthmus.programs.user_calls import call
from isthmus.runtime.errors import ConfigError, Fault


def merged_leaves(task: JaxTask) -> list[Leaf]:
    """All leaves of the model, with their kinds; ConfigError, with every fault, if leaves and rules do not match."""
    model = call("task.init(key)", task.init, partial(jax.eval_shape, task.init, abstract_key()))
    leaves = task.recipe().leaves() if named_leaves(model) else []
    plain = [ModelLeaf(name, shape.shape, str(shape.dtype), kind, stacked) for name, shape, kind, stacked in leaves]
    faults = [
        *leaf_faults(plain, "task.init(key)"),
        *rule_faults(task, plain),
        *unmatched("shard", task.layout, plain),
        *stacked_faults(task, plain),
    ]
    if faults:
        raise ConfigError.of(faults)
    return leaves


def forms(tree: Any) -> list[str]:
    """All leaves of a tree in words, with their names."""
    return [f"{name} {form(leaf)}" for name, leaf in named_leaves(tree)]


def kept(make: Any, *of: Any) -> Any:
    """What `make`, which remembers, gave for the same before: another run of a task is prepared without a check, and
    without a trace, that was made. jax finds what it traced by the function."""
    try:
        hash(of)
    except TypeError:  # Of a task, a loss or an optimizer. Before the call, whose own TypeError is none of these.
        return make.__wrapped__(*of)
    return make(*of)


_KEPT: Final = 4
"""Tasks, losses and optimizers of which what was checked and traced last is remembered."""
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
    gradient = kept(_gradient, task.loss, task.rules)
    call(f"the gradient of {name}", task.loss, partial(jax.eval_shape, gradient, params, batch))
    _check_optimizer(task.optimizer, trained_part(params, task.rules))


@lru_cache(maxsize=_KEPT)
def _gradient(loss: Callable[[Any, Any], Any], rules: Rules[Any]) -> Callable[[Any, Any], Any]:
    """(parameters, batch) -> the gradient of what is trained of them, and the loss's scalars."""

    def gradient(params: Any, batch: Any) -> Any:
        def objective(part: Any) -> Any:
            return with_scalars(loss, with_part(params, part), batch)

        return jax.grad(objective, has_aux=True)(trained_part(params, rules))

    return gradient


def _has_scalars(result: Any) -> bool:
    """Whether a loss gives scalars by name beside the value to minimise."""
    return isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)


def _check_optimizer(pair: Any, params: Any) -> None:
    optimizer = optax.with_extra_args_support(pair)
    state = call("task.optimizer.init", pair.init, partial(jax.eval_shape, optimizer.init, params))
    step = kept(_update, pair)
    run = partial(jax.eval_shape, step, params, state, params, np.zeros((), np.float32))
    updated, after = call("task.optimizer.update", pair.update, run)
    for what, here, there in (("parameters", params, updated), ("optimizer state", state, after)):
        if changed := _changed(here, there):
            do = "Use a transformation that leaves shapes and dtypes as they are."
            raise ConfigError("Running task.optimizer.update", f"{what} of the same form", changed, do)


@lru_cache(maxsize=_KEPT)
def _update(pair: Any) -> Callable[..., Any]:
    """(gradients, state, parameters, progress) -> the parameters and the state after an update by this optimizer."""
    optimizer = optax.with_extra_args_support(pair)

    def step(grads: Any, state: Any, params: Any, progress: jax.Array) -> Any:
        updates, state = optimizer.update(grads, state, params, progress=progress)
        return optax.apply_updates(params, updates), state

    return step


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


def check_load(task: JaxTask, leaves: Sequence[Leaf]) -> None:
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


@lru_cache(maxsize=_KEPT)
def warnings(task: JaxTask, seed: int) -> tuple[Fault, ...]:
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
    gradient = kept(_gradient, task.loss, task.rules)
    traced = jax.make_jaxpr(lambda *arguments: gradient(*arguments)[0])(params, first_batch(task, seed)).jaxpr
    equations = {variable: equation for equation in traced.eqns for variable in equation.outvars}
    outputs = zip(named_leaves(trained_part(params, task.rules)), traced.outvars, strict=True)
    return [name for (name, _), variable in outputs if _is_zero(variable, equations)]


def untouched(task: StepTask, seed: int) -> list[str]:
    """The names of the merged leaves that a step returns unchanged, whatever the batch is."""
    state, now = jax.eval_shape(task.init, abstract_key()), Now(abstract_key(), np.float32(0.0))
    traced = jax.make_jaxpr(task.step)(state, first_batch(task, seed), now).jaxpr
    leaves = zip(task.recipe().leaves(), traced.invars, traced.outvars, strict=False)
    return [leaf.name for leaf, before, after in leaves if is_merged(leaf.kind) and before is after]


def _is_zero(variable: Any, equations: dict[Any, Any]) -> bool:
    """Whether an output of a traced program is zeros that depend on nothing."""
    while not hasattr(variable, "val"):  # A literal has a value.
        equation = equations.get(variable)
        if equation is None or equation.primitive.name not in ("broadcast_in_dim", "convert_element_type", "copy"):
            return False
        variable = equation.invars[0]
    return bool(np.all(np.asarray(variable.val) == 0))


@lru_cache(maxsize=_KEPT)
def check_first_loss(task: JaxTask, seed: int) -> None:
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

    def compute() -> tuple[float, list[str]]:
        with jax.default_device(_cpu()):
            loss, are_finite = traced.lower().compile(_OPTIONS)(jax.random.key(seed), batch)
        return float(loss), [name for name, is_finite in named_leaves(are_finite) if not is_finite]

    loss, odd = computed_apart(compute)
    if math.isfinite(loss):
        return
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


def frozen_digests(task: JaxTask, seed: int, *, computes: bool) -> Digests:
    """The digests of the frozen leaves; ConfigError if `init` makes some, and this process may not compute."""
    frozen = [leaf for leaf in task.recipe().leaves() if leaf.kind == FROZEN]
    if not frozen:
        return ()
    if not computes and any(task.load is None or task.load(leaf.name, leaf.shape) is None for leaf in frozen):
        do = "Load them (load=), or start the run with the command `isthmus train`."
        found = "some that init makes, where no device may be used"
        raise ConfigError("Making the frozen leaves of the task", "leaves that load gives", found, do)
    return call("task.init(key)", task.init, lambda: digests_of(functions_of(task, (), 0.0).frozen_leaves(seed)))  # type: ignore[no-any-return]


@lru_cache(maxsize=_KEPT)
def layout(task: JaxTask, seed: int = 0, is_shipped: bool = False) -> tuple[TensorSpec, ...]:
    """The merged leaves of `task.init`, in the order of `jax.tree.leaves`; ConfigError for a task that cannot train.

    A name is the path of keys, indices and attributes, joined by '/'. Checks: `init` gives leaves with distinct names,
    each covered by a rule of `merge`, and merged leaves can be merged; `batch` gives the same arrays twice for one
    `at`, and the same structure, shapes and dtypes at another position, slot and split; loss and optimizer, or step and
    evaluate, fit the result of `init`, and each other; leaves from `load` fit. Of a task that `is_shipped` loss and
    optimizer are known to fit, and are traced where learners are prepared, once.
    """
    batch = check_data(task, seed)
    leaves = merged_leaves(task)
    if isinstance(task, StepTask):
        check_step(task, batch)
    elif not is_shipped:
        check_loss(task, batch)
    check_load(task, leaves)
    return tuple(
        TensorSpec(name, tuple(shape.shape), str(shape.dtype), kind, is_stacked)
        for name, shape, kind, is_stacked in leaves
        if kind is not None and is_merged(kind)
    )
