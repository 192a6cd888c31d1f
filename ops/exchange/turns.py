"""The order of turns in lock-step: one fragment after the other, after the same number of steps in each round of all.

Decides which fragment is next, and after how many steps. So the merge positions of all fragments determine which turn
was the last, and which versions exist some turns later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def boundary(index: int, interval: int, fragments: int) -> int:
    """The number of steps after which the fragment of turn `index`, counted from 0, is captured; 0 before the first."""
    return (index + 1) * interval // fragments


def last_merged(positions: Mapping[int, Sequence[Sequence[int]]], fragments: int) -> int:
    """The fragment that was merged last, by the merged batches of each slot in each, [slot, position].

    Where nothing is merged, it is the last of all, so that the first is next.
    """
    reached = {p: sum(position for _, position in positions.get(p, ())) for p in range(fragments)}
    return max(reached, key=lambda p: (reached[p], p))


def after(counts: Sequence[int], last: int, turns: int) -> tuple[int, list[int]]:
    """The fragment that is merged last, and the counts of all versions, `turns` turns after `last`."""
    counted = list(counts)
    for _ in range(turns):
        last = (last + 1) % len(counted)
        counted[last] += 1
    return last, counted
