"""A webdataset as the data of a task: samples of `x.npy`, 32 numbers, and `y.npy`, a number.

    isthmus train --task data_webdataset.py:task --tokens 300000

It reads the shards `shards/*.tar`, of which each slot has its own: there are as many as slots, or a multiple of that.
"""

import random
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
import webdataset

from isthmus import LoaderStream, Task

shards = sorted(map(str, Path("shards").glob("*.tar")))


def stream(slot, slots, seed):
    """The batches of a slot, in another order in each epoch."""

    def epoch(number):
        mine = shards[slot::slots]
        random.Random(seed + number).shuffle(mine)
        samples = webdataset.WebDataset(mine, shardshuffle=False).shuffle(100, rng=random.Random(seed + number))
        return samples.decode().to_tuple("x.npy", "y.npy").batched(32, partial=False)

    return LoaderStream(epoch)


def held_out(at):
    """Rows of another seed, in the place of shards that are held out."""
    x = at.rng().normal(size=(32, 32)).astype("float32")
    return [x, x.sum(1)]


def init(key):
    return {"w": jax.random.normal(key, (32,)), "b": jnp.zeros(())}


def loss(params, batch):
    x, y = batch
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


task = Task(init, loss, held_out, stream=stream, tokens_per_batch=32, optimizer=optax.adamw(1e-2))
