"""Everything that a training script may have beside a model: schedule, clipping, a mask for the decay, gradients of
several batches a step, an average of the parameters that is evaluated in their place, and layers computed twice.

    isthmus train --task optax_chain.py:task --tokens 64000 --set program.interval=12

The schedule follows `now.progress`, the share of the run's tokens that all learners have trained, and not a count of
steps: a learner that joins late is then where the others are. What the optimizer counts stays with its learner. The
average is merged as a mean of values, so that every learner's is of the merged model.
"""

import jax, jax.numpy as jnp, optax
from sklearn.datasets import load_digits
from isthmus import Task

DECAY, EVERY = 0.9, 2
X, Y = load_digits(return_X_y=True)
RATE = optax.warmup_cosine_decay_schedule(0.0, 0.01, warmup_steps=100, decay_steps=1000)     # in thousandths of a run

def is_matrix(params): return jax.tree.map(lambda leaf: leaf.ndim == 2, params)
CHAIN = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(),
                    optax.add_decayed_weights(0.1, mask=is_matrix))
OPTIMIZER = optax.MultiSteps(CHAIN, every_k_schedule=EVERY)

def init(key):
    keys = jax.random.split(key, 4)
    sizes = ((64, 32), (32, 32), (32, 32), (32, 10))
    params = [{"w": jax.random.normal(k, size) * size[0] ** -0.5, "b": jnp.zeros(size[1])}
              for k, size in zip(keys, sizes, strict=True)]
    return {"params": params, "average": jax.tree.map(jnp.copy, params), "optimizer": OPTIMIZER.init(params)}

@jax.checkpoint                                          # Activations are computed again on the way back.
def layer(x, params): return x + jax.nn.gelu(x @ params["w"] + params["b"])

def loss(params, batch):
    x = batch["x"] @ params[0]["w"] + params[0]["b"]
    for inner in params[1:-1]:
        x = layer(x, inner)
    logits = x @ params[-1]["w"] + params[-1]["b"]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"])
    return losses.mean(), jnp.mean(logits.argmax(1) == batch["y"])

def step(state, batch, now):
    (value, _), gradient = jax.value_and_grad(loss, has_aux=True)(state["params"], batch)
    updates, optimizer = OPTIMIZER.update(gradient, state["optimizer"], state["params"])
    rate = RATE(1000 * now.progress)                     # Zero updates until every second batch.
    params = jax.tree.map(lambda leaf, update: leaf - rate * update, state["params"], updates)
    average = optax.incremental_update(params, state["average"], 1 - DECAY)
    return {"params": params, "average": average, "optimizer": optimizer}, {"loss": value, "rate": rate}

def evaluate(state, batch):
    value, accuracy = loss(state["average"], batch)
    return {"loss": value, "accuracy": accuracy}

def batch(at):
    rows = at.rng().integers(*((0, 1500) if at.split == "train" else (1500, 1797)), size=64)
    return {"x": X[rows].astype("float32") / 16, "y": Y[rows]}

task = Task.of_step(init, step, evaluate, batch, tokens_per_batch=64,
                    merge={"params/**": "rda", "average/**": "mean", "optimizer/**": "local"})
