"""The effect of failures on one learner of many slices: an event model of its own, in which nothing is trained.

A learner works in steps. Chips fail as a Poisson process, at a rate that belongs to the whole learner. At the end of
the step in which one failed the learner stalls (it detects, reshards, replays) and goes on without that slice. A slice
that fails during a stall is lost, too, and neither prolongs the stall nor begins another. Repaired slices rejoin for
nothing at the end of any stall, or else in a stall of their own, the upscale, which comes no sooner than `calm_seconds`
after the last one. A learner without any slice waits for the first.

Learners do not interact in this model: with Decoupled DiLoCo none waits for another, so each learner of a run with M is
one with an M-th of the chips. Data-parallel training is one learner with all of them.

The tests compare the model with whole runs of the real cores (tests/programs/goodput/test_against_cores.py).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from random import Random
from typing import Final, NamedTuple, final

YEAR_SECONDS: Final = 365.25 * 86_400
UPTIME_STEPS: Final = 3
"""Steps after the end of its last one for which a learner counts as up, as in `summary.json`."""


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """Durations in seconds.

    A learner's work is merged once in `interval_seconds`, a fragment after the other, and unmerged work is lost with a
    failure; with 0 nothing is lost, because other slices hold the state. With `repair_seconds` of 0 a spare slice is
    available at once, and no slice ever rejoins later.
    """

    step_seconds: float = 4.0
    stall_seconds: float = 22.0
    upscale_seconds: float = 12.0
    calm_seconds: float = 180.0
    repair_seconds: float = 300.0
    interval_seconds: float = 0.0
    slice_chips: int = 256


class Stall(NamedTuple):
    """A time in which a learner does not step; `failed` are the failures that it is about, none in an upscale."""

    begin: float
    end: float
    failed: int


class Work(NamedTuple):
    """A time in which a learner steps, with this share of its chips; `lost` seconds of it were lost with its end."""

    begin: float
    end: float
    share: float
    lost: float


@final
@dataclass(frozen=True, slots=True)
class Lived:
    """The history of one learner."""

    works: tuple[Work, ...]
    stalls: tuple[Stall, ...]

    def good_seconds(self) -> float:
        """Seconds of work that was not lost, weighted by the share of its chips."""
        return sum(work.share * (work.end - work.begin - work.lost) for work in self.works)


def failures(rng: Random, mean_seconds: float, seconds: float) -> list[float]:
    """Instants of a learner's failures, `mean_seconds` apart on average."""
    found, at = list[float](), rng.expovariate(1 / mean_seconds)
    while at < seconds:
        found.append(at)
        at += rng.expovariate(1 / mean_seconds)
    return found


def lived(failed: Sequence[float], terms: Terms, slices: float, seconds: float) -> Lived:
    """The history, over `seconds`, of a learner of `slices` slices, one of which fails at each instant of `failed`."""
    works, stalls = list[Work](), list[Stall]()
    away = list[float]()  # When each slice that is away will be repaired, in this order.
    now, index, stalled = 0.0, 0, 0.0
    # Each turn is a failure, or an upscale, of which there is at most one for a failure; or the end.
    while now < seconds:
        upscale = max(away[0], stalled + terms.calm_seconds) if away else math.inf
        until = min(failed[index] if index < len(failed) else math.inf, upscale, seconds)
        end = now + max(1, math.ceil((until - now) / terms.step_seconds)) * terms.step_seconds
        before = index
        index = bisect_right(failed, end, index)
        share = max(0.0, 1 - len(away) / slices)
        lost = unmerged(end - now, terms.interval_seconds) if index > before else 0.0
        works.append(Work(now, min(end, seconds), share, lost))
        away += [at + terms.repair_seconds for at in failed[before:index]]
        if index == before and upscale > end:
            break
        stalled = end + (terms.stall_seconds if index > before else terms.upscale_seconds)
        during = bisect_right(failed, stalled, index)
        away += [at + terms.repair_seconds for at in failed[index:during]]
        away = [at for at in away if at > stalled]
        while away and len(away) >= slices:
            stalled = away.pop(0)
        stalls.append(Stall(end, stalled, index - before))
        now, index = stalled, bisect_right(failed, stalled, during)
    return Lived(tuple(works), tuple(stalls))


def unmerged(worked: float, interval: float) -> float:
    """Seconds of unmerged work after `worked` seconds: the mean over fragments that are merged at even distances, once
    in `interval` seconds each."""
    return worked - worked**2 / (2 * interval) if worked < interval else interval / 2


def uptime(lives: Iterable[Lived], terms: Terms, seconds: float) -> float:
    """The share of the time, from the end of the first step, at which some learner has just finished a step."""
    works = sorted(chain.from_iterable(life.works for life in lives))
    up, reached = 0.0, terms.step_seconds
    for work in works:
        begin, end = work.begin + terms.step_seconds, min(work.end + UPTIME_STEPS * terms.step_seconds, seconds)
        up += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return min(1.0, up / (seconds - terms.step_seconds))
