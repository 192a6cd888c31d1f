"""Two measures of a host: the suspicion of its silence, and the progress of its steps, beside that of the others of its
role. The membership core decides.

All times are nanoseconds. Every operation is correctly rounded (+, *, sqrt), so that every machine finds the same
deadline.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Final

from isthmus.runtime.clock import Duration, Instant, seconds

WEIGHT: Final = 1 / 16
"""Weight of a new interval in the averages, which then remember about 2 / WEIGHT - 1 = 31 intervals: eight seconds at
four a second, long enough for a deviation, short enough to follow a host that begins to compile."""
FLOOR_PER_MEAN: Final = 0.5
"""The least deviation, in means: a member whose intervals are regular is late after at least 1 + z / 2 of them."""


@dataclass(slots=True)
class Rhythm:
    """`mean` (ns) and `variance` (ns^2) of the intervals between recurring events.

    After Hayashibara et al., The phi accrual failure detector (SRDS 2004): with intervals taken as normal with mean m
    and deviation s, the suspicion after a silence t is phi(t) = -log10(erfc((t - m) / (s sqrt 2)) / 2), so a threshold
    suspects a healthy member once in 10^phi intervals. phi grows with t, so phi(t) = threshold is solved once: t = m +
    z s is the deadline. We differ from the paper in that m and s^2 are exponential moving averages (no window to keep;
    T. Finch, Incremental calculation of weighted mean and variance, 2009, section 9), and in the floor under s.
    """

    mean: float
    variance: float

    def learn(self, interval: float) -> None:
        """Add an interval to the averages."""
        change = interval - self.mean
        self.mean += WEIGHT * change
        self.variance = (1 - WEIGHT) * (self.variance + WEIGHT * change * change)

    def deviation(self, least: float) -> float:
        """The deviation, with its floor."""
        return max(math.sqrt(self.variance), least, FLOOR_PER_MEAN * self.mean)

    def patience(self, z: float, least: float) -> float:
        """The silence after which suspicion reaches the threshold whose quantile is `z`."""
        return self.mean + z * self.deviation(least)


def quantile(threshold: float) -> float:
    """The z with phi(m + z s) = threshold, by bisection, to 6 decimals so that no library's last digit reaches a
    deadline; for thresholds of 0.5 to 300."""
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if phi(middle, 0.0, 1.0) < threshold else (low, middle)
    return round(low, 6)


def phi(silence: float, mean: float, deviation: float) -> float:
    """The suspicion after `silence`; all three in one unit, deviation > 0."""
    x = (silence - mean) / (deviation * math.sqrt(2))
    if x < 20:
        return 0.0 - math.log10(math.erfc(x) / 2)
    # erfc(x) is exp(-x^2) / (x sqrt pi) within 1 / (2 x^2) = 0.2 %, and would soon be too small for a float.
    return x * x / math.log(10) + math.log10(2 * x * math.sqrt(math.pi))


PACE_WEIGHT: Final = 1 / 8
"""Weight of a new sample: the average remembers about four seconds of quick steps."""
SAMPLES_MIN: Final = 4
"""Heartbeats with progress before a pace means anything."""
SLOW_RATIO: Final = 3.0
"""A learner is slow if a step takes it so many times as long as the median of the others: the shipped learners on a
machine with more of them than cores differ by up to 1.6."""
RECOVERED_RATIO: Final = 2.0
"""Below this ratio it keeps up again."""
SLOW_AFTER: Final = seconds(5)
"""The time for which the ratio has to hold: one pause of ten seconds leaves the average within two."""


@dataclass(slots=True)
class StepProgress:
    """The progress of one incarnation. `since` is when it made its last step, or could have begun to make one.

    Only time in which the host computes counts, so a host that waits for others is neither stuck nor slow. It is
    *stalled* by how long one firing has lasted without a step; intervals between steps define what is usual, and begin
    anew whenever nothing was firing. Its *pace* is the time in which anything was firing, per step, as a ratio of two
    moving averages, so that it is the same whether a heartbeat brings a hundred steps or every tenth brings one; it is
    compared with the median of the others. Heartbeats while its silence is excused, or in a phase other than stepping,
    are not measured.
    """

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
        """Nanoseconds of its own time per step; None with too few samples."""
        return self._busy_mean / self._steps_mean if self._samples >= SAMPLES_MIN else None

    def begin(self, steps: int, busy: Duration, now: Instant) -> None:
        """Restart the measurement at this heartbeat."""
        self.steps, self._busy, self.since = steps, busy, now
        self._differs_since = None

    def record(self, steps: int, busy: Duration, firing: Duration, now: Instant, deviation_first: float) -> bool:
        """Add a heartbeat of a stepping host; returns whether it has made steps since the one before."""
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
        """The time for which it has been in one firing without a step."""
        return Duration(min(now - self.since, firing))

    def last_stalled(self, now: Instant) -> Duration:
        """The same, of the firing of the last heartbeat."""
        return self.stalled(Duration(self._firing), now)

    def lasting(self, now: Instant) -> Duration:
        """The observed duration of the oldest firing, by this clock, not that of its host."""
        since = now if self._firing_since is None else self._firing_since
        return Duration(min(now - since, self._firing))

    def compare(self, usual: float | None, now: Instant) -> bool:
        """Compare with the `usual` pace, the median of the others', if any; returns whether that changed `is_slow`."""
        pace = self.pace
        if pace is None or usual is None:
            self._differs_since = None
            return False
        differs = pace <= RECOVERED_RATIO * usual if self.is_slow else pace >= SLOW_RATIO * usual
        if not differs:
            self._differs_since = None
            return False
        if self._differs_since is None:
            self._differs_since = now
        if now - self._differs_since < SLOW_AFTER:
            return False
        self.is_slow, self._differs_since = not self.is_slow, None
        return True

    def _learn(self, steps: int, busy: int, interval: float, deviation_first: float) -> None:
        if self.rhythm is None:  # The first step may include a compilation, which is not part of its pace.
            self.rhythm = Rhythm(interval, max(interval, deviation_first) ** 2)
            return
        self.rhythm.learn(interval)
        self._samples += 1
        weight = max(PACE_WEIGHT, 1 / self._samples)
        self._busy_mean += weight * (busy - self._busy_mean)
        self._steps_mean += weight * (steps - self._steps_mean)


class Paces:
    """The paces of a role's members, in order: a median of hundreds that does not look at each of them."""

    __slots__ = ("_of", "_sorted")

    def __init__(self) -> None:
        self._of: dict[int, float] = {}
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def put(self, slot: int, pace: float | None) -> None:
        """Note the pace of a slot; None: it has none."""
        before = self._of.pop(slot, None)
        if before is not None:
            del self._sorted[bisect_left(self._sorted, before)]
        if pace is not None:
            self._of[slot] = pace
            insort(self._sorted, pace)

    def of(self, slot: int) -> float | None:
        """The pace of a slot, if it has one."""
        return self._of.get(slot)

    def median_without(self, slot: int) -> float | None:
        """The median of all but this slot; None if there is no other."""
        own = self._of.get(slot)
        own_at = len(self._sorted) if own is None else bisect_left(self._sorted, own)
        others = len(self._sorted) - (own is not None)
        if not others:
            return None

        def other(index: int) -> float:
            return self._sorted[index + (index >= own_at)]

        return (other((others - 1) // 2) + other(others // 2)) / 2
