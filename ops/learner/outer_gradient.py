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
from isthmus.ops.kernels.buffers import Float32, empty, is_lent

_PART_SIZE: Final = 1 << 15
"""Values squared at a time: 256 KiB of float64, which stay in the second-level cache."""


def subtract(anchor: Float32, values: Float32) -> Float32:
    """The outer gradient anchor - values, float32[n] in a new buffer."""
    return np.subtract(anchor, values, out=empty(anchor.size) if is_lent(anchor.size) else None)


def as_held(anchor: Float32, fragment: Fragment) -> Float32:
    """An anchor as a learner holds it, float32[n]: each unit rounded to the dtype of its leaf, as adoption rounds it.

    The same array where all leaves are float32.
    """
    lower = [u for u, unit in enumerate(fragment.units) if unit.dtype != "float32"]
    if not lower:
        return anchor
    held = np.array(anchor)
    for u in lower:
        part = slice(fragment.offsets[u], fragment.offsets[u + 1])
        held[part] = anchor[part].astype(_dtype(fragment.units[u].dtype))
    return held


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
