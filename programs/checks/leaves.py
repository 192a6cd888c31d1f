"""The leaves of a task's model: their names, and whether each is covered by a rule and can follow it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import jax

from isthmus.ops.exchange.parameter_trees import idle_rules, named_leaves
from isthmus.ops.island.recipe import LOCAL, Leaf, abstract_key
from isthmus.programs.checks.calls import call
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, Fault, nearest

MERGED_DTYPES: Final = ("float32", "bfloat16", "float16")
_NAMES_MAX: Final = 4
_DOING: Final = "Running task.init(key)"
_READING: Final = "Reading merge= of the task"


def merged_leaves(task: Task) -> list[Leaf]:
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
        if name in seen:
            yield Fault(_DOING, "a name of its own for each tensor", f"two named {name!r}", "Avoid '/' in dict keys.")
        seen.add(name)


def _rule_faults(task: Task, leaves: Sequence[Leaf]) -> Iterator[Fault]:
    names = [leaf.name for leaf in leaves]
    folders = {f"{name[:end]}/**" for name in names for end, letter in enumerate(name) if letter == "/"}
    for pattern, before in idle_rules(task.rules, names):
        if before is None:
            yield Fault(_READING, "patterns that match leaves", repr(pattern), nearest(pattern, folders.union(names)))
        else:
            found = f"{before!r} before {pattern!r}, which takes all that it matches"
            yield Fault(_READING, "rules in the order in which they hold", found, f"Put {pattern!r} first.")
    bare = [leaf.name for leaf in leaves if leaf.kind is None]
    if bare:
        more = f" and {len(bare) - _NAMES_MAX} more" if len(bare) > _NAMES_MAX else ""
        do = 'Say what happens to them: end with "**": "local", for example.'
        found = f"none for {_listed(tuple(map(repr, bare[:_NAMES_MAX])))}{more}"
        yield Fault(_READING, "a rule for every leaf", found, do)
    elif leaves and all(leaf.kind == LOCAL for leaf in leaves):
        do = 'Merge what is trained: "params/**": "rda", for example. Without that every learner trains alone.'
        yield Fault(_READING, "at least one leaf that is merged", "all of them local", do)


def _mesh_faults(task: Task, leaves: Sequence[Leaf]) -> Iterator[Fault]:
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
