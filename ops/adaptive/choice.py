"""The settings that fit the links of a shard: the finest formats, and the shortest interval, that they carry.

Decides from figures alone; it keeps nothing, and `chooser` decides when to take up a better choice.

Theory of operation. In each interval of H steps every learner sends each of the shard's fragments once, and receives
each once. The share of a link's goodput that this takes is its *load*:

    load = bits / 8 * max(values, 4 * largest fragment) / (H * seconds a step * goodput)

With P fragments of one size both directions of a round take 2 load / P of an interval; a fragment counts as at least a
quarter of all, so that with a load of SHARE both directions of the largest one take a quarter of an interval, the limit
of a round trip. What costs the least in loss is given up first: bits before steps, so formats are chosen for the
requested interval, and the interval only where the coarsest formats do not fit it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final, NamedTuple

from isthmus.ops.adaptive.wanted import FORMATS, Wanted
from isthmus.ops.exchange.schemas import BITS

SHARE: Final = 0.5
"""A finer format, or a shorter interval, is taken up at this load: other traffic of the link, and the excess of a
goodput that was learned from few bytes, have as much again."""
KEEP: Final = 0.8
"""Present settings are kept up to this load: above it a link that once fell behind hardly catches up."""
FRAGMENT_SHARE: Final = 4
REACH: Final = 4
"""A link that needs more than this many times the requested interval does not set the pace for the others, unless they
need half as much."""
OUTLIER: Final = 2
SLACK_STEPS: Final = 1.5
"""Steps beside the transfers of the values: half a step until an answer is sent, and one of slack."""
INTERVAL_GROWTH_MAX: Final = 64
ROUND_TRIP_SHARE: Final = 4
"""A round trip may take a quarter of the interval, as where the interval is a number (`syncer.schedule`)."""


class Rate(NamedTuple):
    """Goodput of a link in one direction, in bytes a second, 0 where unknown.

    Present settings are judged by the `mean`, new ones chosen by the `best`. The difference between them is other
    delays.
    """

    mean: int = 0
    best: int = 0


class Link(NamedTuple):
    """Goodput of the link of the learner in a `slot`, to the shard (`up`) and from it (`down`)."""

    slot: int
    up: Rate
    down: Rate


class Needs(NamedTuple):
    """The traffic of an interval: `values` in all fragments of the shard, the `largest` of which has so many.

    Steps take `step` nanoseconds (0: not known yet); rounds now take a `round_trip` in steps, and the `overlap` would
    leave a step of slack.
    """

    values: int
    largest: int
    step: int
    round_trip: float
    overlap: int

    def bytes_per_second(self, format_name: str, interval: int) -> float:
        """The traffic of one link in one direction."""
        if not self.step:
            return 0.0
        values = max(self.values, FRAGMENT_SHARE * self.largest)
        return BITS[format_name] / 8 * values / (interval * self.step / 1e9)

    def trip_steps(self, link: Link, push: str, update: str) -> float:
        """The steps that the largest fragment takes for both directions of a link; 0 where unknown."""
        if not (link.up.mean and link.down.mean and self.step):
            return 0.0
        seconds = self.largest / 8 * (BITS[push] / link.up.mean + BITS[update] / link.down.mean)
        return seconds * 1e9 / self.step

    def load(self, goodput: int, format_name: str, interval: int) -> float:
        """The load of a link with this goodput; 0 where that is unknown."""
        return self.bytes_per_second(format_name, interval) / goodput if goodput else 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Formats by name, of pushes by slot; interval and overlap in inner steps."""

    push: Mapping[int, str]
    update: str
    interval: int
    overlap: int


def finest(needs: Needs, rate: Rate, interval: int) -> str:
    """The finest format with which a link's load is at most SHARE; the coarsest if there is none."""
    return next((name for name in FORMATS if needs.load(rate.best, name, interval) <= SHARE), FORMATS[-1])


def coarsest(wanted: Wanted) -> tuple[str, str]:
    """(push, update) with the fewest bits that may be chosen."""
    push = FORMATS[-1] if "push" in wanted.auto else wanted.push
    return push, FORMATS[-1] if "update" in wanted.auto else wanted.update


def within_reach(wanted: Wanted, links: Sequence[Link], needs: Needs) -> list[Link]:
    """The links that count for what all have in common: updates, and the interval."""
    push, update = coarsest(wanted)
    steps = [steps_needed(needs, link, push, update) for link in links]
    if not steps:
        return []
    limit = max(REACH * wanted.interval, OUTLIER * median_low(steps))
    return [link for link, needed in zip(links, steps, strict=True) if needed <= limit]


def steps_needed(needs: Needs, link: Link, push: str, update: str) -> float:
    """The interval, in steps, with which these formats load a link by SHARE."""
    loads = needs.load(link.up.best, push, 1), needs.load(link.down.best, update, 1)
    return max(loads) / SHARE


def best(wanted: Wanted, links: Sequence[Link], needs: Needs, now: Choice) -> Choice:
    """The choice that fits the links, if nothing were in use yet; settings that are not "auto" stay as requested."""
    asked = wanted.interval if "interval" in wanted.auto else now.interval
    reach = within_reach(wanted, links, needs)
    push, update = {link.slot: wanted.push for link in links}, wanted.update
    if "push" in wanted.auto:
        push = {link.slot: finest(needs, link.up, asked) for link in links}
    if "update" in wanted.auto:
        found = [finest(needs, link.down, asked) for link in reach]
        update = max(found, key=FORMATS.index, default=FORMATS[0])
    interval, overlap = asked, now.overlap
    if "interval" in wanted.auto:
        steps = max((steps_needed(needs, link, push[link.slot], update) for link in reach), default=0.0)
        interval = max(asked, min(math.ceil(steps), INTERVAL_GROWTH_MAX * asked), round_trip_interval(needs, now))
    if "overlap" in wanted.auto:
        trips = [needs.trip_steps(link, push[link.slot], update) for link in reach]
        needed = max([needs.overlap, *(math.ceil(trip + SLACK_STEPS) for trip in trips if trip)])
        overlap = max(wanted.overlap, min(needed, interval // ROUND_TRIP_SHARE))
    return Choice(push, update, interval, overlap)


def round_trip_interval(needs: Needs, now: Choice) -> int:
    """The interval of which a round trip takes a quarter, with a step of slack.

    One of which it takes less, but more than three quarters of that, is left as it is.
    """
    if needs.round_trip * ROUND_TRIP_SHARE > now.interval:
        return ROUND_TRIP_SHARE * (math.ceil(needs.round_trip) + 1)
    if needs.round_trip * ROUND_TRIP_SHARE > 0.75 * now.interval:
        return now.interval
    return ROUND_TRIP_SHARE * math.ceil(needs.round_trip)
