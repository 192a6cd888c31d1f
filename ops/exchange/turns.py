"""The order of turns in lock-step: one fragment after the other, after the same number of steps in each round of all.

Decides which fragment is next, and after how many steps. So whoever knows how far each fragment is merged knows which
turn was the last, and which versions there are some turns later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def boundary(index: int, interval: int, fragments: int) -> int:
    """After how many steps in all the fragment of turn `index` is captured, counted from 0; 0 before the first."""
    return (index + 1) * interval // fragments


def last_merged(positions: Mapping[int, Sequence[Sequence[int]]], fragments: int) -> int:
    """The fragment that was merged last, by how far the batches of each slot are merged in each, [slot, position]; the
    last of all where nothing is merged, so that the first is next."""
    reached = {p: sum(position for _, position in positions.get(p, ())) for p in range(fragments)}
    return max(reached, key=lambda p: (reached[p], p))


def after(counts: Sequence[int], last: int, turns: int) -> tuple[int, list[int]]:
    """The fragment that is merged last, and the counts of all versions, so many turns after `last`."""
    counted = list(counts)
    for _ in range(turns):
        last = (last + 1) % len(counted)
        counted[last] += 1
    return last, counted
