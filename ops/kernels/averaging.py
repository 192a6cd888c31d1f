"""The merge of outer gradients: weighted averages, and radial-directional averaging (RDA).

Decides the merged gradient of one fragment, given contributors and weights. Does not decide who contributes (the
quorum), what a weight is (`token_accounts`), or what is done with the result (`nesterov`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.merge_rules import AVERAGE, DEFAULT, METHODS, Float64, MergeRule, Method, rule_of
from isthmus.ops.kernels import sweeps
from isthmus.ops.kernels.buffers import Float32, empty
from isthmus.ops.kernels.coding import Coded, Values, is_whole, kernel_inputs, largest, places
from isthmus.ops.kernels.stripes import Stripes, share, stripes

# Unrelated (orthogonal) directions add up to sqrt(sum w^2); below a fifth of that, gradients oppose each other and the
# rest is their noise. At four equal weights the bound is 0.1, and random directions in 100 dimensions fall below it at
# 8 standard deviations.
CANCELLED_SHARE = 0.2
# Gradients in one sweep: the kernel's tuple has this length. More take further sweeps over the result.
_SWEEP_COUNT = 8


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
    gradients: Sequence[Values],
    weights: Sequence[float],
    norms: Sequence[Float32],
    fragment: Fragment,
    method: Method = DEFAULT,
    threads: int | None = None,
) -> Merged:
    """The merged outer gradient of one fragment, contributors taken in the order given.

    Arguments:
        gradients: per contributor float32[n], finite, n = fragment.size; or the codes of one, decoded in the sweep.
        weights: per contributor, finite and >= 0, on any common scale; weight 0 does not contribute.
        norms: per contributor float32[units], the length of each unit of its gradient as the learner measured it. It
            stands for |g| regardless of the values, so that coded gradients keep their length.
        method: the rule of all units whose own follows the method.
        threads: the most to use, by default one for each core; the result has the same bits for any number.

    A single contributor's gradient is returned as it is, the same array with scale 1: |g| unit(g) is not g in floats.
    One that is coded has lost some of its length, which its norms restore. Raises ValueError where lengths disagree, no
    weight is positive, a weight or norm is negative or not finite; the gradient and norms of a weight 0 are not
    checked.

    With weights w normalised to 1, per unit (arXiv 2604.21428):

        average   sum_m w_m g_m                                        embedding-like units, and means of values
        RDA       (sum_m w_m |g_m|) * unit(sum_m w_m unit(g_m))        all others; unit(0) = 0

    RDA keeps the length for any number of learners; the average of M orthogonal gradients has 1/sqrt(M) of it. Where
    the directions nearly cancel, RDA would return noise at full length, and the average is taken instead.

    Learners send the norms, so both rules are one sweep direction = sum_m c_m g_m with c_m = w_m, or w_m r / |g_m|
    where r = sum_m w_m |g_m|. The sweep leaves sums of squares per stripe; the length r / |direction| is then one
    number per unit, which the outer step applies in its own sweep: gradient = scale[unit] * direction.

    Sums over learners are float32 in the order given (slot order), each product rounded; sums of squares are float64
    over 32 interleaved lanes per stripe. So the bits depend on neither threads nor vector width.
    """
    _check(gradients, weights, norms, fragment, method)
    voters = [m for m, weight in enumerate(weights) if weight > 0]
    only = gradients[voters[0]]
    if len(voters) == 1 and not isinstance(only, Coded):
        return Merged(only, np.ones(len(fragment.units), np.float32))
    w = np.array([weights[m] for m in voters], np.float64)
    # Plain sums, in slot order: those of BLAS depend on the machine.
    w /= math.fsum(w)
    lengths = np.array([norms[m] for m in voters], np.float64).T
    mean_length = sum((w[m] * lengths[:, m] for m in range(len(w))), start=np.zeros(len(lengths)))
    rules = [rule_of(unit.merge, method) for unit in fragment.units]
    directed = np.array([rule.keeps_length for rule in rules])
    chosen = [gradients[m] for m in voters]
    cuts, direction = stripes(fragment.offsets), empty(fragment.size)

    coefficients = _coefficients(w, lengths, mean_length, rules)
    squares = _combine(chosen, coefficients, fragment, cuts, direction, threads)
    summed = np.sqrt(_per_unit(squares, cuts, len(fragment.units)))
    cancelled = directed & ((summed < CANCELLED_SHARE * math.sqrt(math.fsum(w * w)) * mean_length) | (summed == 0.0))
    if cancelled.any():
        rules = [AVERAGE if is_cancelled else rule for rule, is_cancelled in zip(rules, cancelled, strict=True)]
        coefficients = _coefficients(w, lengths, mean_length, rules)
        _combine(chosen, coefficients, fragment, cuts.of(cancelled), direction, threads)
    scale = np.ones(len(fragment.units))
    np.divide(mean_length, summed, out=scale, where=directed & ~cancelled)
    return Merged(direction, scale.astype(np.float32))


def unit_norms(vector: Values, fragment: Fragment) -> Float64:
    """The Euclidean length of each unit of float32[n], as float64[units]; not finite where a value is not."""
    cuts, inputs, where = stripes(fragment.offsets), kernel_inputs(vector), places(fragment.offsets)
    squares = np.empty(len(cuts))

    def sum_squares(first: int, last: int) -> None:
        some = slice(first, last)
        sweeps.squares_of(*inputs, cuts.begins[some], cuts.ends[some], cuts.units[some], *where, squares[some])

    share(sum_squares, cuts)
    lengths: Float64 = np.sqrt(_per_unit(squares, cuts, len(fragment.units)))
    return lengths


def warm() -> None:
    """Compile every kernel here (1.5 s), or load it from the cache (0.25 s); otherwise the first call does it."""
    fragment = Fragment(0, (Unit("a", 0, 2, (2,)),))
    ones = np.ones(2, np.float32)
    merge([ones, ones], [1, 1], [np.full(1, 2**0.5, np.float32)] * 2, fragment)
    unit_norms(ones, fragment)
    largest(ones)


def _check(
    gradients: Sequence[Values],
    weights: Sequence[float],
    norms: Sequence[Float32],
    fragment: Fragment,
    method: Method,
) -> None:
    doing = f"merging fragment {fragment.index}"
    if method not in METHODS:
        raise ValueError(f"{doing}: expected a method of {', '.join(map(repr, METHODS))}, found {method!r}.")
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
        if not is_whole(gradient, fragment) or length.shape != (len(fragment.units),):
            shapes = [part.shape for part in (gradient[:2] if isinstance(gradient, Coded) else [gradient])]
            raise ValueError(
                f"{doing}: expected {fragment.size} values and {len(fragment.units)} norms of contributor {m}, "
                f"found shapes {shapes} and {length.shape}."
            )
        if not (np.isfinite(length).all() and (length >= 0).all()):
            raise ValueError(f"{doing}: expected finite norms >= 0 of contributor {m}, found {length.tolist()}.")


def _coefficients(w: Float64, lengths: Float64, mean_length: Float64, rules: Sequence[MergeRule]) -> Float32:
    """The c of each unit and contributor, float32[units, contributors].

    A length below 1e-38 of the mean makes c overflow: it is then treated as 0, whose unit vector is 0.
    """
    result = np.broadcast_to(w, lengths.shape).copy()
    for rule in dict.fromkeys(rules):
        if rule.coefficients is None:
            continue
        some = np.array([each is rule for each in rules])
        own = rule.coefficients(w, lengths[some], mean_length[some])
        own[~(own <= np.finfo(np.float32).max)] = 0.0
        result[some] = own
    return result.astype(np.float32)


def _combine(
    gradients: Sequence[Values],
    coefficients: Float32,
    fragment: Fragment,
    cuts: Stripes,
    direction: Float32,
    threads: int | None,
) -> Float64:
    """Write sum_m coefficients[unit, m] * gradients[m] to the stripes of `direction`; returns squares per stripe."""
    squares = np.empty(len(cuts))
    for first in range(0, len(gradients), _SWEEP_COUNT):
        some = [kernel_inputs(gradient) for gradient in gradients[first : first + _SWEEP_COUNT]]
        raws, scales, forms = zip(*some, *some[:1] * (_SWEEP_COUNT - len(some)), strict=True)
        columns = np.ascontiguousarray(coefficients[:, first : first + len(some)])
        stripes_of = cuts.begins, cuts.ends, cuts.units, *places(fragment.offsets)
        formats = np.array(forms, np.int64)
        sweep = partial(sweeps.sweep, raws, scales, formats, columns, first == 0, *stripes_of, direction, squares)
        share(sweep, cuts, threads)
    return squares


def _per_unit(squares: Float64, cuts: Stripes, count: int) -> Float64:
    """Sums of a figure per stripe, in stripe order: float64[units]."""
    result: Float64 = np.bincount(cuts.units, weights=squares, minlength=count).astype(np.float64, copy=False)
    return result
