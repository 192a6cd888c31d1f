"""Figures of several seeds: means, spreads, paired differences with a 95 % interval, and verdicts about a margin.

Two variants are compared seed by seed: both see the same first parameters and the same batches, so the effect of the
seed on both cancels out. The interval is that of Student's t for the mean of the differences, which takes them for
normal and independent; with three seeds it is 4.3 standard errors wide to each side, and knows little about tails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Final, Literal

import msgspec

CONFIDENCE: Final = 0.95
Verdict = Literal["better", "worse", "as good", "no worse", "no better", "undecided"]


class Difference(msgspec.Struct, frozen=True):
    """One variant's figure minus that of another, over the `seeds` that both have: the mean, the standard `deviation`,
    and the ends of the 95 % interval of the mean, None with fewer than two pairs."""

    seeds: tuple[int, ...]
    mean: float
    deviation: float | None = None
    low: float | None = None
    high: float | None = None


def spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation (of a sample); None with too few values."""
    mean = fmean(values) if values else None
    return mean, stdev(values) if len(values) > 1 else None


def difference(values: Mapping[int, float], others: Mapping[int, float]) -> Difference | None:
    """`values` minus `others`, both seed -> figure; None without a common seed."""
    seeds = tuple(sorted(values.keys() & others.keys()))
    if not seeds:
        return None
    each = [values[seed] - others[seed] for seed in seeds]
    mean, deviation = spread(each)
    assert mean is not None, "there is a common seed"
    if deviation is None:
        return Difference(seeds, mean)
    half = quantile(len(each) - 1) * deviation / math.sqrt(len(each))
    return Difference(seeds, mean, deviation, mean - half, mean + half)


def quantile(freedom: int) -> float:
    """The factor of the interval: the 97.5 % quantile of Student's t with `freedom` degrees of freedom."""
    # Not above: it takes a tenth of a second, which help and mistyped options need not wait for.
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def verdict(found: Difference | None, margin: float | None) -> Verdict | None:
    """The verdict on a loss from its interval and a margin; None without either.

    Better and worse by more than the margin; as good: within it on both sides; no worse (no better): at least not worse
    (better) by more than it; undecided: the interval reaches beyond it on both sides.
    """
    if found is None or found.low is None or found.high is None or margin is None:
        return None
    if found.high < -margin:
        return "better"
    if found.low > margin:
        return "worse"
    if -margin <= found.low and found.high <= margin:
        return "as good"
    if found.high <= margin:
        return "no worse"
    return "no better" if found.low >= -margin else "undecided"
