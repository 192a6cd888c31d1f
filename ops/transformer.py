"""A decoder-only transformer over bytes or tokens, by configuration, dense or with a mixture of experts.

Decides names, shapes, initial values and the forward pass; optimizer and data are elsewhere. Normalisation before each
half of a layer (RMSNorm, arXiv 1910.07467), rotary positions (arXiv 2104.09864), SwiGLU (arXiv 2002.05202), `x @ W`
throughout, biases where a configuration names them. Parameters are float32; `dtype` is that of the matrix products,
while norms, the softmax and the loss are always computed in float32.

`continued` is the same forward pass for some more tokens of a sequence, with the keys and values of those before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from isthmus.ops.gang.mesh_stages import scan_layers
from isthmus.ops.model_config import MATRICES, ModelConfig, Rotary, Routing, tensors


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
PLAIN: Final = Rotary()


def init(config: ModelConfig, key: jax.Array) -> Parameters:
    """Fresh float32 parameters as nested dicts; tensor i of `tensors` draws from `fold_in(key, i)`."""
    drawn = _drawn(
        key,
        {i: shape for i, (shape, deviation) in enumerate(tensors(config).values()) if deviation is not None},
    )
    params: Parameters = {}
    for index, (name, (shape, deviation)) in enumerate(tensors(config).items()):
        *folders, leaf = name.split("/")
        branch = params
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[leaf] = jnp.ones(shape, jnp.float32) if deviation is None else deviation * drawn[index]
    return params


def _drawn(key: jax.Array, shapes: Mapping[int, tuple[int, ...]]) -> dict[int, jax.Array]:
    """Standard normal values of these shapes, for each number from a key of its own.

    A loop for each shape: drawn one by one, they are most of what a small model compiles and loads.
    """
    keys = dict(zip(shapes, jax.vmap(partial(jax.random.fold_in, key))(np.array(list(shapes))), strict=True))
    alike: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for number, shape in shapes.items():
        alike[shape].append(number)
    drawn: dict[int, jax.Array] = {}
    for shape, numbers in alike.items():
        normal = partial(jax.random.normal, shape=shape, dtype=jnp.float32)
        values = jax.lax.map(normal, jnp.stack([keys[number] for number in numbers]))
        drawn.update(zip(numbers, values, strict=True))
    return drawn


def is_hidden(params: Any) -> Any:
    """A tree of truth values that marks the matrices from hidden states to hidden states: those of the layers, but for
    routers."""

    def marked(path: Any, _: Any) -> bool:
        names = [step.key for step in path]
        return names[0] == "layers" and names[-1] in MATRICES

    return jax.tree_util.tree_map_with_path(marked, params)


def logits(config: ModelConfig, params: Parameters, tokens: jax.Array) -> jax.Array:
    """The float32 logits [sequences, length, vocabulary] of the token after each of `tokens` [sequences, length]."""
    return _forward(config, params, tokens)[0]


def _forward(
    config: ModelConfig, params: Parameters, tokens: jax.Array, microbatches: int | None = None
) -> tuple[jax.Array, jax.Array | None]:
    """The logits, and the mean balance of the layers, None without experts."""
    layers, rest = params["layers"], {name: params[name] for name in params if name != "layers"}
    rest = _typed(config, rest)
    x = rest["embedding"][tokens.astype(jnp.int32)]
    if config.stacked:
        x, balances = scan_layers(partial(_layer, config), x, layers, microbatches=microbatches)
    else:
        losses = list[jax.Array]()
        for index in range(config.layers):
            x, balance = _layer(config, x, layers[str(index)])
            losses += [] if balance is None else [balance]
        balances = jnp.stack(losses) if losses else None
    return _scores(config, rest, x), None if balances is None else jnp.mean(balances)


def _scores(config: ModelConfig, rest: Parameters, x: jax.Array) -> jax.Array:
    """The float32 logits of the residual stream after the last layer."""
    head = rest["embedding"].T if config.tied else rest["head"]
    scores: jax.Array = _norm(config, rest["norm"], x) @ head
    return scores.astype(jnp.float32)


class Past(NamedTuple):
    """The keys, turned, and the values of former tokens: [sequences, room, key heads, head size] for each layer.

    A list of these, or, in a `stacked` model, one with an axis more, in front.
    """

    key: jax.Array
    value: jax.Array


def room(config: ModelConfig, sequences: int, length: int) -> Any:
    """Places for the keys and values of `length` tokens of each of `sequences`, in the dtype of the computation."""
    shape = (sequences, length, config.key_heads, config.head_size)
    if config.stacked:
        return Past(*(jnp.zeros((config.layers, *shape), config.dtype) for _ in Past._fields))
    return [Past(*(jnp.zeros(shape, config.dtype) for _ in Past._fields)) for _ in range(config.layers)]


def continued(
    config: ModelConfig, params: Parameters, past: Any, start: jax.Array | int, tokens: jax.Array
) -> tuple[jax.Array, Any]:
    """The logits [sequences, length, vocabulary] of the token after each of `tokens` [sequences, length], which begin
    at position `start`, and `past` with theirs in it.

    There has to be room for them: positions below `start + length`. What is there at later ones does not count.
    """
    layers, rest = params["layers"], _typed(config, {name: params[name] for name in params if name != "layers"})
    x = rest["embedding"][tokens.astype(jnp.int32)]

    def layer(x: jax.Array, given: tuple[Parameters, Past]) -> tuple[jax.Array, Past]:
        weights, former = _typed(config, given[0]), given[1]
        written, former = _attention_after(config, weights["attention"], x, former, start)
        x = x + written
        return x + _feedforward(config, weights["feedforward"], x)[0], former

    if config.stacked:
        x, past = jax.lax.scan(layer, x, (layers, past))
    else:
        present = list[Past]()
        for index, former in enumerate(past):
            x, former = layer(x, (layers[str(index)], former))
            present.append(former)
        past = present
    return _scores(config, rest, x), past


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


def token_losses(config: ModelConfig, params: Parameters, tokens: jax.Array) -> jax.Array:
    """The cross-entropy, in nats, of each of `tokens` [sequences, length + 1] but the first of each sequence."""
    return _token_losses(config, params, tokens)[0]


def _losses(config: ModelConfig, params: Parameters, batch: dict[str, jax.Array]) -> tuple[jax.Array, jax.Array | None]:
    losses, balance = _token_losses(config, params, batch["tokens"], config.microbatches)
    return jnp.mean(losses), balance


def _token_losses(
    config: ModelConfig, params: Parameters, tokens: jax.Array, microbatches: int | None = None
) -> tuple[jax.Array, jax.Array | None]:
    tokens = tokens.astype(jnp.int32)
    scores, balance = _forward(config, params, tokens[:, :-1], microbatches)
    right = jnp.take_along_axis(scores, tokens[:, 1:, None], axis=-1)[..., 0]
    return jax.nn.logsumexp(scores, axis=-1) - right, balance


def rotate(x: jax.Array, rotary: Rotary = PLAIN) -> jax.Array:
    """`x` [..., length, heads, size] with the pair (i, i + size/2) at position t turned by t * 10000^(-2i/size), or as
    `rotary` says.

    The product of a turned query and a turned key depends on the distance of their positions only (arXiv 2104.09864,
    section 3.2; halves instead of neighbours are a fixed permutation of it).
    """
    cos, sin = rotary.turns(x.shape[-1], x.shape[-3])
    return _turned(x, jnp.asarray(cos[:, None], x.dtype), jnp.asarray(sin[:, None], x.dtype))


def _turned(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    first, second = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _norm(config: ModelConfig, weight: jax.Array, x: jax.Array) -> jax.Array:
    wide = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + config.epsilon)
    return (wide * scale).astype(x.dtype) * weight


def _product(params: Parameters, name: str, x: jax.Array) -> jax.Array:
    """`x` by a matrix of a layer, with its bias if it has one."""
    product: jax.Array = x @ params[name]
    bias = params.get(f"{name}_bias")
    return product if bias is None else product + bias


def _heads(config: ModelConfig, params: Parameters, x: jax.Array) -> list[jax.Array]:
    """Queries, keys and values [sequences, length, heads of each, head size], not turned."""
    normed = _norm(config, params["norm"], x)
    parts = list[jax.Array]()
    for name, heads in (("query", config.heads), ("key", config.key_heads), ("value", config.key_heads)):
        part = _product(params, name, normed).reshape(*x.shape[:2], heads, config.head_size)
        is_normed = config.head_norms and name != "value"
        parts.append(_norm(config, params[f"{name}_norm"], part) if is_normed else part)
    return parts


def _attention(config: ModelConfig, params: Parameters, x: jax.Array) -> jax.Array:
    query, key, value = _heads(config, params, x)
    positions = np.arange(x.shape[1])
    seen = _seen(config, positions, positions)
    return _mixed(config, params, rotate(query, config.rotary), rotate(key, config.rotary), value, seen)


def _attention_after(
    config: ModelConfig, params: Parameters, x: jax.Array, past: Past, start: jax.Array | int
) -> tuple[jax.Array, Past]:
    """The attention of tokens from position `start` on to all up to them, and the past with them in it."""
    query, key, value = _heads(config, params, x)
    places = past.key.shape[1]
    rows = [jnp.asarray(part[:, None], x.dtype) for part in config.rotary.turns(config.head_size, places)]
    cos, sin = (jax.lax.dynamic_slice_in_dim(part, start, x.shape[1]) for part in rows)
    past = Past(
        jax.lax.dynamic_update_slice_in_dim(past.key, _turned(key, cos, sin), start, 1),
        jax.lax.dynamic_update_slice_in_dim(past.value, value, start, 1),
    )
    seen = _seen(config, start + np.arange(x.shape[1]), np.arange(places))
    return _mixed(config, params, _turned(query, cos, sin), past.key, past.value, seen), past


def _seen(config: ModelConfig, queries: Any, keys: Any) -> Any:
    """Which positions of keys those of queries attend to: [queries, keys]."""
    distance = queries[:, None] - keys
    return distance >= 0 if config.window is None else (distance >= 0) & (distance < config.window)


def _mixed(
    config: ModelConfig, params: Parameters, query: jax.Array, key: jax.Array, value: jax.Array, seen: Any
) -> jax.Array:
    """What attention writes to the residual stream, from turned queries and keys, and values."""
    sequences, length, heads, size = query.shape
    is_shared = config.key_heads != heads
    if is_shared:
        query = query.reshape(sequences, length, config.key_heads, -1, size)
    scores = jnp.einsum("bqhgd,bkhd->bhgqk" if is_shared else "bqhd,bkhd->bhqk", query, key).astype(jnp.float32)
    scores = jnp.where(seen, scores * size**-0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(query.dtype)
    mixed = jnp.einsum("bhgqk,bkhd->bqhgd" if is_shared else "bhqk,bkhd->bqhd", weights, value)
    return _product(params, "output", mixed.reshape(sequences, length, heads * size))


def _feedforward(config: ModelConfig, params: Parameters, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
    normed = _norm(config, params["norm"], x)
    if config.routing is not None:
        return feedforward(config.routing, params, normed)
    if x.shape[1] == 1 or "gate" in config.biases:
        # Joining the two for one token would read and write all of them for a product that reads them once.
        gate, up = _product(params, "gate", normed), _product(params, "up", normed)
    else:
        # Gate and up are separate tensors for the merge, and one product here: on one core a step takes 20 % less.
        both = jnp.concatenate([params["gate"], params["up"]], axis=1)
        gate, up = jnp.split(normed @ both, 2, axis=-1)
    return _product(params, "down", jax.nn.silu(gate) * up), None
