"""The placement of a request on the machines of a cluster, with the needs of its task.

Only in this room are the two brought together: `runtime.graph.placement` knows no tasks, and a request no machines.
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.programs.checks.meshes import mesh_faults
from isthmus.programs.checks.processes import process_faults
from isthmus.programs.cluster.needs import Find, host_faults, learner_bytes, not_asked
from isthmus.programs.islands.elastic_sizes import sizes_on
from isthmus.programs.recorder.summary import roster_counts
from isthmus.programs.request.request import Request
from isthmus.programs.results.numbers import size
from isthmus.runtime.errors import Fault, PlacementError
from isthmus.runtime.graph.placement import Machine, Placement, Topology, place
from isthmus.runtime.ids import LEARNER


def placed(request: Request, topology: Topology, compiled: Find = not_asked) -> Placement:
    """The placement of every replica of the request.

    PlacementError with all obstacles of one kind, among them steps that were `compiled` and are too large; ConfigError
    as for `elastic_sizes`.
    """
    counts = roster_counts(request.graph, request.job.learners)
    placement = place(request.graph, counts, topology, memory_bytes={LEARNER: learner_bytes(request)})
    if faults := list(process_faults(request.plans, request.task, placement.processes, request.job.learners)):
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
    elastic_sizes(request, topology, placement)
    if faults := [fault for slot, machine in hosts for fault in _memory_faults(machine, slot, compiled)]:
        raise PlacementError.of(faults)
    if faults := list(host_faults(request, topology, placement)):
        raise PlacementError.of(faults)
    return placement


def elastic_sizes(request: Request, topology: Topology, placement: Placement) -> list[list[int]]:
    """The numbers of processes with which each learner's island may train, by slot; ConfigError as for `sizes_on`."""
    machines = topology.by_name()
    devices = [machines[name].devices for name in placement.of_role(LEARNER)][: len(placement.processes)]
    return sizes_on(request, placement.processes, devices)


def _mesh_faults(request: Request, machine: Machine, slot: int) -> Iterator[Fault]:
    """Why the task's mesh, leaves or batches do not fit an island of a machine whose devices are known."""
    if machine.device is not None:
        where = f"an island of {machine.name!r}"
        yield from mesh_faults(request.task, machine.island_devices, request.job.seed, slot, where)


def _memory_faults(machine: Machine, slot: int, compiled: Find) -> Iterator[Fault]:
    """Why a learner does not fit an island that it was compiled for."""
    found = compiled(machine, slot)
    if found is not None and not found.fits:
        yield Fault(
            f"Placing learner {slot} on {machine.name!r}",
            f"functions within {size(found.limit_bytes)} of each device",
            f"{size(found.memory_bytes)}, which `isthmus compile` found",
            "Make the batch smaller, use jax.checkpoint in the loss, or give its islands more `devices`.",
        )
