"""The outer gradient of a captured fragment, and the length of each of its units.

In NumPy, because a learner's process that loads no numba starts half a second sooner; the syncer's sums over learners
are in `averaging`. The sums are NumPy's pairwise ones, in float64, and not those of BLAS, which depend on the machine.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Final

import ml_dtypes
import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.kernels.buffers import Float32

_PART_SIZE: Final = 1 << 15
"""Values computed at a time: 256 KiB of float64, which stay in the second-level cache."""


def outer_gradient(anchor: Float32, values: Float32, fragment: Fragment) -> Float32:
    """The outer gradient, the anchor as a learner holds it - values: float32[n] in memory of its own.

    A learner holds an anchor with each unit rounded to the dtype of its leaf, as adoption rounds it: what that took
    away was not trained. The memory is not recycled, because between two answers nothing would use it.
    """
    gradient = np.subtract(anchor, values)
    for unit, (begin, end) in zip(fragment.units, pairwise(fragment.offsets), strict=True):
        if unit.dtype != "float32":
            for at in range(begin, end, _PART_SIZE):
                part = slice(at, min(at + _PART_SIZE, end))
                np.subtract(anchor[part].astype(_dtype(unit.dtype)), values[part], out=gradient[part], dtype=np.float32)
    return gradient


def _dtype(name: str) -> np.dtype[Any]:
    """The dtype of this name; ml_dtypes has those that NumPy lacks."""
    return np.dtype(getattr(ml_dtypes, name, name))


def norms(vector: Float32, fragment: Fragment) -> Float32:
    """The Euclidean length of each unit of a payload float32[n], as float32[units], summed in float64."""
    if vector.size <= _PART_SIZE:
        squares = vector.astype(np.float64)
        np.square(squares, out=squares)
        return np.sqrt(np.add.reduceat(squares, fragment.offsets[:-1])).astype(np.float32)
    lengths = [_length(vector[begin:end]) for begin, end in pairwise(fragment.offsets)]
    return np.array(lengths, np.float32)


def _length(values: Float32) -> float:
    parts = (values[at : at + _PART_SIZE].astype(np.float64) for at in range(0, values.size, _PART_SIZE))
    return math.sqrt(sum(float(np.square(part, out=part).sum()) for part in parts))
