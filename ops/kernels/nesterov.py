"""The outer step: SGD with Nesterov momentum on one fragment.

Decides the next value of a fragment from its merged outer gradient. Does not decide the settings, when a step is made,
or what its gradient is.

Theory of operation. The state is float32 beside the fragment (arXiv 2311.08105, section 2):

    b <- mu b + g
    Theta <- Theta - eta (g + mu b)

This is `optax.sgd(eta, momentum=mu, nesterov=True)`, rounded as optax rounds it when run operation by operation. The
merge passes g = scale[unit] * direction in two parts, and the product is computed here, in the one sweep.

Units that are means of values take no outer step: for them eta is 1 and mu 0, regardless of the settings, so that
Theta <- Theta - sum_m w_m (Theta - v_m), the weighted mean of the learners' values.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels.buffers import Float32, empty
from isthmus.ops.kernels.stripes import THREADS, Int64, kernel, kernel_input, share, stripes


def outer_step(
    theta: Float32,
    momentum: Float32,
    direction: Float32,
    scale: Float32,
    fragment: Fragment,
    lr: float,
    momentum_decay: float,
    threads: int = THREADS,
) -> tuple[Float32, Float32]:
    """The fragment and its momentum after one outer step, float32[n] each, in new buffers.

    Arguments:
        theta, momentum: float32[n], n = fragment.size; momentum starts at 0.
        direction, scale: float32[n] and float32[units], the merged outer gradient as `averaging.merge` returns it.
        lr, momentum_decay: eta > 0 and mu in [0, 1), used as float32, of all units but means.
        threads: the most to use; the result has the same bits for any number.

    Raises ValueError where a size disagrees with the fragment.
    """
    given = (theta.shape, momentum.shape, direction.shape, scale.shape)
    expected = ((fragment.size,),) * 3 + ((len(fragment.units),),)
    if given != expected:
        raise ValueError(
            f"outer step of fragment {fragment.index}: expected theta, momentum, direction and scale of shapes "
            f"{expected}, found {given}."
        )
    is_mean = [unit.merge == "mean" for unit in fragment.units]
    cuts = stripes(fragment.offsets)
    stepped, moved = empty(fragment.size), empty(fragment.size)
    step = partial(
        _step,
        kernel_input(theta),
        kernel_input(momentum),
        kernel_input(direction),
        kernel_input(scale),
        np.where(is_mean, 1.0, lr).astype(np.float32),
        np.where(is_mean, 0.0, momentum_decay).astype(np.float32),
        cuts.begins,
        cuts.ends,
        cuts.units,
        stepped,
        moved,
    )
    share(step, cuts, threads)
    return stepped, moved


def warm() -> None:
    """Compile the kernel, or load it from the cache; otherwise the first step does it."""
    ones = np.ones(1, np.float32)
    outer_step(ones, ones, ones, ones, Fragment(0, (Unit("a", 0, 1, (1,)),)), 1.0, 0.0)


@kernel
def _step(
    theta: Float32,
    momentum: Float32,
    direction: Float32,
    scale: Float32,
    lr: Float32,
    momentum_decay: Float32,
    begins: Int64,
    ends: Int64,
    units: Int64,
    stepped: Float32,
    moved: Float32,
    first: int,
    last: int,
) -> None:
    for s in range(first, last):
        begin, end, length = begins[s], ends[s], scale[units[s]]
        eta, mu = lr[units[s]], momentum_decay[units[s]]
        theta_s, momentum_s, direction_s = theta[begin:end], momentum[begin:end], direction[begin:end]
        stepped_s, moved_s = stepped[begin:end], moved[begin:end]
        for i in range(end - begin):
            g = length * direction_s[i]
            b = mu * momentum_s[i] + g
            moved_s[i] = b
            stepped_s[i] = theta_s[i] - eta * (g + mu * b)
