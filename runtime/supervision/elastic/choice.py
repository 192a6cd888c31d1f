"""How many of the processes that are there train together: a pure function."""

from __future__ import annotations

from collections.abc import Sequence


def largest(allowed: Sequence[int], present: int) -> int:
    """The largest number that is allowed, of so many that are there; 0 if there is none."""
    return max((count for count in allowed if count <= present), default=0)
