"""A decoder-only transformer over bytes or tokens, by configuration, dense or with a mixture of experts.

Decides names, shapes, initial values and the forward pass; optimizer and data are elsewhere. Normalisation before each
half of a layer (RMSNorm, arXiv 1910.07467), rotary positions (arXiv 2104.09864), SwiGLU (arXiv 2002.05202), no biases,
`x @ W` throughout. Parameters are float32; `dtype` is that of the matrix products, while norms, the softmax and the
loss are always computed in float32.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np


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

    Tokens are routed in groups, a sequence each, as in GShard (arXiv 2006.16668, algorithm 1), by dense one-hot
    products: every shape is static, regardless of the router. An expert takes at most `capacity` tokens of a group; the
    rest is not computed, and the residual stream carries those tokens past it. Unlike there, places are assigned token
    by token, not all first choices before all second ones: no token's fate depends on a later token, and a causal model
    stays causal.

    The balance (Switch Transformer, arXiv 2101.03961, equations 4 to 6) is 1 where tokens and probabilities are spread
    evenly, and up to the number of experts where all go to one. It is computed from a learner's own batch.
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
    inputs = jnp.einsum("gtec,gtd->egcd", dispatch.astype(x.dtype), x)
    gate = jnp.einsum("egcd,edh->egch", inputs, params["gate"])
    up = jnp.einsum("egcd,edh->egch", inputs, params["up"])
    outputs = jnp.einsum("egch,ehd->egcd", jax.nn.silu(gate) * up, params["down"])
    return jnp.einsum("gtec,egcd->gtd", combine.astype(x.dtype), outputs), balance


Parameters: TypeAlias = dict[str, Any]

NORM_EPSILON = 1e-6
ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape of a model; ValueError if `heads` does not divide `width` into heads of even size.

    The defaults are the model called nano: 131,904 parameters. `hidden` is the width of the feed-forward half; None
    is 8/3 of `width`, which gives SwiGLU's three matrices the size of two of 4 x width, rounded up to a multiple of 4.
    `tied` reads the logits off the token embedding; `dtype` is "float32" or "bfloat16". `routing` makes the
    feed-forward halves of experts, each of that width. `stacked` keeps all layers in tensors with an axis more, in
    front; `checkpoint` keeps of a layer its input alone for the backward pass, which computes the rest again.
    """

    vocabulary: int = 256
    layers: int = 2
    width: int = 64
    heads: int = 4
    context: int = 64
    hidden: int | None = None
    tied: bool = False
    dtype: str = "float32"
    routing: Routing | None = None
    stacked: bool = False
    checkpoint: bool = False

    def __post_init__(self) -> None:
        if self.width % self.heads or self.head_size % 2:
            raise ValueError(f"width {self.width} does not divide into {self.heads} heads of even size")

    @property
    def head_size(self) -> int:
        """The width of one attention head; even, because rotary positions turn pairs."""
        return self.width // self.heads

    @property
    def hidden_width(self) -> int:
        """The width of the feed-forward half, with the default resolved."""
        return self.hidden if self.hidden is not None else -(-8 * self.width // 12) * 4


class InitialTensor(NamedTuple):
    """A parameter's shape and the standard deviation of its normal initial values; None is all ones."""

    shape: tuple[int, ...]
    deviation: float | None


def tensors(config: ModelConfig) -> dict[str, InitialTensor]:
    """Name -> shape and initial values of every parameter, in the order of the forward pass.

    The table defines all parameters: `init` fills it, and '/' in a name is one level of nesting, so the paths of the
    tree are the names that fragments and safetensors use. Layers are separate entries, or, in a `stacked` model, rows
    of one entry each, over which the forward pass is a scan: the compiler then sees one layer, whatever the depth.
    """
    width = config.width
    table = {"embedding": InitialTensor((config.vocabulary, width), 0.02)}
    layer = _layer_tensors(config)
    if config.stacked:
        table |= {
            f"layers/{name}": InitialTensor((config.layers, *shape), each) for name, (shape, each) in layer.items()
        }
    else:
        table |= {f"layers/{index}/{name}": each for index in range(config.layers) for name, each in layer.items()}
    table["norm"] = InitialTensor((width,), None)
    if not config.tied:
        table["head"] = InitialTensor((width, config.vocabulary), 0.02)
    return table


def _layer_tensors(config: ModelConfig) -> dict[str, InitialTensor]:
    """The same of one layer, by names within it."""
    width, hidden = config.width, config.hidden_width
    # The two matrices that write to the residual stream are scaled down, so that its variance at the last layer does
    # not grow with the depth.
    residual = (2 * config.layers) ** -0.5
    table = {"attention/norm": InitialTensor((width,), None)}
    for name in ("query", "key", "value"):
        table[f"attention/{name}"] = InitialTensor((width, width), width**-0.5)
    table["attention/output"] = InitialTensor((width, width), width**-0.5 * residual)
    table["feedforward/norm"] = InitialTensor((width,), None)
    count = () if config.routing is None else (config.routing.experts,)
    if count:
        table["feedforward/router"] = InitialTensor((width, *count), 0.02)
    table["feedforward/gate"] = InitialTensor((*count, width, hidden), width**-0.5)
    table["feedforward/up"] = InitialTensor((*count, width, hidden), width**-0.5)
    table["feedforward/down"] = InitialTensor((*count, hidden, width), hidden**-0.5 * residual)
    return table


def init(config: ModelConfig, key: jax.Array) -> Parameters:
    """Fresh float32 parameters as nested dicts; tensor i of `tensors` draws from `fold_in(key, i)`."""
    params: Parameters = {}
    for index, (name, (shape, deviation)) in enumerate(tensors(config).items()):
        if deviation is None:
            value = jnp.ones(shape, jnp.float32)
        else:
            value = deviation * jax.random.normal(jax.random.fold_in(key, index), shape, jnp.float32)
        *folders, leaf = name.split("/")
        branch = params
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[leaf] = value
    return params


def is_hidden(params: Any) -> Any:
    """A tree of truth values that marks the matrices from hidden states to hidden states: those of the layers, but for
    routers."""

    def marked(path: Any, _: Any) -> bool:
        names = [step.key for step in path]
        return names[0] == "layers" and names[-1] not in ("norm", "router")

    return jax.tree_util.tree_map_with_path(marked, params)


def logits(config: ModelConfig, params: Parameters, tokens: jax.Array) -> jax.Array:
    """The float32 logits [sequences, length, vocabulary] of the token after each of `tokens` [sequences, length]."""
    return _forward(config, params, tokens)[0]


def _forward(config: ModelConfig, params: Parameters, tokens: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    """The logits, and the mean balance of the layers, None without experts."""
    layers, rest = params["layers"], {name: params[name] for name in params if name != "layers"}
    rest = _typed(config, rest)
    x = rest["embedding"][tokens.astype(jnp.int32)]
    if config.stacked:
        x, balances = jax.lax.scan(partial(_layer, config), x, layers)
    else:
        losses = list[jax.Array]()
        for index in range(config.layers):
            x, balance = _layer(config, x, layers[str(index)])
            losses += [] if balance is None else [balance]
        balances = jnp.stack(losses) if losses else None
    head = rest["embedding"].T if config.tied else rest["head"]
    scores: jax.Array = _norm(rest["norm"], x) @ head
    return scores.astype(jnp.float32), None if balances is None else jnp.mean(balances)


def _layer(config: ModelConfig, x: jax.Array, params: Parameters) -> tuple[jax.Array, jax.Array | None]:
    """The residual stream `x` after a layer, and the layer's balance, None without experts."""

    def layer(x: jax.Array, params: Parameters) -> tuple[jax.Array, jax.Array | None]:
        params = _typed(config, params)
        x = x + _attention(config, params["attention"], x)
        written, balance = _feedforward(config, params["feedforward"], x)
        return x + written, balance

    # What is computed again is not to be found equal to what is there: in a loop it never is.
    checkpointed = jax.checkpoint(layer, prevent_cse=not config.stacked) if config.checkpoint else layer
    return checkpointed(x, params)


def _typed(config: ModelConfig, params: Parameters) -> Parameters:
    """Parameters in the dtype of the matrix products."""
    typed: Parameters = jax.tree.map(lambda leaf: leaf.astype(config.dtype), params)
    return typed


def loss(config: ModelConfig, params: Parameters, batch: dict[str, jax.Array]) -> jax.Array:
    """The mean cross-entropy, in nats per token, of `batch["tokens"]` [sequences, length + 1] of any integer dtype."""
    return _losses(config, params, batch)[0]


def balanced_loss(
    config: ModelConfig, params: Parameters, batch: dict[str, jax.Array]
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The value that training minimises in a model with experts, `loss` plus the weighted balance; and both by name."""
    entropy, balance = _losses(config, params, batch)
    assert config.routing is not None
    assert balance is not None
    return entropy + config.routing.balance * balance, {"loss": entropy, "balance": balance}


def _losses(config: ModelConfig, params: Parameters, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array | None]:
    tokens = batch["tokens"].astype(jnp.int32)
    scores, balance = _forward(config, params, tokens[:, :-1])
    right = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - right), balance


def rotate(x: jax.Array) -> jax.Array:
    """`x` [..., length, heads, size] with the pair (i, i + size/2) at position t turned by t * 10000^(-2i/size).

    The product of a turned query and a turned key depends on the distance of their positions only (arXiv 2104.09864,
    section 3.2; halves instead of neighbours are a fixed permutation of it).
    """
    length, half = x.shape[-3], x.shape[-1] // 2
    angles = np.arange(length)[:, None, None] * ROTARY_BASE ** (-np.arange(half) / half)
    cos, sin = jnp.asarray(np.cos(angles), x.dtype), jnp.asarray(np.sin(angles), x.dtype)
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _norm(weight: jax.Array, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + NORM_EPSILON)
    return (wide * scale).astype(x.dtype) * weight


def _attention(config: ModelConfig, params: Parameters, x: jax.Array) -> jax.Array:
    sequences, length, width = x.shape
    normed = _norm(params["norm"], x)
    query, key, value = (
        (normed @ params[name]).reshape(sequences, length, config.heads, config.head_size)
        for name in ("query", "key", "value")
    )
    scores = jnp.einsum("bqhd,bkhd->bhqk", rotate(query), rotate(key)).astype(jnp.float32)
    causal = np.tril(np.ones((length, length), bool))
    scores = jnp.where(causal, scores * config.head_size**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(sequences, length, width)
    written: jax.Array = mixed @ params["output"]
    return written


def _feedforward(config: ModelConfig, params: Parameters, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    if config.routing is not None:
        return feedforward(config.routing, params, _norm(params["norm"], x))
    # Gate and up are separate tensors for the merge, and one product here: on one core a step takes 20 % less.
    both = jnp.concatenate([params["gate"], params["up"]], axis=1)
    gate, up = jnp.split(_norm(params["norm"], x) @ both, 2, axis=-1)
    written: jax.Array = (jax.nn.silu(gate) * up) @ params["down"]
    return written, None
