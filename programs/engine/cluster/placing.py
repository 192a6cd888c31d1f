"""The least memory that the hosts of a run need: on islands, and of their machines' own.

By shapes alone, P being the merged values in float32. On its machine a learner keeps the fragments that it last adopted
(P), and its whole state where its island is of CPU cores; a shard its part of the values, the momentum and the
published values (3 P / shards), of several shards the published values and the codes of another one's state, and the
answers of all learners to the rounds that it may have in flight, or, where it keeps sums, these and the values that may
be on their way to it; the syncer of a region besides what it has from the global one, and sends it (5 P); the evaluator
the model that it holds, and the one that it evaluates (2 P); the recorder the model that it holds (P). Processes,
batches and buffers come on top. For islands there may be better figures, from a compiler.

The placement of a request on the machines of a cluster, with the needs of its task.

Only in this room are the two brought together: `placement` knows no tasks, and a request no machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import final

from isthmus.ops.exchange.formats import FORMATS, state_code_bits
from isthmus.ops.exchange.wanted_settings import AUTO, OVERLAP, first_interval
from isthmus.ops.syncer.pacer import Pacer
from isthmus.ops.syncer.schedule import rounds_in_flight_max
from isthmus.ops.syncer.summed_merge import ASKED_MAX, SummedMerge
from isthmus.programs import wing_table
from isthmus.programs.engine.cluster.placement import Machine, Placement, Topology, place
from isthmus.programs.engine.islands.sizes import sizes_on
from isthmus.programs.engine.recorder.graph_parts import roster_counts
from isthmus.programs.engine.recorder.roles import has_neighbours
from isthmus.programs.engine.request.faults import frozen_faults, mesh_faults, process_faults
from isthmus.programs.engine.request.model_sizes import FLOAT32_BYTES, learner_bytes, parameter_count
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results.words import size
from isthmus.programs.program_graph import EVALUATOR, REGION, SYNCER, held_model_of, regions_in
from isthmus.runtime.errors import Fault, PlacementError, nearest
from isthmus.runtime.ids import LEARNER, RECORDER, Replica, leader


@final
@dataclass(frozen=True, slots=True)
class CompiledNeeds:
    """Needs of a compiled step, per device.

    `memory_bytes`: of the function that needs most; `limit_bytes`: available to programs; `products_seconds`: of a
    step's products at the full published rate; `step_seconds`: of a step at best. Seconds are None where the compiler
    refused the step.
    """

    memory_bytes: int
    limit_bytes: int
    products_seconds: float | None
    step_seconds: float | None

    @property
    def fits(self) -> bool:
        """Whether a learner can train there."""
        return self.memory_bytes <= self.limit_bytes


Find = Callable[[Machine, int], CompiledNeeds | None]
"""The needs of a slot's learner on an island of a machine; None where no compiler was asked."""


def not_asked(machine: Machine, slot: int) -> None:
    """A `Find` without a compiler."""


def needs_found(request: Request) -> Find:
    """What is known of the needs of a request's learners, if anything here can know it."""
    find = wing_table.compiled_needs()
    return not_asked if find is None else find(request)


