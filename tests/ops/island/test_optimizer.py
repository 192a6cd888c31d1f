"""The schedule at its corners, AdamW and Muon against their equations in float64."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from isthmus.ops.island.optimizer import adamw, is_matrix, learning_rate, muon
from isthmus.ops.island.schedule import RateSchedule, ScheduleName


@pytest.mark.parametrize(
    ("progress", "share"),
    [
        (0.0, 0.0),
        (0.01, 0.2),
        (0.05, 1.0),
        (0.525, 0.05 + 0.95 / 2),
        (0.5, 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * 0.45 / 0.95))),
        (1.0, 0.05),
        (1.2, 0.05),
        (-0.1, 0.0),
    ],
)
def test_schedule(progress: float, share: float) -> None:
    rate = learning_rate(jnp.float32(progress), peak=0.006, schedule=RateSchedule(0.05))
    assert rate.dtype == jnp.float32
    assert float(rate) == pytest.approx(0.006 * share, rel=1e-5, abs=1e-9)


def test_schedule_without_warmup_begins_at_its_peak() -> None:
    assert float(learning_rate(0.0, peak=0.5, schedule=RateSchedule(0.0))) == 0.5
    assert float(learning_rate(1.0, peak=0.5, schedule=RateSchedule(0.0))) == pytest.approx(0.025)


def test_schedule_never_leaves_its_range_and_falls_after_the_warmup() -> None:
    rates = np.asarray(learning_rate(jnp.linspace(0.05, 1.0, 400), peak=1.0, schedule=RateSchedule(0.05)))
    assert np.all(np.diff(rates) <= 0)
    assert rates[0] == pytest.approx(1.0)
    assert rates.min() >= 0.05 - 1e-6


@pytest.mark.parametrize(
    ("progress", "share"),
    [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.5, 1.0), (0.9, 1.0), (0.95, 0.05 + 0.95 / 2), (1.0, 0.05), (1.2, 0.05)],
)
def test_a_constant_rate_falls_in_the_last_tenth(progress: float, share: float) -> None:
    schedule = RateSchedule(0.1, "constant")
    assert schedule.share(progress) == pytest.approx(share, rel=1e-9, abs=1e-12)
    assert float(learning_rate(progress, peak=0.006, schedule=schedule)) == pytest.approx(0.006 * share, rel=1e-5)


@pytest.mark.parametrize("name", ["cosine", "constant"])
@pytest.mark.parametrize("warmup", [0.0, 0.2, 0.97])
def test_a_schedule_is_the_same_traced_and_not(name: ScheduleName, warmup: float) -> None:
    schedule, places = RateSchedule(warmup, name), np.linspace(-0.1, 1.1, 61)
    traced = np.asarray(learning_rate(jnp.asarray(places, jnp.float32), peak=1.0, schedule=schedule))
    assert traced == pytest.approx([schedule.share(place) for place in places], abs=2e-5)


def test_only_matrices_decay() -> None:
    params = {"matrix": jnp.ones((2, 3)), "vector": jnp.ones(3), "cube": jnp.ones((1, 1, 1)), "scalar": jnp.ones(())}
    params |= {"layers": {"norm": jnp.ones((4, 3)), "w": jnp.ones((4, 3, 3))}}
    layers = {"norm": False, "w": True}
    assert is_matrix(params) == {"matrix": True, "vector": False, "cube": True, "scalar": False, "layers": layers}


@pytest.mark.slow
def test_three_steps_are_the_closed_form() -> None:
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(3, 2)), "b": rng.normal(size=2)}
    gradients = [{"w": rng.normal(size=(3, 2)) * size, "b": rng.normal(size=2) * size} for size in (4.0, 0.1, 1.0)]
    transformation = adamw(peak=0.01, schedule=RateSchedule(0.1), weight_decay=0.3, clip=1.0)

    found = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    state = transformation.init(found)
    m = {name: np.zeros_like(value) for name, value in params.items()}
    v = {name: np.zeros_like(value) for name, value in params.items()}
    for step, (gradient, progress) in enumerate(zip(gradients, (0.05, 0.2, 1.0), strict=True), start=1):
        grads = {name: jnp.asarray(value, jnp.float32) for name, value in gradient.items()}
        updates, state = transformation.update(grads, state, found, progress=jnp.float32(progress))
        found = optax.apply_updates(found, updates)

        scale = min(1.0, 1.0 / math.sqrt(sum(float((value**2).sum()) for value in gradient.values())))
        rate = float(learning_rate(progress, peak=0.01, schedule=RateSchedule(0.1)))
        for name, value in gradient.items():
            m[name] = 0.9 * m[name] + 0.1 * scale * value
            v[name] = 0.95 * v[name] + 0.05 * (scale * value) ** 2
            adam = (m[name] / (1 - 0.9**step)) / (np.sqrt(v[name] / (1 - 0.95**step)) + 1e-8)
            params[name] = params[name] - rate * (adam + (0.3 * params[name] if name == "w" else 0.0))
        for name, value in params.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6)


def orthogonal(x: np.ndarray) -> np.ndarray:
    """Five iterations of Newton and Schulz with Jordan's coefficients, in float64."""
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.T).T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


