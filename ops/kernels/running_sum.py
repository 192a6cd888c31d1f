"""A merge of which no gradient is kept: each is added when it is there, and let go.

Decides the merged gradient of one fragment as `averaging` does, by the same rules, of gradients whose weights and norms
are known before their values are. The order of the sum is that of the calls. What a merge decides by all gradients once
more, the average of directions that nearly cancel, is not exact here: the values are gone, so each counts there as if
it had the mean length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final, final

import numpy as np

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.merge_rules import DEFAULT, Float64, Method, rule_of
from isthmus.ops.kernels import sweeps
from isthmus.ops.kernels.averaging import CANCELLED_SHARE, Merged, unit_norms
from isthmus.ops.kernels.buffers import Float32, empty
from isthmus.ops.kernels.coding import Values, kernel_inputs, places
from isthmus.ops.kernels.stripes import share, stripes
from isthmus.ops.kernels.summation import ADD, GROUP_SIZE, ONE

_FIRST: Final = np.array([(ONE, 0, 0)], np.int64)
_NEXT: Final = np.array([(ONE, 0, 1), (ADD, 1, 0)], np.int64)
_NONE_CHECKED: Final = np.empty(0, np.int64)
_NO_SQUARES: Final = np.empty((0, 0))


@final
class RunningSum:
    """The sum of one merge: one buffer of the fragment's size, which becomes the direction.

    Arguments:
        fragment: the one that is merged.
        method: the rule of all units whose own follows the method.
        weights: of all gradients that may come, finite and >= 0; their sum is 1.
        norms: float32[units] of each of them.
    """

    def __init__(self, fragment: Fragment, method: Method, weights: Sequence[float], norms: Sequence[Float32]) -> None:
        self._fragment = fragment
        rules = [rule_of(unit.merge, method) for unit in fragment.units]
        self._keeps_length = np.array([rule.keeps_length for rule in rules])
        # Near 1 for any lengths, so that neither coefficients nor sums leave float32.
        length = self._mean(weights, norms)
        self._usual: Float64 = np.where(length > 0, length, 1.0)
        self._direction: Float32 | None = None
        self.weight, self._squares = 0.0, 0.0
        self._length = np.zeros(len(fragment.units))

    def _mean(self, weights: Sequence[float], norms: Sequence[Float32]) -> Float64:
        start = np.zeros(len(self._fragment.units))
        return sum((own * each.astype(np.float64) for own, each in zip(weights, norms, strict=True)), start=start)

    def add(self, gradient: Values, weight: float, norms: Float32, length: float = 1.0) -> None:
        """Add a gradient, finite and whole, that has these norms; it counts with `length` of its own length."""
        own = norms.astype(np.float64)
        directed = np.divide(weight * self._usual, own, out=np.zeros_like(own), where=own > 0)
        coefficients = np.where(self._keeps_length, directed, weight * length)
        # A length below 1e-38 of the mean is treated as 0, whose unit vector is 0.
        coefficients[~(coefficients <= np.finfo(np.float32).max)] = 0.0
        self._add(gradient, coefficients.astype(np.float32)[:, None])
        self.weight += weight
        self._squares += weight * weight
        self._length += weight * length * own

    def _add(self, gradient: Values, coefficients: Float32) -> None:
        steps = _FIRST if self._direction is None else _NEXT
        direction = self._direction = empty(self._fragment.size) if self._direction is None else self._direction
        raw, scales, form = kernel_inputs(gradient)
        cuts = stripes(self._fragment.offsets)
        inputs = (raw,) * _ROOM, (scales,) * _ROOM, np.full(_ROOM, form, np.int64), np.ascontiguousarray(coefficients)
        where = cuts.begins, cuts.ends, cuts.units, *places(self._fragment.offsets)
        outputs = direction, np.empty(len(cuts)), _NONE_CHECKED, _NO_SQUARES
        share(partial(sweeps.sweep, *inputs, steps, False, *where, *outputs), cuts)

    def merged(self) -> Merged | None:
        """The merge of all that were added, in the buffer of the sum, which is the caller's from now on; None of no
        weight."""
        direction, self._direction = self._direction, None
        if direction is None or self.weight <= 0:
            return None
        mean, length = self._length / self.weight, unit_norms(direction, self._fragment)
        scale = np.full(len(self._fragment.units), 1 / self.weight)
        np.divide(mean, length, out=scale, where=self._keeps_length & (length > 0))
        least = CANCELLED_SHARE * math.sqrt(self._squares) * self._usual
        is_cancelled = self._keeps_length & ((length < least) | (length == 0.0))
        scale[is_cancelled] = (mean / (self._usual * self.weight))[is_cancelled]
        return Merged(direction, scale.astype(np.float32))


_ROOM: Final = GROUP_SIZE
"""The inputs that the kernel takes, of which one is used: with as many of the same types it is compiled once."""


def warm() -> None:
    """Compile the kernel for sums of one gradient, or load it from the cache."""
    from isthmus.ops.exchange.fragments import Unit

    fragment, ones = Fragment(0, (Unit("a", 0, 2, (2,)),)), np.ones(2, np.float32)
    running = RunningSum(fragment, DEFAULT, [1.0], [np.ones(1, np.float32)])
    running.add(ones, 1.0, np.ones(1, np.float32))
    running.merged()
