"""Whether a task can train, and the tensors of its model: asked of the task itself where it brings its learner, of jax
for every other task.

Imports no framework: jax is imported for tasks in jax only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from isthmus.ops.data.batches import Tokens, first_batch
from isthmus.ops.exchange.frozen_leaves import Digests, difference
from isthmus.ops.exchange.merge_rules import is_merged
from isthmus.ops.exchange.parameter_trees import first_match
from isthmus.ops.island.contract import GradientSource
from isthmus.programs.engine.request.batch_checks import check_data
from isthmus.programs.engine.request.leaf_checks import leaf_faults, rule_faults, stacked_faults, unmatched
from isthmus.programs.job import TensorSpec
from isthmus.programs.task import AnyTask, ModelLeaf, OwnTask, Task
from isthmus.runtime.errors import ConfigError, Fault


def layout_of(task: AnyTask, seed: int, *, is_shipped: bool = False) -> tuple[TensorSpec, ...]:
    """The merged leaves of a task's model; ConfigError, with every fault, for a task that cannot train.

    `is_shipped`: it is the language model of this package, of which less has to be checked.
    """
    if not isinstance(task, OwnTask):
        from isthmus.programs.engine.request.layout import kept, layout

        return kept(layout, task, seed, is_shipped)  # type: ignore[no-any-return]
    check_data(task, seed)
    return _merged(task, task.leaves(seed))


def leveled(task: AnyTask, tensors: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The merged leaves with their levels, of a model made of modules; ConfigError for rules that match none, and for a
    level without leaves."""
    if not task.paths:
        return tuple(tensors)
    faults = list(unmatched("levels", task.level_rules, tensors))
    result = tuple(replace(tensor, level=first_match(task.level_rules, tensor.name)) for tensor in tensors)
    lacking = sorted(set(range(len(task.paths))) - {tensor.level for tensor in result})
    if lacking and not faults:
        do = "Give each level leaves by levels=, or paths= fewer numbers."
        faults = [Fault(f"Cutting the model into {len(task.paths)} levels", "leaves in each", f"none in {lacking}", do)]
    if faults:
        raise ConfigError.of(faults)
    return result


def _merged(task: OwnTask, leaves: Sequence[ModelLeaf]) -> tuple[TensorSpec, ...]:
    faults = [
        *leaf_faults(leaves, "the function that makes the model"),
        *rule_faults(task, leaves),
        *stacked_faults(task, leaves),
    ]
    if faults:
        raise ConfigError.of(faults)
    return tuple(
        TensorSpec(name, shape, dtype, kind, is_stacked)
        for name, shape, dtype, kind, is_stacked in leaves
        if kind is not None and is_merged(kind)
    )


def frozen_of(task: AnyTask, seed: int, *, computes: bool) -> Digests:
    """The digests of a task's frozen leaves. ConfigError if they are to be computed in a process that may not."""
    if isinstance(task, OwnTask):
        return task.frozen(seed)
    from isthmus.programs.engine.request.layout import frozen_digests

    return frozen_digests(task, seed, computes=computes)


def check_frozen_alike(text: str, frozen: Digests, other: Digests) -> None:
    """ConfigError unless the task of this reference has frozen leaves with the digests of the run's."""
    if (pair := difference(frozen, other)) is not None:
        do = "Let all tasks of a run load them from the same files."
        raise ConfigError(f"Comparing the task {text!r} with the run's", *pair, do)


def check_alike(
    task: AnyTask, layout: Sequence[TensorSpec], text: str, other: AnyTask, others: Sequence[TensorSpec]
) -> None:
    """ConfigError unless an `other` task, of this reference, has the layout of the run's, cut into the same modules,
    and its tokens a batch."""
    doing = f"Comparing the task {text!r} with the run's"
    here, there = ({each.name: each for each in each_layout} for each_layout in (layout, others))
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            do = "Give all tasks of a run the same leaves: names, shapes, dtypes, and rules of merge=."
            raise ConfigError(doing, _in_words(name, here.get(name)), _in_words(name, there.get(name)), do)
    own, its = (
        (list(each.paths), {each_leaf.name: each_leaf.level for each_leaf in leveled(each, leaves)})
        for each, leaves in ((task, layout), (other, others))
    )
    if own != its:
        do = "Give all tasks of a run the same paths= and levels=."
        others_level = [leaf for leaf in own[1] if own[1][leaf] != its[1][leaf]][:1]
        expected, found = (
            ", with ".join([f"paths = {paths}", *(f"{leaf!r} in level {levels[leaf]}" for leaf in others_level)])
            for paths, levels in (own, its)
        )
        raise ConfigError(doing, expected, found, do)
    tokens = [_tokens(each) for each in (task, other)]
    if tokens[0] != tokens[1]:
        do = "Write the same tokens_per_batch= in all: a tuple has one number for each slot."
        raise ConfigError(doing, f"tokens_per_batch = {tokens[0]}", f"{tokens[1]}", do)


def _in_words(name: str, leaf: TensorSpec | None) -> str:
    if leaf is None:
        return f"no leaf {name!r} that is merged"
    rows = ", each row by itself" if leaf.is_stacked else ""
    return f"{name!r} as {leaf.dtype}{list(leaf.shape)}, merged by {leaf.merge!r}{rows}"


def _tokens(task: AnyTask) -> str:
    tokens = task.tokens_per_batch
    return f"Tokens(..., at_most={tokens.at_most})" if isinstance(tokens, Tokens) else str(tokens)


def has_gradients(task: AnyTask, merged: Sequence[TensorSpec]) -> bool:
    """Whether gradients of a task can be averaged: it has a loss, and all its parameters are `merged`."""
    if isinstance(task, OwnTask):
        return isinstance(task, GradientSource)
    return isinstance(task, Task) and len(merged) == len(task.recipe().leaves())


def first_step_warnings(task: AnyTask, seed: int, *, computes: bool) -> tuple[Fault, ...]:
    """Oddities of a task that can train; ConfigError if its first step shows that it cannot.

    A loss is computed only if this process `computes`.
    """
    if isinstance(task, OwnTask):
        return task.check_first_step(first_batch(task, seed), seed, computes=computes)
    from isthmus.programs.engine.request import layout

    if computes:
        layout.kept(layout.check_first_loss, task, seed)
    return layout.kept(layout.warnings, task, seed)  # type: ignore[no-any-return]
