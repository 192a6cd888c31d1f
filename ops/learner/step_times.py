"""The times of a learner's steps: the average that the pacer reads, the usual one, and the time since the first.

A step is timed from the end of the one before to its own end, and what its host was *away* in between
(`runtime.host.busy`), in the user's own code, is no part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from typing import Final, final

DECAY: Final = 0.9
USUAL_OF: Final = 33
"""The steps of which the usual duration is the median: fewer than half may be others, as where each tenth evaluates."""


@final
class StepTimes:
    """The steps of one life; instants and durations in nanoseconds.

    `now` and `away` are those of the context: the clock, and how long this host was away in all. `first_at` is the
    beginning of the first step, 0 before it, and `last_at` the end of the last one.
    """

    def __init__(self, now: Callable[[], int], away: Callable[[], int]) -> None:
        self._now, self._away = now, away
        self.first_at = self.last_at = 0
        self._average = 0.0
        self._took: deque[int] = deque(maxlen=USUAL_OF)
        self._away_first = self._away_last = 0

    def begin(self) -> None:
        """The first step is about to begin."""
        self.first_at, self._away_first = self._now(), self._away()

    def pause(self, duration: int) -> None:
        """What this learner did between two steps for so long was no step."""
        if self.last_at:
            self.last_at += duration

    def stepped(self) -> None:
        """A step has ended. Of the first one the beginning is not known: it is timed by none."""
        now, away = self._now(), self._away()
        if self.last_at:
            took = max(0, now - self.last_at - (away - self._away_last))
            self._average = DECAY * (self._average or took) + (1 - DECAY) * took
            self._took.append(took)
        self.last_at, self._away_last = now, away

    @property
    def average(self) -> int:
        """The moving average; 0 before the second step."""
        return round(self._average)

    @property
    def usual(self) -> int:
        """The median of the last steps; 0 before the second one."""
        return round(median(self._took)) if self._took else 0

    def stepping(self, now: int) -> int:
        """How long this learner has stepped by `now`, away left out."""
        return max(0, now - self.first_at - self.away) if self.first_at else 0

    @property
    def away(self) -> int:
        """How long this learner was away since its first step began."""
        return self._away() - self._away_first if self.first_at else 0
