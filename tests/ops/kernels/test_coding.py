"""Codes: against a NumPy reference, bit for bit; bounds of what is lost; bits that depend on the values alone."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.formats import CODED, FORMATS
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.requested import Format
from isthmus.ops.kernels import averaging, coding, sweeps
from isthmus.ops.kernels.coding import SCALE_MAX, Coded, add, advance, encode, is_finite, is_whole
from isthmus.ops.kernels.stripes import STRIPE_SIZE
from isthmus.ops.learner.fragment_send import norms
from tests.effort import examples
from tests.ops.kernels.test_averaging import fragment_of, naive, random_gradients


def blocks_of(values: np.ndarray, fragment: Fragment) -> list[np.ndarray]:
    units = np.split(values, fragment.offsets[1:-1])
    return [unit[at : at + 256] for unit in units for at in range(0, unit.size, 256)]


def reference(values: np.ndarray, fragment: Fragment, form: Format) -> tuple[np.ndarray, np.ndarray]:
    """(what the codes stand for, scales) as the module says it, in NumPy, one block after the other."""
    if form == "bf16":
        return values.astype(ml_dtypes.bfloat16).astype(np.float32), np.empty(0, np.float32)
    decoded, scales = [], []
    for block in blocks_of(values, fragment):
        magnitude = mean_of(np.abs(block)) if FORMATS[form].by_mean else np.abs(block).max()
        scale = np.float32(0.0 if magnitude < np.float32(1e-35) else magnitude / LEVELS[form])
        inverse = np.float32(1.0) / scale if scale else np.float32(0.0)
        decoded.append(level_of(block * inverse, form) * scale)
        scales.append(scale)
    return np.concatenate(decoded), np.array(scales, np.float32)


LEVELS = {"int8": np.float32(127), "int4": np.float32(7), "int2": np.float32(1), "int1": np.float32(0.5)}


def level_of(values: np.ndarray, form: Format) -> np.ndarray:
    """The level next to each value in units of its scale."""
    if form == "int2":
        return np.select([values < -1, values < 0, values < 1], [-1.5, -0.5, 0.5], 1.5).astype(np.float32)
    if form == "int1":
        return np.where(values < 0, np.float32(-0.5), np.float32(0.5))
    return np.rint(values)


def mean_of(magnitudes: np.ndarray) -> np.float32:
    """The mean, each place modulo 32 summed by itself."""
    total = np.float32(0.0)
    for lane in range(32):
        summed = np.float32(0.0)
        for value in magnitudes[lane::32]:
            summed += value
        total += summed
    return np.float32(total / np.float32(magnitudes.size))


def decode(coded: Coded, fragment: Fragment) -> np.ndarray:
    return add(np.zeros(fragment.size, np.float32), coded, fragment)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two vectors have the same bits, but for the sign of zeros."""
    return (one + np.float32(0.0)).tobytes() == (other + np.float32(0.0)).tobytes()


