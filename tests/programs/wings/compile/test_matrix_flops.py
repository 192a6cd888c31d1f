"""Operations of matrix products, against counts by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from isthmus.ops import transformer
from isthmus.ops.gang.mesh_stages import scan_layers
from isthmus.programs.wings.compile.worker import Flops, matrix_flops


def flops(function: Any, *shapes: tuple[int, ...]) -> Flops:
    return matrix_flops(jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)))


def scanned(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda carry, _: (carry @ w, None), x, None, length=7)[0]


def looped(x: Any, w: Any) -> Any:
    return jax.lax.while_loop(lambda carry: carry.sum() < 100.0, lambda carry: carry @ w, x)


def branched(x: Any, w: Any) -> Any:
    return jax.lax.cond(x.sum() > 0, lambda: x @ w, lambda: (x @ w) @ w)


SQUARE = 2 * 3 * 4 * 4


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x, w: x @ w, Flops(SQUARE)),
        (lambda x, w: jnp.sin(x) * 2 + w.sum(), Flops(0)),
        (jax.jit(lambda x, w: x @ w), Flops(SQUARE)),
        (jax.checkpoint(lambda x, w: x @ w), Flops(SQUARE)),
        (scanned, Flops(7 * SQUARE)),
        (looped, Flops(SQUARE, 1)),
        (branched, Flops(2 * SQUARE)),
        (jax.value_and_grad(lambda x, w: (x @ w).sum(), argnums=(0, 1)), Flops(3 * SQUARE)),
    ],
)
def test_products_are_counted_wherever_they_are(function: Any, expected: Flops) -> None:
    assert flops(function, (3, 4), (4, 4)) == expected


def test_a_batch_counts_each_of_its_products() -> None:
    assert flops(lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (5, 2, 3), (5, 3, 7)).products == 5 * 2 * 2 * 3 * 7


def test_a_convolution_counts_what_each_value_takes() -> None:
    def convolved(x: Any, kernel: Any) -> Any:
        numbers = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)

    assert flops(convolved, (2, 8, 8, 3), (3, 3, 3, 16)).products == 2 * (2 * 8 * 8 * 16) * (3 * 3 * 3)


def test_a_transformer_takes_six_operations_a_parameter_and_token_and_those_of_attention() -> None:
    config = transformer.ModelConfig(vocabulary=512, layers=3, width=96, heads=4, context=128, tied=True)
    params = jax.eval_shape(lambda key: transformer.init(config, key), jax.eval_shape(lambda: jax.random.key(0)))
    batch = {"tokens": jax.ShapeDtypeStruct((4, config.context + 1), jnp.int32)}
    traced = jax.make_jaxpr(jax.value_and_grad(lambda params, batch: transformer.loss(config, params, batch)))
    tokens, matrices = 4 * config.context, sum(np.prod(x.shape) for x in jax.tree.leaves(params) if len(x.shape) > 1)
    by_hand = 6 * matrices * tokens + 12 * config.layers * config.width * config.context * tokens
    assert matrix_flops(traced(params, batch)).products == pytest.approx(by_hand, rel=0.01)


def test_stages_compute_their_layers_in_every_turn() -> None:
    stages, microbatches, layers = 2, 4, 4

    def staged(x: jax.Array, weights: jax.Array) -> jax.Array:
        return scan_layers(lambda x, w: (x @ w, None), x, weights, microbatches=microbatches)[0]

    x, weights = jax.ShapeDtypeStruct((8, 16), jnp.float32), jax.ShapeDtypeStruct((layers, 16, 16), jnp.float32)
    once = layers * 2 * 8 * 16 * 16
    assert matrix_flops(jax.make_jaxpr(staged)(x, weights)).products == once
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((1, stages), ("data", "stage"))):
        traced = jax.make_jaxpr(staged)(x, weights)
    assert matrix_flops(traced).products == once * (microbatches + stages - 1) // microbatches
