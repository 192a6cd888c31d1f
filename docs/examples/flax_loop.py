"""A training loop with Flax and optax that is a learner, on handwritten digits.

    isthmus train --loop flax_loop.py --learners 2 --tokens 300000 -- --rate 0.003

The six lines that isthmus needs are those with its name, or an island, in them.
"""

import argparse

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax.training.train_state import TrainState
from sklearn.datasets import load_digits

import isthmus

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.003)
parser.add_argument("--steps", type=int, default=100_000)
options = parser.parse_args()
images, labels = load_digits(return_X_y=True)
images = images.astype("float32") / 16


class Net(nn.Module):
    """Two layers, with dropout."""

    @nn.compact
    def __call__(self, x, *, train):
        x = nn.Dropout(0.1, deterministic=not train)(nn.relu(nn.Dense(64)(x)))
        return nn.Dense(10)(x)


def cross_entropy(logits, y):
    """The mean over a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


@jax.jit
def train_step(state, key, x, y):
    """The state after a step, and the loss."""

    def loss(params):
        return cross_entropy(state.apply_fn({"params": params}, x, train=True, rngs={"dropout": key}), y)

    value, gradient = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=gradient), value


@jax.jit
def test(state):
    """Loss and accuracy on the last 297 digits."""
    logits = state.apply_fn({"params": state.params}, images[1500:], train=False)
    return {"loss": cross_entropy(logits, labels[1500:]), "accuracy": jnp.mean(logits.argmax(1) == labels[1500:])}


net, seed = Net(), 0
params = net.init(jax.random.key(seed), jnp.zeros((1, 64)), train=False)["params"]
state = TrainState.create(apply_fn=net.apply, params=params, tx=optax.adamw(options.rate))

with isthmus.island(state, merge={"params/**": "rda", "**": "local"}, evaluate=test) as island:
    state, seed = island.state, island.seed + island.position
    rng = np.random.default_rng(seed)
    for _ in island(range(options.steps)):
        rows = rng.integers(1500, size=64)
        state, loss = train_step(state, jax.random.key(rng.integers(1 << 31)), images[rows], labels[rows])
        state = island.step(state, loss=loss, tokens=len(rows))
state = island.state

print({name: float(value) for name, value in test(state).items()})
