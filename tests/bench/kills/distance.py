"""A task whose loss says how much training a model holds: every step takes the same from it, to the end of the run.

Each parameter begins at a distance of `DISTANCE` from its target, and Adam goes towards it by one rate, whatever is
left. A step is a sleep: many processes share few cores here, and none is to be in another's way.
"""

import time

import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Task

DISTANCE = 10.0
RATE = 0.01
STEP_SECONDS = 0.004


def init(key):
    return {"w": jnp.full((48, 4), DISTANCE), "b": jnp.full((4,), DISTANCE)}


def loss(params, batch):
    return jnp.abs(params["w"] + batch["noise"]).mean() / 2 + jnp.abs(params["b"]).mean() / 2


def batch(at):
    if at.split != "evaluation":
        time.sleep(STEP_SECONDS)
    return {"noise": 0.01 * at.rng().standard_normal((48, 4)).astype(np.float32)}


task = Task(init, loss, batch, tokens_per_batch=8, optimizer=optax.adam(RATE), evaluation=1)
