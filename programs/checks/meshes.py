"""Whether a task's mesh, leaves and batches fit the devices of an island, which need not be here."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from isthmus.ops.data.batches import first_batch
from isthmus.ops.exchange.parameter_trees import named_leaves
from isthmus.ops.gang.mesh_sharding import MeshShape, ShardingError
from isthmus.programs.task import Task
from isthmus.runtime.errors import Fault


def mesh_faults(task: Task, devices: int, seed: int, slot: int, where: str) -> Iterator[Fault]:
    """Why mesh, leaves or batches do not fit so many devices, for this slot's learner; `where`: the island in words."""
    recipe = task.recipe()
    try:
        mesh = MeshShape.of(recipe.mesh, devices)
        for leaf in recipe.leaves():
            mesh.of_leaf(leaf.name, leaf.shape.shape, recipe.shard)
        for name, array in named_leaves(first_batch(task, seed, slot), "batch"):
            mesh.of_batch(name, np.shape(array))
    except ShardingError as error:
        yield Fault(f"{error.doing} ({where})", error.expected, error.found, error.do)
