"""The plan of a run: traffic on links, memory, goodput and cost of every shipped program, from the request and from the
merge rate of this machine.

Decides which requests can be planned, and what follows from one; nothing of the run is started. It also shows a plan:
as text, as JSON, and as a page with a picture.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final

import numpy as np
from markupsafe import Markup

from isthmus.ops.exchange.adaptive import Choice, LinkGoodput, LinkRate, Needs, best
from isthmus.ops.exchange.formats import FORMATS, MEASURED, MEASURED_BY, state_code_bits
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.requested import Format
from isthmus.ops.exchange.wanted_settings import AUTO, INTERVAL, LADDER, WantedSettings
from isthmus.ops.kernels import averaging, coding, nesterov
from isthmus.ops.learner.kept_work import MODELS_IN_MEMORY
from isthmus.ops.syncer.summed_merge import ASKED_MAX, kept_by_default
from isthmus.programs.command import demands
from isthmus.programs.command.demands import Demand, within
from isthmus.programs.engine.machine.bucket_road import EVERY_MAX, EVERY_MIN
from isthmus.programs.engine.results.words import percent, scaled, seconds, size
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.programs.sweeps import OUTER_DECOUPLED, outer_default
from isthmus.programs.wings.compile.figures import Target, target
from isthmus.programs.wings.plan.bucket_plan import BucketLoad, bucket_load
from isthmus.programs.wings.plan.home_plan import (
    HomeLoad,
    evaluated_share,
    home_bits,
    home_of,
    state_bits,
    taken_share,
)
from isthmus.programs.wings.report.charts_drawing import Scale, drawing, line, rectangle, text
from isthmus.programs.wings.simulation.goodput import (
    CHIPS_MAX,
    DATA_PARALLEL,
    DECOUPLED,
    ELASTIC,
    SECONDS,
    TERMS,
    YEAR_SECONDS,
    goodput_of,
)
from isthmus.runtime.errors import ConfigError, nearest

PARAMETERS_MAX: Final = 1e14
ISLANDS_SHOWN: Final = 64
"""Of more islands of one kind one is told."""
LEARNERS_PLANNED_MAX: Final = 100_000
"""Six times those that a run may have: of more a plan would say no more."""
_DOING: Final = "Reading the options of `isthmus plan`"


@final
@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A run: its size, its learners, and how they exchange."""

    parameters: float
    learners: int
    step_seconds: float
    islands: tuple[Target, ...] = ()
    """One for each learner, or none."""
    interval: int = 24
    fragments: int = 24
    overlap: int = 2
    shards: int = 1
    push: str = "float32"
    """A wire format."""
    update: str = "float32"
    """A wire format."""
    gradients: str = "float32"
    """The wire format of data-parallel training."""
    gradient_share: float = 0.0
    """The share of a step in which those gradients may cross; 0, as in the programs here, after it."""
    shard_bits: float | None = None
    """The capacity of each shard's link, as that of a learner's, None if not given."""
    link_bits: float | None = None
    """The capacity of each learner's link, bits a second in each direction, None if not given."""
    latency_seconds: float = 0.0
    """Of the link, one way."""
    chips: int | None = None
    failures_per_year: float = 1.0
    price_per_hour: float | None = None
    via_every: float | None = None
    """The interval in seconds of learners that reach the home through a store, None where none does."""
    steps: int = 1000
    """The inner steps of each learner that bytes are those of."""

    @property
    def fragment_values(self) -> float:
        """Values of a fragment, on average."""
        return self.parameters / self.fragments

    @property
    def chips_total(self) -> int | None:
        """Chips of all learners: by default those of the islands."""
        counted = sum(island.count // island.devices_a_chip for island in self.islands)
        return self.chips if self.chips is not None else counted or None


def islands_of(names: Sequence[str], learners: int) -> tuple[Target, ...]:
    """One island for each learner, from a single name or one name for each."""
    targets = [target(name, _DOING) for name in names]
    if len(targets) == 1:
        return tuple(targets * max(learners, 0))
    if targets and len(targets) != learners:
        expected = f"one --island for all learners, or {learners}, one for each"
        raise ConfigError(_DOING, expected, f"{len(targets)}", "Name one, or all; or change --learners.")
    return tuple(targets)


def check(wanted: PlanRequest) -> None:
    """ConfigError with everything that cannot be."""
    demands.check(_DOING, _demands(wanted))


def _demands(of: PlanRequest) -> list[Demand]:
    least = f"from 1 to {of.interval}, no more than --interval"
    demanded = [
        within("--parameters", of.parameters, 1, PARAMETERS_MAX, "Say how many, as in 12e9."),
        within("--learners", of.learners, 1, LEARNERS_PLANNED_MAX, "Say how many there are."),
        within("--step-seconds", of.step_seconds, 1e-6, 1e6, "Say how long an inner step takes."),
        within("--interval", of.interval, 1, 1e6, "Say after how many steps a fragment is merged again."),
        within("--fragments", of.fragments, 1, _fragments_max(of), "Say into how many to cut the model."),
        Demand(
            1 <= of.overlap <= of.interval,
            f"--overlap {least}",
            str(of.overlap),
            "Say in how many steps it is back.",
        ),
        within("--shards", of.shards, 1, min(max(of.fragments, 1), 1e6), "A shard has a fragment at least."),
        within("--gradient-share", of.gradient_share, 0, 1, "Say in which share of a step gradients may cross."),
        within("--latency-ms", 1e3 * of.latency_seconds, 0, 1e5, "Say how long a way takes."),
        within("--failures-per-year", of.failures_per_year, 0, 1e4, "Say how often a chip fails."),
        within("--steps", of.steps, 1, 1e9, "Say how many steps of a learner the bytes are of."),
    ]
    for option, value, most in (
        ("--link-gbits", None if of.link_bits is None else of.link_bits / 1e9, 1e6),
        ("--shard-gbits", None if of.shard_bits is None else of.shard_bits / 1e9, 1e6),
        ("--chips", of.chips, CHIPS_MAX),
        ("--price", of.price_per_hour, 1e6),
    ):
        if value is not None:
            demanded.append(within(option, value, 1 if option == "--chips" else 1e-6, most, "Leave it out, or say it."))
    if of.via_every is not None:
        demanded.append(within("--via-every", of.via_every, EVERY_MIN, EVERY_MAX, "Say how often, as for `join`."))
    for option, form in (("--push", of.push), ("--update", of.update), ("--gradients", of.gradients)):
        demanded.append(
            Demand(form in FORMATS, f"{option} one of {', '.join(FORMATS)}", repr(form), nearest(form, FORMATS))
        )
    if of.chips is not None and of.chips < of.learners:
        demanded.append(Demand(False, "--chips at least one for each learner", str(of.chips), "Take more chips."))
    return demanded


def _fragments_max(of: PlanRequest) -> float:
    """A fragment has a parameter at least; where there cannot be so many parameters, that says it."""
    return min(of.parameters, 1e6) if 1 <= of.parameters <= PARAMETERS_MAX else 1e6


LARGEST: Final = 4 / 3
"""Largest fragment, as a multiple of the mean one, at most."""


@final
@dataclass(frozen=True, slots=True)
class LinkLoad:
    """The load of links under one program.

    Mean and peak bits a second of a learner's link up and down, and of the link of each syncer shard in the busier
    direction (None without a syncer), with what it sends to recorder and evaluator; the smallest link of a learner on
    which no step waits, None if steps wait on every one; at the given link, the mean wait of a step, and the interval.
    `utilisation_bits`: at each of UTILISATIONS, the smallest link of a learner on which it steps for that share of the
    time, None if it does on none, 0 if it does on every one.
    """

    program: str
    up_bits: float
    down_bits: float
    peak_bits: float | None
    shard_bits: float | None
    smallest_bits: float | None
    wait_seconds: float | None
    interval: float | None
    utilisation_bits: tuple[float | None, ...] = ()


UTILISATIONS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of the time in steps, as in Table 4 of Streaming DiLoCo (arXiv 2501.18512)."""


def links_of(wanted: PlanRequest, merge_seconds: float) -> list[LinkLoad]:
    """The links of every shipped program; `merge_seconds` is the time of the largest fragment's merge.

    Bits a second in each direction, full duplex:

        decoupled, streaming   mean = N push / (H s) up, N update / (H s) down, one fragment every H / P steps
        diloco                 the same bits, all at once every H steps, while all wait
        data-parallel          2 (M - 1) / M N gradients in every step, a ring; within a share of it, or all wait

    with N parameters, M learners, P fragments, H steps between two merges of a fragment, tau of overlap and s seconds a
    step. Each way also takes the latency: 2 (M - 1) in a step of the ring, two in a round. A shard takes M pushes of
    its fragments, and sends M updates and what `home_bits` says. A peak is that of the largest fragment. The smallest
    link without a wait brings the largest fragment to the syncer and back, and leaves time for its merge, within tau
    steps, and is no smaller than the means, with both ways. Below it, or where shards merge more slowly than fragments
    come, no learner waits in decoupled-diloco, but H is lengthened until everything fits.
    """
    return [
        _data_parallel(wanted, DATA_PARALLEL),
        _data_parallel(wanted, ELASTIC),
        _diloco(wanted, merge_seconds),
        _streaming(wanted, merge_seconds, "streaming-diloco"),
        _streaming(wanted, merge_seconds, DECOUPLED),
    ]


def _data_parallel(of: PlanRequest, program: str) -> LinkLoad:
    bits = 2 * (of.learners - 1) / of.learners * of.parameters * FORMATS[of.gradients].bits
    mean, ways = bits / of.step_seconds, 2 * (of.learners - 1) * of.latency_seconds
    room = of.gradient_share * of.step_seconds - ways
    wait = None if of.link_bits is None else max(0.0, bits / of.link_bits - room)
    least = tuple(bits / (room + allowed) if room + allowed > 0 else None for allowed in _waits(of))
    smallest = bits / room if room > 0 else None
    return LinkLoad(program, mean, mean, smallest, None, smallest, wait, None, least)


def _diloco(of: PlanRequest, merge_seconds: float) -> LinkLoad:
    up, down = _means(of)
    ways = of.parameters * (FORMATS[of.push].bits + FORMATS[of.update].bits) / of.interval
    merge = busy(of, merge_seconds) * of.step_seconds + 2 * of.latency_seconds / of.interval
    wait = None if of.link_bits is None else ways / of.link_bits + merge
    least = tuple(ways / (allowed - merge) if allowed > merge else None for allowed in _waits(of))
    return LinkLoad("diloco", up, down, None, shard_bits(of, "diloco"), None, wait, float(of.interval), least)


def _streaming(of: PlanRequest, merge_seconds: float, program: str) -> LinkLoad:
    up, down = _means(of)
    largest = LARGEST * of.fragment_values
    there_and_back = largest * (FORMATS[of.push].bits + FORMATS[of.update].bits)
    room = of.overlap * of.step_seconds - merge_seconds - 2 * of.latency_seconds
    merging = busy(of, merge_seconds)
    smallest = max(there_and_back / room, up, down) if room > 0 and merging <= 1 else None
    if program == DECOUPLED:
        slower = merging if of.link_bits is None else max(merging, max(up, down) / of.link_bits)
        wait, interval = 0.0, of.interval * max(1.0, slower)
        always = tuple(0.0 for _ in UTILISATIONS)
        shard = shard_bits(of, program)
        return LinkLoad(program, up, down, LARGEST * max(up, down), shard, smallest, wait, interval, always)
    late, least = None, list[float | None]()
    for share, allowed in zip(UTILISATIONS, _waits(of), strict=True):
        patience = room + allowed * of.interval / of.fragments
        suffices = patience > 0 and merging <= 1 / share
        least.append(max(there_and_back / patience, max(up, down) * share) if suffices else None)
    if of.link_bits is not None:
        late = max(0.0, there_and_back / of.link_bits - room) * of.fragments / of.interval
        late = max(late, (max(merging, max(up, down) / of.link_bits) - 1) * of.step_seconds)
    peak, interval = LARGEST * max(up, down), float(of.interval)
    return LinkLoad(program, up, down, peak, shard_bits(of, program), smallest, late, interval, tuple(least))


def _waits(of: PlanRequest) -> Iterator[float]:
    """Seconds for which a step may wait, at each of UTILISATIONS."""
    return (of.step_seconds * (1 / share - 1) for share in UTILISATIONS)


def busy(of: PlanRequest, merge_seconds: float) -> float:
    """The share of the time in which each shard merges: above 1, fragments arrive faster than it can merge them."""
    return of.fragments * merge_seconds / LARGEST / (of.interval * of.step_seconds * of.shards)


def shard_bits(of: PlanRequest, program: str) -> float:
    """Bits a second of a shard's link, in the busier direction; each of several has a neighbour, and is one."""
    up, down = _means(of)
    a_sweep = of.interval * of.step_seconds
    sweeps = of.steps / of.interval
    home = of.parameters * home_bits(of.update, a_sweep, sweeps, in_turns=program != DECOUPLED) / a_sweep
    near = of.parameters * neighbour_bits(of, program) / a_sweep
    return max(up * of.learners + near, down * of.learners + home + near) / of.shards


def neighbour_bits(of: PlanRequest, program: str) -> float:
    """Bits of a value that a shard sends the next one with each version, beside others of decoupled-diloco."""
    if of.shards < 2 or program != DECOUPLED:
        return 0.0
    return FORMATS[of.update].bits + _code_bits(of)


def _code_bits(of: PlanRequest) -> float:
    """Bits of a value that a neighbour has in codes, beside published values."""
    return state_code_bits(of.update, has_momentum=_has_momentum(of))


def _has_momentum(of: PlanRequest) -> bool:
    return outer_default(of.steps / of.interval, OUTER_DECOUPLED)[1] > 0


@final
@dataclass(frozen=True, slots=True)
class SentBytes:
    """Bytes that all hosts send in `steps` steps: those of learners and shards among themselves, and those to recorder
    and evaluator (None where these depend on how often a run evaluates, or takes a snapshot of its learners)."""

    working: float
    home: float | None


def sent_of(of: PlanRequest, links: LinkLoad) -> SentBytes:
    """The bytes under one program, from its first version, which crosses whole, to its last: each fragment is merged
    once more at the end, and the recorder takes the first values and the last state of each beside those of snapshots;
    the evaluator takes what it evaluates."""
    if links.interval is None:
        return SentBytes(links.up_bits / 8 * of.step_seconds * of.learners * of.steps, None)
    sweeps, whole = of.steps / links.interval + 1, FORMATS["float32"].bits
    a_sweep = of.learners * (FORMATS[of.push].bits + FORMATS[of.update].bits)
    near = neighbour_bits(of, links.program)
    first_near = near + whole - FORMATS[of.update].bits if near else 0.0
    working = of.parameters / 8 * (sweeps * (a_sweep + near) + (1 + of.learners) * whole + first_near)
    if links.program != DECOUPLED:
        return SentBytes(working, None)
    taken = of.steps / links.interval * taken_share(links.interval * of.step_seconds) + 1
    evaluated = (sweeps + 1) * evaluated_share(sweeps + 1)
    home = (evaluated + 1) * whole + taken * state_bits(of.update)
    return SentBytes(working, of.parameters / 8 * home)


def _means(of: PlanRequest) -> tuple[float, float]:
    a_second = of.parameters / (of.interval * of.step_seconds)
    return a_second * FORMATS[of.push].bits, a_second * FORMATS[of.update].bits


def overlap_left(of: PlanRequest, merge_seconds: float) -> float:
    """Seconds of the overlap that the merge of the largest fragment leaves, and its ways on the link that was given."""
    ways = 2 * of.latency_seconds
    if of.link_bits is not None:
        ways += LARGEST * of.fragment_values * (FORMATS[of.push].bits + FORMATS[of.update].bits) / of.link_bits
    return of.overlap * of.step_seconds - merge_seconds - ways


def rounds_at_once(of: PlanRequest) -> int:
    """The maximum number of rounds that each shard has in flight."""
    return math.ceil(of.overlap * of.fragments / (of.interval * of.shards))


STATE_BYTES: Final = 16
"""A parameter on an island: value, gradient and two moments of AdamW, float32."""
ANCHOR_BYTES: Final = 4
"""Beside it, in the memory of the learner's machine: the global fragment that it last adopted."""
VALUE_BYTES: Final = 4
"""A value, momentum or published value of a shard, float32."""


@final
@dataclass(frozen=True, slots=True)
class PlannedMemory:
    """Bytes: of a learner's island, of its machine, and of each shard; and of the copies that a learner leaves
    in its machine's memory for its next life, where there is room for them."""

    island: float
    machine: float
    shard: float
    copies: float


def memory_of(of: PlanRequest) -> PlannedMemory:
    """The memory of decoupled-diloco, with a fragment on its way up, one down, and all answers of rounds in flight, or,
    where a shard keeps their sums by default, these and the values that may be on their way to it.

    A shard has its values, and a momentum in a run of enough sweeps, and the values once more in memory that it shares
    with hosts of its machine, which have the newest version. Where updates are coded it has the published values
    instead, and sends codes. Each of several has the published values of another one's part, too, and its codes. What
    the evaluator has still to take is as much as the values at most, and not in here.
    """
    kept = 2.0 + _has_momentum(of)
    if of.shards > 1:
        kept += 1 + _code_bits(of) / FORMATS["float32"].bits
    largest = LARGEST * of.fragment_values
    answer = largest * FORMATS[of.push].bits / 8
    if kept_by_default(of.learners, of.fragments, of.shards, of.push) == "sums":
        coming = max(answer, min(ASKED_MAX * answer, VALUE_BYTES * of.parameters / of.shards))
        answers = coming + rounds_at_once(of) * VALUE_BYTES * largest
    else:
        answers = rounds_at_once(of) * of.learners * answer
    return PlannedMemory(
        STATE_BYTES * of.parameters,
        ANCHOR_BYTES * of.parameters + largest * (FORMATS[of.push].bits + FORMATS[of.update].bits) / 8,
        kept * VALUE_BYTES * of.parameters / of.shards + answers + 2 * ANCHOR_BYTES * largest,
        MODELS_IN_MEMORY * VALUE_BYTES * of.parameters,
    )


LOSS_PARAMETERS_MAX: Final = 500_000
"""Up to which losses of a model of 132 thousand parameters stand beside a plan. They fall with the size (Table 4 in
miniature has three, up to 382 thousand), so of a larger model they would say too much."""
INTERVALS: Final = (1, 2, 4)
"""Multiples of the interval that was asked for, for which pairs are shown."""


@final
@dataclass(frozen=True, slots=True)
class PlannedPair:
    """An interval, and a format in which answers leave.

    Mean bits a second of a learner's link up; how many times fewer bytes than float32 at the interval that was asked
    for; the share of the link that was given, None without one; the loss that it costs, in nats a byte, where it was
    measured (`formats.MEASURED`), else None.
    """

    push: Format
    interval: int
    up_bits: float
    fewer: float
    load: float | None
    loss: float | None


def pairs_of(wanted: PlanRequest) -> list[PlannedPair]:
    """The pairs between which `auto` chooses, and others, by interval."""
    of_coded = [push for push in LADDER if (push, INTERVAL) in MEASURED]
    return [_pair(wanted, push, times) for times in INTERVALS for push in (LADDER if times == 1 else of_coded)]


def _pair(of: PlanRequest, push: Format, times: int) -> PlannedPair:
    bits, interval = FORMATS[push].bits, times * of.interval
    up = of.parameters * bits / (interval * of.step_seconds)
    load = None if of.link_bits is None else up / of.link_bits
    loss = MEASURED.get((push, interval)) if of.parameters <= LOSS_PARAMETERS_MAX else None
    return PlannedPair(push, interval, up, times * FORMATS["float32"].bits / bits, load, loss)


def chosen_of(wanted: PlanRequest) -> Choice | None:
    """What `auto` takes of formats, interval and overlap on the link that was given; None without one.

    The rounds are as long as the largest fragment is on its ways, as they are at the steps of a learner.
    """
    if wanted.link_bits is None:
        return None
    rate = LinkRate(*[round(wanted.link_bits / 8)] * 2)
    link = LinkGoodput(0, rate, rate)
    asked = replace(WantedSettings.of(push=AUTO, update=AUTO, interval=AUTO, overlap=AUTO), interval=wanted.interval)
    largest = round(min(LARGEST * wanted.fragment_values, wanted.parameters))
    needs = Needs(round(wanted.parameters), largest, round(wanted.step_seconds * 1e9), 0.0, wanted.overlap)
    choice = Choice({}, asked.update, asked.interval, min(asked.overlap, asked.interval))
    for _ in range(2):  # Of the second, rounds are those of the first.
        choice = best(asked, [link], needs, choice)
        needs = needs._replace(round_trip=needs.trip_steps(link, choice.push[0], choice.update))
    return choice


ENOUGH: Final = 0.95
"""Of the time in steps: above, data-parallel training is proposed, whose loss is lower at equal tokens."""


@final
@dataclass(frozen=True, slots=True)
class Proposal:
    """What to train with on the given link: the program, its formats, interval and overlap (None for data-parallel
    training, which has none), and the share of the time in which a learner steps, as predicted."""

    program: str
    push: str | None
    update: str | None
    interval: int | None
    overlap: int | None
    utilisation: float


def proposal_of(wanted: PlanRequest, merge_seconds: float) -> Proposal | None:
    """Data-parallel training where the link lets it step for ENOUGH of the time, else decoupled-diloco as `auto` has
    it; None without a link. Programs in which learners wait at rounds are behind the one or the other on any link: they
    end with a higher loss than data-parallel training, and step less than learners that never wait."""
    chosen = chosen_of(wanted)
    if chosen is None:
        return None
    waits = next(each.wait_seconds for each in links_of(wanted, merge_seconds) if each.program == DATA_PARALLEL)
    share = wanted.step_seconds / (wanted.step_seconds + (waits or 0.0))
    if share >= ENOUGH:
        return Proposal(DATA_PARALLEL, None, None, None, None, share)
    return Proposal(DECOUPLED, chosen.push[0], chosen.update, chosen.interval, chosen.overlap, 1.0)


VALUES: Final = 4 << 20
"""16 MiB a gradient: beyond the caches of a core, and measured in a second."""
GRADIENTS_MAX: Final = 4
TRIES: Final = 5


@final
@dataclass(frozen=True, slots=True)
class Rates:
    """Values a second: of gradients merged, each counted, and of a fragment stepped and coded; by `threads` threads."""

    merged: float
    stepped: float
    threads: int

    def merge_seconds(self, of: PlanRequest) -> float:
        """Seconds of merge and outer step of the largest fragment, with every learner in it."""
        largest = LARGEST * of.fragment_values
        return of.learners * largest / self.merged + largest / self.stepped


def measure(of: PlanRequest) -> Rates:
    """The median rates of some tries, with gradients in the format that is wanted."""
    threads, count = len(os.sched_getaffinity(0)), min(of.learners, GRADIENTS_MAX)
    rows = VALUES // 1024
    fragment = Fragment(0, (Unit("weights", 0, rows, (rows, 1024)),))
    rng = np.random.default_rng(0)
    plain = [rng.standard_normal(VALUES, np.float32) for _ in range(count)]
    sent = [coding.encode(each, fragment, of.push) for each in plain]
    norms = [averaging.unit_norms(each, fragment).astype(np.float32) for each in plain]
    merged, momentum = averaging.merge(sent, [1.0] * count, norms, fragment, threads=threads), plain[0].copy()

    def step() -> None:
        nesterov.step_over(plain[0], momentum, merged.direction, merged.scale, fragment, 0.4, 0.7, threads=threads)
        if of.update != "float32":
            coding.advance(merged.direction, plain[0], fragment, of.update)

    seconds = _median(lambda: averaging.merge(sent, [1.0] * count, norms, fragment, threads=threads))
    return Rates(count * VALUES / seconds, VALUES / _median(step), threads)


def _median(run: Callable[[], Any]) -> float:
    run()
    durations = []
    for _ in range(TRIES):
        begun = time.perf_counter()
        run()
        durations.append(time.perf_counter() - begun)
    return sorted(durations)[TRIES // 2]


FAILURES: Final = 2000
"""Minimum number of failures in a simulated run: their mean is within 2 %."""
_TOGETHER: Final = "diloco", "streaming-diloco"
"""Programs in which all learners wait for each: one that stalls holds up all, as if there were one learner."""


@final
@dataclass(frozen=True, slots=True)
class Outlook:
    """The prediction for one program.

    Its links; the bytes it sends; the seconds of a step with its wait, at the given link; expected goodput and uptime
    at the failure rate, None if the chips are unknown; and the cost of 1000 steps that count.
    """

    links: LinkLoad
    sent: SentBytes
    step_seconds: float | None
    goodput: float | None
    uptime: float | None
    cost: float | None


@final
@dataclass(frozen=True, slots=True)
class RunPlan:
    """`chosen` is what `auto` takes on the link that was given, and `proposal` what to train with there, None without
    one. `memory_here` is what this machine,
    or the container that it is, may have, in bytes. `merge_seconds` and `overlap_left` are of the largest fragment;
    `cost_per_hour` is of all devices."""

    wanted: PlanRequest
    outlooks: tuple[Outlook, ...]
    pairs: tuple[PlannedPair, ...]
    chosen: Choice | None
    proposal: Proposal | None
    memory: PlannedMemory
    memory_here: int
    rates: Rates
    merge_seconds: float
    overlap_left: float
    cost_per_hour: float | None

    @property
    def home(self) -> HomeLoad:
        """The load of its home."""
        of = self.wanted
        interval = next(each.links.interval for each in self.outlooks if each.links.program == DECOUPLED)
        sweep = (interval or of.interval) * of.step_seconds
        return home_of(of.parameters, of.learners, of.fragments, of.update, sweep, of.steps / of.interval)

    @property
    def bucket(self) -> BucketLoad | None:
        """The load on a store, if learners go through one."""
        if self.wanted.via_every is None:
            return None
        links = next(each.links for each in self.outlooks if each.links.program == DECOUPLED)
        return bucket_load(self.wanted.via_every, (links.up_bits + links.down_bits) / 8)


def plan_of(wanted: PlanRequest, rates: Rates, memory_here: int) -> RunPlan:
    """The prediction for a run that `check` has accepted; `rates` and `memory_here`, in bytes, are this machine's."""
    merge = rates.merge_seconds(wanted)
    cost = _cost_per_hour(wanted)
    return RunPlan(
        wanted,
        tuple(_outlook(wanted, links, cost) for links in links_of(wanted, merge)),
        tuple(pairs_of(wanted)),
        chosen_of(wanted),
        proposal_of(wanted, merge),
        memory_of(wanted),
        memory_here,
        rates,
        merge,
        overlap_left(wanted, merge),
        cost,
    )


def _outlook(of: PlanRequest, links: LinkLoad, cost_per_hour: float | None) -> Outlook:
    step = None if links.wait_seconds is None else of.step_seconds + links.wait_seconds
    goodput, uptime = _goodput(of, links.program) if of.chips_total is not None else (None, None)
    cost = None
    if cost_per_hour is not None:
        cost = (
            cost_per_hour / 3600 * 1000 * (step or of.step_seconds) / (1.0 if goodput is None else max(goodput, 1e-9))
        )
    return Outlook(links, sent_of(of, links), step, goodput, uptime, cost)


def _goodput(of: PlanRequest, program: str) -> tuple[float, float]:
    """Goodput and uptime by the event model, whose terms are calibrated to the published cells."""
    chips = of.chips_total or 0
    if not of.failures_per_year:
        return 1.0, 1.0
    is_one = program in (DATA_PARALLEL, ELASTIC, *_TOGETHER)
    terms = TERMS.get(program, TERMS[ELASTIC])
    seconds = max(SECONDS, FAILURES * YEAR_SECONDS / (chips * of.failures_per_year))
    return goodput_of(terms, 1 if is_one else of.learners, chips, 0, of.failures_per_year, seconds)


def _cost_per_hour(of: PlanRequest) -> float | None:
    """The cost of all devices per hour, by the given price, or by the known prices of all islands; else None."""
    if of.price_per_hour is not None and of.chips_total is not None:
        return of.price_per_hour * of.chips_total
    prices = [island.device.price_per_hour for island in of.islands]
    priced = [price * island.count for price, island in zip(prices, of.islands, strict=True) if price is not None]
    return sum(priced) if priced and len(priced) == of.learners else None


_COLUMNS = ("program", "up, mean", "down, mean", "peak", "shard's link", "no wait from", "a step", "goodput")
_DISPENSABLE = ("shard's link", "peak", "down, mean", "up, mean")
_LEGEND = (
    "no wait from: the smallest link on which every fragment is back within the overlap; -: on none. In "
    "decoupled-diloco no step ever waits; what comes back later is older, and H is lengthened where it has to be."
)
_ASSUMED = (
    "Bits a second of each learner's link, full duplex. The peak is that of the largest fragment, at most 4/3 of the "
    "mean one; of data-parallel training that of --gradient-share of a step, in which gradients cross, and none where "
    "that is 0: then these, as everything in diloco, go after a step, as fast as the link is.",
    "Memory is the least: parameters, gradient and AdamW on an island, without activations.",
    "Goodput is of the event model of `isthmus simulate goodput`, calibrated to published cells; in diloco and "
    "streaming-diloco, where all wait for each, it is that of one learner with all chips. Without --chips or --island "
    "there is none.",
)


def sheet(plan: RunPlan) -> Sheet:
    """The plan; its data are all figures, in bits, bytes and seconds."""
    wanted = plan.wanted
    lead = (
        f"{scaled(wanted.parameters)} parameters, {wanted.learners} learners, {seconds(wanted.step_seconds)} a step, "
        f"{wanted.fragments} fragments, each merged once in {wanted.interval} steps. Nothing ran but the merge."
    )
    is_priced = plan.cost_per_hour is not None
    columns = (*_COLUMNS, "1000 steps cost") if is_priced else _COLUMNS
    rows = [(*_row(each), f"{each.cost:,.2f}") if is_priced else _row(each) for each in plan.outlooks]
    return Sheet(
        "A plan",
        lead,
        [
            PageSection("Links", [table(columns, rows, _DISPENSABLE)], [_LEGEND], _drawing(plan)),
            PageSection("Compute utilisation", [_utilisation_table(plan)], [_UTILISATION]),
            PageSection(f"Bytes of {wanted.steps} steps", [_bytes_table(plan)], [_BYTES]),
            PageSection("Formats and intervals", [_pairs_table(plan)], list(_pairs_legend(plan))),
            PageSection("Machines", [table(("what", "how much"), list(_facts(plan)), (), ("how much",))], _ASSUMED),
        ],
        {
            "wanted": asdict(replace(wanted, islands=())) | {"islands": _names(wanted.islands)},
            "programs": [
                {
                    **asdict(each.links),
                    "sent_bytes": each.sent.working,
                    "home_bytes": each.sent.home,
                    **{name: getattr(each, name) for name in ("step_seconds", "goodput", "uptime")},
                    "cost_per_1000_steps": each.cost,
                }
                for each in plan.outlooks
            ],
            "pairs": [asdict(pair) for pair in plan.pairs],
            "auto": None if plan.chosen is None else {**asdict(plan.chosen), "push": plan.chosen.push[0]},
            "proposal": None if plan.proposal is None else asdict(plan.proposal),
            "memory_bytes": plan.memory,
            "home": plan.home._asdict(),
            "memory_here_bytes": plan.memory_here,
            "learners_here": _learners_here(plan),
            "islands": list(_islands(plan)),
            "utilisations": UTILISATIONS,
            "merge": {**asdict(plan.rates), "seconds": plan.merge_seconds, "overlap_left_seconds": plan.overlap_left},
            "cost_per_hour": plan.cost_per_hour,
            "bucket": None if plan.bucket is None else plan.bucket._asdict(),
        },
    )


def _utilisation_table(plan: RunPlan) -> Any:
    rows = [
        (each.links.program, *("any" if bits == 0 else scaled(bits, "bit/s") for bits in each.links.utilisation_bits))
        for each in plan.outlooks
    ]
    return table(("program", *map(percent, UTILISATIONS)), rows)


_UTILISATION = (
    "The smallest link of a learner on which it steps for this share of the time, without failures; -: on none. "
    "decoupled-diloco does not wait on any link: where its link carries less than its mean, H is lengthened instead."
)


def _bytes_table(plan: RunPlan) -> Any:
    rows = [(each.links.program, size(each.sent.working), size(each.sent.home)) for each in plan.outlooks]
    return table(("program", "learners and shards", "recorder and evaluator"), rows)


_BYTES = (
    "What all hosts send in so many steps of each learner: learners and shards among themselves, and shards to the "
    "evaluator, which takes those that it evaluates, and to the recorder, which takes them at the pace of snapshots, "
    "with an outer momentum; -: it depends on how often a run evaluates, or takes a snapshot of its learners."
)


def _pairs_table(plan: RunPlan) -> Any:
    rows = [
        (
            pair.push,
            f"{pair.interval}",
            f"{pair.fewer:.1f}",
            scaled(pair.up_bits, "bit/s"),
            percent(pair.load),
            "-" if pair.loss is None else f"{pair.loss:+.3f}",
        )
        for pair in plan.pairs
    ]
    return table(("push", "H", "fewer bytes", "up, mean", "of the link", "loss"), rows)


def _pairs_legend(plan: RunPlan) -> Iterator[str]:
    yield (
        "fewer bytes: than float32 at the same --interval, as often. loss: nats a byte above int4 at H = 24, measured "
        f"on the model of 0.13 M parameters by `{MEASURED_BY}`, and shown up to {scaled(LOSS_PARAMETERS_MAX)} "
        "parameters; -: not measured."
    )
    if plan.chosen is not None:
        chosen = plan.chosen
        yield (
            f"On this link `auto` takes push = {chosen.push[0]}, update = {chosen.update}, H = {chosen.interval} and "
            f"tau = {chosen.overlap}: a load of half the link at most, bits before steps."
        )


def _row(of: Outlook) -> tuple[str, ...]:
    links = of.links
    return (
        links.program,
        *(scaled(bits, "bit/s") for bits in (links.up_bits, links.down_bits, links.peak_bits)),
        *(scaled(bits, "bit/s") for bits in (links.shard_bits, links.smallest_bits)),
        _step(of),
        percent(of.goodput),
    )


def _step(of: Outlook) -> str:
    duration = seconds(of.step_seconds)
    raised = of.links.interval
    return f"{duration}, H = {raised:.0f}" if of.links.program == DECOUPLED and raised is not None else duration


def _facts(plan: RunPlan) -> Iterator[tuple[str, str]]:
    memory, rates = plan.memory, plan.rates
    if (proposed := plan.proposal) is not None:
        words = [proposed.program]
        if proposed.interval is not None:
            words += [f"push {proposed.push}", f"update {proposed.update}", f"H = {proposed.interval}"]
        yield "proposed", f"{', '.join(words)}: steps for {percent(proposed.utilisation)} of the time on this link"
    yield "learner", f"{size(memory.island)} on its island, {size(memory.machine)} in its machine's memory"
    yield "copies", f"{size(memory.copies)} of /dev/shm for a learner's next life, where there is so much"
    yield "syncer", f"{size(memory.shard)} on each of {plan.wanted.shards} shard{'s' if plan.wanted.shards > 1 else ''}"
    yield from _home_facts(plan.home)
    fitting = _learners_here(plan)
    room = "not enough for a learner" if fitting == 0 else f"enough for {fitting} learner{'s' if fitting > 1 else ''}"
    yield "here", f"{size(plan.memory_here)}, which this machine or its container may have: {room} on its cores"
    for island in _islands(plan):
        if not island["fits"]:
            yield "too small", f"{island['island']} has {size(island['memory_limit_bytes'])}"
    measured = f"{scaled(rates.merged)} values a second merged and {scaled(rates.stepped)} stepped"
    yield (
        "merge",
        f"{seconds(plan.merge_seconds)} for the largest fragment; here, by {rates.threads} threads: {measured}",
    )
    yield "overlap", _overlap(plan.overlap_left, plan.wanted.overlap * plan.wanted.step_seconds)
    if (load := plan.bucket) is not None:
        step = plan.wanted.step_seconds
        yield (
            "bucket",
            f"at most {scaled(load.writes + load.lists)} writes and lists, {scaled(load.reads)} reads and "
            f"{scaled(load.removals)} removals an hour for each learner, {load.price_per_hour:.2f} $ at S3's prices, "
            f"traffic apart; there and back in about {seconds(load.round_trip_seconds)}: overlap from "
            f"{load.overlap(step)}, interval from {load.interval(step)}",
        )
    if plan.cost_per_hour is not None:
        yield "cost", f"{plan.cost_per_hour:,.2f} an hour for all devices"


def _home_facts(home: HomeLoad) -> Iterator[tuple[str, str]]:
    yield (
        "recorder",
        f"{scaled(home.recorder_bits, 'bit/s')} of states at the pace of snapshots, "
        f"{scaled(home.report_bits, 'bit/s')} of reports, {size(home.recorder_bytes)} of memory",
    )
    taken = f"{scaled(home.evaluator_bits, 'bit/s')} of versions that it evaluates"
    told = f"{taken}, {size(home.evaluator_bytes)} for two models, at most"
    yield "evaluator", told
    yield "daemon", f"{size(home.daemon_bytes)} of memory, and no model"


def _overlap(left: float, overlap: float) -> str:
    """What is left of the overlap, or how much longer a fragment is away, in words."""
    if left < 0:
        return f"a fragment is away for {seconds(overlap - left)}, longer than {seconds(overlap)}"
    return f"{seconds(left)} of {seconds(overlap)} left"


def _learners_here(plan: RunPlan) -> int:
    """How many learners and the syncer have room in the memory of this machine, where its cores compute."""
    left = plan.memory_here - plan.wanted.shards * plan.memory.shard
    return max(0, min(plan.wanted.learners, int(left // (plan.memory.island + plan.memory.machine))))


def _names(islands: Sequence[Target]) -> list[str]:
    """Their names: of many that are alike the name of one."""
    return [island.name for island in (islands[:1] if _are_alike(islands) else islands)]


def _are_alike(islands: Sequence[Target]) -> bool:
    return len(islands) > ISLANDS_SHOWN and all(island is islands[0] for island in islands)


def _islands(plan: RunPlan) -> Iterator[dict[str, Any]]:
    """Whether the learner in each slot has room on its island; of many that are alike, in the first one."""
    islands = plan.wanted.islands
    for slot, island in enumerate(islands[:1] if _are_alike(islands) else islands):
        memory = island.device.memory_bytes
        limit = None if memory is None else memory * island.count // island.devices_a_chip
        fits = limit is None or plan.memory.island <= limit
        yield {"learner": slot, "island": island.name, "memory_limit_bytes": limit, "fits": fits}


def _drawing(plan: RunPlan) -> Markup:
    """Mean, peak and smallest link of each program, on a logarithmic scale."""
    bars = [(each.links, *named) for each in plan.outlooks for named in _bits(each.links).items()]
    exponents = [math.log10(bits) for _, _, bits in bars if bits]
    left, row, width, height = 250, 22, 1080, 22 * len(bars) + 34
    across = Scale(math.floor(min(exponents, default=0)), math.ceil(max(exponents, default=1)), left, width - 120)
    decades = range(int(across.low), int(across.high) + 1)
    parts = [line(across(each), 8, across(each), height - 26, "grid") for each in decades]
    parts += [text(across(each), height - 8, scaled(10.0**each, "bit/s"), "mid") for each in decades]
    for index, (links, name, bits) in enumerate(bars):
        y, end, value = 10 + row * index, float(left), "-"
        if not index % len(_bits(links)):
            parts.append(text(0, y + 12, links.program, "name"))
        if bits:
            end, value = across(math.log10(bits)), scaled(bits, "bit/s")
            parts.append(rectangle(left, y + 2, end - left, 13, f"c{index // len(_bits(links))} step", value))
        parts += [text(left - 10, y + 12, name, "end"), text(end + 6, y + 12, value)]
    return drawing(width, height, "Bits a second of a learner's link", *parts)


def _bits(links: LinkLoad) -> dict[str, float | None]:
    return {"mean": max(links.up_bits, links.down_bits), "peak": links.peak_bits, "no wait from": links.smallest_bits}
