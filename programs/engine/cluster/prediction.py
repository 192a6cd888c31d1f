"""Local batches: the number of sequences in a batch of each learner of the shipped task, where islands are not equal.

By default every learner has the same batch and its own pace, as in the paper; a slow one then answers with fewer steps.
With `run.local_batch = "paced"` the batches of a run on a cluster follow the predicted speeds of the islands, so that
all take steps of one length: together they hold as many sequences as before, and none is empty. Weights of a merge
follow the tokens either way. The decision is written into `task.batch`, so that the resolved configuration starts the
same run again.

The placement of a run on a cluster, and its predictions: below the graph, in its boxes, or in its JSON.

Nothing is decided here: `placing` places, `prediction` predicts. Every figure stands under the word predicted.

The expected step times, memory and link use of a placement, from published figures. Nothing is measured.

- A step of an island takes 6 x parameters x tokens FLOPs (forward and backward, attention left out) at `UTILISATION` of
  the published bfloat16 FLOP/s of its devices, over which batch and model are split evenly; and `ADDED_SECONDS`, which
  is all that very small models see of a fast device.
- An island holds parameters, gradient and optimizer state at least; activations come on top.
- For an island with figures of a compiler (`isthmus compile`) memory is the compiler's; a step takes its products at
  that same share, or its reads and writes at the published bandwidth, whichever is longer.
- A learner sends and gets all parameters once in `interval` steps, both in the longer of its two formats, `push` and
  `update`, float32 for "auto" (parameters x bits / (H x step seconds)). With a syncer rounds go by the fastest learner;
  without one each learner goes by itself. Where inner steps wait for others all go by the slowest; without an interval
  that is a ring all-reduce in every step.

A figure that lacks an input is not guessed: it is None. With learners of which only some step times are known, a pace
is that of those, which is stated nowhere else.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from textwrap import wrap
from typing import Any, Final, final

from isthmus.ops.data.positions import of_slot
from isthmus.ops.exchange.formats import FORMATS
from isthmus.ops.exchange.wanted_settings import AUTO, first_interval
from isthmus.ops.syncer.pacer import Pacer
from isthmus.programs import SHIPPED_TASK
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.devices import STEP_FLOPS
from isthmus.programs.engine.cluster.placement import Machine, Placement, Topology
from isthmus.programs.engine.cluster.placing import (
    CompiledNeeds,
    Find,
    host_bytes,
    neighbour_code_bits,
    not_asked,
    placed,
)
from isthmus.programs.engine.request import graph_view
from isthmus.programs.engine.request.model_sizes import learner_bytes, parameter_count
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results.words import percent, scaled, seconds, size
from isthmus.programs.program_graph import EVALUATOR, REGION, SYNCER, regions_in
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.ids import LEARNER

_DOING: Final = "Reading run.local_batch"


def paced(request: Request, topology: Topology | None) -> tuple[int, ...]:
    """`task.batch` for which the learners of `request` keep pace on these machines: the number of sequences of each
    slot, and last, for learners that join, the requested one.

    ConfigError if it cannot be determined; PlacementError if the request does not fit on the machines.
    """
    if not request.job.task.text.startswith(SHIPPED_TASK):
        do = "Let task.batch and tokens_per_batch follow at.slot there, and leave run.local_batch out."
        raise ConfigError(_DOING, "'same' beside a task of your own", "'paced'", do)
    if topology is None:
        do = "Name the machines with --cluster, or leave run.local_batch out."
        raise ConfigError(_DOING, "a cluster beside 'paced'", "none", do)
    machines = topology.by_name()
    hosts = [machines[name] for name in placed(request, topology).of_role(LEARNER)]
    unknown = dict.fromkeys(host.name for host in hosts if host.island_flops is None)
    if unknown:
        do = "Give it a `device` in the cluster file, or leave run.local_batch out."
        expected = "a known device on every machine that has learners"
        raise ConfigError.of([Fault(_DOING, expected, f"none on {name!r}", do) for name in unknown])
    batch = request.config["task"]["batch"]
    total = sum(of_slot(batch, slot) for slot in range(len(hosts)))
    return (*shares(total, [host.island_flops or 0.0 for host in hosts]), of_slot(batch, len(hosts)))


def shares(total: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """`total` cut into whole parts in proportion to `speeds`, each at least 1, by largest remainders (ties: the first).

    Where `total` is below the number of parts, each is 1.
    """
    sizes = [1] * len(speeds)
    exact = [total * speed / sum(speeds) for speed in speeds]
    for _ in range(total - len(speeds)):
        neediest = max(range(len(speeds)), key=lambda slot: (exact[slot] - sizes[slot], -slot))
        sizes[neediest] += 1
    return tuple(sizes)


UTILISATION: Final = 0.4
"""Share of the published FLOP/s: between the 33 % of Gopher and the 46 % of PaLM (arXiv 2204.02311, table 3)."""
ADDED_SECONDS: Final = 0.8e-3
"""Overhead of the runtime per step, as measured on CPU cores (docs/explanation/processes.md)."""
STEP: Final = "inner-step"


@final
@dataclass(frozen=True, slots=True)
class IslandPrediction:
    """The prediction for a learner's island.

    Seconds a step; minimum and maximum bytes; mean bits a second that the learner sends, and as many that it receives;
    `is_compiled`: memory and step are a compiler's.
    """

    learner: int
    machine: str
    device: str | None
    devices: int
    step_seconds: float | None
    memory_bytes: int
    memory_bytes_max: int | None
    link_bits: float | None
    is_compiled: bool = False


@final
@dataclass(frozen=True, slots=True)
class MachineLink:
    """Mean bits a second that cross a machine's network link in the busier direction, and how many can."""

    machine: str
    bits: float | None
    bits_max: int | None


