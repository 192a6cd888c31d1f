"""A model of 131,072 parameters whose step takes 50 ms of waiting and little else, so that many learners share few
cores, and links, not cores, decide how fast a run is: the task of the plan beside it."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus.programs import Task

INPUTS, OUTPUTS, ROWS = 256, 512, 4
STEP_SECONDS = 0.05


def init(key):
    return {"w": jax.random.normal(key, (INPUTS, OUTPUTS)) / INPUTS}


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] - batch["y"]) ** 2)


def batch(at):
    time.sleep(STEP_SECONDS)
    x = at.rng().normal(size=(ROWS, INPUTS)).astype(np.float32)
    return {"x": x, "y": x.sum(1, keepdims=True) * np.ones((1, OUTPUTS), np.float32)}


task = Task(init, loss, batch, tokens_per_batch=ROWS, optimizer=optax.adamw(1e-2))
