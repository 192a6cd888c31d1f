"""Opposition: learners whose outer gradients point against those of all others, merge after merge.

Decides which learners are reported. A flipped sign leaves the length of a gradient
unchanged, so its length does not reveal it (`bounds`); but the others agree with each other, and it disagrees with all
of them. Of two learners either may be wrong, so neither is reported. Only answers on the newest version are compared:
one that comes late pulls back from where the others have gone meanwhile. Such a learner is refused only where the run
asks for that (`program.opposed`): one with data of its own kind may honestly pull the other way, and near the best
common model, one of them always does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from isthmus.ops.kernels.buffers import Float32

Life: TypeAlias = tuple[int, int]
"""(slot, incarnation)."""

LEARNERS_MIN: Final = 3
MERGES_MIN: Final = 8
"""In a row: a single one may be chance."""
COSINE_MIN: Final = 0.1
"""Least absolute cosine, to the mean of the others and among them: nearer to a right angle it means little."""
NOISE_DEVIATIONS: Final = 3.0
"""Cosines of unrelated directions in d dimensions deviate by 1 / sqrt(d): those of short fragments mean less."""
SAMPLE_SIZE: Final = 1 << 14
"""Values of each gradient that are read, evenly spaced: a merge reads the memory of all of them twice already."""


class DissentCounter:
    """The number of merges in a row in which each life has pulled against all others, over all fragments of a shard."""

    def __init__(self) -> None:
        self._merges: dict[Life, int] = {}

    def observe(self, gradients: Sequence[Float32], lives: Sequence[Life]) -> list[list[int]]:
        """Add the gradients of one merge, all on one version; [slot, merges in a row] of the reported learners."""
        if len(gradients) < LEARNERS_MIN or least_of(len(gradients[0])) >= 1.0:
            return []  # Two learners, or very short gradients, are no evidence either way: they end no row.
        for life, is_opposed in zip(lives, opposed(gradients), strict=True):
            self._merges[life] = self._merges.get(life, 0) + 1 if is_opposed else 0
        return [[life[0], self._merges[life]] for life in lives if self._merges[life] >= MERGES_MIN]

    def count(self, life: Life, cosine: float, size: int) -> int:
        """Add one gradient alone, whose `size` sampled values have this cosine with what it is compared with; the
        merges in a row in which its learner has pulled against that."""
        self._merges[life] = self._merges.get(life, 0) + 1 if cosine < -_least_of_sampled(size) else 0
        return self._merges[life]

    def opposes(self, life: Life) -> bool:
        """Whether a life has pulled against all others in MERGES_MIN merges in a row, and has not agreed since."""
        return self._merges.get(life, 0) >= MERGES_MIN


def opposed(gradients: Sequence[Float32]) -> list[bool]:
    """Whether each gradient (float32[n], finite) points against the mean of the others, which agree."""
    count = len(gradients)
    stride = stride_of(len(gradients[0]))
    sample: NDArray[np.float64] = np.array([gradient[::stride] for gradient in gradients], np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", sample, sample))
    if not lengths.all():
        return [False] * count
    sample /= lengths[:, None]
    total = sample.sum(axis=0)
    # Of each the sum of its cosines with all, itself among them; and of the others the square of their sum's length,
    # which of directions that cancel may be a rounding error below 0.
    with_all = np.einsum("ij,j->i", sample, total)
    squared = np.maximum(0.0, np.einsum("j,j->", total, total) - 2 * with_all + 1.0)
    others, least = count - 1, least_of(len(gradients[0]))
    pairs = (squared - others) / (others * (others - 1))
    against = np.divide(with_all - 1.0, np.sqrt(squared), out=np.zeros(count), where=squared > 0)
    return [bool(each) for each in (pairs > least) & (against < -least)]


def agreements(gradients: Sequence[Float32]) -> list[float]:
    """The cosine of each gradient (float32[n], finite) with the mean of the others' directions; none where there is one
    alone, or one is all zeros."""
    stride = stride_of(len(gradients[0])) if gradients else 1
    sample: NDArray[np.float64] = np.array([gradient[::stride] for gradient in gradients], np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", sample, sample)) if len(gradients) > 1 else np.zeros(1)
    if not lengths.all():
        return []
    sample /= lengths[:, None]
    others = sample.sum(axis=0) - sample
    of_others = np.sqrt(np.einsum("ij,ij->i", others, others))
    cosines = np.einsum("ij,ij->i", sample, others)
    return [float(min(1.0, max(-1.0, c / n))) if n > 0 else 0.0 for c, n in zip(cosines, of_others, strict=True)]


def cosine_of(one: Float32, other: Float32) -> float | None:
    """The cosine of two vectors float32[n], finite; None where one is all zeros."""
    a, b = one.astype(np.float64), other.astype(np.float64)
    lengths = math.sqrt(float(np.dot(a, a)) * float(np.dot(b, b)))
    return None if not lengths else float(min(1.0, max(-1.0, np.dot(a, b) / lengths)))


def least_of(size: int) -> float:
    """The least meaningful cosine of gradients with `size` values; from 1 on there is none."""
    return _least_of_sampled(len(range(0, size, stride_of(size))))


def _least_of_sampled(count: int) -> float:
    return max(COSINE_MIN, NOISE_DEVIATIONS / math.sqrt(count))


def stride_of(size: int) -> int:
    """The distance of the values that are read."""
    return -(-size // SAMPLE_SIZE)
