"""Codes that PyTorch makes on a device, against those of the kernels: the same bits, and norms to seven digits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.island import torch_codes
from isthmus.ops.island.torch_codes import LeavingCodes
from isthmus.ops.island.torch_device import reach
from isthmus.ops.kernels import coding
from isthmus.ops.learner.fragment_send import norms, outer_gradient
from tests.effort import examples

pytestmark = pytest.mark.torch

SIZES = ((1,), (256,), (255, 3), (257,), (512, 1000, 2), (64 * 256,), (2, 300, 256, 129))
"""Of units."""


def fragment_of(sizes: tuple[int, ...], dtype: str = "float32") -> Fragment:
    return Fragment(0, tuple(Unit(f"u{i}", 0, size, (size,), dtype=dtype) for i, size in enumerate(sizes)))


def made(values: np.ndarray, anchor: np.ndarray, fragment: Fragment, push: str, dtype: Any = torch.float32) -> Any:
    """(codes, scales, norms, format) as they leave a device."""
    units = [torch.from_numpy(values[begin:end]).to(dtype) for begin, end in pairwise(fragment.offsets)]
    return LeavingCodes(fragment, push, units, torch.from_numpy(anchor), reach(torch.device("cpu"))).fetch()


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from(SIZES),
    st.sampled_from(CODED),
    st.integers(0, 2**32 - 1),
    st.floats(0, 5),
    st.sampled_from([-40, -36, -34, -20, 0, 20]),
    st.sampled_from([0.02, 1.0]),
    st.sampled_from([2, 1 << 16]),
)
def test_codes_and_scales_have_the_bits_of_the_kernels(
    sizes: tuple[int, ...], push: Any, seed: int, spread: float, exponent: int, share: float, chunk: int
) -> None:
    fragment, rng = fragment_of(sizes), np.random.default_rng(seed)

    def vector() -> np.ndarray:
        values = rng.standard_normal(fragment.size) * np.exp(spread * rng.standard_normal(fragment.size))
        return (values * 10.0**exponent * (rng.random(fragment.size) < share)).astype(np.float32)

    values, anchor = vector(), vector()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch_codes, "CHUNK_BLOCKS", chunk)
        codes, scales, lengths, form = made(values, anchor, fragment, push)
    expected = coding.encode(anchor - values, fragment, push)
    np.testing.assert_array_equal(codes.view(np.uint8), expected.codes.view(np.uint8))
    assert scales.tobytes() == expected.scales.tobytes()
    if exponent > -34:
        np.testing.assert_allclose(lengths, norms(anchor - values, fragment), rtol=1e-6)
    assert coding.is_whole(coding.Coded(codes, scales, form), fragment)


@pytest.mark.parametrize("push", CODED)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_says_so(push: Any, bad: float) -> None:
    fragment = fragment_of((512, 1000, 2))
    anchor = np.random.default_rng(0).standard_normal(fragment.size).astype(np.float32)
    anchor[700] = bad
    codes, scales, lengths, form = made(np.zeros(fragment.size, np.float32), anchor, fragment, push)
    expected = coding.encode(anchor, fragment, push)
    assert not coding.is_finite(coding.Coded(codes, scales, form))
    assert not np.isfinite(lengths[1])
    assert np.isfinite(lengths[[0, 2]]).all()
    if push != "bf16":
        np.testing.assert_array_equal(codes, expected.codes)
        np.testing.assert_array_equal(scales, expected.scales)


def test_what_adoption_rounds_away_of_a_leaf_of_lower_precision_is_not_coded() -> None:
    fragment = fragment_of((300,), "bfloat16")
    anchor = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    held = anchor.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert not outer_gradient(anchor, held, fragment).any()
    assert made(held, anchor, fragment, "int8", torch.bfloat16)[2].tolist() == [0.0]
    stepped = (held + np.float32(0.25)).astype(ml_dtypes.bfloat16).astype(np.float32)
    expected = coding.encode(outer_gradient(anchor, stepped, fragment), fragment, "int8")
    np.testing.assert_array_equal(made(stepped, anchor, fragment, "int8", torch.bfloat16)[0], expected.codes)
