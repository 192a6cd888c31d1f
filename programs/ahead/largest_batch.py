"""The largest batch whose step fits a device: the sequence of batches for which a compiler is run.

Memory grows about linearly with the batch, so the next batch to try is where a line through the memory of two of them
meets the limit. The result rests on the compiler's figures for the very batch that is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FINENESS: Final = 8
"""The batch that is found is the largest one to within this part of itself."""
ASKED_MAX: Final = 8
"""No more, because near the limit the compiler searches for values to recompute, and takes minutes for a batch."""
GROWTH_MAX: Final = 8
"""Largest factor to the next batch: a line through two near points may miss by much."""


def largest(needed: Callable[[int], int], limit: int, begin: int, unit: int) -> int | None:
    """The largest multiple of `unit` rows, to within `FINENESS` and at most `ASKED_MAX` batches, that needs no more
    than `limit` bytes of a device; None if not even `unit` rows fit. `needed(rows)` returns the bytes that `rows` rows
    need; `begin` rows are tried first."""
    asked: dict[int, int] = {}
    low, high, count = 0, 0, max(begin // unit, 1)
    while len(asked) < ASKED_MAX:
        asked[count] = needed(count * unit)
        if asked[count] <= limit:
            low = max(low, count)
        else:
            high = count
        if high and high - low <= max(1, low // FINENESS):
            break
        count = _next(asked, limit, low, high)
    return low * unit or None


def _next(asked: dict[int, int], limit: int, low: int, high: int) -> int:
    """The next batch to try, between `low`, the largest that fits, and `high`, the smallest that does not (0: none is
    known). Batches are counted in units of rows; `asked` has the bytes that each tried batch needs of `limit` bytes."""
    near = sorted(asked, key=lambda count: abs(asked[count] - limit))[:2]
    slope = (asked[near[0]] - asked[near[-1]]) / (near[0] - near[-1]) if len(near) > 1 else 0.0
    halved = (low + high) // 2 if high else 2 * low
    guess = near[0] + int((limit - asked[near[0]]) // slope) if slope > 0 else halved
    finest = max(1, low // FINENESS)
    least, most = low + finest, high - 1 if high else GROWTH_MAX * low
    return max(min(guess, most), min(least, most), 1)
