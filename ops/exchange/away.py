"""When a learner counts as away, in the user's own code, for those that hear of its steps alone.

Its host knows, and says so at once to its home (`runtime.host.busy`); syncers and recorders see that its steps stand
still. They are a little later, so that a learner which they take for away is.
"""

from __future__ import annotations

from typing import Final

STEPS: Final = 8
"""So many of its own steps without one: five, as for its host, and the three that may pass between two reports."""
LEAST: Final = 3_000_000_000
FIRST: Final = 60_000_000_000
"""Nanoseconds for the first step, which compiles."""


def seems_away(still: float, step_time: float) -> bool:
    """Whether a learner is away that has made no step for `still` nanoseconds; `step_time` is its usual one, 0 where
    none is known yet."""
    return still > (max(LEAST, STEPS * step_time) if step_time else FIRST)
