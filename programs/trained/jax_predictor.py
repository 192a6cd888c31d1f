"""Our own transformer as a predictor: losses, and text a token at a time, with the keys and values of those before."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from isthmus.ops import transformer
from isthmus.ops.model_config import ModelConfig
from isthmus.ops.transformer import Parameters
from isthmus.programs.model_folders.tokens import Ids

CHUNK: Final = 16
"""Tokens of one call: a call costs as much as some tokens of a small model, and what is printed arrives in chunks."""
BLOCK: Final = 64
"""Places for keys and values come in so many, so that few sizes are compiled."""


@final
class JaxPredictor:
    """A model of `ops.transformer`, with parameters in float32; `ends` are the tokens that end a text (`Predictor`).

    What it has compiled stays with it, by the room for keys and values, and the length of a prompt in blocks.
    """

    def __init__(self, config: ModelConfig, params: Parameters, ends: tuple[int, ...]) -> None:
        self._config, self._ends = config, ends
        self._params = jax.tree.map(jnp.asarray, params)
        self._losses = jax.jit(partial(transformer.token_losses, config))
        self._begin, self._go_on = (jax.jit(partial(each, config), donate_argnums=1) for each in (_begin, _go_on))

    def token_losses(self, tokens: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        return np.asarray(self._losses(self._params, tokens), np.float64)

    def continued(self, ids: Ids, count: int, temperature: float, seed: int) -> Iterator[Ids]:
        config, key = self._config, jax.random.key(seed)
        while count > 0:
            recent = ids if len(ids) < config.context else ids[-max(config.context // 2, 1) :]
            places = min(_blocks(len(recent) + count), config.context)
            padded = np.zeros((1, min(_blocks(len(recent)), places)), np.int32)
            padded[0, : len(recent)] = recent
            past = transformer.room(config, 1, places)
            scores, past = self._begin(self._params, past, padded, len(recent) - 1)
            at = len(recent)
            while count > 0 and at < places:
                now = min(CHUNK, count, places - at)
                tokens, scores, past, key = self._go_on(self._params, past, scores, at, now, key, temperature)
                more = np.asarray(tokens)[:now]
                ends = np.flatnonzero(np.isin(more, self._ends))
                if len(ends):
                    yield more[: ends[0]]
                    return
                yield more
                ids, at, count = np.concatenate([ids, more]), at + now, count - now


def _blocks(length: int) -> int:
    return -(-length // BLOCK) * BLOCK


def _begin(config: ModelConfig, params: Any, past: Any, tokens: jax.Array, last: jax.Array) -> tuple[jax.Array, Any]:
    """The logits after token `last`, and the past with the tokens up to it; what follows it is overwritten."""
    scores, past = transformer.continued(config, params, past, 0, tokens)
    return scores[0, last], past


def _go_on(
    config: ModelConfig,
    params: Any,
    past: Any,
    scores: jax.Array,
    at: jax.Array,
    count: jax.Array,
    key: jax.Array,
    temperature: jax.Array,
) -> tuple[jax.Array, jax.Array, Any, jax.Array]:
    """The next `count` tokens, int32[CHUNK], drawn one after the other from position `at` on; and what follows."""

    def step(index: jax.Array, carried: Any) -> Any:
        tokens, scores, past, key = carried
        key, own = jax.random.split(key)
        drawn = jax.random.categorical(own, scores / jnp.maximum(temperature, 1e-6))
        token = jnp.where(temperature > 0, drawn, jnp.argmax(scores)).astype(jnp.int32)
        scores, past = transformer.continued(config, params, past, at + index, token[None, None])
        return tokens.at[index].set(token), scores[0, 0], past, key

    start = jnp.zeros(CHUNK, jnp.int32), scores, past, key
    tokens, scores, past, key = jax.lax.fori_loop(0, count, step, start)
    return tokens, scores, past, key
