"""Whether the largest fragment fits into an item, in all that is made of it: before a run, not at its first send.

What is largest is the state that a shard gives to the home of the run: the published values, the momentum where there
is any, and what outer steps go on from where updates are coded.

Whether a task's mesh, leaves and batches fit the devices of an island, which need not be here.

Whether a graph's learners may have several processes each, and the work of a process that follows its leader.

A learner's processes call the same functions in the same order, as its inner-step does. So its inner-step has to be a
body that names its `follower`, to give fragments only, because no process has all parameters, and to train on the
batches of the shipped data node: every process makes them for itself. And the task's learner has to be the one in jax.

Whether a loop of the user's can make the steps of a graph's learners.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from isthmus.ops.data.batches import first_batch
from isthmus.ops.exchange.frozen_leaves import Digests
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.gang.mesh_sharding import STAGE, MeshShape, ShardingError
from isthmus.ops.island.contract import LearnerSource
from isthmus.ops.island.evaluate import Evaluate
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.programs.engine.recorder.graph_parts import paths_in
from isthmus.programs.engine.request.followers import followed
from isthmus.programs.job import Job
from isthmus.programs.loop_task import LoopTask
from isthmus.programs.task import AnyTask, OwnTask, StepTask
from isthmus.programs.user_calls import call
from isthmus.runtime.errors import Fault
from isthmus.runtime.graph.plans import NodePlan, Plan
from isthmus.runtime.graph.template import Template
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.items.layout import ITEM_BYTES_MAX

VALUE_BYTES = 4


def item_faults(graph: Template) -> Iterator[Fault]:
    """A fault for each outer step whose largest fragment does not fit."""
    for node in graph.nodes:
        if node.body is not OuterStep:
            continue
        (fragments,) = node.arguments
        vectors = 1 + bool(node.keywords["momentum"]) + (node.keywords.get("update", "float32") != "float32")
        largest = max(fragments, key=lambda fragment: fragment.size)
        size_bytes = vectors * VALUE_BYTES * largest.size
        if size_bytes > ITEM_BYTES_MAX:
            count = -(-len(fragments) * size_bytes // ITEM_BYTES_MAX)
            yield Fault(
                f"fragment {largest.index} ({largest.units[0].name}{' and more' if len(largest.units) > 1 else ''})",
                f"at most {ITEM_BYTES_MAX >> 30} GiB in one item, {ITEM_BYTES_MAX // (VALUE_BYTES * vectors)} values",
                f"{largest.size} values, whose state of {vectors} float32 vectors takes {size_bytes / 2**30:.1f} GiB",
                f"Cut the model into at least {count} fragments (program.fragments), stack layers so that each is cut "
                "for itself (task.stacked), or make the largest tensor smaller.",
            )


def mesh_faults(task: AnyTask, devices: int, seed: int, slot: int, where: str) -> Iterator[Fault]:
    """Why mesh, leaves or batches do not fit so many devices, for this slot's learner; `where`: the island in words."""
    if isinstance(task, OwnTask):
        if devices > 1 and not isinstance(task, LoopTask):  # A script uses what it sees.
            do = "Give the island one device, or train a task in jax."
            yield Fault(f"Giving {where} to the task", "one device, which its learner uses", f"{devices}", do)
        return
    from isthmus.ops.island.recipe import has_stages

    recipe = task.recipe()
    try:
        mesh = MeshShape.of(recipe.mesh, devices)
        for leaf in recipe.leaves():
            mesh.of_leaf(leaf.name, leaf.shape.shape, recipe.shard, is_stacked=leaf.is_stacked)
        batch = first_batch(task, seed, slot)
        for name, array in named_leaves(batch, "batch"):
            mesh.of_batch(name, np.shape(array))
        if STAGE in mesh.sizes and not call(
            f"a step by the stages of mesh={dict(mesh.axes)}, whose layers close over nothing that is trained",
            task.step if isinstance(task, StepTask) else task.loss,
            partial(has_stages, recipe, mesh, batch),
            ShardingError,
        ):
            do = "Call isthmus.scan_layers in the loss in place of jax.lax.scan, or leave the axis out of mesh=."
            yield Fault(
                f"Cutting layers into stages ({where})", "a loss that calls scan_layers", "one that does not", do
            )
    except ShardingError as error:
        yield Fault(f"{error.action} ({where})", error.expected, error.found, error.remedy)


