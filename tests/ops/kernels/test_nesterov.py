"""The outer step: closed forms in float64, optax, and bits."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels import nesterov
from isthmus.ops.kernels.nesterov import descent, step_over
from tests.effort import examples


def fragment_of(*sizes: int) -> Fragment:
    return Fragment(0, tuple(Unit(f"t{u}", 0, n, (n,)) for u, n in enumerate(sizes)))


def random_vectors(count: int, size: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(size).astype(np.float32) for _ in range(count)]


def outer_step(
    theta: np.ndarray, momentum: np.ndarray, direction: np.ndarray, *terms: Any, threads: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The fragment and its momentum after a step, which is made in copies of direction and momentum."""
    stepped, moved = direction.copy(), momentum.copy()
    step_over(theta, moved, stepped, *terms, threads=threads)
    return stepped, moved


def run(
    theta: np.ndarray, gradients: list[np.ndarray], fragment: Fragment, lr: float, mu: float
) -> tuple[np.ndarray, np.ndarray]:
    momentum, ones = np.zeros_like(theta), np.ones(len(fragment.units), np.float32)
    for gradient in gradients:
        theta, momentum = outer_step(theta, momentum, gradient, ones, fragment, lr, mu)
    return theta, momentum


def test_a_constant_gradient_closed_form() -> None:
    # b_k = (1 - mu^k) / (1 - mu) g; theta_k = theta_0 - eta sum_k (g + mu b_k).
    lr, mu, steps, fragment = 0.4, 0.7, 12, fragment_of(3)
    g = np.array([1.0, -2.0, 0.5])
    theta, momentum = run(np.zeros(3, np.float32), [g.astype(np.float32)] * steps, fragment, lr, mu)
    b = [(1 - mu**k) / (1 - mu) for k in range(1, steps + 1)]
    np.testing.assert_allclose(momentum, b[-1] * g, rtol=1e-6)
    np.testing.assert_allclose(theta, -lr * (steps + mu * math.fsum(b)) * g, rtol=1e-6)


def test_without_momentum_it_is_a_plain_step() -> None:
    theta, gradient = random_vectors(2, 50)
    stepped, momentum = run(theta, [gradient], fragment_of(50), 1.0, 0.0)
    np.testing.assert_array_equal(stepped, theta - gradient)
    np.testing.assert_array_equal(momentum, gradient)


@given(st.integers(1, 200), st.floats(0.01, 1.0), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_a_descent_is_a_step_without_momentum_bit_for_bit(size: int, lr: float, seed: int) -> None:
    fragment = Fragment(0, (Unit("a", 0, size, (size,)), Unit("b", 0, 3, (3,), "mean")))
    theta, momentum, direction = random_vectors(3, fragment.size, seed)
    scale = np.array([1.5, 1.0], np.float32)
    expected, _ = outer_step(theta, momentum, direction, scale, fragment, lr, 0.0)
    assert descent(theta, direction, scale, fragment, lr).tobytes() == expected.tobytes()


def test_a_rate_of_one_without_momentum_lands_on_the_mean_of_the_learners() -> None:
    # The sign convention: gradient = anchor - theta_m, so that the step goes towards the learner.
    anchor, learner = random_vectors(2, 50)
    stepped, _ = run(anchor, [anchor - learner], fragment_of(50), 1.0, 0.0)
    np.testing.assert_allclose(stepped, learner, atol=1e-6)


def test_scale_is_applied_unit_by_unit() -> None:
    fragment = fragment_of(2, 3)
    theta, momentum, direction = random_vectors(3, 5)
    scale = np.array([2.0, 0.3], np.float32)
    parts = outer_step(theta, momentum, direction, scale, fragment, 0.4, 0.7)
    product = direction * np.repeat(scale, [2, 3])
    whole = outer_step(theta, momentum, product, np.ones(2, np.float32), fragment, 0.4, 0.7)
    for part, expected in zip(parts, whole, strict=True):
        assert part.tobytes() == expected.tobytes()


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(
    st.integers(1, 200),
    st.integers(1, 6),
    st.floats(0.01, 1.0),
    st.one_of(st.just(0.0), st.floats(0.01, 0.99)),
    st.integers(0, 1000),
)
def test_it_is_optax_bit_for_bit(size: int, steps: int, lr: float, mu: float, seed: int) -> None:
    theta, *gradients = random_vectors(steps + 1, size, seed)
    # Constants rounded once: a Python float is as exact as it is written until it meets a float32 array.
    optimizer = optax.sgd(lr, momentum=mu, nesterov=True)
    expected, state = jnp.asarray(theta), optimizer.init(jnp.asarray(theta))
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state)
        expected = optax.apply_updates(expected, updates)
    found, momentum = run(theta, gradients, fragment_of(size), lr, mu)
    assert found.tobytes() == np.asarray(expected).tobytes()
    assert momentum.tobytes() == np.asarray(state[0].trace).tobytes()


