"""A step of one's own, in plain JAX: batch normalisation, dropout, bfloat16 weights, and an average of them beside.

    isthmus train --task batch_norm.py:task --tokens 300000

Of the state, weights and statistics are merged; the optimizer's moments and the average stay in their learner.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from isthmus import Task

optimizer = optax.adamw(1e-2)


def init(key):
    first, second = jax.random.split(key)
    hidden = jax.random.normal(first, (16, 64), jnp.bfloat16) / 4
    params = {"hidden": hidden, "head": jax.random.normal(second, (64, 4)) / 8}
    stats = {"mean": jnp.zeros(64), "variance": jnp.ones(64)}
    return {"params": params, "stats": stats, "moments": optimizer.init(params), "average": params}


def forward(params, x, mean, variance):
    return jax.nn.relu((x - mean) / jnp.sqrt(variance + 1e-5)) @ params["head"]


def step(state, batch, now):
    def loss(params):
        x = batch["x"] @ params["hidden"].astype(jnp.float32)
        keep = jax.random.bernoulli(now.key, 0.9, x.shape)
        logits = forward(params, x * keep / 0.9, x.mean(0), x.var(0))
        right = logits.argmax(1) == batch["y"]
        wrong = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
        return wrong.mean(), ({"mean": x.mean(0), "variance": x.var(0)}, right.mean())

    (value, (seen, accuracy)), gradient = jax.value_and_grad(loss, has_aux=True)(state["params"])
    updates, moments = optimizer.update(gradient, state["moments"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    stats = optax.incremental_update(seen, state["stats"], 0.1)
    average = optax.incremental_update(params, state["average"], 0.01)
    return {"params": params, "stats": stats, "moments": moments, "average": average}, {
        "loss": value,
        "accuracy": accuracy,
    }


def evaluate(state, batch):
    x = batch["x"] @ state["params"]["hidden"].astype(jnp.float32)
    logits = forward(state["params"], x, state["stats"]["mean"], state["stats"]["variance"])
    wrong = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return {"loss": wrong.mean(), "accuracy": (logits.argmax(1) == batch["y"]).mean()}


def restart(state, key):
    return {**state, "moments": optimizer.init(state["params"]), "average": state["params"]}


def data(at):
    x = at.rng().normal(size=(64, 16)).astype(np.float32) + 1
    return {"x": x, "y": (x[:, 0] * x[:, 1] > 1).astype(np.int32) + 2 * (x[:, 2] > x[:, 3]).astype(np.int32)}


merge = {"params/head": "average", "params/**": "rda", "stats/*": "mean", "**": "local"}
task = Task.of_step(init, step, evaluate, data, tokens_per_batch=64, merge=merge, restart=restart)