PROCESSES_MAX: Final = 64
"""Processes of an island: a v5p of 256 chips has as many hosts."""


def process_faults(
    plans: Mapping[str, Plan], tasks: Collection[Any], processes: Sequence[int], learners: int
) -> Iterator[Fault]:
    """Faults of the numbers of processes of learners of these tasks, by slot."""
    for count in processes:
        if not 1 <= count <= PROCESSES_MAX:
            do = "Say how many processes the island of each learner has: run.processes=[2, 1]."
            yield Fault("Reading run.processes", f"from 1 to {PROCESSES_MAX} of each learner", str(count), do)
    if len(processes) > learners:
        do = "Lower it, or raise run.learners."
        yield Fault(
            "Reading run.processes", f"at most one number for each of {learners} learners", str(len(processes)), do
        )
    if max(processes, default=1) > 1 and any(isinstance(task, LearnerSource) for task in tasks):
        do = "Give the task a loss or a step, or leave run.processes out."
        yield Fault("Reading run.processes", "a task that isthmus trains in jax", "one with a learner of its own", do)
    if max(processes, default=1) > 1 and followed(plans.get(LEARNER)) is None:
        do = "Use InnerStep with fragments on the batches of Batches, or leave run.processes out."
        yield Fault(
            "Reading run.processes", "learners that exchange fragments and nothing else, by InnerStep", "others", do
        )


def frozen_faults(frozen: Digests, processes: Sequence[int]) -> Iterator[Fault]:
    """A fault for islands of several processes, which cannot show that they have the same frozen leaves."""
    if frozen and max(processes, default=1) > 1:
        do = "Give each island one process, or merge the leaf."
        found = f"the frozen leaf {frozen[0][0]!r}"
        yield Fault("Reading run.processes", "a task without frozen leaves, or islands of one process", found, do)


def path_faults(graph: Template, job: Job, tasks: Collection[Any]) -> Iterator[Fault]:
    """Faults of a task whose model is made of modules."""
    if math.prod(job.modules) == 1:
        return
    if paths_in(graph) is None:
        expected, found = "dipaco, which trains models made of modules", repr(graph.name)
        yield Fault("Training a task that has paths", expected, found, "Change the program, or leave out paths.")
    if any(isinstance(task, OwnTask) for task in tasks):
        do = "Write the task in jax, or leave out paths."
        yield Fault("Training a task that has paths", "a task in jax", "one of another framework", do)


def loop_faults(plans: Mapping[str, Plan], task: Any, tasks: Collection[Any]) -> Iterator[Fault]:
    """Faults of a program whose learners' steps no loop of the user's can make, and of other `tasks` beside one."""
    if len(tasks) > 1 and any(isinstance(each, LoopTask) for each in tasks):
        do = "Leave `task` and `framework` of machines out: the script is the task of all learners."
        yield Fault("Reading --loop", "one script for all learners", f"{len(tasks)} tasks", do)
    if isinstance(task, LoopTask) and (LEARNER not in plans or looped(plans[LEARNER]) is None):
        expected = "learners that exchange fragments by InnerStep, whose steps a loop can make"
        yield Fault("Reading --loop", expected, "others in this program", "Train by decoupled-diloco.")


def looped(plan: Plan) -> NodePlan | None:
    """The node to which the thread of a user's script may be lent; None if there is none.

    A learner's whose steps a loop may make, or an evaluator's.
    """
    for node in plan.nodes:
        if not isinstance(node.body, type):
            continue
        if issubclass(node.body, Evaluate) or (issubclass(node.body, InnerStep) and node.keywords.get("fragments")):
            return node
    return None
