"""What is known of how a host gets on: the rhythm of its steps, and how much of its own time a step takes.

It measures; who is stuck or slow is the core's to decide, with the two questions that are answered here. All times are
nanoseconds. Only time in which the host computes counts, so whoever waits for others is neither stuck nor slow:

- *stalled*: for how long one firing has lasted and no step was made meanwhile. Intervals between steps teach what is
  usual, as intervals between heartbeats do for silence; they begin anew whenever nothing was firing.
- *pace*: the time in which anything was firing, per step, as a ratio of two moving averages, so that it is the same
  whether a heartbeat brings a hundred steps or every tenth brings one. It is compared with the median of the others.

What a host does while its silence is excused, or in a phase other than stepping, teaches nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.membership.phi_accrual import Rhythm

PACE_WEIGHT: Final = 1 / 8
"""Of a new sample: the average remembers about four seconds of quick steps."""
SAMPLES_MIN: Final = 4
"""Heartbeats with progress before a pace means anything."""
SLOW_RATIO: Final = 3.0
"""A learner is slow if a step takes it so many times as long as the median of the others: the shipped learners on a
machine with more of them than cores differ by up to 1.6."""
RECOVERED_RATIO: Final = 2.0
"""It keeps up again below this."""
SLOW_AFTER: Final = seconds(5)
"""For so long it has to differ: one pause of ten seconds leaves the average within two."""


@dataclass(slots=True)
class Progress:
    """That of one life. `since` is when it made its last step, or could have begun to make one."""

    since: Instant
    steps: int = 0
    rhythm: Rhythm | None = None
    is_slow: bool = False
    _firing: int = 0
    _firing_since: Instant | None = None
    _busy: int = 0
    _samples: int = 0
    _busy_mean: float = 0.0
    _steps_mean: float = 0.0
    _differs_since: Instant | None = None

    @property
    def pace(self) -> float | None:
        """Nanoseconds of its own time for a step; None if too few are known."""
        return self._busy_mean / self._steps_mean if self._samples >= SAMPLES_MIN else None

    def begin(self, steps: int, busy: Duration, now: Instant) -> None:
        """Count from here: what was before teaches nothing."""
        self.steps, self._busy, self.since = steps, busy, now
        self._differs_since = None

    def take(self, steps: int, busy: Duration, firing: Duration, now: Instant, deviation_first: float) -> bool:
        """Take in what a host says while it steps; whether it has made steps since it said so last."""
        if self._firing_since is None or firing <= self._firing:
            self._firing_since = now
        self._firing = firing
        if steps < self.steps or busy < self._busy:
            self.begin(steps, busy, now)
            return False
        if steps > self.steps:
            self._learn(steps - self.steps, busy - self._busy, float(now - self.since), deviation_first)
            self.steps, self._busy, self.since = steps, busy, now
            return True
        if not firing:
            self.since = now
        return False

    def stalled(self, firing: Duration, now: Instant) -> Duration:
        """For how long it has been in one firing without a step."""
        return Duration(min(now - self.since, firing))

    def lasting(self, now: Instant) -> Duration:
        """For how long the oldest firing has been seen to last, whatever the clock of its host says."""
        since = now if self._firing_since is None else self._firing_since
        return Duration(min(now - since, self._firing))

    def compare(self, others: Sequence[float], now: Instant) -> float | None:
        """The median pace of `others`, if what is to be thought of this one has changed by it: `is_slow` says what."""
        pace = self.pace
        if pace is None or not others:
            self._differs_since = None
            return None
        usual = median(others)
        differs = pace <= RECOVERED_RATIO * usual if self.is_slow else pace >= SLOW_RATIO * usual
        if not differs:
            self._differs_since = None
            return None
        if self._differs_since is None:
            self._differs_since = now
        if now - self._differs_since < SLOW_AFTER:
            return None
        self.is_slow, self._differs_since = not self.is_slow, None
        return usual

    def _learn(self, steps: int, busy: int, interval: float, deviation_first: float) -> None:
        if self.rhythm is None:  # With the first step it may have compiled something, which says nothing of its pace.
            self.rhythm = Rhythm(interval, max(interval, deviation_first) ** 2)
            return
        self.rhythm.learn(interval)
        self._samples += 1
        weight = max(PACE_WEIGHT, 1 / self._samples)
        self._busy_mean += weight * (busy - self._busy_mean)
        self._steps_mean += weight * (steps - self._steps_mean)
