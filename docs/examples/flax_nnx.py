"""A Flax NNX model, with batch normalisation and dropout, on handwritten digits.

    isthmus train --task flax_nnx.py:task --tokens 64000 --set program.interval=12

Above the line is a script for one device without its loop, below it what isthmus needs.
"""

import jax.numpy as jnp, optax
from flax import nnx
from sklearn.datasets import load_digits
from isthmus import Task

DROPOUT = 0.1
X, Y = load_digits(return_X_y=True)

class Net(nnx.Module):
    def __init__(self, rngs):
        self.first, self.last = nnx.Linear(64, 32, rngs=rngs), nnx.Linear(32, 10, rngs=rngs)
        self.norm, self.dropout = nnx.BatchNorm(32, momentum=0.9, rngs=rngs), nnx.Dropout(DROPOUT, rngs=rngs)

    def __call__(self, x): return self.last(self.dropout(nnx.relu(self.norm(self.first(x)))))

def build(seed):
    net = Net(nnx.Rngs(seed))
    return net, nnx.Optimizer(net, optax.sgd(0.1, momentum=0.9), wrt=nnx.Param)

def draw(rng, split):
    rows = rng.integers(*((0, 1500) if split == "train" else (1500, 1797)), size=64)
    return {"x": X[rows].astype("float32") / 16, "y": Y[rows]}

def loss(net, batch):
    logits = net(batch["x"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean(), logits

def train_step(net, optimizer, batch):
    (value, _), gradient = nnx.value_and_grad(loss, has_aux=True)(net, batch)
    optimizer.update(net, gradient)
    return value

def test(net, batch):
    net.eval()
    value, logits = loss(net, batch)
    return {"loss": value, "accuracy": jnp.mean(logits.argmax(1) == batch["y"])}

# -- for isthmus -------------------------------------------------------------------------------------------------------
def parts(*both):
    _, params, statistics, rest = nnx.split(both, nnx.Param, nnx.BatchStat, ...)
    return {"params": params, "statistics": statistics, "rest": rest}
def whole(state):
    return nnx.merge(nnx.split(nnx.eval_shape(lambda: build(0)))[0], *state.values())
def step(state, batch, now):
    value = train_step(*(both := whole(state)), batch)
    return parts(*both), {"loss": value}
task = Task.of_step(lambda key: parts(*build(key)), step, lambda state, batch: test(whole(state)[0], batch),
                    lambda at: draw(at.rng(), at.split), tokens_per_batch=64,
                    merge={"params/**": "rda", "statistics/**": "mean", "**": "local"})
