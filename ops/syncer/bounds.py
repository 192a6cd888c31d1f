"""Bounds on one learner's influence on a merge: its claims are checked, and the length of its gradient is bounded.

Decides which answers are out of proportion, and by how much a merely long one is shortened. A fault of one learner (a
diverged optimizer, a broken batch, a bit) is to cost its own work, and not the model of all: the length of an outer
gradient is compared with those of its peers in the round, and with the lengths merged of the fragment before. Up to
BOUND times the usual length it counts as it is; beyond, it is shortened to that; beyond REFUSED times it is refused,
with a report. Norms that do not match the values are refused: the merge rests on them.

Nothing is bounded as long as there is nothing to compare with. Usual lengths change by small factors from round to
round, and with the steps between two answers, so BOUND is far above the differences between honest learners.

An answer that would take a value of the model beyond float32 is refused before it is booked, so that the accounts need
not take back an outer step that failed. `Extent` bounds every value from above, by the norms alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from isthmus.ops.kernels.buffers import Float32

BOUND: Final = 10.0
REFUSED: Final = 1000.0
PAST: Final = 32
"""The number of lengths of merged answers of a fragment that are remembered: eight rounds of four learners."""
PAST_MIN: Final = 4
"""The number of past lengths that is needed for a comparison where there are no peers."""
NORMS_TOLERANCE: Final = 0.1
"""The relative difference allowed between the norms that a learner sends and those of the values that arrive, which may
be coded."""
INT4_TOLERANCE: Final = 0.6
"""The same where codes have 4 bits. Of a block of 256 values of which one is 14 and the others nearly 1, all others are
coded as 0: it was 1.52 times as long; where they are a little above 1, it was 0.61 times as long."""


TINY: Final = 1e-30
"""A norm this small is lost in float32."""
NOT_FINITE: Final = "the outer step would not be finite"
VALUE_MAX: Final = float(np.finfo(np.float32).max) / 2
"""The limit for a value and for the intermediate results on the way to it: half of what float32 holds, for a million
roundings."""
KEPT_MAX: Final = 1e12
"""The limit for a value of the momentum with which a shard that comes back continues: a larger one is started anew, so
that a momentum from elsewhere takes no room that answers need."""
NORM_SLACK: Final = 3.0
"""The factor by which a merged value may exceed the largest claimed norm: more than INT4_TOLERANCE and roundings."""


def are_own(claimed: Float32, actual: NDArray[np.float64], is_int4: bool = False) -> bool:
    """Whether the norms (float32[units]) that came with values match them."""
    off = np.abs(claimed.astype(np.float64) - actual)
    return bool((off <= (INT4_TOLERANCE if is_int4 else NORMS_TOLERANCE) * actual + TINY).all())


def length(norms: Float32) -> float:
    """The Euclidean length of a gradient whose units have these norms."""
    return math.sqrt(math.fsum(float(norm) ** 2 for norm in norms))


class Voices:
    """The lengths of the merged answers of one fragment; `past` are those that a life before has merged."""

    def __init__(self, past: Sequence[float] = ()) -> None:
        self._past: deque[float] = deque(past, maxlen=PAST)

    @property
    def past(self) -> list[float]:
        """The lengths of the answers merged last, the oldest first."""
        return list(self._past)

    def usual(self, lengths: Sequence[float], own: int) -> float | None:
        """The usual length, for comparison with the answer number `own` of those with these `lengths`.

        It is the larger of the medians of the others and of the past; None where there is too little to compare with.
        """
        others = [each for at, each in enumerate(lengths) if at != own and each > 0]
        known = [median(others)] if others else []
        if len(self._past) >= PAST_MIN:
            known.append(median(self._past))
        return max(known, default=None)

    def shares(self, lengths: Sequence[float]) -> list[float]:
        """The factor for each answer: 1, less where it is too long, 0 where it is refused."""
        return [self._share(each, self.usual(lengths, at)) for at, each in enumerate(lengths)]

    def merged(self, lengths: Sequence[float]) -> None:
        """Store the lengths of merged answers."""
        self._past.extend(each for each in lengths if each > 0)

    @staticmethod
    def _share(own: float, usual: float | None) -> float:
        if not usual or own <= BOUND * usual:
            return 1.0
        return 0.0 if own > REFUSED * usual else BOUND * usual / own


class Extent:
    """An upper bound of the values of a fragment and of its momentum, after all outer steps so far.

    The merged gradient is no larger than the largest norm of a unit in it, by either rule, so |b'| <= mu |b| + G and
    |Theta'| <= |Theta| + eta (G + mu |b'|): see `kernels.nesterov`.
    """

    def __init__(self, largest: float, lr: float, momentum: float, *, velocity: float = 0.0) -> None:
        """Start at values of at most `largest`, with a momentum of at most `velocity`."""
        self._theta, self._velocity = largest, velocity
        self._lr, self._momentum = lr, momentum

    def holds(self, norms: Float32) -> bool:
        """Whether an outer step stays in float32, if no answer in it exceeds these norms (float32[units])."""
        return self._after(norms) is not None

    def stepped(self, loudest: Sequence[Float32]) -> None:
        """Record the outer step of answers with these norms, for each of which `holds` is true."""
        after = [found for found in map(self._after, loudest) if found is not None]
        assert len(after) == len(loudest) > 0
        self._theta, self._velocity = max(after)

    def _after(self, norms: Float32) -> tuple[float, float] | None:
        gradient = NORM_SLACK * float(norms.max(initial=0.0))
        velocity = self._momentum * self._velocity + gradient
        ahead = gradient + self._momentum * velocity
        theta = self._theta + self._lr * ahead
        return (theta, velocity) if max(velocity, ahead, theta) <= VALUE_MAX else None
