"""A mixture-of-experts feed-forward half: a router sends each token to a few experts, each of which has a capacity.

Decides which expert computes which token, and with which share its output counts; the experts themselves are SwiGLU,
like the dense half. Tokens are routed in groups, a sequence each, as in GShard (arXiv 2006.16668, algorithm 1), by
dense one-hot products: every shape is static, regardless of the router. An expert takes at most `capacity` tokens of a
group; the rest is not computed, and the residual stream carries those tokens past it.

Where we differ: places are assigned token by token, not all first choices before all second ones. So no token's fate
depends on a later token, and a causal model stays causal.

The balance (Switch Transformer, arXiv 2101.03961, equations 4 to 6) is 1 where tokens and probabilities are spread
evenly, and up to the number of experts where all go to one. It is computed from a learner's own batch; learners do not
exchange it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp


@dataclass(frozen=True, slots=True)
class Routing:
    """`experts` of which each token is sent to `chosen`; ValueError unless 1 <= chosen <= experts.

    `slack` is an expert's capacity as a multiple of its even share of a group; `balance` the weight of the balance in
    the loss.
    """

    experts: int
    chosen: int = 2
    slack: float = 1.25
    balance: float = 0.01

    def __post_init__(self) -> None:
        if not 1 <= self.chosen <= self.experts:
            raise ValueError(f"sending each token to {self.chosen} of {self.experts} experts")

    def capacity(self, length: int) -> int:
        """The number of tokens of a group of `length` tokens that an expert takes."""
        return min(length, math.ceil(self.slack * self.chosen * length / self.experts))


def route(routing: Routing, router: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The assignment of the tokens `x` [groups, length, width] to experts, by the weights `router` [width, experts].

    Returns `dispatch` [groups, length, experts, capacity], 1 where a token has that place with that expert and 0
    elsewhere; `combine`, of the same shape, the share of the expert's output in the token's; and the balance, a scalar.
    All are float32, because the choice is too sensitive for lower precision. The shares of a token's chosen experts add
    up to 1, whether they have room for it or not.
    """
    scores = jax.nn.softmax(x.astype(jnp.float32) @ router.astype(jnp.float32), axis=-1)
    values, experts = jax.lax.top_k(scores, routing.chosen)
    shares = values / values.sum(axis=-1, keepdims=True)
    wanted = jax.nn.one_hot(experts, routing.experts)  # [groups, length, chosen, experts]
    groups, length = x.shape[0], x.shape[1]
    in_order = wanted.reshape(groups, length * routing.chosen, routing.experts)
    before = (jnp.cumsum(in_order, axis=1) - in_order).reshape(wanted.shape)
    place = jnp.sum(before * wanted, axis=-1).astype(jnp.int32)
    places = jax.nn.one_hot(place, routing.capacity(length))  # Zeros from the capacity on: there is no such place.
    dispatch = jnp.einsum("gtke,gtkc->gtec", wanted, places)
    combine = jnp.einsum("gtk,gtke,gtkc->gtec", shares, wanted, places)
    load = jnp.mean(wanted, axis=(0, 1, 2))
    balance = routing.experts * jnp.sum(load * jnp.mean(scores, axis=(0, 1)))
    return dispatch, combine, balance


def feedforward(routing: Routing, params: dict[str, Any], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The experts' output for the normalised tokens `x` [groups, length, width], same shape and dtype; and the balance.

    `params`: `router` [width, experts]; `gate` and `up` [experts, width, hidden], `down` [experts, hidden, width].
    """
    dispatch, combine, balance = route(routing, params["router"], x)
    taken = jnp.einsum("gtec,gtd->egcd", dispatch.astype(x.dtype), x)
    gate = jnp.einsum("egcd,edh->egch", taken, params["gate"])
    up = jnp.einsum("egcd,edh->egch", taken, params["up"])
    given = jnp.einsum("egch,ehd->egcd", jax.nn.silu(gate) * up, params["down"])
    return jnp.einsum("gtec,egcd->gtd", combine.astype(x.dtype), given), balance