@final
@dataclass(frozen=True, slots=True)
class Prediction:
    """Predictions for islands by learner and for links; the assumptions behind the figures, in words.

    `host_bytes`: minimum that the hosts on each machine need of its own memory.
    """

    islands: tuple[IslandPrediction, ...]
    links: tuple[MachineLink, ...]
    host_bytes: Mapping[str, int]
    price_per_hour: float | None
    assumptions: str


def predict(request: Request, topology: Topology, placement: Placement, compiled: Find = not_asked) -> Prediction:
    """The prediction for `request` under `placement`, with the compiler's figures from `compiled`."""
    machines = topology.by_name()
    hosts = [machines[name] for name in placement.of_role(LEARNER)]
    parameters, tokens = parameter_count(request), request.task.tokens_most
    needs = [compiled(machine, slot) for slot, machine in enumerate(hosts)]
    steps = [
        step_seconds(machine, parameters, of_slot(tokens, slot), needs[slot]) for slot, machine in enumerate(hosts)
    ]
    rates = _rates(request, parameters, steps)
    memory = learner_bytes(request) if hosts else 0
    islands = tuple(
        IslandPrediction(
            number,
            machine.name,
            None if machine.device is None else machine.device.kind,
            machine.island_devices,
            steps[number],
            memory if found is None else found.memory_bytes * machine.island_devices,
            machine.island_memory_bytes if found is None else found.limit_bytes * machine.island_devices,
            rates[number],
            is_compiled=found is not None,
        )
        for number, (machine, found) in enumerate(zip(hosts, needs, strict=True))
    )
    links, assumptions = (
        _links(topology, [*_flows(request, placement, [rate or 0.0 for rate in rates])], is_known=None not in rates),
        _assumptions(request, is_compiled=any(needs)),
    )
    return Prediction(islands, links, host_bytes(request, topology, placement), _price(hosts), assumptions)


def step_seconds(machine: Machine, parameters: int, tokens: int, compiled: CompiledNeeds | None = None) -> float | None:
    """Predicted seconds of a step on `tokens` tokens on an island of `machine`; None if unknown.

    `compiled` has the figures of a compiler, if the step was compiled.
    """
    if compiled is not None and compiled.products_seconds is not None and compiled.step_seconds is not None:
        return max(compiled.products_seconds / UTILISATION, compiled.step_seconds) + ADDED_SECONDS
    if machine.island_flops is None:
        return None
    return STEP_FLOPS * parameters * tokens / (UTILISATION * machine.island_flops) + ADDED_SECONDS


