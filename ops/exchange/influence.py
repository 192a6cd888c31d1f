"""How much of a merge one member may have: the machines of the run, or, on one machine, its learners.

Decides the shares of the weight, given those that tokens and steps give. Does not decide who is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Capped(NamedTuple):
    """The shares of a merge: `shares` by answer, whose sum is `whole`, 1, or less where all members have the most that
    they may have; `reduced` are [member, its share before, its share now] of those that had more."""

    shares: list[float]
    whole: float
    reduced: list[tuple[str, float, float]]


def capped(weights: Sequence[float], members: Sequence[str], most: float) -> Capped:
    """The shares of answers with these weights (>= 0, one of them above 0), of which no member has more than `most`.

    A member has min(most, factor x weight), with one factor for all. Where they all have `most`, the rest goes to
    nobody: it counts as a gradient of zero.
    """
    total = sum(weights)
    before: dict[str, float] = {}
    for weight, member in zip(weights, members, strict=True):
        before[member] = before.get(member, 0.0) + weight / total
    at_most, free, factor = set[str](), {member for member, share in before.items() if share > 0}, 1.0
    while over := {member for member in free if before[member] * factor > most}:
        at_most, free = at_most | over, free - over
        if free:
            factor = (1.0 - most * len(at_most)) / sum(before[member] for member in free)
    now = {member: most if member in at_most else share * factor for member, share in before.items()}
    shares = [
        weight / total * (now[member] / before[member] if before[member] else 0.0)
        for weight, member in zip(weights, members, strict=True)
    ]
    reduced = [(member, before[member], most) for member in sorted(at_most) if before[member] > most]
    return Capped(shares, 1.0 if free else most * len(at_most), reduced)
