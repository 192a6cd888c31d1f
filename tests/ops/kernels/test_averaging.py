"""The merge: closed forms in float64, a naive reference, and bits that depend on the values alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.token_accounts import weight
from isthmus.ops.kernels import averaging, sweeps
from isthmus.ops.kernels.averaging import CANCELLED_SHARE, merge
from isthmus.ops.kernels.coding import is_finite
from isthmus.ops.kernels.stripes import STRIPE_SIZE
from isthmus.ops.learner.fragment_send import norms
from tests.effort import examples


def fragment_of(*sizes: int, averaged: Sequence[int] = ()) -> Fragment:
    return Fragment(
        0, tuple(Unit(f"t{u}", 0, n, (n,), "average" if u in averaged else "rda") for u, n in enumerate(sizes))
    )


def vector(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def random_gradients(count: int, fragment: Fragment, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(fragment.size).astype(np.float32) for _ in range(count)]


def merged_of(
    gradients: Sequence[np.ndarray], weights: Sequence[float], fragment: Fragment, method: averaging.Method = "rda"
) -> np.ndarray:
    found = merge(gradients, weights, [norms(each, fragment) for each in gradients], fragment, method)
    assert found.direction.dtype == found.scale.dtype == np.float32
    return found.gradient(fragment)


def naive(
    gradients: Sequence[np.ndarray], weights: Sequence[float], fragment: Fragment, method: str
) -> tuple[np.ndarray, list[bool]]:
    """The rules as they are written, in float64; and per unit whether it lies on the edge of the fall-back."""
    w = np.array(weights, np.float64) / math.fsum(weights)
    result, on_edge = np.zeros(fragment.size), []
    for u, unit in enumerate(fragment.units):
        part = slice(fragment.offsets[u], fragment.offsets[u + 1])
        g = [each[part].astype(np.float64) for each in gradients]
        lengths = [float(np.linalg.norm(each)) for each in g]
        average = sum(wm * each for wm, each in zip(w, g, strict=True))
        direction = sum(wm * each / n for wm, each, n in zip(w, g, lengths, strict=True) if n > 0)
        summed, bound = float(np.linalg.norm(direction)), CANCELLED_SHARE * math.sqrt(w @ w)
        is_average = method == "average" or unit.merge != "rda" or summed < bound
        result[part] = average if is_average else (w @ lengths) * direction / summed
        on_edge.append(method == "rda" and unit.merge == "rda" and abs(summed - bound) < 1e-4)
    return result, on_edge


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[np.ndarray], list[float], Fragment]:
    sizes = draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    fragment = fragment_of(*sizes, averaged=draw(st.sets(st.integers(0, len(sizes) - 1))))
    count = draw(st.integers(1, 16))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    common = rng.standard_normal(fragment.size)
    gradients = []
    for _ in range(count):
        share, sign = draw(st.sampled_from([0.0, 0.01, 1.0])), draw(st.sampled_from([-1.0, 0.0, 1.0]))
        scale = 10.0 ** draw(st.integers(-6, 6))
        gradients.append((scale * (sign * common + share * rng.standard_normal(fragment.size))).astype(np.float32))
    weights = draw(st.lists(st.floats(0, 1e6), min_size=count, max_size=count).filter(any))
    return gradients, weights, fragment


@pytest.mark.slow
@given(rounds(), st.sampled_from(["rda", "average"]))
def test_the_merge_agrees_with_a_naive_one(
    case: tuple[list[np.ndarray], list[float], Fragment], method: averaging.Method
) -> None:
    gradients, weights, fragment = case
    found = merged_of(gradients, weights, fragment, method)
    expected, on_edge = naive(gradients, weights, fragment, method)
    total = math.fsum(weights)
    for u, start in enumerate(fragment.offsets[:-1]):
        part = slice(start, fragment.offsets[u + 1])
        lengths = [float(np.linalg.norm(each[part].astype(np.float64))) for each in gradients]
        size = math.fsum(wm / total * n for wm, n in zip(weights, lengths, strict=True))
        if not on_edge[u]:
            # Rounding: a few units in the last place per learner, magnified by the scale, 5 sqrt(M) at the most.
            assert np.linalg.norm(found[part] - expected[part]) <= 1e-5 * size + 1e-44


# Closed forms


def test_orthogonal_gradients_of_equal_norm_keep_it() -> None:
    for count in (2, 4, 9, 16):
        fragment = fragment_of(count)
        gradients = list(3 * np.eye(count, dtype=np.float32))
        expected = np.full(count, 3 / math.sqrt(count))
        np.testing.assert_allclose(merged_of(gradients, [1] * count, fragment), expected, rtol=1e-6)
        averaged = merged_of(gradients, [1] * count, fragment, "average")
        np.testing.assert_allclose(averaged, np.full(count, 3 / count), rtol=1e-6)
        assert np.linalg.norm(averaged) == pytest.approx(3 / math.sqrt(count), rel=1e-6)


def test_rda_of_two_closed_form() -> None:
    # Weights 3/4 and 1/4, lengths 2 and 4, directions x and y: length 2.5 along (3, 1).
    found = merged_of([vector(2, 0), vector(0, 4)], [30, 10], fragment_of(2))
    np.testing.assert_allclose(found, 2.5 * np.array([3, 1]) / math.sqrt(10), rtol=1e-6)


def test_averaged_units_are_averaged_beside_others() -> None:
    found = merged_of([vector(2, 0, 2, 0), vector(0, 4, 0, 4)], [3, 1], fragment_of(2, 2, averaged=[1]))
    np.testing.assert_allclose(found, [*(2.5 * np.array([3, 1]) / math.sqrt(10)), 1.5, 1.0], rtol=1e-6)


@pytest.mark.parametrize("method", ["rda", "average"])
def test_zero_gradients_give_zero(method: averaging.Method) -> None:
    fragment = fragment_of(3, 2, averaged=[1])
    found = merge([np.zeros(5, np.float32)] * 3, [1, 2, 3], [np.zeros(2, np.float32)] * 3, fragment, method)
    assert found.gradient(fragment).tolist() == [0.0] * 5
    assert np.isfinite(found.scale).all()


def test_a_zero_gradient_shortens_and_does_not_turn() -> None:
    found = merged_of([vector(3, 4), vector(0, 0)], [1, 1], fragment_of(2))
    np.testing.assert_allclose(found, [1.5, 2.0], rtol=1e-6)


@pytest.mark.parametrize("weights", [[5.0], [0.0, 5.0], [0, 1e-9, 0]])
def test_a_single_contributor_is_returned_untouched(weights: list[float]) -> None:
    fragment = fragment_of(1000, 7, averaged=[1])
    gradients = random_gradients(len(weights), fragment)
    position = next(m for m, wm in enumerate(weights) if wm)
    found = merge(gradients, weights, [norms(each, fragment) for each in gradients], fragment)
    assert found.direction is gradients[position]
    assert found.gradient(fragment).tobytes() == gradients[position].tobytes()


def test_a_learner_without_tokens_changes_no_bit() -> None:
    fragment = fragment_of(500)
    gradients = random_gradients(3, fragment)
    alone = merged_of(gradients[:2], [weight(100, 10), weight(50, 10)], fragment)
    nothing = np.full(500, np.nan, np.float32)
    weights = [weight(100, 10), weight(0, 0), weight(50, 10)]
    with_idle = merge(
        [gradients[0], nothing, gradients[1]],
        weights,
        [norms(gradients[0], fragment), vector(np.nan), norms(gradients[1], fragment)],
        fragment,
    )
    assert with_idle.gradient(fragment).tobytes() == alone.tobytes()


def test_opposite_gradients_are_averaged() -> None:
    g = random_gradients(1, fragment_of(400))[0]
    np.testing.assert_array_equal(merged_of([g, -g], [1, 1], fragment_of(400)), np.zeros(400))
    np.testing.assert_allclose(merged_of([g, -3 * g], [1, 1], fragment_of(400)), -g, rtol=1e-6)


def test_nearly_opposite_gradients_are_averaged_and_not_blown_up() -> None:
    fragment = fragment_of(1000)
    a, b, noise, other = random_gradients(4, fragment)
    gradients = [a, b, -a + 0.05 * noise, -b + 0.05 * other]
    found = merged_of(gradients, [1] * 4, fragment)
    np.testing.assert_allclose(found, np.mean(np.array(gradients, np.float64), axis=0), atol=1e-6)
    assert np.linalg.norm(found) < 0.03 * np.linalg.norm(a)


@pytest.mark.parametrize(("share", "is_average"), [(0.19, True), (0.21, False)])
def test_the_fallback_begins_at_a_fifth_of_orthogonal(share: float, is_average: bool) -> None:
    # Two directions at an angle t: |(u + v) / 2| = cos(t / 2), orthogonal ones give sqrt(1/2).
    half = math.acos(share * math.sqrt(0.5))
    u, v = vector(math.cos(half), math.sin(half)), vector(math.cos(half), -math.sin(half))
    length = math.cos(half) if is_average else 1.0
    np.testing.assert_allclose(merged_of([u, v], [1, 1], fragment_of(2)), [length, 0], atol=1e-6, rtol=1e-5)


def test_the_fallback_of_one_unit_leaves_its_neighbours() -> None:
    a, b = vector(1, 0, 2, 0, 5, 0), vector(1, 0, -2, 0, 0, 5)
    found = merged_of([a, b], [1, 1], fragment_of(2, 2, 2))
    np.testing.assert_allclose(found, [1, 0, 0, 0, 5 / math.sqrt(2), 5 / math.sqrt(2)], rtol=1e-6)


def test_tensors_of_one_element() -> None:
    fragment = fragment_of(1, 1, 1, 1)
    gradients = [vector(2, 1, 1, 0), vector(4, -3, 1, 0), vector(6, 0, -4, 0)]
    # Same signs: mean length. Opposite: the average. Two against one: mean length, the majority's sign. Zero: zero.
    found = merged_of(gradients, [1, 1, 1], fragment)
    np.testing.assert_allclose(found, [4, -2 / 3, 2, 0], rtol=1e-6)


def test_the_norm_that_was_sent_counts() -> None:
    # Coded gradients came out half as long; the merged one is as long as the originals were.
    fragment = fragment_of(2)
    coded = [vector(1, 0), vector(0, 1)]
    found = merge(coded, [1, 1], [vector(2), vector(2)], fragment).gradient(fragment)
    np.testing.assert_allclose(found, [math.sqrt(2), math.sqrt(2)], rtol=1e-6)


@pytest.mark.parametrize("exponent", [-126, -100, 0, 100])
def test_the_merge_scales_with_its_inputs(exponent: int) -> None:
    fragment = fragment_of(50, 50, averaged=[1])
    gradients = [np.abs(each) + np.float32(1) for each in random_gradients(3, fragment)]
    scaled = [np.ldexp(each, exponent) for each in gradients]
    found = merged_of(scaled, [1, 2, 3], fragment).astype(np.float64)
    expected = np.ldexp(merged_of(gradients, [1, 2, 3], fragment).astype(np.float64), exponent)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_lengths_that_differ_beyond_float32_do_not_overflow() -> None:
    found = merged_of([vector(1e-42, 0), vector(0, 1e3)], [1, 1], fragment_of(2))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, [0, 500], atol=1e-30)


# Bits


def tree_sum(products: Sequence[np.ndarray | None]) -> np.ndarray | None:
    """The sum over eight slots as a binary tree."""
    if len(products) == 1:
        return products[0]
    one, other = tree_sum(products[: len(products) // 2]), tree_sum(products[len(products) // 2 :])
    return other if one is None else one if other is None else one + other


def test_direction_is_rounded_operation_by_operation() -> None:
    for slots in (
        [0, 1],
        [0, 1, 2],
        [1, 2],
        [0, 1, 2, 3],
        [0, 2, 3, 7],
        range(7),
        range(8),
        [3, *range(6, 15), 17, 23],
    ):
        fragment = fragment_of(STRIPE_SIZE + 2049, 3)
        gradients = random_gradients(len(slots), fragment, seed=len(slots))
        weights = [1 / (1 + m) for m in range(len(slots))]
        found = merge(gradients, weights, [np.ones(2, np.float32)] * len(slots), fragment, "average", slots=list(slots))
        products = {
            slot: np.float32(wm) * gradient for slot, wm, gradient in zip(slots, weights, gradients, strict=True)
        }
        groups = [tree_sum([products.get(slot) for slot in range(begin, begin + 8)]) for begin in range(0, 24, 8)]
        first, *others = [each for each in groups if each is not None]
        for each in others:
            first = first + each
        assert found.direction.tobytes() == first.tobytes()
        assert found.scale.tolist() == [np.float32(1 / math.fsum(weights))] * 2


@pytest.mark.parametrize("count", [5, 11])
def test_threads_change_no_bit(count: int) -> None:
    # Large enough for four threads; the second unit cancels and is swept twice.
    fragment = fragment_of(700_000, 300_001, 5, 99_000)
    gradients = random_gradients(count, fragment)
    for m, gradient in enumerate(gradients):
        gradient[700_000:1_000_001] = (-1) ** m * gradients[0][700_000:1_000_001]
    lengths = [norms(each, fragment) for each in gradients]
    weights = [1 + m % 2 / (count // 2) for m in range(count)]
    once = merge(gradients, weights, lengths, fragment, threads=1)
    assert once.scale[1] == 1.0
    for threads in (2, 4):
        again = merge(gradients, weights, lengths, fragment, threads=threads)
        assert again.direction.tobytes() == once.direction.tobytes()
        assert again.scale.tobytes() == once.scale.tobytes()


def test_a_unit_has_the_same_bits_wherever_it_lies() -> None:
    alone, among = fragment_of(70_001), fragment_of(13, 70_001, 4)
    gradients = random_gradients(3, among)
    parts = [gradient[13 : 13 + 70_001] for gradient in gradients]
    first = merge(parts, [1, 2, 3], [norms(each, alone) for each in parts], alone)
    second = merge(gradients, [1, 2, 3], [norms(each, among) for each in gradients], among)
    assert second.direction[13 : 13 + 70_001].tobytes() == first.direction.tobytes()
    assert second.scale[1] == first.scale[0]


def test_one_compiled_variant_takes_all_arrays_and_leaves_inputs_alone() -> None:
    fragment = fragment_of(40)
    gradients = random_gradients(2, fragment)
    frozen = gradients[0].copy()
    frozen.flags.writeable = False
    raw = np.frombuffer(b"x" + gradients[0].tobytes(), np.uint8)
    misaligned = raw[1:].view(np.float32)
    strided = np.repeat(gradients[0], 2)[::2]
    expected = merged_of(gradients, [1, 2], fragment).tobytes()
    before = [gradient.tobytes() for gradient in gradients]
    for variant in (frozen, misaligned, strided, gradients[0]):
        assert merged_of([variant, gradients[1]], [1, 2], fragment).tobytes() == expected
        assert is_finite(variant)
    assert [gradient.tobytes() for gradient in gradients] == before
    assert len(sweeps.sweep.signatures) == 1


# Finiteness


@settings(max_examples=examples(50))
@given(
    st.integers(1, 5000),
    st.integers(0, 10**9),
    st.sampled_from([math.nan, math.inf, -math.inf, -math.nan, 3.4028235e38, -3.4028235e38, 1e-45, -0.0]),
)
def test_one_value_that_is_not_finite_is_found(size: int, place: int, value: float) -> None:
    values = random_gradients(1, fragment_of(size), seed=size)[0]
    assert is_finite(values)
    values[place % size] = value
    assert is_finite(values) == math.isfinite(value)


def test_nothing_is_finite() -> None:
    assert is_finite(np.empty(0, np.float32))


# Errors


@pytest.mark.parametrize(
    ("gradients", "weights", "lengths", "method", "message"),
    [
        ([], [], [], "rda", r"expected a weight above 0, found \[\]"),
        ([vector(1, 2)], [0.0], [vector(1)], "rda", r"expected a weight above 0, found \[0.0\]"),
        ([vector(1, 2)], [1.0, 2.0], [vector(1)], "rda", "found 1 gradients, 2 weights and 1 norms"),
        ([vector(1, 2)], [-1.0], [vector(1)], "rda", "expected finite weights >= 0"),
        ([vector(1, 2)], [math.nan], [vector(1)], "rda", "expected finite weights >= 0"),
        ([vector(1, 2)], [math.inf], [vector(1)], "rda", "expected finite weights >= 0"),
        ([vector(1)], [1.0], [vector(1)], "rda", "expected 2 values and 1 norms of contributor 0"),
        ([vector(1, 2)], [1.0], [vector(1, 2)], "rda", "expected 2 values and 1 norms of contributor 0"),
        ([vector(1, 2)], [1.0], [vector(math.inf)], "rda", "expected finite norms >= 0 of contributor 0"),
        ([vector(1, 2)], [1.0], [vector(-1)], "rda", "expected finite norms >= 0 of contributor 0"),
        ([vector(1, 2)], [1.0], [vector(1)], "median", "expected a method of 'rda', 'average', found 'median'"),
    ],
)
def test_what_cannot_be_merged_is_refused(
    gradients: list[np.ndarray],
    weights: list[float],
    lengths: list[np.ndarray],
    method: averaging.Method,
    message: str,
) -> None:
    with pytest.raises(ValueError, match=message):
        merge(gradients, weights, lengths, fragment_of(2), method)
