"""The plan of a run: everything that follows from the request and from the rates of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from isthmus.programs.goodput.cells import DATA_PARALLEL, ELASTIC, SECONDS, TERMS, goodput_of
from isthmus.programs.goodput.model import YEAR_SECONDS
from isthmus.programs.plan.links import Links, links_of, overlap_left
from isthmus.programs.plan.memory import Memory, memory_of
from isthmus.programs.plan.rates import Rates
from isthmus.programs.plan.wanted import Wanted

FAILURES: Final = 2000
"""Minimum number of failures in a simulated run: their mean is within 2 %."""
_TOGETHER: Final = "diloco", "streaming-diloco"
"""Programs in which all learners wait for each: one that stalls holds up all, as if there were one learner."""


@final
@dataclass(frozen=True, slots=True)
class Outlook:
    """The prediction for one program.

    Its links; the seconds of a step with its wait, at the given link; expected goodput and uptime at the failure rate,
    None if the chips are unknown; and the cost of 1000 steps that count.
    """

    links: Links
    step_seconds: float | None
    goodput: float | None
    uptime: float | None
    cost: float | None


@final
@dataclass(frozen=True, slots=True)
class Plan:
    """`merge_seconds` and `overlap_left` are of the largest fragment; `cost_per_hour` is of all devices."""

    wanted: Wanted
    outlooks: tuple[Outlook, ...]
    memory: Memory
    rates: Rates
    merge_seconds: float
    overlap_left: float
    cost_per_hour: float | None


def plan_of(wanted: Wanted, rates: Rates) -> Plan:
    """The prediction for a run that `check` has accepted."""
    merge = rates.merge_seconds(wanted)
    cost = _cost_per_hour(wanted)
    return Plan(
        wanted,
        tuple(_outlook(wanted, links, cost) for links in links_of(wanted, merge)),
        memory_of(wanted),
        rates,
        merge,
        overlap_left(wanted, merge),
        cost,
    )


def _outlook(of: Wanted, links: Links, cost_per_hour: float | None) -> Outlook:
    step = None if links.wait_seconds is None else of.step_seconds + links.wait_seconds
    goodput, uptime = _goodput(of, links.program) if of.chips_total is not None else (None, None)
    cost = None
    if cost_per_hour is not None:
        cost = (
            cost_per_hour / 3600 * 1000 * (step or of.step_seconds) / (1.0 if goodput is None else max(goodput, 1e-9))
        )
    return Outlook(links, step, goodput, uptime, cost)


def _goodput(of: Wanted, program: str) -> tuple[float, float]:
    """Goodput and uptime by the event model, whose terms are calibrated to the published cells."""
    chips = of.chips_total or 0
    if not of.failures_per_year:
        return 1.0, 1.0
    is_one = program in (DATA_PARALLEL, ELASTIC, *_TOGETHER)
    terms = TERMS.get(program, TERMS[ELASTIC])
    seconds = max(SECONDS, FAILURES * YEAR_SECONDS / (chips * of.failures_per_year))
    return goodput_of(terms, 1 if is_one else of.learners, chips, 0, of.failures_per_year, seconds)


def _cost_per_hour(of: Wanted) -> float | None:
    """The cost of all devices per hour, by the given price, or by the known prices of all islands; else None."""
    if of.price_per_hour is not None and of.chips_total is not None:
        return of.price_per_hour * of.chips_total
    prices = [island.device.price_per_hour for island in of.islands]
    known = [price * island.count for price, island in zip(prices, of.islands, strict=True) if price is not None]
    return sum(known) if known and len(known) == of.learners else None
