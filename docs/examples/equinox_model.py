"""An Equinox model, with batch normalisation and dropout, on handwritten digits.

    isthmus train --task equinox_model.py:task --tokens 64000 --set program.interval=12

Above the line is a script for one device without its loop, below it what isthmus needs.
"""

import equinox as eqx, jax, jax.numpy as jnp, optax
from sklearn.datasets import load_digits
from isthmus import Task

DROPOUT = 0.1
X, Y = load_digits(return_X_y=True)
OPTIMIZER = optax.sgd(0.1, momentum=0.9)

class Net(eqx.Module):
    first: eqx.nn.Linear; norm: eqx.nn.BatchNorm; dropout: eqx.nn.Dropout; last: eqx.nn.Linear
    def __init__(self, key):
        self.first, self.last = eqx.nn.Linear(64, 32, key=key), eqx.nn.Linear(32, 10, key=jax.random.fold_in(key, 1))
        self.norm = eqx.nn.BatchNorm(32, "batch", momentum=0.9, mode="batch")
        self.dropout = eqx.nn.Dropout(DROPOUT)
    def __call__(self, x, running, key):
        x, running = self.norm(self.first(x), running)
        return self.last(self.dropout(jax.nn.relu(x), key=key)), running

def build(key):
    net, running = eqx.nn.make_with_state(Net)(key)
    return net, running, OPTIMIZER.init(eqx.filter(net, eqx.is_inexact_array))

def draw(rng, split):
    rows = rng.integers(*((0, 1500) if split == "train" else (1500, 1797)), size=64)
    return {"x": X[rows].astype("float32") / 16, "y": Y[rows]}

def loss(net, running, batch, keys):
    each = jax.vmap(net, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")
    logits, running = each(batch["x"], running, keys)
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), (logits, running)

def train_step(net, running, moments, batch, key):
    keys = jax.random.split(key, len(batch["x"]))
    (value, (_, running)), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(net, running, batch, keys)
    updates, moments = OPTIMIZER.update(gradient, moments)
    return (eqx.apply_updates(net, updates), running, moments), {"loss": value}

def test(net, running, moments, batch):
    value, (logits, _) = loss(eqx.nn.inference_mode(net), running, batch, None)
    return {"loss": value, "accuracy": jnp.mean(logits.argmax(1) == batch["y"])}

# -- for isthmus -------------------------------------------------------------------------------------------------------
def whole(arrays):                                   # With what is no array: activations, rates, flags.
    shapes = eqx.filter_eval_shape(lambda: build(jax.random.key(0)))
    return eqx.combine(arrays, eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True))
def step(arrays, batch, now):
    stepped, scalars = train_step(*whole(arrays), batch, now.key)
    return eqx.filter(stepped, eqx.is_array), scalars
task = Task.of_step(lambda key: eqx.filter(build(key), eqx.is_array), step,
                    lambda arrays, batch: test(*whole(arrays), batch),
                    lambda at: draw(at.rng(), at.split), tokens_per_batch=64,
                    merge={"0/**": "rda", "1/1/*": "mean", "**": "local"})    # 1/0 counts batches
