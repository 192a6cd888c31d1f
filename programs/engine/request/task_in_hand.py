"""Whether processes that import a task get the one that `train` was given.

Processes import a task by its reference: a file and a name there. They would not find a task that a script made in a
function, in a loop or under `if __name__ == "__main__":`, or of something else than its files and arguments. So the
file is imported here once more, as they import it, and its task is compared with the task in hand: the traced programs
of its functions, with every constant in them, its first batches, and its plain settings. Two tasks that are alike in
these train alike; the results of `load` are not compared. A task that brings its learner says what its functions
compute; for every other one jax is imported.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from isthmus.ops.data.batches import At, Tokens, first_batch, tokens_in
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.programs.engine.request import reference
from isthmus.programs.task import AnyTask, JaxTask, OwnTask, StepTask
from isthmus.runtime.errors import ConfigError

_DOING: Final = "Starting processes, which import the task"
_ADDRESS: Final = re.compile(r"0x[0-9a-f]+")
"""A function's address in this process's memory, in the text of a traced program."""


def check_importable(task: AnyTask, text: str, seed: int) -> None:
    """ConfigError unless importing the reference `text` gives a task that trains like `task`."""
    where, name = reference.split(text)
    do = what_to_do(where)
    imported = reference.load_in_child(text, _DOING, do)
    if imported is task:
        return
    expected = f"{name!r} in {where} to be the task that train() was given"
    if not isinstance(imported, AnyTask):
        raise ConfigError(_DOING, expected, reference.kind(imported), do)
    if others := list(differences(task, imported, seed)):
        raise ConfigError(_DOING, expected, f"one with another {', another '.join(others)}", do)


def what_to_do(where: str = "") -> str:
    """Advice on how to make a task importable by processes."""
    file = Path(where).name if where else "mine.py"
    return (
        f"Make the task at the top level of {file}, not in a function, in a loop or under __main__ (sys.argv is the "
        f'same there), or write a function make(...) there and pass "{file}:make(lr = 0.1)" in place of the task. With '
        'transport="inproc" there are no processes.'
    )


def differences(one: AnyTask, other: AnyTask, seed: int) -> Iterator[str]:
    """The arguments of Task in which two tasks differ."""
    if _counts(one, seed) != _counts(other, seed):
        yield "tokens_per_batch"
    for name in ("evaluation", "merge", "mesh", "shard", "stacked"):
        if getattr(one, name, None) != getattr(other, name, None):
            yield name
    if type(one) is not type(other):
        yield "step"
        return
    first, second = _computed(one, seed), _computed(other, seed)
    yield from (name for name in {**first, **second} if first.get(name) != second.get(name))


def _counts(task: AnyTask, seed: int) -> Any:
    """The tokens of batches; where they are counted, of the first, and at most."""
    tokens = task.tokens_per_batch
    if not isinstance(tokens, Tokens):
        return tokens
    return tokens.at_most, tokens_in(first_batch(task, seed), tokens, 0)


def _computed(task: AnyTask, seed: int) -> dict[str, Any]:
    """What a task's functions compute, by the names of its arguments."""
    batch, held_out = first_batch(task, seed), task.batch(At(seed, 0, 0, "evaluation"))
    batches = [_content(leaf) for tree in (batch, held_out) for _, leaf in named_leaves(tree, "batch")]
    functions = task.digests(seed) if isinstance(task, OwnTask) else _traced(task, batch)
    return {"batch": batches, **functions}


def _traced(task: JaxTask, batch: Any) -> dict[str, Any]:
    """The traced programs of a task's functions, by the names of its arguments."""
    import jax
    import optax

    from isthmus.ops.island.recipe import Now, abstract_key, trained_part

    key = abstract_key()
    first = jax.eval_shape(task.init, key)
    traced: dict[str, Any] = {"init": _program(task.init, key)}
    if isinstance(task, StepTask):
        now = Now(key, np.zeros((), np.float32))
        traced |= {"step": _program(task.step, first, batch, now), "evaluate": _program(task.evaluate, first, batch)}
        return traced | ({"restart": _program(task.restart, first, key)} if task.restart is not None else {})
    optimizer = optax.with_extra_args_support(task.optimizer)
    trained = trained_part(first, task.rules)
    state = jax.eval_shape(optimizer.init, trained)
    update = partial(optimizer.update, progress=np.zeros((), np.float32))
    steps = [_program(optimizer.init, trained), _program(update, trained, state, trained)]
    return traced | {"loss": _program(task.loss, first, batch), "optimizer": steps}


def _program(function: Callable[..., Any], *arguments: Any) -> list[str]:
    """A function as jax traces it: its text, and every array that it closes over."""
    import jax

    closed = jax.make_jaxpr(function)(*arguments)
    return [_ADDRESS.sub("", str(closed.jaxpr)), *_constants(closed)]


def _constants(closed: Any) -> Iterator[str]:
    """The arrays in a traced program, and in those that it calls."""
    for constant in closed.consts:
        yield _content(constant)
    for equation in closed.jaxpr.eqns:
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if hasattr(inner, "consts") and hasattr(inner, "jaxpr"):
                    yield from _constants(inner)


def _content(leaf: Any) -> str:
    """The dtype, shape and bytes of an array, as a digest."""
    if "jax" in sys.modules and hasattr(leaf, "dtype"):
        import jax

        if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
