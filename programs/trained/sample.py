"""Text that a language model writes: a token at a time, with the keys and values of those before it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from isthmus.ops import transformer
from isthmus.ops.transformer import ModelConfig
from isthmus.programs.trained.text_model import TextModel
from isthmus.runtime.errors import ConfigError

CHUNK: Final = 16
"""Tokens of one call: a call costs as much as some tokens of a small model, and what is printed arrives in chunks."""
BLOCK: Final = 64
"""Places for keys and values come in so many, so that few sizes are compiled."""
_UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"
"""What the beginning of a character of several tokens looks like."""


@final
class Writer:
    """A model that writes; ConfigError for one without a tokenizer.

    What it has compiled stays with it, by the room for keys and values, and the length of a prompt in blocks.
    """

    def __init__(self, model: TextModel, doing: str) -> None:
        if model.tokens is None:
            do = "Its data are token ids, and what they stand for is not known here."
            raise ConfigError(doing, "a model with a tokenizer", "one of token ids", do)
        self._model, self._tokens, self._doing = model, model.tokens, doing
        self._params = jax.tree.map(jnp.asarray, model.params)
        self._begin, self._go_on = (
            jax.jit(partial(function, model.config), donate_argnums=1) for function in (_begin, _go_on)
        )

    def continuation(self, prompt: bytes, count: int, *, temperature: float = 1.0, seed: int = 0) -> Iterator[str]:
        """The text of `count` tokens after a prompt, or of fewer if the model ends the text, piece by piece.

        At a temperature of 0 each token is the most likely one. ConfigError for a prompt without a token.
        """
        ids = self._tokens.encode(prompt, begins=True)
        if not len(ids):
            do = "Give one with --prompt."
            raise ConfigError(self._doing, "a prompt of at least one token", "an empty one", do)
        said = len(self._tokens.decode(ids))
        for more in self._more(ids, count, temperature, seed):
            ids = np.concatenate([ids, more])
            text = self._tokens.decode(ids)
            if not text.endswith(_UNFINISHED):
                yield text[said:]
                said = len(text)
        yield self._tokens.decode(ids)[said:]

    def _more(
        self, ids: npt.NDArray[np.int32], count: int, temperature: float, seed: int
    ) -> Iterator[npt.NDArray[np.int32]]:
        """Up to `count` tokens after `ids`, in chunks.

        A model sees no more than its context: where that is full, it reads the last half of it again.
        """
        config, key = self._model.config, jax.random.key(seed)
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
                ends = np.flatnonzero(np.isin(more, self._model.ends))
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