def answers_bytes(request: Request) -> int:
    """What a shard holds of answers at most, those that are late for their round left aside.

    Of the largest fragment, for each learner, to as many rounds as may be open, in the format of answers. Where it
    keeps sums: one for each of these rounds, and the answers that are on their way to it, ASKED_MAX or a copy of its
    part of the model, and one at least.
    """
    pacer = next((node.keywords for node in request.graph.nodes if node.body is Pacer), None)
    if pacer is None:
        return 0
    interval = first_interval(pacer["interval"])
    overlap = min(OVERLAP, interval) if pacer["overlap"] == AUTO else pacer["overlap"]
    rounds = rounds_in_flight_max(overlap, pacer["fragments"], interval, pacer["shards"])
    rounds = min(rounds, -(-pacer["fragments"] // pacer["shards"]))
    bits, largest = FORMATS["float32" if pacer["push"] == AUTO else pacer["push"]].bits, max(pacer["sizes"])
    answer = largest * bits / 8
    if any(node.body is SummedMerge for node in request.graph.nodes):
        part = FLOAT32_BYTES * sum(pacer["sizes"]) / pacer["shards"]
        learners = min(ASKED_MAX, request.job.learners)
        return int(max(answer, min(learners * answer, part)) + rounds * FLOAT32_BYTES * largest)
    return int(rounds * request.job.learners * answer)


def neighbour_code_bits(request: Request) -> float | None:
    """Bits of a value that a shard has in codes of the one before it; None where it has nothing of it."""
    held = held_model_of(request.graph)
    if held is None or not has_neighbours(request.graph):
        return None
    outer = held.state.node.keywords
    return state_code_bits(outer["update"], has_momentum=outer["momentum"] > 0)


def neighbour_bytes(request: Request, values: int) -> int:
    """What a shard holds of the one before it: published `values` of it, and its codes."""
    bits = neighbour_code_bits(request)
    return 0 if bits is None else int(values * (1 + bits / FORMATS["float32"].bits))


def host_bytes(request: Request, topology: Topology, placement: Placement) -> dict[str, int]:
    """Minimum bytes that the hosts on each machine need of its own memory, by the machine's name."""
    machines, values = topology.by_name(), FLOAT32_BYTES * parameter_count(request)
    counts = {role: len(placement.of_role(role)) for role in (SYNCER, REGION, EVALUATOR, RECORDER)}
    has_model, part = counts[SYNCER] > 0, values // max(counts[SYNCER], 1)
    least = {
        SYNCER: 3 * part + answers_bytes(request) + neighbour_bytes(request, part),
        # The anchor, and the answers whose fate is open, which are mostly of one merge.
        REGION: 5 * values // max(counts[REGION] // max(regions_in(request.graph), 1), 1) + answers_bytes(request),
        EVALUATOR: 2 * values,
        RECORDER: values if has_model else 0,
    }
    state = learner_bytes(request)
    bytes_by_machine = dict.fromkeys(machines, 0)
    for replica, name in placement.machines.items():
        if leader(replica).role == LEARNER:
            bytes_by_machine[name] += values if leader(replica) == replica and has_model else 0
            bytes_by_machine[name] += _state_bytes(machines[name], state)
        else:
            bytes_by_machine[name] += least.get(replica.role, 0)
    return bytes_by_machine


def host_faults(request: Request, topology: Topology, placement: Placement) -> Iterator[Fault]:
    """Which machines have less memory than the hosts need that are placed on them."""
    if all(machine.memory_bytes is None for machine in topology.machines):
        return
    needed = host_bytes(request, topology, placement)
    for machine in topology.machines:
        if machine.memory_bytes is not None and needed[machine.name] > machine.memory_bytes:
            hosts = ", ".join(map(str, _unfollowed(placement.on(machine.name))))
            yield Fault(
                f"Placing {hosts} on {machine.name!r}",
                f"{size(needed[machine.name])} of memory, which they need at least",
                f"{size(machine.memory_bytes)}",
                "Leave some of them to another machine (`roles`, `islands`), or raise program.shards.",
            )


def _unfollowed(replicas: tuple[Replica, ...]) -> list[Replica]:
    return list(dict.fromkeys(map(leader, replicas)))


def _state_bytes(machine: Machine, state: int) -> int:
    """Bytes of a learner's state in the main memory of one of its machines: on CPU cores its share, else 0."""
    is_on_cores = machine.device is None or machine.device.is_cpu
    return state // max(1, len(machine.together)) if is_on_cores else 0


def placed(request: Request, topology: Topology, compiled: Find = not_asked) -> Placement:
    """The placement of every replica of the request.

    PlacementError with all obstacles of one kind, among them steps that were `compiled` and are too large; ConfigError
    as for `elastic_sizes`.
    """
    counts = roster_counts(request.graph, request.run.learners)
    placement = place(request.graph, counts, topology, memory_bytes={LEARNER: learner_bytes(request)})
    if faults := list(process_faults(request.plans, request.tasks.values(), placement.processes, request.job.learners)):
        raise PlacementError.of(faults)
    if faults := list(frozen_faults(request.job.frozen, placement.processes)):
        raise PlacementError.of(faults)
    if request.run.processes:
        do = 'Leave it out: machines of one island say so in the cluster file, each by island = "NAME".'
        raise PlacementError(
            "Placing the learners", "no run.processes beside a cluster", str(list(request.run.processes)), do
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
    if faults := [*host_faults(request, topology, placement), *influence_faults(request, topology, placement)]:
        raise PlacementError.of(faults)
    return placement


def influence_faults(request: Request, topology: Topology, placement: Placement) -> Iterator[Fault]:
    """Why the largest shares of a merge, of machines and their owners, cannot be kept."""
    machines = topology.by_name()
    limited = [machine for machine in topology.machines if machine.weight_share_max is not None]
    doing = "Reading weight_share_max"
    if "weight_share_max" not in request.job.settings:
        for machine in limited[:1]:
            do = "Leave it out, or train by decoupled-diloco."
            yield Fault(f"{doing} of {machine.name!r}", "a program that has program.weight_share_max", request.name, do)
        return
    most: dict[str, float] = {}
    for machine in limited:
        name, share = machine.owner or machine.name, float(machine.weight_share_max or 0)
        if most.setdefault(name, share) != share:
            do = "Write the same at all machines of an owner, or at one: they have it together."
            yield Fault(f"{doing} of {machine.name!r}", f"{most[name]:g}, as at others of {name!r}", f"{share:g}", do)
    everybody = float(request.job.settings["weight_share_max"])
    owners = {machines[name].owner or name for name in placement.of_role(LEARNER)}
    together = sum(most.get(name, everybody) for name in owners)
    if owners and together < 1:
        expected = f"1 or more for all who have learners together, {', '.join(sorted(owners))}"
        do = "Raise some, or program.weight_share_max: all together would have less than the whole of a merge."
        yield Fault(doing, expected, f"{together:g}", do)


def site_warnings(request: Request, topology: Topology) -> Iterator[Fault]:
    """That weights are of sites which no machine is: it may join, or the name is another one's."""
    weights = request.job.settings.get("site_weight")
    names = topology.by_name()
    for site in [each for each in weights if each not in names] if isinstance(weights, Mapping) else []:
        expected = f"a machine of the cluster, {', '.join(sorted(names))}, or one that joins"
        yield Fault("Reading program.site_weight", expected, repr(site), nearest(site, names))


def elastic_sizes(request: Request, topology: Topology, placement: Placement) -> list[list[int]]:
    """The numbers of processes with which each learner's island may train, by slot; ConfigError as for `sizes_on`."""
    machines = topology.by_name()
    devices = [machines[name].devices for name in placement.of_role(LEARNER)][: len(placement.processes)]
    return sizes_on(request, placement.processes, devices)


def _mesh_faults(request: Request, machine: Machine, slot: int) -> Iterator[Fault]:
    """Why the task's mesh, leaves or batches do not fit an island of a machine whose devices are known."""
    if machine.device is not None:
        where = f"an island of {machine.name!r}"
        task = request.task_of(slot, machine.name)
        yield from mesh_faults(task, machine.island_devices, request.job.seed, slot, where)


def _memory_faults(machine: Machine, slot: int, compiled: Find) -> Iterator[Fault]:
    """Why a learner does not fit an island that it was compiled for."""
    needs = compiled(machine, slot)
    if needs is not None and not needs.fits:
        yield Fault(
            f"Placing learner {slot} on {machine.name!r}",
            f"functions within {size(needs.limit_bytes)} of each device",
            f"{size(needs.memory_bytes)}, which `isthmus compile` found",
            "Make the batch smaller, use jax.checkpoint in the loss, or give its islands more `devices`.",
        )
