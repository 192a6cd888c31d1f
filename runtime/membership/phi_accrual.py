"""Suspicion of a silence, from the usual intervals: the phi-accrual failure detector.

It decides nothing: it turns a threshold into a deadline. After Hayashibara et al., The phi accrual failure detector
(SRDS 2004): with intervals taken as normal with mean m and deviation s, the suspicion after a silence t is

    phi(t) = -log10 P(interval > t) = -log10(erfc((t - m) / (s sqrt 2)) / 2),

so a threshold suspects a healthy member once in 10^phi intervals. phi grows with t, so it is not evaluated while time
passes: phi(t) = threshold is solved once, t = m + z s with z the normal quantile of 1 - 10^-threshold, and that is the
deadline. z is rounded and the rest is +, *, sqrt, all correctly rounded: every machine finds the same nanosecond. We
differ from the paper in that m and s^2 are exponential moving averages (no window to keep; T. Finch, Incremental
calculation of weighted mean and variance, 2009, section 9), and in the floor under s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

WEIGHT: Final = 1 / 16
"""Weight of a new interval in the averages, which then remember about 2 / WEIGHT - 1 = 31 intervals: eight seconds at
four a second, long enough for a deviation, short enough to follow a host that begins to compile."""
FLOOR_PER_MEAN: Final = 0.5
"""The least deviation, in means: a member whose intervals are regular is late after at least 1 + z / 2 of them."""


@dataclass(slots=True)
class Rhythm:
    """`mean` (ns) and `variance` (ns^2) of the intervals between recurring events."""

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
