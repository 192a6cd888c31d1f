"""Codes without a compiler have the bits of those that kernels make, so that hosts of a run may have either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.exchange.requested import Format
from isthmus.ops.kernels import coding, plain_codes
from isthmus.ops.kernels.coding import Coded, add, advance, encode, is_finite, largest
from tests.effort import examples
from tests.ops.kernels.test_averaging import fragment_of
from tests.ops.kernels.test_coding import vectors


@contextmanager
def no_compiler() -> Iterator[None]:
    with mock.patch.object(coding, "HAS_COMPILER", False), mock.patch.object(plain_codes, "BLOCKS_MAX", 3):
        yield


def bits(*values: object) -> list[bytes]:
    return [part.tobytes() for value in values for part in (value[:2] if isinstance(value, Coded) else (value,))]  # type: ignore[attr-defined]


@settings(max_examples=examples(1000))
@given(vectors(), vectors(), st.sampled_from(CODED))
def test_codes_and_sums_have_the_bits_of_the_kernels(
    case: tuple[np.ndarray, Fragment], other: tuple[np.ndarray, Fragment], form: Format
) -> None:
    target, fragment = case
    published = np.resize(other[0], target.shape)
    coded = encode(target, fragment, form)
    compiled = [coded, *advance(target, published, fragment, form), add(published, coded, fragment)]
    with no_compiler():
        plain = [encode(target, fragment, form), *advance(target, published, fragment, form)]
        plain.append(add(published, coded, fragment))
        assert (is_finite(coded), largest(target)) == (True, float(np.abs(target).max()))
    assert bits(*plain) == bits(*compiled)


@pytest.mark.parametrize("form", CODED)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_not_after_coding_either(form: Format, value: float) -> None:
    fragment = fragment_of(700, 300)
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    values[[300, 999]] = value
    compiled = encode(values, fragment, form)
    with no_compiler():
        plain = encode(values, fragment, form)
        assert not is_finite(plain)
        assert not np.isfinite(largest(values))
    assert bits(plain) == bits(compiled)


def test_any_codes_are_decoded_to_the_bits_of_the_kernels() -> None:
    fragment, rng = fragment_of(2048, 777, 1), np.random.default_rng(1)
    values = rng.standard_normal(fragment.size).astype(np.float32)
    for form in CODED:
        sample = encode(values, fragment, form)
        drawn = rng.integers(0, 256, sample.codes.nbytes, np.uint8).view(sample.codes.dtype)
        odd = sample._replace(codes=np.frombuffer(drawn.tobytes(), drawn.dtype))  # Read-only, as the wire gives it.
        if form == "bf16":
            odd = odd._replace(codes=(rng.integers(0, 0x7F80, fragment.size, np.uint16)).view(sample.codes.dtype))
        compiled = add(values, odd, fragment)
        with no_compiler():
            assert bits(add(values, odd, fragment)) == bits(compiled)
