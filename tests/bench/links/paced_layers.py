"""The same as paced_model.py in eight tensors, which are eight fragments."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.programs import Task

LAYERS, WIDTH, ROWS = 8, 128, 4
STEP_SECONDS = 0.05


def init(key):
    keys = jax.random.split(key, LAYERS)
    return {f"layer{i}": jax.random.normal(keys[i], (WIDTH, WIDTH)) / WIDTH for i in range(LAYERS)}


def loss(params, batch):
    return jnp.mean((batch["x"] @ sum(params.values()) - batch["y"]) ** 2)


def batch(at):
    time.sleep(STEP_SECONDS)
    x = at.rng().normal(size=(ROWS, WIDTH)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True) * np.ones((1, WIDTH), np.float32)}


task = Task(init, loss, batch, tokens_per_batch=ROWS, optimizer=optax.adamw(1e-2))
