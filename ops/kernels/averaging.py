"""The merge of outer gradients: weighted averages, and radial-directional averaging (RDA).

Decides the merged gradient of one fragment, given who contributes with which weight. Does not decide who contributes
(the quorum), what a weight is (`accounts`), or what is done with the result (`nesterov`).

Theory of operation. With weights w normalised to 1, per unit (arXiv 2604.21428):

    average   sum_m w_m g_m                                        embedding-like units, and means of values
    RDA       (sum_m w_m |g_m|) * unit(sum_m w_m unit(g_m))        all others; unit(0) = 0

RDA keeps the length however many learners there are; the average of M orthogonal gradients has 1/sqrt(M) of it. Where
the directions nearly cancel, RDA would return noise at full length, and the average is taken instead.

Learners send the norms, so both rules are one sweep direction = sum_m c_m g_m with c_m = w_m, or w_m r / |g_m| where
r = sum_m w_m |g_m|. The sweep leaves sums of squares per stripe; the length r / |direction| is then one number per
unit, which the outer step applies in its own sweep. The result is

    gradient = scale[unit] * direction

Sums over learners are float32 in the order given (slot order), each product rounded; sums of squares are float64 over
32 interleaved lanes per stripe. So the bits depend on neither threads nor vector width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels.buffers import Float32, empty
from isthmus.ops.kernels.stripes import Int64, Stripes, kernel, kernel_input, share, stripes

Float64: TypeAlias = NDArray[np.float64]
Method: TypeAlias = Literal["rda", "average"]

# Unrelated (orthogonal) directions add up to sqrt(sum w^2); a fifth of that says that gradients oppose each other and
# what is left is their noise. At four equal weights the bound is 0.1, and random directions in 100 dimensions fall
# below it at 8 standard deviations.
CANCELLED_SHARE = 0.2
# Gradients in one sweep: the kernel's tuple has this length. More take further sweeps over the result.
_SWEEP_COUNT = 8
# Values done at a time, 8 KiB: the sums of all learners are added while the block is in the first-level cache.
_BLOCK_SIZE = 2048
_LANES = 32
_EXPONENT_BITS = np.uint32(0x7F800000)
_MAGNITUDE_BITS = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged outer gradient, scale[unit] * direction: direction float32[n], scale float32[units]."""

    direction: Float32
    scale: Float32

    def gradient(self, fragment: Fragment) -> Float32:
        """The gradient itself, float32[n] in a new buffer."""
        result = empty(fragment.size)
        np.multiply(self.direction, np.repeat(self.scale, np.diff(fragment.offsets)), out=result)
        return result


def merge(
    gradients: Sequence[Float32],
    weights: Sequence[float],
    norms: Sequence[Float32],
    fragment: Fragment,
    method: Method = "rda",
    threads: int = 1,
) -> Merged:
    """The merged outer gradient of one fragment, contributors taken in the order given.

    Arguments:
        gradients: per contributor float32[n], finite, n = fragment.size.
        weights: per contributor, finite and >= 0, on any common scale; weight 0 does not contribute.
        norms: per contributor float32[units], the length of each unit of its gradient as the learner measured it. It
            stands for |g| whatever the values say, so that coded gradients keep their length.
        method: "rda", or "average" for all units.
        threads: at most so many; the result has the same bits for any number.

    A single contributor's gradient is returned as it is, the same array with scale 1: |g| unit(g) is not g in floats.
    Raises ValueError where lengths disagree, no weight is positive, a weight or norm is negative or not finite; the
    gradient and norms of a weight 0 are not looked at.
    """
    _check(gradients, weights, norms, fragment, method)
    voters = [m for m, weight in enumerate(weights) if weight > 0]
    if len(voters) == 1:
        return Merged(gradients[voters[0]], np.ones(len(fragment.units), np.float32))
    w = np.array([weights[m] for m in voters], np.float64)
    # Plain sums, in slot order: those of BLAS depend on the machine.
    w /= math.fsum(w)
    lengths = np.array([norms[m] for m in voters], np.float64).T
    mean_length = sum((w[m] * lengths[:, m] for m in range(len(w))), start=np.zeros(len(lengths)))
    directed = np.array([method == "rda" and unit.merge == "rda" for unit in fragment.units])
    chosen = [kernel_input(gradients[m]) for m in voters]
    cuts, direction = stripes(fragment.offsets), empty(fragment.size)

    coefficients = _coefficients(w, lengths, mean_length, directed)
    squares = _combine(chosen, coefficients, cuts, direction, threads)
    summed = np.sqrt(_per_unit(squares, cuts, len(fragment.units)))
    cancelled = directed & ((summed < CANCELLED_SHARE * math.sqrt(math.fsum(w * w)) * mean_length) | (summed == 0.0))
    if cancelled.any():
        averaged = _coefficients(w, lengths, mean_length, directed & ~cancelled)
        _combine(chosen, averaged, cuts.of(cancelled), direction, threads)
    scale = np.ones(len(fragment.units))
    np.divide(mean_length, summed, out=scale, where=directed & ~cancelled)
    return Merged(direction, scale.astype(np.float32))


