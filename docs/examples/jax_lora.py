"""Adapters of low rank for the model of jax_nano.py, whose own weights are frozen: only adapters are sent and kept.

isthmus train --task jax_lora.py:task --tokens 1000000
"""

import jax
import jax.numpy as jnp
import jax_nano
import optax

from isthmus import Task

RANK, TARGETS, WIDTH = 4, ("query", "value"), jax_nano.WIDTH


def init(key):
    keys = iter(jax.random.split(key, 2 * jax_nano.LAYERS))

    def adapter():
        return {"down": jax.random.normal(next(keys), (WIDTH, RANK)) * WIDTH**-0.5, "up": jnp.zeros((RANK, WIDTH))}

    lora = [{name: adapter() for name in TARGETS} for _ in range(jax_nano.LAYERS)]
    # Weights of a file would come from load(path, shape), leaf by leaf.
    return {"base": jax_nano.init(jax.random.key(7)), "lora": lora}


def adapted(weights):
    layers = []
    for layer, lora in zip(weights["base"]["layers"], weights["lora"], strict=True):
        changed = {name: layer["attention"][name] + lora[name]["down"] @ lora[name]["up"] for name in TARGETS}
        layers.append({**layer, "attention": {**layer["attention"], **changed}})
    return {**weights["base"], "layers": layers}


task = Task(
    init,
    lambda weights, batch: jax_nano.loss(adapted(weights), batch),
    jax_nano.task.batch,
    tokens_per_batch=jax_nano.task.tokens_per_batch,
    optimizer=optax.adamw(1e-2),
    merge={"base/**": "frozen", "lora/**": "rda"},
)
