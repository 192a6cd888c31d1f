"""How much of a merge one participant may have: an owner with all its machines, a machine that has no owner, or, in a
run of one machine, a learner.

Decides the shares of the weight, given those that tokens and steps give. Does not decide who is refused, and knows
neither answers nor machines.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

LEAST: Final = sys.float_info.min
"""Of all weight: who has less counts as having none, because a factor that makes it the whole is no number."""


class Capped(NamedTuple):
    """The shares of a merge: `shares` by answer, whose sum is `whole`, 1, or less where all participants have the most
    that they may have; `reduced` are [participant, its share before, its share now] of those that had more."""

    shares: list[float]
    whole: float
    reduced: list[tuple[str, float, float]]


def capped(weights: Sequence[float], participants: Sequence[str], most: Mapping[str, float]) -> Capped:
    """The shares of answers with these weights (>= 0, one above 0), of which no participant has more than its `most`.

    A participant has min(its most, factor x weight), with one factor for all. Where they all have their most, and that
    is less than the whole, the rest goes to nobody: it counts as a gradient of zero.
    """
    total = sum(weights)
    before: dict[str, float] = {}
    for weight, participant in zip(weights, participants, strict=True):
        before[participant] = before.get(participant, 0.0) + weight / total
    at_most, free, factor = set[str](), {participant for participant, share in before.items() if share >= LEAST}, 1.0
    while over := {participant for participant in free if before[participant] * factor > most[participant]}:
        at_most, free = at_most | over, free - over
        if free:
            factor = (1.0 - _sum(most, at_most)) / sum(before[participant] for participant in free)
    now = {
        participant: most[participant] if participant in at_most else share * factor
        for participant, share in before.items()
    }
    shares = [
        weight / total * (now[participant] / before[participant] if before[participant] else 0.0)
        for weight, participant in zip(weights, participants, strict=True)
    ]
    reduced = [
        (participant, before[participant], most[participant])
        for participant in sorted(at_most)
        if before[participant] > most[participant]
    ]
    return Capped(shares, 1.0 if free else _sum(most, at_most), reduced)


def _sum(most: Mapping[str, float], participants: set[str]) -> float:
    """What these have together; in one order, so that it is the same on all hosts and days."""
    return sum(most[participant] for participant in sorted(participants))
