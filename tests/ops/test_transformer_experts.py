"""Experts against the same written out token by token in float64, and against what must hold for any router."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isthmus.ops import transformer
from isthmus.ops.model_config import ModelConfig, Routing

GROUPS, LENGTH, WIDTH, HIDDEN = 2, 12, 6, 10
feedforward = jax.jit(transformer.feedforward, static_argnums=0)
route = jax.jit(transformer.route, static_argnums=0)


def made(count: int, seed: int = 0) -> tuple[dict[str, Any], Any]:
    rng = np.random.default_rng(seed)
    shapes = {
        "router": (WIDTH, count),
        "gate": (count, WIDTH, HIDDEN),
        "up": (count, WIDTH, HIDDEN),
        "down": (count, HIDDEN, WIDTH),
    }
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return params, rng.normal(size=(GROUPS, LENGTH, WIDTH)).astype(np.float32)


def reference(routing: Routing, params: dict[str, Any], x: Any) -> tuple[Any, float]:
    """Token after token: each goes to those of its chosen experts that have room."""
    p = {name: value.astype(np.float64) for name, value in params.items()}
    written, wanted, probabilities = np.zeros(x.shape), np.zeros(routing.experts), np.zeros(routing.experts)
    for group, tokens in enumerate(x.astype(np.float64)):
        room = np.full(routing.experts, routing.capacity(len(tokens)))
        for position, token in enumerate(tokens):
            scores = np.exp(token @ p["router"])
            scores /= scores.sum()
            chosen = np.argsort(-scores, kind="stable")[: routing.chosen]
            probabilities += scores
            for expert in chosen:
                wanted[expert] += 1
                if room[expert]:
                    room[expert] -= 1
                    gate = token @ p["gate"][expert]
                    value = (gate / (1 + np.exp(-gate)) * (token @ p["up"][expert])) @ p["down"][expert]
                    written[group, position] += scores[expert] / scores[chosen].sum() * value
    count = x.shape[0] * x.shape[1]
    return written, routing.experts * float(wanted / (count * routing.chosen) @ (probabilities / count))


@pytest.mark.parametrize(
    "routing", [Routing(1, 1), Routing(4, 1), Routing(4, 2), Routing(5, 3, slack=0.5), Routing(4, 4, slack=9.0)]
)
def test_each_token_is_computed_by_those_of_its_experts_that_have_room(routing: Routing) -> None:
    params, x = made(routing.experts)
    written, balance = feedforward(routing, params, x)
    expected, expected_balance = reference(routing, params, x)
    np.testing.assert_allclose(written, expected, rtol=2e-4, atol=2e-4)
    assert float(balance) == pytest.approx(expected_balance, rel=1e-5)


def test_no_place_is_given_twice_and_no_expert_takes_more_than_it_has_room_for() -> None:
    routing = Routing(4, 2, slack=0.75)
    params, x = made(4)
    dispatch, combine, _ = route(routing, params["router"], x)
    assert dispatch.shape == combine.shape == (GROUPS, LENGTH, 4, routing.capacity(LENGTH))
    assert set(np.unique(dispatch)) == {0.0, 1.0}
    assert np.asarray(dispatch).sum(axis=1).max() == 1.0
    assert np.asarray(dispatch).sum() < GROUPS * LENGTH * 2, "none was refused, so that this says nothing"
    assert np.asarray(combine).sum(axis=(2, 3)).max() <= 1.0 + 1e-6


def test_the_balance_is_one_where_all_is_even_and_the_number_of_experts_where_all_go_to_one() -> None:
    _, x = made(4)
    assert float(route(Routing(4, 4), np.zeros((WIDTH, 4), np.float32), x)[2]) == pytest.approx(1.0)
    one_sided = np.zeros((WIDTH, 4), np.float32)
    one_sided[:, 2] = 50.0
    assert float(route(Routing(4, 1), one_sided, np.abs(x))[2]) == pytest.approx(4.0)


def test_training_along_the_balance_spreads_the_tokens() -> None:
    routing = Routing(4, 1)
    params, x = made(4)
    x = x + 1.0
    router = params["router"] * 0.1 + np.float32([0.5, 0.0, 0.0, 0.0])
    gradient = jax.jit(jax.value_and_grad(lambda router: transformer.route(routing, router, x)[2]))
    first, _ = gradient(router)
    for _ in range(200):
        _, slope = gradient(router)
        router = router - 0.1 * slope
    assert float(gradient(router)[0]) < 1.25 < 2.0 < float(first)


@pytest.mark.parametrize("chosen", [0, 5])
def test_a_number_of_choices_that_cannot_be_is_refused(chosen: int) -> None:
    with pytest.raises(ValueError, match=f"{chosen} of 4 experts"):
        Routing(4, chosen)


# -- in the transformer ------------------------------------------------------------------------------------------------

SPARSE = ModelConfig(vocabulary=11, layers=2, width=8, heads=2, context=6, routing=Routing(4, 2, slack=0.5))


@pytest.mark.slow
def test_one_expert_with_room_for_all_is_the_dense_model() -> None:
    dense = ModelConfig(vocabulary=11, layers=2, width=8, heads=2, context=6)
    sparse = ModelConfig(vocabulary=11, layers=2, width=8, heads=2, context=6, routing=Routing(1, 1))
    params = transformer.init(sparse, jax.random.key(0))
    stripped = jax.tree.map(lambda leaf: leaf[0] if leaf.ndim == 3 else leaf, params)
    for layer in stripped["layers"].values():
        del layer["feedforward"]["router"]
    tokens = np.random.default_rng(0).integers(0, 11, (2, 6))
    found, expected = transformer.logits(sparse, params, tokens), transformer.logits(dense, stripped, tokens)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_no_logit_depends_on_a_later_token_where_experts_are_full() -> None:
    rng = np.random.default_rng(5)
    shapes = transformer.init(SPARSE, jax.random.key(0))
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), shapes)
    run = jax.jit(transformer.logits, static_argnums=0)
    tokens = rng.integers(0, 11, (1, 6))
    before = np.asarray(run(SPARSE, params, tokens))
    for changed in range(1, 6):
        other = tokens.copy()
        other[:, changed:] = (other[:, changed:] + 5) % 11
        np.testing.assert_array_equal(before[:, :changed], np.asarray(run(SPARSE, params, other))[:, :changed])


@pytest.mark.slow
def test_the_balance_is_trained_and_is_no_part_of_the_loss_that_is_told() -> None:
    params = transformer.init(SPARSE, jax.random.key(0))
    batch = {"tokens": jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 7)))}
    trained, told = transformer.balanced_loss(SPARSE, params, batch)
    assert told["loss"] == transformer.loss(SPARSE, params, batch)
    assert 0.9 < float(told["balance"]) < 4
    assert float(trained - told["loss"]) == pytest.approx(0.01 * float(told["balance"]), abs=1e-6)
