"""The leaves of a task's model: their names, and whether each is covered by a rule and can follow it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from isthmus.ops.exchange.fragments import ROWS
from isthmus.ops.exchange.merge_rules import is_merged
from isthmus.ops.exchange.parameter_trees import idle_rules
from isthmus.programs.job import TensorSpec
from isthmus.programs.task import ModelLeaf, TaskTerms
from isthmus.runtime.errors import Fault, nearest
from isthmus.runtime.system.files import is_text

if TYPE_CHECKING:
    from isthmus.ops.exchange.parameter_trees import Rules

MERGED_DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
"""Of leaves; what is exchanged and merged are float32, whatever they are."""
_NAMES_MAX: Final = 4
_READING: Final = "Reading merge= of the task"


def form(leaf: Any) -> str:
    """A leaf in words: 'float32[4, 2]'; 'absent' for None."""
    if leaf is None:
        return "absent"
    return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "shape") else type(leaf).__name__


def leaf_faults(leaves: Sequence[ModelLeaf], making: str) -> Iterator[Fault]:
    """Faults of the leaves of a model, which the call `making` made, by themselves."""
    doing = f"Running {making}"
    if not leaves:
        yield Fault(doing, "a model with at least one array", "no array", "Return the parameters from it.")
    seen = set()
    for name, shape, dtype, kind, _ in leaves:
        if kind is not None and is_merged(kind) and dtype not in MERGED_DTYPES:
            do = f"Merge floating-point leaves only, and keep this one local: merge={{{name!r}: 'local', ...}}."
            yield Fault(doing, f"{_listed(MERGED_DTYPES)} in {name!r}, which is merged", dtype, do)
        if is_merged(kind) and not math.prod(shape):
            yield Fault(doing, f"elements in tensor {name!r}", f"shape {shape}", "Leave the empty tensor out.")
        if is_merged(kind) and (why := _unstorable(name)):
            do = "Rename it, or keep it local: the files of the model have tensors by name."
            yield Fault(doing, "a name with which a tensor can be stored and read back", f"{name!r}, {why}", do)
        if name in seen:
            yield Fault(doing, "a name of its own for each tensor", f"two named {name!r}", "Avoid '/' in names.")
        seen.add(name)


def _unstorable(name: str) -> str:
    """Why a model with a tensor of this name could not be read back; empty if it could."""
    if name == "__metadata__":
        return "which safetensors has for itself"
    if ROWS.fullmatch(name):
        return "which would be rows of another tensor"
    return "" if is_text(name) else "which is not Unicode text"


def rule_faults(task: TaskTerms, leaves: Sequence[ModelLeaf]) -> Iterator[Fault]:
    """Faults of the rules of `merge` for these leaves."""
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
    elif leaves and not any(is_merged(leaf.kind) for leaf in leaves):
        do = 'Merge what is trained: "params/**": "rda", for example. Without that every learner trains alone.'
        kinds = " or ".join(sorted({str(leaf.kind) for leaf in leaves}, reverse=True))
        yield Fault(_READING, "at least one leaf that is merged", f"all of them {kinds}", do)


def stacked_faults(task: TaskTerms, leaves: Sequence[ModelLeaf]) -> Iterator[Fault]:
    """Faults of patterns in `stacked` that match no leaf, and of leaves that have no rows."""
    yield from unmatched("stacked", tuple((pattern, True) for pattern in task.stacked), leaves)
    for leaf in leaves:
        if leaf.is_stacked and len(leaf.shape) < 2:
            do = "Leave it out of stacked=: it has no rows."
            found = f"{leaf.dtype}{list(leaf.shape)}"
            yield Fault("Reading stacked= of the task", f"at least 2 axes in {leaf.name!r}", found, do)


def unmatched(what: str, rules: Rules[Any], leaves: Sequence[ModelLeaf | TensorSpec]) -> Iterator[Fault]:
    """Faults of patterns in the task's argument `what` that match no leaf."""
    names = [leaf.name for leaf in leaves]
    for pattern, before in idle_rules(rules, names):
        if before is None:
            doing = f"Reading {what}= of the task"
            yield Fault(doing, "patterns that match leaves", repr(pattern), nearest(pattern, names))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