def is_finite(vector: Float32) -> bool:
    """Whether float32[n] holds neither an infinity nor a NaN."""
    bits = kernel_input(vector).view(np.uint32)
    return bool(_bits_are_finite(bits))


def unit_norms(vector: Float32, fragment: Fragment) -> Float64:
    """The Euclidean length of each unit of float32[n], as float64[units]; not finite where a value is not."""
    cuts = stripes(fragment.offsets)
    squares = np.empty(len(cuts))
    _squares(kernel_input(vector), cuts.begins, cuts.ends, squares)
    lengths: Float64 = np.sqrt(_per_unit(squares, cuts, len(fragment.units)))
    return lengths


def warm() -> None:
    """Compile every kernel here (1.5 s), or load it from the cache (0.25 s); otherwise the first call does it."""
    fragment = Fragment(0, (Unit("a", 0, 2, (2,)),))
    ones = np.ones(2, np.float32)
    merge([ones, ones], [1, 1], [np.full(1, 2**0.5, np.float32)] * 2, fragment)
    is_finite(ones)
    unit_norms(ones, fragment)


def _check(
    gradients: Sequence[Float32],
    weights: Sequence[float],
    norms: Sequence[Float32],
    fragment: Fragment,
    method: Method,
) -> None:
    doing = f"merging fragment {fragment.index}"
    if method not in ("rda", "average"):
        raise ValueError(f"{doing}: expected method 'rda' or 'average', found {method!r}.")
    if not len(gradients) == len(weights) == len(norms):
        raise ValueError(
            f"{doing}: expected a weight and norms for each gradient, found {len(gradients)} gradients, "
            f"{len(weights)} weights and {len(norms)} norms."
        )
    if not all(math.isfinite(weight) and weight >= 0 for weight in weights):
        raise ValueError(f"{doing}: expected finite weights >= 0, found {list(weights)}.")
    if not any(weights):
        raise ValueError(f"{doing}: expected a weight above 0, found {list(weights)}. Close the round without a step.")
    for m, (gradient, weight, length) in enumerate(zip(gradients, weights, norms, strict=True)):
        if weight == 0:
            continue
        if gradient.shape != (fragment.size,) or length.shape != (len(fragment.units),):
            raise ValueError(
                f"{doing}: expected {fragment.size} values and {len(fragment.units)} norms of contributor {m}, "
                f"found shapes {gradient.shape} and {length.shape}."
            )
        if not (np.isfinite(length).all() and (length >= 0).all()):
            raise ValueError(f"{doing}: expected finite norms >= 0 of contributor {m}, found {length.tolist()}.")


def _coefficients(w: Float64, lengths: Float64, mean_length: Float64, directed: NDArray[np.bool_]) -> Float32:
    """The c of each unit and contributor, float32[units, contributors].

    A length below 1e-38 of the mean makes c overflow: it is then treated as 0, whose unit vector is 0.
    """
    result = np.broadcast_to(w, lengths.shape).copy()
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        radial = w * (mean_length[:, None] / lengths)
    radial[~(radial <= np.finfo(np.float32).max)] = 0.0
    result[directed] = radial[directed]
    return result.astype(np.float32)


