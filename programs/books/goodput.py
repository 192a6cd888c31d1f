"""The shares of a run's time: goodput, of what slots had, and uptime, of what passed while any learner stepped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from isthmus.programs.books.balance import Entry
from isthmus.programs.books.shards import Life
from isthmus.runtime.host.contract import Span

UPTIME_STEPS = 3
"""Median steps after the end of its last step for which a learner counts as up."""


def allocated_seconds(status: Mapping[str, Any], learners: int) -> float:
    """The time of all slots, by the figures of a status; `learners` slots are there from the start.

    Those have time from the run's first step on, others from when their first life was seen; all of them to the last
    report of a step, but for slots that left with their machines.
    """
    zero: int | None = status.get("zero")
    if zero is None:
        return 0.0
    reports, joined = status.get("learners", {}), dict(status.get("joined", ()))
    total = 0
    for slot in {*range(learners), *joined}:
        report, until = reports.get(slot, {}), status["stepping_until"]
        if report.get("is_gone"):
            until = min(until, report.get("gone_at", until))
        total += max(0, until - max(zero, joined.get(slot, zero)))
    return total / 1e9


def goodput(
    lives: Sequence[Mapping[str, Any]], found: Sequence[Entry], sizes: Sequence[int], allocated: float
) -> float:
    """Inner-step wall time whose tokens were neither lost nor refused, over the `allocated` seconds.

    The entries `found` have the wasted tokens of each life.
    """
    wasted: dict[Life, float] = {}
    for entry in found:
        if entry.trained:
            share = (entry.lost + entry.refused) * sizes[entry.fragment] / entry.trained / sum(sizes)
            life = (entry.learner, entry.incarnation)
            wasted[life] = wasted.get(life, 0.0) + share
    good = 0.0
    for told in lives:
        stepped = max(0, told["stepping"] - told["waited"]) / 1e9
        good += (1.0 - wasted.get((told["slot"], told["incarnation"]), 0.0)) * stepped
    return min(1.0, good / allocated) if allocated > 0 else 0.0


def uptime(spans: Iterable[Span], zero: int | None, ended: int) -> float:
    """The share of the time in which learners step (to the last step of any) at which some learner was up."""
    if zero is None:
        return 0.0
    ends: dict[str, list[int]] = {}
    for span in spans:
        if span.name == "inner-step" and not span.peer and span.host.startswith("learner/") and span.ended >= zero:
            ends.setdefault(span.host, []).append(span.ended)
    covered: list[tuple[int, int]] = []
    for instants in ends.values():
        gaps = [after - before for before, after in pairwise(instants)]
        reach = round(UPTIME_STEPS * median(gaps)) if gaps else 0
        covered.extend((instant, instant + reach) for instant in instants)
    if not covered:
        return 0.0
    last = min(ended, max(begin for begin, _ in covered))
    first = min(begin for begin, _ in covered)
    up, reached = 0, first
    for begin, end in sorted(covered):
        up += max(0, min(end, last) - max(begin, reached))
        reached = max(reached, min(end, last))
    return up / (last - first) if last > first else 1.0
