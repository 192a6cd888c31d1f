"""How loud one learner may be in a merge: what it says of itself is checked, and its length bounded against others'.

Decides which answers are out of all proportion, and how much of one counts that is merely long. A fault of one learner
(a diverged optimizer, a broken batch, a bit) is to cost its own work, and not the model of all: the length of an outer
gradient is compared with those of its peers in the round, and with what was merged of the fragment before. Up to BOUND
times the usual it counts as it is; beyond, it is shortened to that; beyond REFUSED times it is refused and told. Norms
that are not those of the values are refused: the merge rests on them.

Nothing is bounded as long as there is nothing to compare with. Lengths that are usual change by small factors from
round to round, and with the steps between two answers, so BOUND is far above what honest learners differ by.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from isthmus.ops.buffers import Float32

BOUND: Final = 10.0
REFUSED: Final = 1000.0
PAST: Final = 32
"""Lengths of merged answers of a fragment that are remembered: eight rounds of four learners."""
PAST_MIN: Final = 4
"""So many are needed before the past says anything where there are no peers."""
NORMS_TOLERANCE: Final = 0.1
"""Of the norms that a learner sends against those of the values that arrive, which may be coded."""


TINY: Final = 1e-30
"""A norm this small is lost in float32."""


def are_own(claimed: Float32, actual: NDArray[np.float64]) -> bool:
    """Whether the norms (float32[units]) that came with values are theirs."""
    off = np.abs(claimed.astype(np.float64) - actual)
    return bool((off <= NORMS_TOLERANCE * actual + TINY).all())


def length(norms: Float32) -> float:
    """The Euclidean length of a gradient whose units have these norms."""
    return math.sqrt(math.fsum(float(norm) ** 2 for norm in norms))


class Voices:
    """The lengths of what was merged of one fragment."""

    def __init__(self) -> None:
        self._past: deque[float] = deque(maxlen=PAST)

    def usual(self, lengths: Sequence[float], own: int) -> float | None:
        """What is usual beside the answer number `own` of those with these `lengths`: the larger of the medians of the
        others and of the past; None where there is too little to compare with."""
        others = [each for at, each in enumerate(lengths) if at != own and each > 0]
        known = [median(others)] if others else []
        if len(self._past) >= PAST_MIN:
            known.append(median(self._past))
        return max(known, default=None)

    def shares(self, lengths: Sequence[float]) -> list[float]:
        """Of each answer, by what it is to be multiplied: 1, less where it is too long, 0 where it is refused."""
        return [self._share(each, self.usual(lengths, at)) for at, each in enumerate(lengths)]

    def merged(self, lengths: Sequence[float]) -> None:
        """Remember the lengths of what was merged."""
        self._past.extend(each for each in lengths if each > 0)

    @staticmethod
    def _share(own: float, usual: float | None) -> float:
        if not usual or own <= BOUND * usual:
            return 1.0
        return 0.0 if own > REFUSED * usual else BOUND * usual / own
