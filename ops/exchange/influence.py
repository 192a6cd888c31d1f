"""How much of a merge one member may have: the machines of the run, or, on one machine, its learners.

Decides the shares of the weight, given those that tokens and steps give. Does not decide who is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Capped(NamedTuple):
    """`shares` of a merge by answer, which sum up to 1, or to less where all members are at the most that they may
    have; `reduced` are [member, its share before, and now] of those that had more."""

    shares: list[float]
    reduced: list[tuple[str, float, float]]


def capped(weights: Sequence[float], members: Sequence[str], most: float) -> Capped:
    """The shares of answers with these weights (>= 0, one of them above 0), of which no member has more than `most`.

    What is taken from a member goes to the others in proportion to their weights, as long as they have less than
    `most`. Where they all have that, the rest goes to nobody: it counts as a gradient of zero.
    """
    total = sum(weights)
    before: dict[str, float] = {}
    for weight, member in zip(weights, members, strict=True):
        before[member] = before.get(member, 0.0) + weight / total
    now, left = dict(before), 1.0
    at_most: set[str] = set()
    while True:
        free = {member: share for member, share in before.items() if member not in at_most and share > 0}
        factor = left / sum(free.values()) if free else 0.0
        now |= {member: share * factor for member, share in free.items()}
        over = {member for member in free if now[member] > most}
        if not over:
            break
        now |= dict.fromkeys(over, most)
        at_most |= over
        left = max(0.0, 1.0 - most * len(at_most))
    factors = {member: now[member] / share if share else 0.0 for member, share in before.items()}
    shares = [weight / total * factors[member] for weight, member in zip(weights, members, strict=True)]
    return Capped(shares, [(member, before[member], most) for member in sorted(at_most) if before[member] > most])