def test_it_follows_optax_in_float64() -> None:
    theta, *gradients = random_vectors(31, 300)
    with jax.enable_x64(True):
        optimizer = optax.sgd(0.4, momentum=0.7, nesterov=True)
        exact = jnp.asarray(theta, jnp.float64)
        state = optimizer.init(exact)
        for gradient in gradients:
            updates, state = optimizer.update(jnp.asarray(gradient, jnp.float64), state)
            exact = optax.apply_updates(exact, updates)
        expected = np.asarray(exact)
    assert expected.dtype == np.float64

    # The equations as they are written.
    written, b = theta.astype(np.float64), np.zeros(300)
    for gradient in gradients:
        b = 0.7 * b + gradient
        written = written - 0.4 * (gradient + 0.7 * b)
    np.testing.assert_allclose(written, expected, rtol=0, atol=1e-12)

    found, _ = run(theta, gradients, fragment_of(300), 0.4, 0.7)
    np.testing.assert_allclose(found, expected, rtol=0, atol=3e-5)


def test_threads_change_no_bit_and_inputs_stay() -> None:
    fragment = fragment_of(600_001, 3, 500_000)
    theta, momentum, direction = random_vectors(3, fragment.size)
    scale = np.array([1.5, 1.0, 0.5], np.float32)
    before = [each.tobytes() for each in (theta, momentum, direction, scale)]
    once, *others = (
        [each.tobytes() for each in outer_step(theta, momentum, direction, scale, fragment, 0.4, 0.7, threads=threads)]
        for threads in (1, 2, 4)
    )
    assert others == [once, once]
    assert len(nesterov._step.signatures) == 1
    plain = [descent(theta, direction, scale, fragment, 0.4, threads=threads) for threads in (1, 2, 4)]
    assert len({each.tobytes() for each in plain}) == 1
    # A step is made in copies of direction and momentum; theta and scale are only read.
    assert [each.tobytes() for each in (theta, momentum, direction, scale)] == before
    assert not any(np.shares_memory(plain[0], old) for old in (theta, momentum, direction))


@pytest.mark.parametrize("wrong", range(4))
def test_sizes_must_agree(wrong: int) -> None:
    sizes = [5, 5, 5, 2]
    sizes[wrong] += 1
    with pytest.raises(ValueError, match="outer step of fragment 0: expected"):
        outer_step(*(np.zeros(size, np.float32) for size in sizes), fragment_of(2, 3), 0.4, 0.7)


@given(st.floats(0.01, 1.0), st.floats(0.0, 0.99), st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_units_that_are_means_land_on_the_mean_whatever_the_settings(lr: float, mu: float, seed: int) -> None:
    fragment = Fragment(0, (Unit("a", 0, 5, (5,)), Unit("b", 0, 3, (3,), "mean"), Unit("c", 0, 4, (4,), "average")))
    theta, momentum, gradient = random_vectors(3, fragment.size, seed)
    ones = np.ones(3, np.float32)
    stepped, moved = outer_step(theta, momentum, gradient, ones, fragment, lr, mu)
    np.testing.assert_array_equal(stepped[5:8], theta[5:8] - gradient[5:8])
    np.testing.assert_array_equal(moved[5:8], gradient[5:8])
    plain = Fragment(0, (Unit("a", 0, 12, (12,)),))
    expected, _ = outer_step(theta, momentum, gradient, ones[:1], plain, lr, mu)
    assert stepped[:5].tobytes() + stepped[8:].tobytes() == expected[:5].tobytes() + expected[8:].tobytes()
