"""A pipeline of Grain as the data of a task: rows of 32 numbers `x`, and a number `y`.

    isthmus train --task data_grain.py:task --tokens 300000

It reads `rows.npz`. Grain's iterator is a stream as it is.
"""

import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Task

rows = np.load("rows.npz")
x, y = rows["x"], rows["y"]
train = grain.MapDataset.source(range(len(x) // 10, len(x))).map(lambda row: {"x": x[row], "y": y[row]})


def stream(slot, slots, seed):
    """The batches of a slot, in another order in each epoch."""
    mine = train[slot::slots].seed(seed).shuffle().repeat().batch(32)
    return iter(mine.to_iter_dataset())


def held_out(at):
    """Rows that nobody trains on."""
    drawn = at.rng().integers(len(x) // 10, size=32)
    return {"x": x[drawn], "y": y[drawn]}


def init(key):
    return {"w": jax.random.normal(key, (32,)), "b": jnp.zeros(())}


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


task = Task(init, loss, held_out, stream=stream, tokens_per_batch=32, optimizer=optax.adamw(1e-2))
