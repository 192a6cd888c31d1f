"""The expected step times, memory and link use of a placement, from published figures. Nothing is measured.

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

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from isthmus.ops.data.batches import of_slot
from isthmus.ops.exchange.adaptive import AUTO, first_interval
from isthmus.ops.exchange.schemas import BITS
from isthmus.programs.cluster.needs import (
    Compiled,
    Find,
    host_bytes,
    learner_bytes,
    not_asked,
    parameter_count,
)
from isthmus.programs.request.request import Request
from isthmus.runtime.graph.placement import Machine, Placement, Topology
from isthmus.runtime.ids import LEARNER, SYNCER

UTILISATION: Final = 0.4
"""Share of the published FLOP/s: between the 33 % of Gopher and the 46 % of PaLM (arXiv 2204.02311, table 3)."""
FLOPS_PER_PARAMETER: Final = 6
"""And token: two forwards, four backwards (arXiv 2001.08361, section 2.1)."""
ADDED_SECONDS: Final = 0.8e-3
"""Overhead of the runtime per step, as measured on CPU cores (docs/explanation/processes.md)."""
EVALUATOR: Final = "evaluator"
STEP: Final = "inner-step"


@final
@dataclass(frozen=True, slots=True)
class Island:
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
class Link:
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

    islands: tuple[Island, ...]
    links: tuple[Link, ...]
    host_bytes: Mapping[str, int]
    price_per_hour: float | None
    assumptions: str


def predict(request: Request, topology: Topology, placement: Placement, compiled: Find = not_asked) -> Prediction:
    """The prediction for `request` under `placement`, with the compiler's figures from `compiled`."""
    machines = topology.by_name()
    hosts = [machines[name] for name in placement.of_role(LEARNER)]
    parameters, tokens = parameter_count(request), request.task.tokens_per_batch
    known = [compiled(machine, slot) for slot, machine in enumerate(hosts)]
    steps = [
        step_seconds(machine, parameters, of_slot(tokens, slot), known[slot]) for slot, machine in enumerate(hosts)
    ]
    rates = _rates(request, parameters, steps)
    memory = learner_bytes(request) if hosts else 0
    islands = tuple(
        Island(
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
        for number, (machine, found) in enumerate(zip(hosts, known, strict=True))
    )
    links, assumptions = _links(topology, placement, rates), _assumptions(request, is_compiled=any(known))
    return Prediction(islands, links, host_bytes(request, topology, placement), _price(hosts), assumptions)


def step_seconds(machine: Machine, parameters: int, tokens: int, compiled: Compiled | None = None) -> float | None:
    """Predicted seconds of a step on `tokens` tokens on an island of `machine`; None if unknown.

    `compiled` has the figures of a compiler, if the step was compiled.
    """
    if compiled is not None and compiled.products_seconds is not None and compiled.step_seconds is not None:
        return max(compiled.products_seconds / UTILISATION, compiled.step_seconds) + ADDED_SECONDS
    if machine.island_flops is None:
        return None
    return FLOPS_PER_PARAMETER * parameters * tokens / (UTILISATION * machine.island_flops) + ADDED_SECONDS


def _rates(request: Request, parameters: int, steps: Sequence[float | None]) -> list[float | None]:
    """Mean bits a second that each learner sends."""
    known = [step for step in steps if step is not None]
    bits = BITS[_format(request)] * parameters
    interval = request.job.settings.get("interval")
    if interval == AUTO:
        interval = first_interval(AUTO)
    runs_free = any(node.name == STEP and request.proof[STEP].free_running for node in request.graph.nodes)
    if not runs_free:
        pace = max(known, default=None)
        if not isinstance(interval, int):
            bits *= 2 * (len(steps) - 1) / max(len(steps), 1)
        return [None if pace is None else bits / ((interval or 1) * pace)] * len(steps)
    if not isinstance(interval, int):
        return [None] * len(steps)
    has_model = any(role.name == SYNCER for role in request.graph.roles)
    fastest = min(known, default=None)
    paces = [fastest] * len(steps) if has_model else steps
    return [None if pace is None else bits / (interval * pace) for pace in paces]


def _format(request: Request) -> str:
    """The longer of the formats in which answers and updates travel."""
    asked = [str(request.job.settings.get(name, "float32")) for name in ("push", "update")]
    return max((name if name in BITS else "float32" for name in asked), key=BITS.__getitem__)


def _links(topology: Topology, placement: Placement, rates: Sequence[float | None]) -> tuple[Link, ...]:
    """The load of each machine's link; bits are None if a learner's rate is unknown."""
    sent: defaultdict[str, float] = defaultdict(float)
    received: defaultdict[str, float] = defaultdict(float)
    is_known = all(rate is not None for rate in rates)
    for source, target, bits in _flows(placement, [rate or 0.0 for rate in rates]):
        if source != target:
            sent[source] += bits
            received[target] += bits
    return tuple(
        Link(
            machine.name,
            max(sent[machine.name], received[machine.name]) if is_known else None,
            machine.bandwidth_bits,
        )
        for machine in topology.machines
    )


def _flows(placement: Placement, rates: Sequence[float]) -> Iterator[tuple[str, str, float]]:
    """Flows between machines (source, target, bits a second): to and from every shard, or else round the learners."""
    learners, shards = placement.of_role(LEARNER), placement.of_role(SYNCER)
    for shard in shards:
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
    known = [price * host.island_devices for price, host in zip(prices, hosts, strict=True) if price is not None]
    return sum(known) if known and len(known) == len(hosts) else None


def _assumptions(request: Request, *, is_compiled: bool) -> str:
    parameters, tokens = parameter_count(request), request.task.tokens_per_batch
    batch = f"{tokens:,}" if isinstance(tokens, int) else f"{min(tokens):,} to {max(tokens):,}"
    told = (
        f"a step is {FLOPS_PER_PARAMETER} x {parameters:,} parameters x {batch} tokens FLOPs at "
        f"{UTILISATION:.0%} of the published bfloat16 FLOP/s, and {ADDED_SECONDS * 1e3:.1f} ms; "
        f"memory is parameters, gradient and optimizer state; links carry {_format(request)}, on average"
    )
    where = "; FLOPs and memory of what isthmus compile was asked about are the compiler's"
    return f"{told}{where}" if is_compiled else told
