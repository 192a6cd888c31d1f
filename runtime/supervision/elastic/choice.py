"""The number of the present processes that train together: a pure function."""

from __future__ import annotations

from collections.abc import Sequence


def largest(allowed: Sequence[int], present: int) -> int:
    """The largest allowed number up to `present`; 0 if there is none."""
    return max((count for count in allowed if count <= present), default=0)
