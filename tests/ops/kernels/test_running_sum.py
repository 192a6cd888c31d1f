"""A merge of which no gradient is kept has what a merge of all has, whatever the order, and whichever do not come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.merge_rules import METHODS
from isthmus.ops.kernels import averaging, coding
from isthmus.ops.kernels.running_sum import RunningSum
from tests.ops.kernels.test_averaging import fragment_of, random_gradients

FRAGMENT = Fragment(0, (Unit("a", 0, 3000, (3000,)), Unit("b", 0, 700, (7, 100), merge="average")))
COUNT = 11
WEIGHTS = [(m % 4 + 1) / sum(each % 4 + 1 for each in range(COUNT)) for m in range(COUNT)]


def gradients(form: str = "float32", count: int = COUNT) -> tuple[list[Any], list[Any]]:
    whole = [(1 + m) * each for m, each in enumerate(random_gradients(count, FRAGMENT, 3))]
    norms = [averaging.unit_norms(each, FRAGMENT).astype(np.float32) for each in whole]
    return [coding.encode(each, FRAGMENT, form) for each in whole], norms


def summed(some: list[int], values: list[Any], norms: list[Any], method: str = "rda") -> Any:
    running = RunningSum(FRAGMENT, method, WEIGHTS, norms)
    for m in some:
        running.add(values[m], WEIGHTS[m], norms[m])
    merged = running.merged()
    assert merged is not None
    return merged.gradient(FRAGMENT)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["float32", "int4", "bf16"])
@pytest.mark.parametrize("some", [list(range(COUNT)), [7, 2, 10, 0]], ids=["all", "some"])
def test_it_agrees_with_a_merge_that_has_them_all(method: str, form: str, some: list[int]) -> None:
    values, norms = gradients(form)
    there = sorted(some)
    expected = averaging.merge(
        [values[m] for m in there], [WEIGHTS[m] for m in there], [norms[m] for m in there], FRAGMENT, method
    ).gradient(FRAGMENT)
    found = summed(some, values, norms, method)
    np.testing.assert_allclose(found, expected, atol=1e-6 * np.abs(expected).max())


def test_the_order_is_that_of_the_calls_and_the_same_order_has_the_same_bits() -> None:
    values, norms = gradients()
    order = [5, 1, 9, 0, 3]
    np.testing.assert_array_equal(summed(order, values, norms), summed(order, values, norms))


def test_a_gradient_of_less_length_keeps_its_direction() -> None:
    values, norms = gradients(count=2)
    running = RunningSum(FRAGMENT, "rda", [0.5, 0.5], norms)
    running.add(values[0], 0.5, norms[0], length=0.25)
    running.add(values[1], 0.5, norms[1])
    merged = running.merged()
    assert merged is not None
    quarter = [values[0] * np.float32(0.25), values[1]]
    expected = averaging.merge(quarter, [0.5, 0.5], [norms[0] * np.float32(0.25), norms[1]], FRAGMENT)
    np.testing.assert_allclose(merged.gradient(FRAGMENT), expected.gradient(FRAGMENT), rtol=1e-5, atol=1e-6)


def test_directions_that_cancel_are_averaged_and_not_blown_up() -> None:
    fragment = fragment_of(1000)
    one = random_gradients(1, fragment, 1)[0]
    noise = np.float32(1e-3) * random_gradients(1, fragment, 2)[0]
    pair = [one, -one + noise]
    norms = [averaging.unit_norms(each, fragment).astype(np.float32) for each in pair]
    running = RunningSum(fragment, "rda", [0.5, 0.5], norms)
    for each, norm in zip(pair, norms, strict=True):
        running.add(each, 0.5, norm)
    merged = running.merged()
    assert merged is not None
    # The mean of both, but for their lengths, which differ by a thousandth.
    found = merged.gradient(fragment)
    assert np.linalg.norm(found - noise / 2) < 2e-3 * np.linalg.norm(one)


def test_lengths_that_differ_beyond_float32_and_zeros_stay_finite() -> None:
    fragment = fragment_of(100)
    tiny, large, zero = np.full(100, 1e-30, np.float32), np.full(100, 1e30, np.float32), np.zeros(100, np.float32)
    norms = [averaging.unit_norms(each, fragment).astype(np.float32) for each in (tiny, large, zero)]
    running = RunningSum(fragment, "rda", [0.25, 0.5, 0.25], norms)
    for each, weight, norm in zip((tiny, large, zero), (0.25, 0.5, 0.25), norms, strict=True):
        running.add(each, weight, norm)
    merged = running.merged()
    assert merged is not None
    assert np.isfinite(merged.gradient(fragment)).all()
    assert merged.gradient(fragment)[0] == pytest.approx(0.5e30, rel=1e-3)


def test_nothing_was_added() -> None:
    _, norms = gradients()
    assert RunningSum(FRAGMENT, "rda", WEIGHTS, norms).merged() is None
