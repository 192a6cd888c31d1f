"""Text that a language model writes, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, final

import numpy as np

from isthmus.programs.model_folders.chats import ChatTemplate
from isthmus.programs.model_folders.tokens import FolderTokens, Ids
from isthmus.programs.trained.text_model import TextModel
from isthmus.runtime.errors import ConfigError

_UNFINISHED: Final = "\N{REPLACEMENT CHARACTER}"
"""What the beginning of a character of several tokens looks like."""


@final
class Writer:
    """A model that writes; ConfigError for one without a tokenizer."""

    def __init__(self, model: TextModel, doing: str) -> None:
        if model.tokens is None:
            do = "Its data are token ids, and what they stand for is not known here."
            raise ConfigError(doing, "a model with a tokenizer", "one of token ids", do)
        self._predictor, self._tokens, self._doing = model.predictor, model.tokens, doing

    def continuation(self, prompt: bytes, count: int, *, temperature: float = 1.0, seed: int = 0) -> Iterator[str]:
        """The text of `count` tokens after a prompt, or of fewer if the model ends the text, piece by piece.

        At a temperature of 0 each token is the most likely one. ConfigError for a prompt without a token.
        """
        ids = self._tokens.prompt(prompt)
        if not len(ids):
            do = "Give one with --prompt."
            raise ConfigError(self._doing, "a prompt of at least one token", "an empty one", do)
        yield from self._pieces(ids, count, temperature, seed)

    def answer(self, message: bytes, count: int, *, temperature: float = 1.0, seed: int = 0) -> Iterator[str]:
        """What the assistant of a model's chat template answers a user's message, as `continuation`.

        ConfigError for a model whose folder has no such template, and a message that is no text.
        """
        if not isinstance(self._tokens, FolderTokens):
            do = "Leave --chat out."
            raise ConfigError(self._doing, "a model with a chat template", "one of bytes", do)
        template = ChatTemplate(self._tokens.folder, self._doing)
        try:
            text = template.prompt([{"role": "user", "content": message.decode()}])
        except UnicodeDecodeError as error:
            raise ConfigError(self._doing, "text in UTF-8", str(error), "Convert it first.") from None
        yield from self._pieces(self._tokens.rendered(text).ids, count, temperature, seed)

    def _pieces(self, ids: Ids, count: int, temperature: float, seed: int) -> Iterator[str]:
        said = len(self._tokens.decode(ids))
        for more in self._predictor.continued(ids, count, temperature, seed):
            ids = np.concatenate([ids, more])
            text = self._tokens.decode(ids)
            if not text.endswith(_UNFINISHED):
                yield text[said:]
                said = len(text)
        yield self._tokens.decode(ids)[said:]