@st.composite
def vectors(draw: st.DrawFn) -> tuple[np.ndarray, Fragment]:
    fragment = fragment_of(*draw(st.lists(st.integers(1, 1200), min_size=1, max_size=4)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    values = rng.standard_normal(fragment.size) * np.exp(draw(st.floats(0, 5)) * rng.standard_normal(fragment.size))
    values *= rng.random(fragment.size) < draw(st.sampled_from([0.02, 1.0]))
    return (values * 10.0 ** draw(st.sampled_from([-44, -37, -20, 0, 20]))).astype(np.float32), fragment


@settings(max_examples=examples(300))
@given(vectors(), st.sampled_from(CODED))
def test_codes_are_those_of_the_reference(case: tuple[np.ndarray, Fragment], form: Format) -> None:
    values, fragment = case
    before = values.tobytes()
    coded = encode(values, fragment, form)
    expected, scales = reference(values, fragment, form)
    assert is_whole(coded, fragment)
    assert is_finite(coded)
    assert coded.scales.tobytes() == scales.tobytes()
    assert same(decode(coded, fragment), expected)
    assert values.tobytes() == before
    if form in ("int8", "int4"):
        # Half a step, and what rounding adds to that.
        steps = np.repeat(scales, [len(block) for block in blocks_of(values, fragment)]).astype(np.float64)
        assert (np.abs(values - expected.astype(np.float64)) <= 0.5001 * steps + 1e-35).all()


@settings(max_examples=examples(300))
@given(vectors(), vectors(), st.sampled_from(CODED))
def test_whoever_adds_the_codes_has_what_was_published_bit_for_bit(
    case: tuple[np.ndarray, Fragment], other: tuple[np.ndarray, Fragment], form: Format
) -> None:
    target, fragment = case
    published = np.resize(other[0], target.shape)
    coded, moved = advance(target, published, fragment, form)
    difference = target - published
    expected, scales = reference(difference, fragment, form)
    assert coded.scales.tobytes() == scales.tobytes()
    assert same(moved, published + expected)
    assert add(published, coded, fragment).tobytes() == moved.tobytes()


def test_ties_go_to_even() -> None:
    fragment = fragment_of(8)
    values = np.array([7, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -7], np.float32)
    assert decode(encode(values, fragment, "int4"), fragment).tolist() == [7, 0, 2, 2, 0, -2, -2, -7]
    assert np.sign(decode(encode(values, fragment, "int8"), fragment)).tolist() == [1, 1, 1, 1, -1, -1, -1, -1]


def test_sizes_are_those_that_the_description_says() -> None:
    fragment = fragment_of(1, 255, 256, 257, 3)
    sizes = {form: encode(np.ones(fragment.size, np.float32), fragment, form) for form in CODED}
    assert [(each.codes.nbytes, each.scales.nbytes) for each in sizes.values()] == [
        (2 * 772, 0),
        (772, 4 * 6),
        (1 + 128 + 128 + 129 + 2, 4 * 6),
        (1 + 64 + 64 + 65 + 1, 4 * 6),
        (1 + 32 + 32 + 33 + 1, 4 * 6),
    ]
    large = fragment_of(1 << 16)
    for form, ratio in (("int4", 7.757), ("int2", 15.06), ("int1", 28.44)):
        coded = encode(np.ones(1 << 16, np.float32), large, form)
        assert 4 * (1 << 16) / (coded.codes.nbytes + coded.scales.nbytes) == pytest.approx(ratio, rel=1e-3)
        assert 32 / FORMATS[form].bits == pytest.approx(ratio, rel=1e-3)


@pytest.mark.parametrize("form", CODED)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_not_after_coding(form: Format, value: float) -> None:
    fragment = fragment_of(100, 700)
    values = np.ones(800, np.float32)
    assert is_finite(encode(values, fragment, form))
    for place in (0, 99, 100, 799):
        broken = values.copy()
        broken[place] = value
        coded = encode(broken, fragment, form)
        assert not is_finite(coded)
        assert not np.isfinite(averaging.unit_norms(coded, fragment)).all()


@pytest.mark.parametrize("scale", [math.nan, math.inf, -1.0, 2 * SCALE_MAX])
def test_scales_that_no_sound_learner_sends_are_found(scale: float) -> None:
    fragment = fragment_of(300)
    coded = encode(np.ones(300, np.float32), fragment, "int4")
    assert not is_finite(coded._replace(scales=np.array([1.0, scale], np.float32)))


@pytest.mark.parametrize("form", CODED)
def test_any_codes_decode_to_finite_values(form: Format) -> None:
    fragment = fragment_of(300)
    scales = encode(np.ones(300, np.float32), fragment, form).scales
    for byte in range(0, 256, 1 if form != "bf16" else 257):
        raw = np.full(encode(np.ones(300, np.float32), fragment, form).codes.nbytes, byte, np.uint8)
        codes: Any = raw.view(encode(np.ones(300, np.float32), fragment, form).codes.dtype)
        assert np.isfinite(decode(Coded(codes, np.full_like(scales, SCALE_MAX), form), fragment)).all()


def test_codes_and_scales_of_other_sizes_are_not_whole() -> None:
    fragment = fragment_of(300)
    coded = encode(np.ones(300, np.float32), fragment, "int4")
    none = np.empty(0, np.float32)
    for other in ({"scales": none}, {"codes": coded.codes[1:]}, {"scales": coded.scales[1:]}, {"form": "int2"}):
        assert not is_whole(coded._replace(**other), fragment)
    assert is_whole(np.ones(300, np.float32), fragment)
    assert not is_whole(np.ones(299, np.float32), fragment)


# In the merge


def decoded_of(gradients: list[Any], fragment: Fragment) -> list[np.ndarray]:
    return [decode(each, fragment) if isinstance(each, Coded) else each for each in gradients]


@settings(max_examples=examples(100))
@given(vectors(), st.lists(st.sampled_from([*CODED, None]), min_size=2, max_size=10), st.integers(0, 99))
def test_a_merge_of_codes_is_that_of_what_they_stand_for(
    case: tuple[np.ndarray, Fragment], formats: list[Any], seed: int
) -> None:
    _, fragment = case
    whole = random_gradients(len(formats), fragment, seed)
    coded = [each if form is None else encode(each, fragment, form) for each, form in zip(whole, formats, strict=True)]
    lengths, weights = [norms(each, fragment) for each in whole], [1.0 + m % 3 for m in range(len(whole))]
    found = averaging.merge(coded, weights, lengths, fragment)
    expected = averaging.merge(decoded_of(coded, fragment), weights, lengths, fragment)
    assert found.direction.tobytes() == expected.direction.tobytes()
    assert found.scale.tobytes() == expected.scale.tobytes()


def test_codes_cost_direction_and_no_length() -> None:
    fragment = fragment_of(5000, 300)
    whole = random_gradients(3, fragment)
    coded = [encode(each, fragment, "int4") for each in whole]
    lengths = [norms(each, fragment) for each in whole]
    for count in (1, 3):
        found = averaging.merge(coded[:count], [1.0] * count, lengths[:count], fragment).gradient(fragment)
        expected, _ = naive(whole[:count], [1.0] * count, fragment, "rda")
        for begin, end in zip(fragment.offsets, fragment.offsets[1:], strict=False):
            one, other = found[begin:end].astype(np.float64), expected[begin:end]
            assert np.linalg.norm(one) == pytest.approx(np.linalg.norm(other), rel=1e-5)
            assert one @ other / np.linalg.norm(one) / np.linalg.norm(other) > 0.98


@pytest.mark.parametrize("form", CODED)
def test_the_bits_of_a_merge_depend_on_no_threads(form: Format) -> None:
    fragment = fragment_of(5 * STRIPE_SIZE + 77, 9, 5 * STRIPE_SIZE)
    whole = random_gradients(3, fragment)
    coded = [encode(each, fragment, form) for each in whole]
    lengths = [norms(each, fragment) for each in whole]
    first = averaging.merge(coded, [1, 2, 3], lengths, fragment, threads=1)
    for threads in (2, 3):
        again = averaging.merge(coded, [1, 2, 3], lengths, fragment, threads=threads)
        assert (again.direction.tobytes(), again.scale.tobytes()) == (first.direction.tobytes(), first.scale.tobytes())


@pytest.mark.parametrize("form", [*CODED, None])
@pytest.mark.parametrize("stride", [1, 3, 300])
def test_samples_are_of_the_values(form: Any, stride: int) -> None:
    fragment = fragment_of(700, 1, 300)
    whole = random_gradients(1, fragment)[0]
    values: Any = whole if form is None else encode(whole, fragment, form)
    expected = decoded_of([values], fragment)[0][::stride]
    assert coding.sampled(values, fragment, stride).tobytes() == expected.tobytes()


def test_norms_of_codes_are_those_of_the_values() -> None:
    fragment = fragment_of(700, 1, 300)
    whole = random_gradients(1, fragment)[0]
    for form in CODED:
        coded = encode(whole, fragment, form)
        expected = averaging.unit_norms(decode(coded, fragment), fragment)
        assert averaging.unit_norms(coded, fragment).tobytes() == expected.tobytes()


@pytest.mark.parametrize("share", [0.5, 0.3])
def test_a_share_of_codes_is_one_of_the_values(share: float) -> None:
    fragment = fragment_of(700)
    whole = random_gradients(1, fragment)[0]
    for form in CODED:
        coded = encode(whole, fragment, form)
        found = decode(coding.scaled(coded, share), fragment)
        np.testing.assert_allclose(found, np.float32(share) * decode(coded, fragment), rtol=1e-2, atol=1e-7)


def test_codes_on_any_address_are_decoded() -> None:
    fragment = fragment_of(300)
    coded = encode(random_gradients(1, fragment)[0], fragment, "bf16")
    raw = np.frombuffer(b"x" + coded.codes.tobytes(), np.uint8)
    odd = coded._replace(codes=raw[1:].view(ml_dtypes.bfloat16))
    assert decode(odd, fragment).tobytes() == decode(coded, fragment).tobytes()


def test_each_kernel_has_one_variant() -> None:
    assert [len(compiled.signatures) for compiled in (sweeps.sweep, sweeps.add_to, coding._encode)] == [1, 1, 1]