def _rates(request: Request, parameters: int, steps: Sequence[float | None]) -> list[float | None]:
    """Mean bits a second that each learner sends."""
    measured = [step for step in steps if step is not None]
    bits = FORMATS[_format(request)].bits * parameters
    interval = request.job.settings.get("interval")
    if interval == AUTO:
        interval = first_interval(AUTO)
    runs_free = any(node.name == STEP and request.proof[STEP].free_running for node in request.graph.nodes)
    if not runs_free:
        pace = max(measured, default=None)
        if not isinstance(interval, int):
            bits *= 2 * (len(steps) - 1) / max(len(steps), 1)
        return [None if pace is None else bits / ((interval or 1) * pace)] * len(steps)
    if not isinstance(interval, int):
        return [None] * len(steps)
    has_model = any(role.name == SYNCER for role in request.graph.roles)
    fastest = min(measured, default=None)
    paces = [fastest] * len(steps) if has_model else steps
    return [None if pace is None else bits / (interval * pace) for pace in paces]


def _exchange(request: Request) -> int:
    """The merges of a fragment in a region between two exchanges with the global syncer, as its pacer has them."""
    pacers = [node.keywords for node in request.graph.nodes if node.role == SYNCER and node.body is Pacer]
    return next(
        (int(each["interval"]) // int(each["fragments"]) for each in pacers if each.get("tier") == "regions"), 1
    )


def _format(request: Request) -> str:
    """The longer of the formats in which answers and updates travel."""
    formats = [str(request.job.settings.get(name, "float32")) for name in ("push", "update")]
    return max((name if name in FORMATS else "float32" for name in formats), key=lambda name: FORMATS[name].bits)


def _links(topology: Topology, flows: Sequence[tuple[str, str, float]], *, is_known: bool) -> tuple[MachineLink, ...]:
    """The load of each machine's link by flows; bits are None if a learner's rate is unknown."""
    sent: defaultdict[str, float] = defaultdict(float)
    received: defaultdict[str, float] = defaultdict(float)
    for source, target, bits in flows:
        if source != target:
            sent[source] += bits
            received[target] += bits
    return tuple(
        MachineLink(
            machine.name,
            max(sent[machine.name], received[machine.name]) if is_known else None,
            machine.bandwidth_bits,
        )
        for machine in topology.machines
    )


def _flows(request: Request, placement: Placement, rates: Sequence[float]) -> Iterator[tuple[str, str, float]]:
    """Flows between machines (source, target, bits a second): to and from every shard, or else round the learners; from
    each of several shards to its neighbour, which has the momentum in codes beside each version.

    Where there are `regions`, the learners are those of their shards, and the global shards' learners are these, every
    `exchange` merges.
    """
    exchange, regions, codes = _exchange(request), regions_in(request.graph), neighbour_code_bits(request)
    learners, shards, hosts = (placement.of_role(role) for role in (LEARNER, SYNCER, REGION))
    if regions:
        of_region = len(hosts) // regions
        for slot, (learner, rate) in enumerate(zip(learners, rates, strict=True)):
            for host in hosts[slot % regions :: regions]:
                yield learner, host, rate / of_region
                yield host, learner, rate / of_region
        fastest = [max(rates[of::regions]) / exchange / of_region for of in range(regions)]
        learners, rates = hosts, [fastest[number % regions] for number in range(len(hosts))]
    for number, shard in enumerate(shards):
        if codes is not None:
            near = 1 + codes / FORMATS[_format(request)].bits
            yield shard, shards[(number + 1) % len(shards)], near * max(rates, default=0.0) / len(shards)
        for learner, rate in zip(learners, rates, strict=True):
            yield learner, shard, rate / len(shards)
            yield shard, learner, rate / len(shards)
        for evaluator in placement.of_role(EVALUATOR):
            yield shard, evaluator, max(rates, default=0.0) / len(shards)
    if not shards:
        for number, (learner, rate) in enumerate(zip(learners, rates, strict=True)):
            yield learner, learners[(number + 1) % len(learners)], rate


def _price(hosts: Sequence[Machine]) -> float | None:
    """Price of the islands' devices per hour; None unless each price is known."""
    prices = [None if host.device is None else host.device.price_per_hour for host in hosts]
    prices_known = [price * host.island_devices for price, host in zip(prices, hosts, strict=True) if price is not None]
    return sum(prices_known) if prices_known and len(prices_known) == len(hosts) else None


def _assumptions(request: Request, *, is_compiled: bool) -> str:
    parameters, tokens = parameter_count(request), request.task.tokens_most
    batch = f"{tokens:,}" if isinstance(tokens, int) else f"{min(tokens):,} to {max(tokens):,}"
    text = (
        f"a step is {STEP_FLOPS} x {parameters:,} parameters x {batch} tokens FLOPs at "
        f"{UTILISATION:.0%} of the published bfloat16 FLOP/s, and {ADDED_SECONDS * 1e3:.1f} ms; "
        f"memory is parameters, gradient and optimizer state; links carry {_format(request)}, on average"
    )
    where = "; FLOPs and memory of what isthmus compile was asked about are the compiler's"
    return f"{text}{where}" if is_compiled else text


def shown(request: Request, cluster: Cluster, form: str, compiled: Find, *, plans: bool) -> str:
    """The graph of a request on a cluster, as 'text', 'mermaid' or 'json'; `compiled` gives the compiler's figures.

    PlacementError if it does not fit.
    """
    placement = placed(request, cluster.topology, compiled)
    prediction = predict(request, cluster.topology, placement, compiled)
    graph, proof = request.graph, request.proof
    if form == "mermaid":
        return graph_view.mermaid(graph, proof, captions(cluster.topology, placement, prediction))
    if form == "json":
        shape = graph_view.as_json(graph, proof, request.fingerprint, nodes_placed(request, placement))
        return json.dumps({**shape, "predicted": as_json(prediction)}, indent=2)
    parts = [graph_view.text(graph, proof, request.plans if plans else None)]
    return "\n".join([*parts, "", *text(cluster.topology, placement, prediction)])


def nodes_placed(request: Request, placement: Placement) -> dict[str, str | Sequence[str]]:
    """The machine of each node, or those of its replicas in order where they differ."""
    result: dict[str, str | Sequence[str]] = {}
    for node in request.graph.nodes:
        machines = placement.of_role(node.role)
        result[node.name] = machines[0] if len(set(machines)) == 1 else machines
    return result


def text(topology: Topology, placement: Placement, prediction: Prediction) -> Iterator[str]:
    """Lines: the replicas of each machine, then the predictions for islands and links."""
    yield f"where it goes; the run's home is {placement.home}"
    yield from graph_view.table([_machine(machine, placement, prediction) for machine in topology.machines])
    yield ""
    yield from wrap(f"predicted, not measured: {prediction.assumptions}", graph_view.WIDTH, subsequent_indent="  ")
    islands = [("island", "device", "step", "memory", "sends and gets")]
    yield from graph_view.table([*islands, *map(_islands, _alike(topology, prediction.islands))])
    rows = [(link.machine, _link(link)) for link in prediction.links if link.bits]
    if rows:
        yield from graph_view.table([("machine", "on its link, in the busier direction"), *rows])
    if prediction.price_per_hour is not None:
        yield f"  {prediction.price_per_hour:.2f} an hour for the devices"


def captions(topology: Topology, placement: Placement, prediction: Prediction) -> dict[str, list[str]]:
    """For each role, a line per machine with the replicas there, and of learners the predicted step."""
    result: dict[str, list[str]] = {}
    for role in dict.fromkeys(replica.role for replica in placement.machines):
        numbers: dict[str, list[int]] = {}
        for number, machine in enumerate(placement.of_role(role)):
            numbers.setdefault(machine, []).append(number)
        result[role] = [f"{_ranges(each)} on {machine}" for machine, each in numbers.items()]
    if prediction.islands:
        result[LEARNER] = [_caption(islands) for islands in _alike(topology, prediction.islands)]
    return result


def as_json(prediction: Prediction) -> dict[str, Any]:
    """The prediction as plain data; unknown values are null."""
    return {
        "assumptions": prediction.assumptions,
        "price_per_hour": prediction.price_per_hour,
        "islands": [
            {
                "learner": island.learner,
                "machine": island.machine,
                "device": island.device,
                "devices": island.devices,
                "step_seconds": island.step_seconds,
                "memory_bytes": island.memory_bytes,
                "memory_bytes_max": island.memory_bytes_max,
                "link_bits_per_second": island.link_bits,
                "is_compiled": island.is_compiled,
            }
            for island in prediction.islands
        ],
        "links": [
            {
                "machine": link.machine,
                "bits_per_second": link.bits,
                "bits_per_second_max": link.bits_max,
            }
            for link in prediction.links
        ],
        "host_bytes": dict(prediction.host_bytes),
    }


# -- parts -------------------------------------------------------------------------------------------------------------


def _machine(machine: Machine, placement: Placement, prediction: Prediction) -> tuple[str, str, str]:
    """Name, resources and replicas of a machine."""
    replicas = placement.on(machine.name)
    roles = {role: [replica.slot for replica in each] for role, each in groupby(replicas, lambda item: item.role)}
    takes = ", ".join(f"{role}/{_ranges(numbers)}" for role, numbers in roles.items())
    parts = [machine.domain] if machine.domain is not None else []
    parts += [machine.address] if machine.address is not None else ["dials out only"]
    if machine.memory_bytes is not None:
        parts.append(f"at least {size(prediction.host_bytes[machine.name])} of {size(machine.memory_bytes)}")
    return machine.name, ", ".join(parts), takes or "nobody"


def _alike(topology: Topology, islands: Sequence[IslandPrediction]) -> Iterator[list[IslandPrediction]]:
    """Islands with a learner, grouped by machine and equal prediction, in the machines' order."""
    for machine in topology.machines:
        groups: dict[IslandPrediction, list[IslandPrediction]] = {}
        for island in islands:
            if island.machine == machine.name:
                groups.setdefault(replace(island, learner=0), []).append(island)
        yield from groups.values()


def _caption(islands: Sequence[IslandPrediction]) -> str:
    """The line of islands that are alike."""
    where = f"{_ranges([island.learner for island in islands])} on {islands[0].machine}"
    step = islands[0].step_seconds
    return where if step is None else f"{where}, step {seconds(step)} predicted"


def _islands(islands: Sequence[IslandPrediction]) -> tuple[str, ...]:
    """The row of islands that are alike."""
    first = islands[0]
    device = "not known" if first.device is None else f"{first.devices} x {first.device}"
    memory = f"{'compiled:' if first.is_compiled else 'at least'} {size(first.memory_bytes)}"
    if first.memory_bytes_max is not None:
        share = first.memory_bytes / first.memory_bytes_max
        memory = f"{memory} of {size(first.memory_bytes_max)}, {percent(share)}"
    step = "not known" if first.step_seconds is None else seconds(first.step_seconds)
    link = "not known" if first.link_bits is None else scaled(first.link_bits, "bit/s")
    return f"{first.machine}: {LEARNER}/{_ranges([island.learner for island in islands])}", device, step, memory, link


def _link(link: MachineLink) -> str:
    used = scaled(link.bits or 0, "bit/s")
    if link.bits_max is None:
        return used
    share = (link.bits or 0) / link.bits_max
    share_text = "more than it carries" if share > 1 else percent(share)
    return f"{used} of {scaled(link.bits_max, 'bit/s')}, {share_text}"


def _ranges(numbers: Sequence[int]) -> str:
    """'0', '0-3', '0-3,6'; the numbers ascend."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
