"""The merge of outer gradients: weighted averages, and radial-directional averaging (RDA).

Decides the merged gradient of one fragment, given contributors and weights. Does not decide who contributes (the
quorum), what a weight is (`token_accounts`), or what is done with the result (`nesterov`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.merge_rules import DEFAULT, METHODS, Float64, MergeRule, Method, rule_of
from isthmus.ops.kernels import sweeps
from isthmus.ops.kernels.buffers import Float32, empty
from isthmus.ops.kernels.coding import Coded, Values, is_whole, kernel_inputs, largest, places
from isthmus.ops.kernels.stripes import Stripes, share, stripes
from isthmus.ops.kernels.summation import GROUP_SIZE, GroupSweep, SlotRange, largest_complete, sweeps_of

# Unrelated (orthogonal) directions add up to sqrt(sum w^2); below a fifth of that, gradients oppose each other and the
# rest is their noise. At four equal weights the bound is 0.1, and random directions in 100 dimensions fall below it at
# 8 standard deviations.
CANCELLED_SHARE = 0.2
_NOTHING = np.empty(0, np.float32)
_NO_STEPS = GroupSweep(0, 0, np.empty((0, 3), np.int64))


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged outer gradient, scale[unit] * direction: direction float32[n], scale float32[units]."""

    direction: Float32
    scale: Float32

    def gradient(self, fragment: Fragment) -> Float32:
        """The gradient itself, float32[n] in a new buffer."""
        result = empty(fragment.size)
        for unit, (begin, end) in enumerate(pairwise(fragment.offsets)):
            np.multiply(self.direction[begin:end], self.scale[unit], out=result[begin:end])
        return result


class Contribution(NamedTuple):
    """What a slot contributes: gradient, weight and norms as `merge` takes them."""

    gradient: Values
    weight: float
    norms: Float32

    def is_same(self, other: Contribution) -> bool:
        """Whether it is the same gradient, in the same memory, and counts the same."""
        one, another = self.gradient, other.gradient
        if isinstance(one, Coded) and isinstance(another, Coded):
            is_own = one.codes is another.codes and one.scales is another.scales and one.form == another.form
        else:
            is_own = one is another
        return is_own and self.weight == other.weight and np.array_equal(self.norms, other.norms)


