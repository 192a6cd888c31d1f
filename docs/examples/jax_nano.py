"""The model of torch_nano.py in jax, on the same data: islands of both train one run.

    isthmus train --task jax_nano.py:task --task torch_nano.py:task --learners 2 --tokens 1000000

Names and shapes of the leaves, rules and tokens of a batch are equal; everything else is as jax has it.
"""

import sysconfig
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Task

LAYERS, WIDTH, HEADS, HIDDEN, CONTEXT, SEQUENCES = 2, 64, 4, 172, 64, 8
TEXT = np.frombuffer(
    b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))), np.uint8
)


def init(key):
    keys = iter(jax.random.split(key, 2 + 7 * LAYERS))

    def matrix(rows, columns, scale):
        return jax.random.normal(next(keys), (rows, columns)) * scale

    def layer():
        square = {name: matrix(WIDTH, WIDTH, WIDTH**-0.5) for name in ("query", "key", "value")}
        square["output"] = matrix(WIDTH, WIDTH, (2 * LAYERS * WIDTH) ** -0.5)
        wide = {name: matrix(WIDTH, HIDDEN, WIDTH**-0.5) for name in ("gate", "up")}
        wide["down"] = matrix(HIDDEN, WIDTH, (2 * LAYERS * HIDDEN) ** -0.5)
        return {"attention": {"norm": jnp.ones(WIDTH), **square}, "feedforward": {"norm": jnp.ones(WIDTH), **wide}}

    ends = {"embedding": matrix(256, WIDTH, 0.02), "head": matrix(WIDTH, 256, 0.02), "norm": jnp.ones(WIDTH)}
    return {**ends, "layers": [layer() for _ in range(LAYERS)]}


def norm(weight, x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight


def rotate(x):
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 10_000.0 ** (-jnp.arange(half) / half)
    cos, sin = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def attention(weights, x):
    normed = norm(weights["norm"], x)
    query, key, value = (
        (normed @ weights[name]).reshape(*x.shape[:2], HEADS, -1) for name in ("query", "key", "value")
    )
    mixed = jax.nn.dot_product_attention(rotate(query), rotate(key), value, is_causal=True)
    return mixed.reshape(x.shape) @ weights["output"]


def feedforward(weights, x):
    normed = norm(weights["norm"], x)
    return (jax.nn.silu(normed @ weights["gate"]) * (normed @ weights["up"])) @ weights["down"]


def loss(weights, batch):
    tokens = batch["tokens"].astype(jnp.int32)
    x = weights["embedding"][tokens[:, :-1]]
    for layer in weights["layers"]:
        x = x + attention(layer["attention"], x)
        x = x + feedforward(layer["feedforward"], x)
    logits = norm(weights["norm"], x) @ weights["head"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()


def draw(rng, split):
    sides = {"train": (0, len(TEXT) * 9 // 10), "evaluation": (len(TEXT) * 9 // 10, len(TEXT) - CONTEXT - 1)}
    starts = rng.integers(*sides[split], SEQUENCES)
    return {"tokens": np.stack([TEXT[start : start + CONTEXT + 1] for start in starts])}


def scaled_by_progress():
    def update(updates, state, params=None, *, progress, **_):
        factor = jnp.minimum(1.0, progress / 0.05) * (1.0 - 0.9 * progress)
        return jax.tree.map(lambda each: factor * each, updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)


task = Task(
    init,
    loss,
    lambda at: draw(at.rng(), at.split),
    tokens_per_batch=SEQUENCES * CONTEXT,
    optimizer=optax.chain(optax.adamw(3e-3, b1=0.9, b2=0.95, weight_decay=0.01), scaled_by_progress()),
    merge={"embedding": "average", "head": "average", "**": "rda"},
)