@pytest.mark.slow
def test_muon_is_the_closed_form_on_hidden_matrices_and_adamw_elsewhere() -> None:
    rng = np.random.default_rng(1)
    shapes = {"wide": (4, 6), "tall": (6, 4), "experts": (2, 4, 6), "head": (4, 5), "norm": (4,)}
    hidden = ("wide", "tall", "experts")
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    options = {"peak": 0.01, "schedule": RateSchedule(0.1), "weight_decay": 0.3, "clip": 1.0}
    transformation = muon(**options, is_hidden=lambda tree: {name: name in hidden for name in tree})
    beside = adamw(**options)

    found = {name: jnp.asarray(value, jnp.float32) for name, value in params.items()}
    state, others = transformation.init(found), beside.init(found)
    momenta = {name: np.zeros(shapes[name]) for name in hidden}
    for step, progress in enumerate((0.05, 0.2, 1.0), start=1):
        gradient = {name: rng.normal(size=shape) for name, shape in shapes.items()}
        grads = {name: jnp.asarray(value, jnp.float32) for name, value in gradient.items()}
        expected, others = beside.update(grads, others, found, progress=jnp.float32(progress))
        updates, state = transformation.update(grads, state, found, progress=jnp.float32(progress))
        scale = min(1.0, 1.0 / math.sqrt(sum(float((value**2).sum()) for value in gradient.values())))
        rate = float(learning_rate(progress, peak=0.01, schedule=RateSchedule(0.1)))
        for name in ("head", "norm"):
            np.testing.assert_array_equal(updates[name], expected[name])
        for name in hidden:
            now = scale * gradient[name]
            momenta[name] = 0.95 * momenta[name] + 0.05 * now
            ahead = 0.95 * momenta[name] / (1 - 0.95 ** (step + 1)) + 0.05 * now / (1 - 0.95**step)
            matrices = ahead.reshape(-1, *ahead.shape[-2:])
            turned = np.stack([orthogonal(matrix) for matrix in matrices]).reshape(ahead.shape)
            update = -rate * (0.2 * math.sqrt(6) * turned + 0.3 * np.asarray(found[name], np.float64))
            np.testing.assert_allclose(updates[name], update, rtol=1e-3, atol=1e-6)
        found = optax.apply_updates(found, updates)


def test_an_update_without_progress_is_refused() -> None:
    transformation = adamw(peak=0.01, schedule=RateSchedule(0.1), weight_decay=0.3, clip=1.0)
    params = {"w": jnp.ones((2, 2))}
    with pytest.raises(TypeError, match="progress"):
        transformation.update(params, transformation.init(params), params)
