"""A dataset of Hugging Face as the data of a task: rows of 32 numbers `x`, and a number `y`.

    isthmus train --task data_datasets.py:task --tokens 300000

It reads the folder `dataset`, as `save_to_disk` writes it.
"""

import datasets
import jax
import jax.numpy as jnp
import optax

from isthmus import LoaderStream, Task

parts = datasets.load_from_disk("dataset").with_format("numpy").train_test_split(0.1, seed=0)


def stream(slot, slots, seed):
    """The batches of a slot, in another order in each epoch."""
    mine = parts["train"].shard(slots, slot)

    def epoch(number):
        return mine.shuffle(seed=seed + number).iter(32, drop_last_batch=True)

    return LoaderStream(epoch)


def held_out(at):
    """Rows that nobody trains on."""
    return parts["test"][at.rng().integers(len(parts["test"]), size=32)]


def init(key):
    return {"w": jax.random.normal(key, (32,)), "b": jnp.zeros(())}


def loss(params, batch):
    return jnp.mean((batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2)


task = Task(init, loss, held_out, stream=stream, tokens_per_batch=32, optimizer=optax.adamw(1e-2))
