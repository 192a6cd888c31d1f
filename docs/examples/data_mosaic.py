"""Shards of MosaicML Streaming as the data of a task: samples of `x`, 32 numbers, and `y`, a number.

    isthmus train --task data_mosaic.py:task --tokens 300000

It reads the folder `mds`, as `MDSWriter` writes it.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from streaming import LocalDataset
from torch.utils.data import DataLoader, Subset

from isthmus import LoaderStream, Task

data = LocalDataset(local="mds")
train, test = range(len(data) // 10, len(data)), range(len(data) // 10)


def stream(slot, slots, seed):
    """The batches of a slot, in another order in each epoch."""
    mine = Subset(data, train[slot::slots])
    return LoaderStream(DataLoader(mine, 32, shuffle=True, generator=torch.Generator(), drop_last=True), seed=seed)


def held_out(at):
    """Rows that nobody trains on."""
    drawn = [data[int(row)] for row in at.rng().choice(test, 32)]
    return {name: np.stack([row[name] for row in drawn]) for name in ("x", "y")}


def init(key):
    return {"w": jax.random.normal(key, (32,)), "b": jnp.zeros(())}


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


task = Task(init, loss, held_out, stream=stream, tokens_per_batch=32, optimizer=optax.adamw(1e-2))
