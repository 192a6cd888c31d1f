"""A Flax linen model with a TrainState, with batch normalisation and dropout, on handwritten digits.

    isthmus train --task flax_linen.py:task --tokens 64000 --set program.interval=12

Above the line is a script for one device without its loop, below it what isthmus needs.
"""

from typing import Any

import jax, jax.numpy as jnp, optax
from flax import linen as nn
from flax.training import train_state
from sklearn.datasets import load_digits
from isthmus import Task

DROPOUT = 0.1
X, Y = load_digits(return_X_y=True)

class Net(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(32, name="first")(x)
        x = nn.relu(nn.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x))
        return nn.Dense(10, name="last")(nn.Dropout(DROPOUT, deterministic=not train)(x))

class TrainState(train_state.TrainState): batch_stats: Any

NET, OPTIMIZER = Net(), optax.sgd(0.1, momentum=0.9)

def create(key):
    made = NET.init(key, jnp.zeros((1, 64)), train=False)
    return TrainState.create(apply_fn=NET.apply, tx=OPTIMIZER, **made)

def draw(rng, split):
    rows = rng.integers(*((0, 1500) if split == "train" else (1500, 1797)), size=64)
    return {"x": X[rows].astype("float32") / 16, "y": Y[rows]}

def cross_entropy(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

def train_step(state, batch, key):
    def loss(params):
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, after = state.apply_fn(variables, batch["x"], True, rngs={"dropout": key}, mutable=["batch_stats"])
        return cross_entropy(logits, batch), after
    (value, after), gradient = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradient, batch_stats=after["batch_stats"]), {"loss": value}

def test(state, batch):
    logits = state.apply_fn({"params": state.params, "batch_stats": state.batch_stats}, batch["x"], False)
    return {"loss": cross_entropy(logits, batch), "accuracy": jnp.mean(logits.argmax(1) == batch["y"])}

# -- for isthmus -------------------------------------------------------------------------------------------------------
task = Task.of_step(create, lambda state, batch, now: train_step(state, batch, now.key), test,
                    lambda at: draw(at.rng(), at.split), tokens_per_batch=64,
                    merge={"params/**": "rda", "batch_stats/**": "mean", "**": "local"})