class EarlySum:
    """What is summed of a merge of one fragment before it is known who contributes (`summation`).

    It promises nothing about them: `merge` goes on from the sum if just these contribute, and begins anew otherwise. It
    has one buffer of the fragment's size, which becomes the direction of the merge, and references the gradients.
    """

    def __init__(self, fragment: Fragment, method: Method = DEFAULT, threads: int | None = None) -> None:
        self._fragment, self._method, self._threads = fragment, method, threads
        self._there: dict[int, Contribution] = {}
        self._summed: SlotRange | None = None
        self._squares: Float64 | None = None
        """By stripe, of a sum of all that are there."""
        self._direction: Float32 | None = None

    def add(self, slot: int, contribution: Contribution) -> None:
        """Add what a slot contributes, in place of what it has contributed before, and sum what is complete.

        ValueError as in `merge`.
        """
        self._put(slot, contribution)
        complete, before = largest_complete(sorted(self._there)), self._summed
        if complete is None or complete == before:
            return
        is_more = before is not None and complete[0] <= before[0] and before[1] <= complete[1]
        if before is not None and not is_more and complete[1] - complete[0] <= before[1] - before[0]:
            return
        parts = {at: each for at, each in sorted(self._there.items()) if _is_in(at, complete)}
        self._sum(parts, before if is_more else None)
        self._summed = complete

    def close(self, contributions: Mapping[int, Contribution], last: Collection[int]) -> dict[int, Float64]:
        """Sum all contributions, by slot, and no others; the lengths of the units of those of the `last` slots.

        One sweep for both. ValueError as in `merge`; gradients that are not finite have such lengths.
        """
        for slot in [slot for slot in self._there if slot not in contributions]:
            self._drop(slot)
        for slot, each in contributions.items():
            if slot not in self._there or not each.is_same(self._there[slot]):
                self._put(slot, each)
        if not last or len(contributions) == 1:
            return {slot: unit_norms(contributions[slot].gradient, self._fragment) for slot in last}
        for slot in last:  # A sum that has it does not tell its length.
            self._drop(slot)
        self._there |= {slot: contributions[slot] for slot in last}
        groups = [slot // GROUP_SIZE for slot in self._there]
        is_lowest = self._summed is not None and self._summed[0] // GROUP_SIZE == min(groups)
        lengths = self._sum(dict(sorted(self._there.items())), self._summed if is_lowest else None, checked=last)
        self._summed = min(groups) * GROUP_SIZE, (max(groups) + 1) * GROUP_SIZE
        return lengths

    def take(
        self, contributions: Mapping[int, Contribution], fragment: Fragment, method: Method
    ) -> tuple[Float32, SlotRange | None, Float64 | None]:
        """The buffer, which is the caller's from now on; the range whose sum it has, None where that is no part of the
        sum of these; and the squares by stripe, if it is the whole."""
        direction, summed, squares = self._direction, self._summed, self._squares
        self._direction = self._summed = self._squares = None
        if direction is None or fragment is not self._fragment or method != self._method:
            return empty(fragment.size), None, None
        if summed is None or min(contributions) // GROUP_SIZE != summed[0] // GROUP_SIZE:
            return direction, None, None
        inside = {slot: each for slot, each in contributions.items() if _is_in(slot, summed)}
        own = {slot: each for slot, each in self._there.items() if _is_in(slot, summed)}
        if inside.keys() != own.keys() or not all(each.is_same(own[slot]) for slot, each in inside.items()):
            return direction, None, None
        return direction, summed, squares if len(inside) == len(contributions) else None

    def _put(self, slot: int, contribution: Contribution) -> None:
        _check([contribution.gradient], [contribution.weight], [contribution.norms], self._fragment, self._method)
        self._drop(slot)
        self._there[slot] = contribution
        self._squares = None

    def _drop(self, slot: int) -> None:
        self._there.pop(slot, None)
        if self._summed is not None and _is_in(slot, self._summed):
            self._summed = self._squares = None

    def _sum(
        self, parts: Mapping[int, Contribution], held: SlotRange | None, checked: Collection[int] = ()
    ) -> dict[int, Float64]:
        """Sum these, of which a range is `held`; the lengths of the units of those that are to be checked."""
        self._summed = self._squares = None  # Should the sum fail, there is none.
        if self._direction is None:
            self._direction = empty(self._fragment.size)
        coefficients = _coefficients(*_columns(parts.values()), _rules(self._fragment, self._method))
        cuts, count = stripes(self._fragment.offsets), len(self._fragment.units)
        where = self._fragment, cuts, self._direction, self._threads
        self._squares, own = _sum(parts, coefficients, *where, held=held, checked=checked)
        return {slot: np.sqrt(_per_unit(squares, cuts, count)) for slot, squares in own.items()}


def merge(
    gradients: Sequence[Values],
    weights: Sequence[float],
    norms: Sequence[Float32],
    fragment: Fragment,
    method: Method = DEFAULT,
    threads: int | None = None,
    *,
    slots: Sequence[int] | None = None,
    early: EarlySum | None = None,
) -> Merged:
    """The merged outer gradient of one fragment.

    Arguments:
        gradients: per contributor float32[n], finite, n = fragment.size; or the codes of one, decoded in the sweep.
        weights: per contributor, finite and >= 0, on any common scale; weight 0 does not contribute.
        norms: per contributor float32[units], the length of each unit of its gradient as the learner measured it. It
            stands for |g| regardless of the values, so that coded gradients keep their length.
        method: the rule of all units whose own follows the method.
        threads: the most to use, by default one for each core; the result has the same bits for any number.
        slots: per contributor, ascending, what the order of the sums follows from (`summation`); by default 0, 1, 2 ...
        early: what is summed already. The result has the same bits with it and without; it is used up.

    A single contributor's gradient is returned as it is, the same array with scale 1: |g| unit(g) is not g in floats.
    One that is coded has lost some of its length, which its norms restore. Raises ValueError where lengths disagree, no
    weight is positive, a weight or norm is negative or not finite, slots do not ascend; the gradient and norms of a
    weight 0 are not checked.

    With weights w normalised to 1, per unit (arXiv 2604.21428):

        average   sum_m w_m g_m                                        embedding-like units, and means of values
        RDA       (sum_m w_m |g_m|) * unit(sum_m w_m unit(g_m))        all others; unit(0) = 0

    RDA keeps the length for any number of learners; the average of M orthogonal gradients has 1/sqrt(M) of it. Where
    the directions nearly cancel, RDA would return noise at full length, and the average is taken instead.

    Learners send the norms, so both rules are one sweep direction = sum_m c_m g_m, with c_m = W_m or W_m / |g_m|, W the
    weights as they are given: no c depends on another contributor, which is what lets sums begin early. The sweep
    leaves sums of squares per stripe. What is missing, 1 / sum W or r / |direction| with r = sum_m w_m |g_m|, is then
    one number per unit, which the outer step applies in its own sweep: gradient = scale[unit] * direction. A unit for
    which such numbers leave float32 is summed with w_m or w_m r / |g_m| instead, and one whose directions cancel with
    w_m.

    Sums over learners are float32 in the order of `summation`, each product rounded; sums of squares are float64 over
    256 interleaved lanes per stripe. So the bits depend on neither arrivals, threads nor vector width.
    """
    _check(gradients, weights, norms, fragment, method)
    slots = range(len(gradients)) if slots is None else slots
    if len(slots) != len(gradients) or any(one >= other for one, other in pairwise(slots)):
        raise ValueError(
            f"merging fragment {fragment.index}: expected a slot for each, ascending, found {list(slots)}."
        )
    columns = zip(gradients, weights, norms, strict=True)
    parts = zip(slots, (Contribution(*each) for each in columns), strict=True)
    contributions = {slot: part for slot, part in parts if part.weight > 0}
    only = next(iter(contributions.values()))
    if len(contributions) == 1 and not isinstance(only.gradient, Coded):
        return Merged(only.gradient, np.ones(len(fragment.units), np.float32))
    given, norms_of = _columns(contributions.values())
    # Plain sums, in slot order: those of BLAS depend on the machine.
    total = math.fsum(given)
    w = given / total
    mean_length = sum((w[m] * norms_of[:, m] for m in range(len(w))), start=np.zeros(len(fragment.units)))
    rules, cuts = _rules(fragment, method), stripes(fragment.offsets)
    directed = np.array([rule.keeps_length for rule in rules])
    if early is None:
        direction, summed, squares = empty(fragment.size), None, None
    else:
        direction, summed, squares = early.take(contributions, fragment, method)

    def summed_length(coefficients: Float64, some: Stripes, held: SlotRange | None = None) -> Float64:
        """Sum the stripes of `some` units; the length of what results, of each unit, float64[units]."""
        squares, _ = _sum(contributions, coefficients, fragment, some, direction, threads, held=held)
        return np.sqrt(_per_unit(squares, some, len(fragment.units)))

    if squares is None:
        length = summed_length(_coefficients(given, norms_of, rules), cuts, summed)
    else:
        length = np.sqrt(_per_unit(squares, cuts, len(fragment.units)))
    scale = np.full(len(fragment.units), 1 / total)
    np.divide(mean_length, length, out=scale, where=directed & (length > 0))
    least = np.full(len(fragment.units), CANCELLED_SHARE * math.sqrt(math.fsum(given * given)))
    is_beyond = ~np.isfinite(length) | ((scale < np.finfo(np.float32).tiny) & (mean_length > 0))
    if is_beyond.any():
        # A length below 1e-38 of the mean makes c overflow: it is then treated as 0, whose unit vector is 0.
        normal = _coefficients(w, norms_of, rules) * np.where(directed, mean_length, 1.0)[:, None]
        normal[~(normal <= np.finfo(np.float32).max)] = 0.0
        length[is_beyond] = summed_length(normal, cuts.of(is_beyond))[is_beyond]
        scale[is_beyond] = 1.0
        np.divide(mean_length, length, out=scale, where=is_beyond & directed & (length > 0))
        least[is_beyond] = CANCELLED_SHARE * math.sqrt(math.fsum(w * w)) * mean_length[is_beyond]
    is_cancelled = directed & ((length < least) | (length == 0.0))
    if is_cancelled.any():
        summed_length(np.broadcast_to(w, norms_of.shape), cuts.of(is_cancelled))
        scale[is_cancelled] = 1.0
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
    """Compile every kernel here, or load it from the cache (0.25 s); otherwise the first call does it."""
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


def _rules(fragment: Fragment, method: Method) -> list[MergeRule]:
    """The rule of each unit."""
    return [rule_of(unit.merge, method) for unit in fragment.units]


def _is_in(slot: int, some: SlotRange) -> bool:
    return some[0] <= slot < some[1]


def _columns(contributions: Iterable[Contribution]) -> tuple[Float64, Float64]:
    """Their weights, float64[contributors], and the norms of their units, float64[units, contributors]."""
    weights, norms = zip(*[(each.weight, each.norms) for each in contributions], strict=True)
    return np.array(weights, np.float64), np.array(norms, np.float64).T


def _coefficients(weights: Float64, norms: Float64, rules: Sequence[MergeRule]) -> Float64:
    """The c of each unit and contributor, float64[units, contributors]."""
    result = np.broadcast_to(weights, norms.shape).copy()
    for rule in dict.fromkeys(rules):
        if rule.coefficients is not None:
            some = np.array([each is rule for each in rules])
            result[some] = rule.coefficients(weights, norms[some])
    return result


def _sum(
    contributions: Mapping[int, Contribution],
    coefficients: Float64,
    fragment: Fragment,
    cuts: Stripes,
    direction: Float32,
    threads: int | None,
    *,
    held: SlotRange | None = None,
    checked: Collection[int] = (),
) -> tuple[Float64, dict[int, Float64]]:
    """Write sum_m coefficients[unit, m] * gradient m to the stripes of `direction`, which has that of the `held` range.

    A coefficient that is no float32 counts as infinite. Returns the sums of squares per stripe, of the result, and by
    slot of the gradients that are to be checked, none of which is held.
    """
    with np.errstate(over="ignore"):
        rounded = coefficients.astype(np.float32)
    squares = np.empty(len(cuts))
    own: dict[int, Float64] = {}
    slots, parts = list(contributions), list(contributions.values())
    rest = [m for m, slot in enumerate(slots) if held is None or not _is_in(slot, held)]
    groups = sweeps_of([slots[m] for m in rest], held) or [_NO_STEPS]
    where = cuts.begins, cuts.ends, cuts.units, *places(fragment.offsets)
    for number, group in enumerate(groups, 1):
        chosen = rest[group.first : group.last]
        some = [kernel_inputs(parts[m].gradient) for m in chosen]
        raws, scales, forms = zip(*some, *[kernel_inputs(_NOTHING)] * (GROUP_SIZE - len(some)), strict=True)
        inputs = raws, scales, np.array(forms, np.int64), np.ascontiguousarray(rounded[:, chosen])
        own_of = np.array([at for at, m in enumerate(chosen) if slots[m] in checked], np.int64)
        own_squares = np.empty((GROUP_SIZE, len(cuts)) if own_of.size else (0, 0))
        outputs = direction, squares, own_of, own_squares
        share(partial(sweeps.sweep, *inputs, group.steps, number == len(groups), *where, *outputs), cuts, threads)
        own |= {slots[chosen[at]]: own_squares[at] for at in own_of}
    return squares, own


def _per_unit(squares: Float64, cuts: Stripes, count: int) -> Float64:
    """Sums of a figure per stripe, in stripe order: float64[units]."""
    result: Float64 = np.bincount(cuts.units, weights=squares, minlength=count).astype(np.float64, copy=False)
    return result
