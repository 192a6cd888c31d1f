"""A convolutional network with batch normalisation, in plain JAX, that learns to read handwritten digits.

    isthmus train --task digits.py:task --tokens 46080 --set program.interval=12

The data come with scikit-learn (1,797 images of 8 x 8 pixels). They are in the order in which people wrote them; the
last 288 are held out, and are of writers that training has not seen. A token is an image.

A batch is normalised by its own statistics in a step, and by the running ones in an evaluation; islands merge these as
a mean of their values. The optimizer's moments stay with their learner. The keywords of `digits` make other tasks:
`--task 'digits.py:digits(width = 32)'`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from isthmus import StepTask, Task

CLASSES = 10
HELD_OUT = 288  # About one image in six, and whole batches of 16.
MOMENTUM = 0.9  # The share of the running statistics that a step keeps; ten batches determine them.
EPSILON = 1e-5

PIXELS, DIGIT = load_digits(return_X_y=True)
X = (PIXELS / 16.0).reshape(-1, 8, 8, 1).astype(np.float32)
Y = DIGIT.astype(np.int32)


def batch(size, at):
    """`size` images: held-out ones in order, repeated; for training, drawn anew for each batch.

    Each training image is shifted by a pixel or none along both axes, to have more than 1,509 images.
    """
    count = len(X) - HELD_OUT
    if at.split == "evaluation":
        chosen = count + (at.position * size + np.arange(size)) % HELD_OUT
        return {"x": X[chosen], "y": Y[chosen]}
    rng = at.rng()
    chosen, shifts = rng.integers(count, size=size), rng.integers(3, size=(size, 2))
    wide = np.pad(X[chosen], ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [image[i : i + 8, j : j + 8] for image, (i, j) in zip(wide, shifts, strict=True)]
    return {"x": np.stack(shifted), "y": Y[chosen]}


def init(width, optimizer, key):
    first, second, head = jax.random.split(key, 3)
    params = {
        "first": convolution(first, (3, 3, 1, width)),
        "second": convolution(second, (3, 3, width, 2 * width)),
        "head": {"w": jax.random.normal(head, (32 * width, CLASSES)) * 0.01, "b": jnp.zeros(CLASSES)},
    }
    statistics = {
        name: {"mean": jnp.zeros(channels), "variance": jnp.ones(channels)}
        for name, channels in (("first", width), ("second", 2 * width))
    }
    return {"params": params, "statistics": statistics, "optimizer": optimizer.init(params)}


def convolution(key, shape):
    """A kernel, with the scale and the shift that follow its normalisation."""
    kernel = jax.random.normal(key, shape) * (2.0 / np.prod(shape[:-1])) ** 0.5
    return {"kernel": kernel, "scale": jnp.ones(shape[-1]), "shift": jnp.zeros(shape[-1])}


def logits(params, x, statistics=None):
    """The logits [n, 10] of images [n, 8, 8, 1], and the statistics of their channels; normalised by these, unless
    others are given."""
    found = {}
    for name, stride in (("first", 1), ("second", 2)):
        layer = params[name]
        window = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=window)
        found[name] = {"mean": x.mean((0, 1, 2)), "variance": x.var((0, 1, 2))}
        used = found[name] if statistics is None else statistics[name]
        x = (x - used["mean"]) * jax.lax.rsqrt(used["variance"] + EPSILON) * layer["scale"] + layer["shift"]
        x = jax.nn.relu(x)
    return x.reshape(len(x), -1) @ params["head"]["w"] + params["head"]["b"], found


def scalars(scores, digit):
    loss = optax.softmax_cross_entropy_with_integer_labels(scores, digit).mean()
    return {"loss": loss, "accuracy": jnp.mean(jnp.argmax(scores, axis=1) == digit)}


def step(rate, optimizer, state, batch, now):
    def loss(params):
        scores, found = logits(params, batch["x"])
        result = scalars(scores, batch["y"])
        return result["loss"], (result, found)

    gradient, (result, found) = jax.grad(loss, has_aux=True)(state["params"])
    updates, after = optimizer.update(gradient, state["optimizer"], state["params"])
    params = jax.tree.map(lambda leaf, update: leaf - rate(1000 * now.progress) * update, state["params"], updates)
    statistics = optax.incremental_update(found, state["statistics"], 1 - MOMENTUM)
    return {"params": params, "statistics": statistics, "optimizer": after}, result


def evaluate(state, batch):
    return scalars(logits(state["params"], batch["x"], state["statistics"])[0], batch["y"])


def is_matrix(params):
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)


def digits(*, width: int = 16, size: int = 16, lr: float = 0.03, warmup: float = 0.1) -> StepTask:
    """`width` channels in the first layer and twice as many in the second, batches of `size` images, and AdamW at the
    learning rate `lr`, which rises to there in the share `warmup` of the run."""
    if HELD_OUT % size:
        raise ValueError(f"size = {size} is no divisor of {HELD_OUT}, the images held out")
    # In thousandths of the run, of which `now.progress` is the share that all learners together have trained.
    rate = optax.warmup_cosine_decay_schedule(0.0, lr, 1000 * warmup, 1000, end_value=0.05 * lr)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(0.9, 0.95),
        optax.add_decayed_weights(0.01, mask=is_matrix),
    )
    return Task.of_step(
        partial(init, width, optimizer),
        partial(step, rate, optimizer),
        evaluate,
        partial(batch, size),
        tokens_per_batch=size,
        evaluation=HELD_OUT // size,
        merge={"statistics/**": "mean", "params/head/*": "average", "params/**": "rda", "**": "local"},
    )


task = digits()
