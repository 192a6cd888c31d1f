"""The transformer against a forward pass written out in float64, and against what must hold for any weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isthmus.ops import model_config, transformer
from isthmus.ops.model_config import ModelConfig, Routing, tensors
from isthmus.ops.transformer import init, rotate
from tests.effort import long

# One compilation is faster than the separate operations.
logits = jax.jit(transformer.logits, static_argnums=0)
loss = jax.jit(transformer.loss, static_argnums=0)
value_and_gradient = jax.jit(jax.value_and_grad(transformer.loss, argnums=1), static_argnums=0)

NANO = ModelConfig()
TINY = ModelConfig(vocabulary=11, layers=2, width=8, heads=2, context=6)


def flatten(params: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): np.asarray(leaf) for path, leaf in leaves}


def reference_logits(config: ModelConfig, params: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """The logits [length, vocabulary] of one sequence, position by position and head by head, in float64."""
    p = {name: value.astype(np.float64) for name, value in params.items()}
    size, half = config.head_size, config.head_size // 2

    def norm(weight: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.asarray(x / np.sqrt(np.mean(x**2) + 1e-6) * weight)

    def turn(x: np.ndarray, position: int) -> np.ndarray:
        out = np.empty_like(x)
        for i in range(half):
            angle = position * 10000.0 ** (-i / half)
            out[i] = x[i] * math.cos(angle) - x[i + half] * math.sin(angle)
            out[i + half] = x[i + half] * math.cos(angle) + x[i] * math.sin(angle)
        return out

    stream = [p["embedding"][token] for token in tokens]
    for layer in range(config.layers):
        a, f = f"layers/{layer}/attention", f"layers/{layer}/feedforward"
        normed = [norm(p[f"{a}/norm"], x) for x in stream]
        mixed = [np.zeros(config.width) for _ in stream]
        for head in range(config.heads):
            part = slice(head * size, (head + 1) * size)
            query = [turn((x @ p[f"{a}/query"])[part], t) for t, x in enumerate(normed)]
            key = [turn((x @ p[f"{a}/key"])[part], t) for t, x in enumerate(normed)]
            value = [(x @ p[f"{a}/value"])[part] for x in normed]
            for t in range(len(stream)):
                scores = np.array([query[t] @ key[s] for s in range(t + 1)]) / math.sqrt(size)
                weights = np.exp(scores) / np.exp(scores).sum()
                mixed[t][part] = sum(w * v for w, v in zip(weights, value[: t + 1], strict=True))
        stream = [x + m @ p[f"{a}/output"] for x, m in zip(stream, mixed, strict=True)]
        for t, x in enumerate(stream):
            h = norm(p[f"{f}/norm"], x)
            gate = h @ p[f"{f}/gate"]
            stream[t] = x + (gate / (1 + np.exp(-gate)) * (h @ p[f"{f}/up"])) @ p[f"{f}/down"]
    head_matrix = p["embedding"].T if config.tied else p["head"]
    return np.array([norm(p["norm"], x) @ head_matrix for x in stream])


def reference_loss(config: ModelConfig, params: dict[str, np.ndarray], windows: np.ndarray) -> float:
    total = 0.0
    for window in windows:
        scores = reference_logits(config, params, window[:-1])
        probabilities = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        total -= np.log(probabilities[np.arange(len(scores)), window[1:]]).mean()
    return total / len(windows)


def large(params: Any) -> Any:
    """Weights of which none is small, so that no term of the forward pass hides behind another."""
    rng = np.random.default_rng(5)
    return jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * 0.5 + (leaf.ndim == 1), leaf.dtype), params
    )


@pytest.mark.slow
def test_nano_has_the_documented_tensors() -> None:
    layer = {
        "attention/norm": (64,),
        "attention/query": (64, 64),
        "attention/key": (64, 64),
        "attention/value": (64, 64),
        "attention/output": (64, 64),
        "feedforward/norm": (64,),
        "feedforward/gate": (64, 172),
        "feedforward/up": (64, 172),
        "feedforward/down": (172, 64),
    }
    expected = {"embedding": (256, 64), "norm": (64,), "head": (64, 256)}
    expected |= {f"layers/{index}/{name}": shape for index in range(2) for name, shape in layer.items()}

    params = flatten(init(NANO, jax.random.key(0)))

    assert {name: value.shape for name, value in params.items()} == expected
    assert {name: tensor.shape for name, tensor in tensors(NANO).items()} == expected
    assert sum(value.size for value in params.values()) == 131_904
    assert {value.dtype for value in params.values()} == {np.dtype(np.float32)}


def test_initial_values_have_the_documented_deviations() -> None:
    params = flatten(init(NANO, jax.random.key(3)))
    expected = {"embedding": 0.02, "head": 0.02}
    for index in range(2):
        attention, feedforward = f"layers/{index}/attention", f"layers/{index}/feedforward"
        expected |= {f"{attention}/{name}": 1 / 8 for name in ("query", "key", "value")}
        expected |= {f"{feedforward}/{name}": 1 / 8 for name in ("gate", "up")}
        expected |= {f"{attention}/output": 1 / 8 / 2, f"{feedforward}/down": 172**-0.5 / 2}
    for name, value in params.items():
        if name.endswith("norm"):
            np.testing.assert_array_equal(value, 1.0)
        else:
            # Four standard errors of a deviation that is estimated from n values.
            assert value.std() == pytest.approx(expected[name], rel=4 / math.sqrt(2 * value.size))
            assert abs(value.mean()) < 4 * expected[name] / math.sqrt(value.size)


@pytest.mark.slow
def test_initial_values_follow_the_key_and_differ_between_tensors() -> None:
    one, same, other = (flatten(init(NANO, jax.random.key(seed))) for seed in (0, 0, 1))
    for name, value in one.items():
        np.testing.assert_array_equal(value, same[name])
        assert name.endswith("norm") or not np.array_equal(value, other[name])
    assert not np.allclose(one["layers/0/attention/query"], one["layers/0/attention/key"])
    assert not np.allclose(one["layers/0/attention/query"], one["layers/1/attention/query"])


@pytest.mark.slow
def test_each_tensor_draws_from_a_key_of_its_own_whatever_has_its_shape() -> None:
    key = jax.random.key(5)
    params = flatten(init(TINY, key))
    for index, (name, (shape, deviation)) in enumerate(tensors(TINY).items()):
        if deviation is not None:
            drawn = deviation * jax.random.normal(jax.random.fold_in(key, index), shape, jnp.float32)
            np.testing.assert_array_equal(params[name], drawn)


@pytest.mark.parametrize(("width", "hidden"), [(64, 172), (96, 256), (128, 344), (256, 684), (8, 24)])
def test_hidden_width_is_eight_thirds_rounded_up_to_a_multiple_of_four(width: int, hidden: int) -> None:
    config = ModelConfig(width=width, heads=2)
    assert config.hidden_width == hidden
    assert hidden % 4 == 0
    assert 0 <= hidden - 8 * width / 3 < 4


def test_hidden_width_can_be_given() -> None:
    assert tensors(ModelConfig(hidden=10))["layers/1/feedforward/down"].shape == (10, 64)


@pytest.mark.parametrize("heads", [3, 64])
def test_heads_of_uneven_or_odd_size_are_refused(heads: int) -> None:
    with pytest.raises(ValueError, match="heads of even size"):
        ModelConfig(width=64, heads=heads)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [False, True])
def test_logits_and_loss_are_the_closed_form(tied: bool) -> None:
    config = ModelConfig(vocabulary=11, layers=2, width=8, heads=2, context=6, tied=tied)
    params = large(init(config, jax.random.key(0)))
    windows = np.random.default_rng(0).integers(0, 11, (3, 7))

    found = logits(config, params, jnp.asarray(windows[:, :-1]))

    expected = np.array([reference_logits(config, flatten(params), window[:-1]) for window in windows])
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-4)
    found_loss = float(loss(config, params, {"tokens": jnp.asarray(windows)}))
    assert found_loss == pytest.approx(reference_loss(config, flatten(params), windows), rel=1e-4)
    assert ("head" in params) is not tied


@pytest.mark.slow
def test_gradient_is_that_of_finite_differences() -> None:
    params = large(init(TINY, jax.random.key(1)))
    windows = np.random.default_rng(1).integers(0, 11, (1, 6))
    gradient = flatten(value_and_gradient(TINY, params, {"tokens": jnp.asarray(windows)})[1])
    flat = {name: value.astype(np.float64) for name, value in flatten(params).items()}
    rng = np.random.default_rng(2)
    for name, value in flat.items():
        direction = rng.normal(size=value.shape)
        ends = (reference_loss(TINY, flat | {name: value + sign * 1e-5 * direction}, windows) for sign in (1, -1))
        slope = (next(ends) - next(ends)) / 2e-5
        assert float(np.sum(gradient[name] * direction)) == pytest.approx(slope, rel=2e-3, abs=2e-5), name


@pytest.mark.slow
def test_no_logit_depends_on_a_later_token() -> None:
    params = large(init(NANO, jax.random.key(0)))
    tokens = np.random.default_rng(0).integers(0, 256, (1, 64))
    before = np.asarray(logits(NANO, params, jnp.asarray(tokens)))
    for changed in (1, 31, 63):
        other = tokens.copy()
        other[:, changed:] = (other[:, changed:] + 7) % 256
        after = np.asarray(logits(NANO, params, jnp.asarray(other)))
        np.testing.assert_array_equal(before[:, :changed], after[:, :changed])
        assert np.abs(before[:, changed:] - after[:, changed:]).max(axis=-1).min() > 1e-3


def test_rotary_scores_depend_on_the_distance_only() -> None:
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, 16)).astype(np.float32)
    turned = [np.asarray(rotate(jnp.asarray(np.tile(x, (20, 1, 1)))))[:, 0] for x in (query, key)]
    scores = turned[0] @ turned[1].T
    for distance in range(-19, 20):
        diagonal = np.diagonal(scores, distance)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-4)
    assert np.ptp(scores[0]) > 1.0
    np.testing.assert_allclose(np.linalg.norm(turned[0], axis=1), np.linalg.norm(query), rtol=1e-5)
    np.testing.assert_array_equal(turned[0][0], query)


@pytest.mark.slow
def test_bfloat16_is_close_to_float32_and_keeps_float32_parameters_and_gradients() -> None:
    half = ModelConfig(dtype="bfloat16")
    params = init(half, jax.random.key(0))
    batch = {"tokens": jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, 65), dtype=np.uint8))}
    value, gradient = value_and_gradient(half, params, batch)
    exact, exact_gradient = value_and_gradient(NANO, params, batch)
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(float(exact), abs=0.01)
    assert float(value) != float(exact)
    for name, leaf in flatten(gradient).items():
        wanted = flatten(exact_gradient)[name]
        assert leaf.dtype == np.float32
        assert np.linalg.norm(leaf - wanted) < 0.05 * np.linalg.norm(wanted), name


@pytest.mark.slow
def test_a_fresh_model_knows_nothing() -> None:
    batch = {"tokens": jnp.asarray(np.random.default_rng(0).integers(0, 256, (8, 65), dtype=np.uint8))}
    assert float(loss(NANO, init(NANO, jax.random.key(0)), batch)) == pytest.approx(math.log(256), abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32])
def test_every_integer_dtype_of_tokens_gives_the_same_loss(dtype: type) -> None:
    params = init(TINY, jax.random.key(0))
    tokens = np.random.default_rng(0).integers(0, 11, (2, 7))
    expected = float(loss(TINY, params, {"tokens": jnp.asarray(tokens)}))
    assert float(loss(TINY, params, {"tokens": jnp.asarray(tokens.astype(dtype))})) == expected


@pytest.mark.slow
@pytest.mark.parametrize("routing", [None, Routing(4)])
@pytest.mark.parametrize(("stacked", "checkpoint"), [long(True, False), long(False, True), (True, True)])
def test_layers_that_are_stacked_or_computed_again_train_alike(
    routing: Routing | None, stacked: bool, checkpoint: bool
) -> None:
    config = replace(TINY, routing=routing)
    params = large(init(config, jax.random.key(0)))
    batch = {"tokens": np.random.default_rng(3).integers(0, 11, (3, 7))}
    other = replace(config, stacked=stacked, checkpoint=checkpoint)
    of_loss = jax.jit(
        jax.value_and_grad(transformer.balanced_loss if routing else transformer.loss, 1, bool(routing)),
        static_argnums=0,
    )

    expected = of_loss(config, params, batch)
    found = of_loss(other, _stacked(params) if stacked else params, batch)

    expected = expected[0], _stacked(expected[1]) if stacked else expected[1]
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, rtol=2e-4, atol=2e-5), found, expected)


@pytest.mark.slow
def test_a_stacked_model_has_the_initial_values_that_are_documented() -> None:
    config = replace(NANO, layers=3, stacked=True)
    params = flatten(init(config, jax.random.key(3)))
    assert {name: value.shape for name, value in params.items()} == {
        name: tensor.shape for name, tensor in tensors(config).items()
    }
    assert params["layers/attention/query"].shape == (3, 64, 64)
    assert np.std(params["layers/attention/query"][2]) == pytest.approx(1 / 8, rel=0.05)
    assert np.std(params["layers/feedforward/down"][1]) == pytest.approx((172 * 6) ** -0.5, rel=0.05)
    np.testing.assert_array_equal(params["layers/attention/norm"], 1.0)


def _stacked(params: Any) -> Any:
    """The same model with its layers as rows."""
    layers = [params["layers"][str(index)] for index in range(len(params["layers"]))]
    return {**params, "layers": jax.tree.map(lambda *rows: jnp.stack(rows), *layers)}


FORMS = {
    "plain": {},
    "shared heads": {"heads": 4, "shared_heads": 2, "head_width": 6, "head_norms": True, "tied": True},
    "biases": {"biases": ("query", "key", "value", "output", "gate", "up", "down"), "window": 3},
    "stacked": {"stacked": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_sequence_that_is_continued_has_the_logits_of_the_whole(form: str) -> None:
    config = replace(TINY, context=12, **FORMS[form])
    params = large(init(config, jax.random.key(0)))
    tokens = np.random.default_rng(0).integers(0, 11, (2, 9))
    expected = np.asarray(logits(config, params, jnp.asarray(tokens)))
    continued = jax.jit(transformer.continued, static_argnums=0)
    past = transformer.room(config, 2, 12)

    # What is written beyond the third token counts for nothing: it is overwritten.
    first, past = continued(config, params, past, 0, np.pad(tokens[:, :3], ((0, 0), (0, 2))))
    found = [first[:, :3]]
    for start in range(3, 9):
        scores, past = continued(config, params, past, start, tokens[:, start : start + 1])
        found.append(scores)

    np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_heads_that_share_keys_attend_as_if_each_had_its_own() -> None:
    config = replace(TINY, heads=4, shared_heads=2)
    params = large(init(config, jax.random.key(0)))
    alike = jax.tree.map(lambda leaf: leaf, params)
    for layer in alike["layers"].values():
        for name in ("key", "value"):
            by_head = layer["attention"][name].reshape(8, 2, 2)
            layer["attention"][name] = jnp.repeat(by_head, 2, axis=1).reshape(8, 8)
    tokens = jnp.asarray(np.random.default_rng(0).integers(0, 11, (2, 6)))
    expected = logits(replace(config, shared_heads=None), alike, tokens)
    np.testing.assert_allclose(logits(config, params, tokens), expected, rtol=2e-4, atol=2e-5)


def test_heads_that_cannot_share_keys_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="evenly"):
        ModelConfig(heads=4, shared_heads=3)


def test_a_window_hides_what_is_older() -> None:
    config = replace(TINY, layers=1, window=2)
    params = large(init(config, jax.random.key(0)))
    tokens = np.random.default_rng(0).integers(0, 11, (1, 6))
    other = tokens.copy()
    other[0, 0] += 1
    before, after = (np.asarray(logits(config, params, jnp.asarray(each % 11))) for each in (tokens, other))
    assert np.abs(before - after).max(axis=(0, 2)).nonzero()[0].tolist() == [0, 1]


def test_scalings_slow_down_the_slow_pairs() -> None:
    plain = 10_000.0 ** (-np.arange(16) / 16)
    linear, _ = model_config.LinearScaling(4.0).scaled(plain, 1e4)
    np.testing.assert_allclose(linear, plain / 4)
    bands, _ = model_config.BandScaling(4.0, 1.0, 4.0, 64).scaled(plain, 1e4)
    turns = 64 * plain / (2 * math.pi)
    np.testing.assert_allclose(bands[turns > 4], plain[turns > 4])
    np.testing.assert_allclose(bands[turns < 1], plain[turns < 1] / 4)
    yarn, amplitude = model_config.YarnScaling(4.0, 64, 1.5).scaled(plain, 1e4)
    assert amplitude == 1.5
    np.testing.assert_allclose((yarn[0], yarn[-1]), (plain[0], plain[-1] / 4))
    assert np.all((yarn <= plain) & (yarn >= plain / 4))
