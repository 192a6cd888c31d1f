"""The second shipped task: a small convolutional network that learns to read handwritten digits.

The data are shipped with scikit-learn (1,797 images of 8 x 8 pixels), so that nothing is downloaded. They are in the
order in which people wrote them; the last 288 are held out, which are of writers that training has not seen.

A task of a step: parameters, the running statistics of batch normalisation, and an optimizer, whose moments stay with
their learner. A batch is normalised by its own statistics in a step, and by the running ones in an evaluation; islands
merge these as a mean of their values.

    isthmus train --task isthmus.programs.digits:task --tokens 20000 --set program.interval=12

The keywords of `digits` make others: `--task 'isthmus.programs.digits:digits(width = 32)'`. A token is an image.
"""

from __future__ import annotations

import importlib.util
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.island import optimizer
from isthmus.programs.task import StepTask, Task
from isthmus.runtime.errors import ConfigError, Fault

CLASSES: Final = 10
HELD_OUT: Final = 288
"""Images at the end of the data: about one in six, and whole batches of 16."""
MOMENTUM: Final = 0.9
"""The share of the running statistics that a step keeps; ten batches determine them."""
EPSILON: Final = 1e-5

if importlib.util.find_spec("sklearn") is None:
    raise ConfigError(
        "Loading the task of digits",
        "scikit-learn, which has the data",
        "none",
        "Install it beside isthmus: in a clone, pip install -e '.[digits]'.",
    )


class Images(NamedTuple):
    """Pixels float32[n, 8, 8, 1] in [0, 1], and which digits they are, int32[n]."""

    x: np.ndarray[Any, np.dtype[np.float32]]
    y: np.ndarray[Any, np.dtype[np.int32]]


@lru_cache(maxsize=1)
def images() -> Images:
    """All images, in their order."""
    from sklearn.datasets import load_digits

    pixels, digit = load_digits(return_X_y=True)
    return Images((pixels / 16.0).reshape(-1, 8, 8, 1).astype(np.float32), digit.astype(np.int32))


def batch(size: int, at: At) -> dict[str, Any]:
    """`size` images: held-out ones in order, repeated; for training, drawn anew for each batch.

    Each training image is shifted by a pixel or none along both axes, to have more than 1,509 images.
    """
    x, y = images()
    count = len(x) - HELD_OUT
    if at.split == "evaluation":
        chosen = count + (at.position * size + np.arange(size)) % HELD_OUT
        return {"x": x[chosen], "y": y[chosen]}
    rng = at.rng()
    chosen, shifts = rng.integers(count, size=size), rng.integers(3, size=(size, 2))
    wide = np.pad(x[chosen], ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = [image[i : i + 8, j : j + 8] for image, (i, j) in zip(wide, shifts, strict=True)]
    return {"x": np.stack(shifted), "y": y[chosen]}


def init(width: int, moments: Any, key: Any) -> dict[str, Any]:
    """A first state; `moments` is the optimizer."""
    first, second, head = jax.random.split(key, 3)
    params = {
        "first": _layer(first, (3, 3, 1, width)),
        "second": _layer(second, (3, 3, width, 2 * width)),
        "head": {"w": jax.random.normal(head, (32 * width, CLASSES)) * 0.01, "b": jnp.zeros(CLASSES)},
    }
    statistics = {
        name: {"mean": jnp.zeros(channels), "variance": jnp.ones(channels)}
        for name, channels in (("first", width), ("second", 2 * width))
    }
    return {"params": params, "statistics": statistics, "optimizer": moments.init(params)}


def _layer(key: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    """A convolution, with the scale and the shift that follow its normalisation."""
    kernel = jax.random.normal(key, shape) * (2.0 / np.prod(shape[:-1])) ** 0.5
    return {"kernel": kernel, "scale": jnp.ones(shape[-1]), "shift": jnp.zeros(shape[-1])}


def step(moments: Any, state: Any, batch: Any, now: Any) -> tuple[Any, dict[str, Any]]:
    """A step of the optimizer, and of the running statistics."""
    gradient, (scalars, found) = jax.grad(_trained, has_aux=True)(state["params"], batch)
    updates, after = moments.update(gradient, state["optimizer"], state["params"], progress=now.progress)
    params = jax.tree.map(jnp.add, state["params"], updates)
    statistics = jax.tree.map(lambda kept, new: MOMENTUM * kept + (1 - MOMENTUM) * new, state["statistics"], found)
    return {"params": params, "statistics": statistics, "optimizer": after}, scalars


def evaluate(state: Any, batch: Any) -> dict[str, Any]:
    """Loss and accuracy, by the running statistics."""
    return _scalars(logits(state["params"], batch["x"], state["statistics"])[0], batch["y"])


def logits(params: Any, x: Any, statistics: Any = None) -> tuple[Any, Any]:
    """The logits [n, 10] of images [n, 8, 8, 1], and the statistics of their channels; normalised by these, unless
    others are given."""
    moments = {}
    for name, stride in (("first", 1), ("second", 2)):
        layer = params[name]
        window = ("NHWC", "HWIO", "NHWC")
        x = jax.lax.conv_general_dilated(x, layer["kernel"], (stride, stride), "SAME", dimension_numbers=window)
        moments[name] = {"mean": x.mean((0, 1, 2)), "variance": x.var((0, 1, 2))}
        used = moments[name] if statistics is None else statistics[name]
        x = (x - used["mean"]) * jax.lax.rsqrt(used["variance"] + EPSILON) * layer["scale"] + layer["shift"]
        x = jax.nn.relu(x)
    return x.reshape(len(x), -1) @ params["head"]["w"] + params["head"]["b"], moments


def _trained(params: Any, batch: Any) -> tuple[Any, tuple[dict[str, Any], Any]]:
    scores, moments = logits(params, batch["x"])
    scalars = _scalars(scores, batch["y"])
    return scalars["loss"], (scalars, moments)


def _scalars(scores: Any, digit: Any) -> dict[str, Any]:
    right = jnp.take_along_axis(scores, digit[:, None], axis=1)[:, 0]
    loss = jnp.mean(jax.nn.logsumexp(scores, axis=1) - right)
    return {"loss": loss, "accuracy": jnp.mean(jnp.argmax(scores, axis=1) == digit)}


def digits(*, width: int = 16, size: int = 16, lr: float = 0.03, warmup: float = 0.1) -> StepTask:
    """The task with `width` channels in the first layer and twice as many in the second, batches of `size` images, and
    AdamW at the learning rate `lr`, which rises to there in the share `warmup` of the run. ConfigError, with every
    fault, for a number out of range."""
    faults = [
        Fault("Making the task of digits", expected, f"{name} = {value}", f"Change {name}, or leave it out.")
        for name, value, expected, holds in (
            ("width", width, "an integer of at least 1", _is_count(width)),
            ("size", size, f"a divisor of {HELD_OUT}, the images held out", _is_count(size) and HELD_OUT % size == 0),
            ("lr", lr, "a number above 0", 0.0 < lr < np.inf),
            ("warmup", warmup, "a number from 0 to below 1", 0.0 <= warmup < 1.0),
        )
        if not holds
    ]
    if faults:
        raise ConfigError.of(faults)
    moments = optimizer.adamw(peak=lr, warmup=warmup, weight_decay=0.01, clip=1.0)
    return Task.of_step(
        partial(init, width, moments),
        partial(step, moments),
        evaluate,
        partial(batch, size),
        tokens_per_batch=size,
        evaluation=HELD_OUT // size,
        merge={"statistics/**": "mean", "params/head/*": "average", "params/**": "rda", "**": "local"},
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


task: Final = digits()