def _combine(
    gradients: Sequence[Float32], coefficients: Float32, cuts: Stripes, direction: Float32, threads: int
) -> Float64:
    """Write sum_m coefficients[unit, m] * gradients[m] into the stripes of `direction`; returns its squares, summed
    per stripe.
    """
    squares = np.empty(len(cuts))
    for first in range(0, len(gradients), _SWEEP_COUNT):
        some = tuple(gradients[first : first + _SWEEP_COUNT])
        padded = some + some[:1] * (_SWEEP_COUNT - len(some))
        columns = np.ascontiguousarray(coefficients[:, first : first + len(some)])
        sweep = partial(_sweep, padded, columns, first == 0, cuts.begins, cuts.ends, cuts.units, direction, squares)
        share(sweep, cuts, threads)
    return squares


def _per_unit(squares: Float64, cuts: Stripes, count: int) -> Float64:
    """Sums of a figure per stripe, in stripe order: float64[units]."""
    result: Float64 = np.bincount(cuts.units, weights=squares, minlength=count).astype(np.float64, copy=False)
    return result


@kernel
def _sweep(
    gradients: tuple[Float32, ...],
    coefficients: Float32,
    is_first: bool,
    begins: Int64,
    ends: Int64,
    units: Int64,
    direction: Float32,
    squares: Float64,
    first: int,
    last: int,
) -> None:
    """Add coefficients[units[s], m] * gradients[m] to the values of stripes first..last-1; their sums of squares."""
    lanes = np.empty(_LANES, np.float64)
    count = coefficients.shape[1]
    for s in range(first, last):
        c = coefficients[units[s]]
        lanes[:] = 0.0
        for begin in range(begins[s], ends[s], _BLOCK_SIZE):
            end = min(begin + _BLOCK_SIZE, ends[s])
            # Slices taken before the loops: an index with an offset of unknown sign is not vectorised.
            total = direction[begin:end]
            if is_first:
                total[:] = 0.0
            m = 0
            while m + 4 <= count:
                _add_four(
                    total,
                    gradients[m][begin:end],
                    gradients[m + 1][begin:end],
                    gradients[m + 2][begin:end],
                    gradients[m + 3][begin:end],
                    c[m : m + 4],
                )
                m += 4
            while m < count:
                _add_one(total, gradients[m][begin:end], c[m])
                m += 1
            _add_squares(total, lanes)
        squares[s] = _sum_lanes(lanes)


@kernel
def _squares(vector: Float32, begins: Int64, ends: Int64, squares: Float64) -> None:
    """The sum of squares of each stripe."""
    lanes = np.empty(_LANES, np.float64)
    for s in range(len(begins)):
        lanes[:] = 0.0
        for begin in range(begins[s], ends[s], _BLOCK_SIZE):
            _add_squares(vector[begin : min(begin + _BLOCK_SIZE, ends[s])], lanes)
        squares[s] = _sum_lanes(lanes)


@kernel
def _add_four(total: Float32, g0: Float32, g1: Float32, g2: Float32, g3: Float32, c: Float32) -> None:
    c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
    for i in range(len(total)):
        total[i] = total[i] + c0 * g0[i] + c1 * g1[i] + c2 * g2[i] + c3 * g3[i]


@kernel
def _add_one(total: Float32, g: Float32, c: float) -> None:
    for i in range(len(total)):
        total[i] = total[i] + c * g[i]


@kernel
def _add_squares(values: Float32, lanes: Float64) -> None:
    """Add values[i]^2 to lane i mod 32: independent sums, which vectorise without reordering any of them."""
    whole = len(values) - len(values) % _LANES
    for begin in range(0, whole, _LANES):
        row = values[begin : begin + _LANES]
        for lane in range(_LANES):
            value = np.float64(row[lane])
            lanes[lane] += value * value
    for lane in range(len(values) - whole):
        value = np.float64(values[whole + lane])
        lanes[lane] += value * value


@kernel
def _sum_lanes(lanes: Float64) -> float:
    total = 0.0
    for lane in range(_LANES):
        total += lanes[lane]
    return total


@kernel
def _bits_are_finite(bits: NDArray[np.uint32]) -> bool:
    for begin in range(0, len(bits), _BLOCK_SIZE):
        largest = np.uint32(0)
        # The largest magnitude as an integer: an integer maximum vectorises, a float one does not.
        for word in bits[begin : begin + _BLOCK_SIZE]:
            largest = max(largest, word & _MAGNITUDE_BITS)
        if largest >= _EXPONENT_BITS:
            return False
    return True
