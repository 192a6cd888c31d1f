"""The outer step: SGD with Nesterov momentum on one fragment.

Decides the next value of a fragment from its merged outer gradient. Does not decide the settings, when a step is made,
or what its gradient is.

Theory of operation. The state is float32 beside the fragment (arXiv 2311.08105, section 2):

    b <- mu b + g
    Theta <- Theta - eta (g + mu b)

This is `optax.sgd(eta, momentum=mu, nesterov=True)`, rounded as optax rounds it when run operation by operation. The
merge passes g = scale[unit] * direction in two parts, and the product is computed here, in the one sweep. Without
momentum b is g, which the next step does not read: `descent` neither reads nor writes it.

Units that are means of values take no outer step: for them eta is 1 and mu 0, regardless of the settings, so that
Theta <- Theta - sum_m w_m (Theta - v_m), the weighted mean of the learners' values.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.merge_rules import RULES
from isthmus.ops.kernels.buffers import Float32, copied
from isthmus.ops.kernels.stripes import Int64, kernel, kernel_input, share, stripes


def step_over(
    theta: Float32,
    momentum: Float32,
    direction: Float32,
    scale: Float32,
    fragment: Fragment,
    lr: float,
    momentum_decay: float,
    threads: int | None = None,
) -> None:
    """One outer step, in memory that is there: the fragment after it is in that of the direction, the momentum in its
    own.

    Arguments:
        theta, momentum: float32[n], n = fragment.size; momentum starts at 0.
        direction, scale: float32[n] and float32[units], the merged outer gradient as `averaging.merge` returns it.
        lr, momentum_decay: eta > 0 and mu in [0, 1), used as float32, of all units but means.
        threads: the most to use, by default one for each core; the result has the same bits for any number.

    Raises ValueError where a size disagrees with the fragment.
    """
    _check(fragment, theta=theta, momentum=momentum, direction=direction, scale=scale)
    is_mean = [not RULES[unit.merge].steps for unit in fragment.units]
    cuts = stripes(fragment.offsets)
    step = partial(
        _step,
        kernel_input(theta),
        momentum,
        direction,
        kernel_input(scale),
        _rates(fragment, lr),
        np.where(is_mean, 0.0, momentum_decay).astype(np.float32),
        cuts.begins,
        cuts.ends,
        cuts.units,
    )
    share(step, cuts, threads)


def descent(
    theta: Float32, direction: Float32, scale: Float32, fragment: Fragment, lr: float, threads: int | None = None
) -> Float32:
    """The fragment after one outer step without momentum, float32[n] in a new buffer; arguments as for `step_over`."""
    _check(fragment, theta=theta, direction=direction, scale=scale)
    stepped = copied(direction)
    descend_over(theta, stepped, scale, fragment, lr, threads)
    return stepped


def descend_over(
    theta: Float32, direction: Float32, scale: Float32, fragment: Fragment, lr: float, threads: int | None = None
) -> None:
    """As `descent`, in the memory of the direction."""
    _check(fragment, theta=theta, direction=direction, scale=scale)
    cuts = stripes(fragment.offsets)
    inputs = kernel_input(theta), direction, kernel_input(scale), _rates(fragment, lr)
    share(partial(_descend, *inputs, cuts.begins, cuts.ends, cuts.units), cuts, threads)


def warm() -> None:
    """Compile the kernels, or load them from the cache; otherwise the first step does it."""
    ones, fragment = np.ones(1, np.float32), Fragment(0, (Unit("a", 0, 1, (1,)),))
    step_over(ones, copied(ones), copied(ones), ones, fragment, 1.0, 0.0)
    descent(ones, ones, ones, fragment, 1.0)


def _check(fragment: Fragment, **arrays: Float32) -> None:
    """ValueError where a size disagrees with the fragment."""
    expected = {name: (len(fragment.units) if name == "scale" else fragment.size,) for name in arrays}
    actual = {name: each.shape for name, each in arrays.items()}
    if actual != expected:
        raise ValueError(f"outer step of fragment {fragment.index}: expected shapes {expected}, found {actual}.")


def _rates(fragment: Fragment, lr: float) -> Float32:
    """The rate of each unit, float32[units]: 1 for means."""
    return np.array([lr if RULES[unit.merge].steps else 1.0 for unit in fragment.units], np.float32)


# An output that is an input, and not another one in the same memory: of these a compiler has to assume that a value
# written is one that is read next, and takes four times as long.
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
    first: int,
    last: int,
) -> None:
    for s in range(first, last):
        begin, end, length = begins[s], ends[s], scale[units[s]]
        eta, mu = lr[units[s]], momentum_decay[units[s]]
        theta_s, momentum_s, direction_s = theta[begin:end], momentum[begin:end], direction[begin:end]
        for i in range(end - begin):
            g = length * direction_s[i]
            b = mu * momentum_s[i] + g
            momentum_s[i] = b
            direction_s[i] = theta_s[i] - eta * (g + mu * b)


@kernel
def _descend(
    theta: Float32,
    direction: Float32,
    scale: Float32,
    lr: Float32,
    begins: Int64,
    ends: Int64,
    units: Int64,
    first: int,
    last: int,
) -> None:
    for s in range(first, last):
        begin, end, length, eta = begins[s], ends[s], scale[units[s]], lr[units[s]]
        theta_s, direction_s = theta[begin:end], direction[begin:end]
        for i in range(end - begin):
            direction_s[i] = theta_s[i] - eta * (length * direction_s[i])
