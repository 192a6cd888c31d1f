"""Where the first bound of a plan lies: how many learners each resource carries, of decoupled-diloco.

Decides the resources, and by what the load on each is computed: from rates of this code, measured on this machine
where the plan measures them, else where the benches did that are named here, and from what a machine or link has. What
a load is comes from `plan`, which knows the formulas; here it is only asked at other numbers of learners.

Beyond a bound that `stretches` the run goes on, and a fragment is merged more seldom; beyond the others it does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, final

from isthmus.programs.engine.results.words import UNKNOWN, percent, scaled, size
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.programs.wings.plan import plan as planned
from isthmus.programs.wings.plan.plan import PlanRequest, RunPlan
from isthmus.programs.wings.simulation.goodput import DECOUPLED
from isthmus.runtime.ids import LEARNERS_MAX

ANSWER_SECONDS: Final = 0.0023
"""CPU time of a syncer for each learner of a merge, beside its values: its pull, answer and update. Of 64 simulated
learners (`tests/bench/long/bench_size.py`); .0031 of four."""
HOST_SECONDS: Final = 0.00037
"""CPU time of a run's daemon for each of its hosts and seconds: heartbeats, beats, and its start. Of 1,024 learners,
20 a second of which start (`tests/bench/bench_rosters.py`: 20 s of 52)."""
ASKED_MAX: Final = 1 << 40
"""Learners beyond which nobody asks for a bound."""


@final
@dataclass(frozen=True, slots=True)
class PlannedBound:
    """A resource: its load, and its limit, in `unit`; None where the limit was not given.

    `learners` is the largest number of learners that it carries, None where that is not known or has no end.
    """

    name: str
    unit: str
    load: float
    limit: float | None
    learners: int | None
    stretches: bool
    by: str


def bounds_of(plan: RunPlan) -> list[PlannedBound]:
    """The bounds of a run, the first one first."""
    of = plan.wanted
    rounds = of.fragments / (of.shards * of.interval * of.step_seconds)

    def at(learners: int) -> PlanRequest:
        return replace(of, learners=learners, islands=())

    def merging(learners: int) -> float:
        return planned.busy(at(learners), plan.rates.merge_seconds(at(learners)))

    def answering(learners: int) -> float:
        return learners * rounds * ANSWER_SECONDS

    def linking(learners: int) -> float:
        return planned.shard_bits(at(learners), DECOUPLED)

    def holding(learners: int) -> float:
        return planned.memory_of(at(learners)).shard

    def hosts(learners: int) -> float:
        return (learners + of.shards + 2) * HOST_SECONDS

    memory_by = "what this machine, or its container, may have"
    merge_by = (
        f"{scaled(plan.rates.merged)} values a second, measured on this machine with {plan.rates.threads} threads"
    )
    answer_by = f"{1e3 * ANSWER_SECONDS:g} ms of a core for a learner in a merge, by tests/bench/long/bench_size.py"
    link_by = "--shard-gbits" if of.shard_bits is not None else "not known: --shard-gbits says it"
    host_by = f"{1e3 * HOST_SECONDS:g} ms of a core for a host and second, by tests/bench/bench_rosters.py"
    bounds = [
        _bound("merges of a shard", "share", merging, 1.0, merge_by, of, stretches=True),
        _bound("answers at a shard", "share", answering, 1.0, answer_by, of, stretches=True),
        _bound("link of a shard", "bit/s", linking, of.shard_bits, link_by, of, stretches=True),
        _bound("memory of a shard", "bytes", holding, plan.memory_here, memory_by, of),
        _bound("daemon of the home", "share", hosts, 1.0, host_by, of),
        _bound("slots of a run", "learners", float, LEARNERS_MAX, "LEARNERS_MAX", of),
    ]
    return sorted(bounds, key=lambda bound: ASKED_MAX if bound.learners is None else bound.learners)


def _bound(
    name: str,
    unit: str,
    load: Callable[[int], float],
    limit: float | None,
    by: str,
    of: PlanRequest,
    *,
    stretches: bool = False,
) -> PlannedBound:
    most = None if limit is None else _most(load, limit)
    return PlannedBound(name, unit, load(of.learners), limit, most, stretches, by)


def _most(load: Callable[[int], float], limit: float) -> int | None:
    """The largest number of learners whose load, which grows with them, is within a limit; None if that has no end."""
    low, high = 0, 1
    while load(high) <= limit:
        low, high = high, 2 * high
        if high > ASKED_MAX:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if load(middle) <= limit else (low, middle)
    return low


def sheet(plan: RunPlan) -> Sheet:
    """The plan, with its bounds."""
    bounds = bounds_of(plan)
    rows = [
        (
            each.name,
            _amount(each, each.load),
            _amount(each, each.limit),
            UNKNOWN if each.learners is None else f"{each.learners:,}",
            each.by,
        )
        for each in bounds
    ]
    first = next(each for each in bounds if each.learners is not None)
    lead = (
        f"The first bound is {first.name}: {first.learners:,} learners, and {plan.wanted.learners:,} are asked for. "
        "Beyond the merges, answers and link of a shard a fragment is merged more seldom; beyond the others there is "
        "no run. More shards, or regions, move the bounds of a shard."
    )
    columns = ("bound", "here", "at most", "learners", "by")
    part = PageSection("Where the first bound lies", [table(columns, rows, ("by",), ("by",))], [lead])
    whole = planned.sheet(plan)
    told: list[dict[str, Any]] = [
        {name: getattr(each, name) for name in ("name", "unit", "load", "limit", "learners", "stretches", "by")}
        for each in bounds
    ]
    links, *others = whole.parts
    return replace(whole, parts=[links, part, *others], data={**whole.data, "bounds": told})


def _amount(bound: PlannedBound, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if bound.unit == "share":
        return percent(value)
    if bound.unit == "bytes":
        return size(value)
    return f"{value:,.0f}" if bound.unit == "learners" else scaled(value, bound.unit)
