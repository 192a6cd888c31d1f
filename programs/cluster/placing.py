"""The placement of a request on the machines of a cluster, with what its task needs of them.

Only here are the two brought together: `runtime.graph.placement` knows no tasks, and a request knows no machines. It
runs the task's optimizer on shapes, so it imports jax.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, Final

from isthmus.programs.checks.meshes import mesh_faults
from isthmus.programs.checks.processes import process_faults
from isthmus.programs.recorder.summary import roster_counts
from isthmus.programs.request.request import Request
from isthmus.runtime.errors import Fault, PlacementError
from isthmus.runtime.graph.placement import Placement, place
from isthmus.runtime.graph.topology import Machine, Topology
from isthmus.runtime.roles import LEARNER

FLOAT32_BYTES: Final = 4


def placed(request: Request, topology: Topology) -> Placement:
    """Where every replica of the request goes; PlacementError with everything that is in the way."""
    counts = roster_counts(request.graph, request.job.learners)
    placement = place(request.graph, counts, topology, memory_bytes={LEARNER: learner_bytes(request)})
    if faults := list(process_faults(request.plans, placement.processes, request.job.learners)):
        raise PlacementError.of(faults)
    if request.processes:
        do = 'Leave it out: machines of one island say so in the cluster file, each by island = "NAME".'
        raise PlacementError(
            "Placing the learners", "no run.processes beside a cluster", str(list(request.processes)), do
        )
    machines = topology.by_name()
    hosts = [(slot, machines[name]) for slot, name in enumerate(placement.of_role(LEARNER))]
    if faults := list(
        dict.fromkeys(fault for slot, machine in hosts for fault in _mesh_faults(request, machine, slot))
    ):
        raise PlacementError.of(faults)
    return placement


def _mesh_faults(request: Request, machine: Machine, slot: int) -> Iterator[Fault]:
    """Why the task's mesh, leaves or batches do not fit an island of a machine whose devices are known."""
    if machine.device is not None:
        where = f"an island of {machine.name!r}"
        yield from mesh_faults(request.task, machine.island_devices, request.job.seed, slot, where)


def learner_bytes(request: Request) -> int:
    """What a learner holds on its island at least: its state, and a gradient of what is merged. No activations."""
    import jax

    recipe = request.task.recipe()
    state = jax.eval_shape(recipe.state_of, recipe.shapes())
    merged = sum(prod(tensor.shape) * _itemsize(tensor.dtype) for tensor in request.job.layout)
    return merged + sum(map(_size_bytes, jax.tree.leaves(state)))


def parameter_count(request: Request) -> int:
    """The number of the model's parameters."""
    return sum(prod(tensor.shape) for tensor in request.job.layout)


def _itemsize(dtype: str) -> int:
    import jax.numpy as jnp

    return int(jnp.dtype(dtype).itemsize)


def _size_bytes(array: Any) -> int:
    return int(array.size) * int(array.dtype.itemsize)
