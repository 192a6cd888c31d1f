"""What a table of data tells of a folder's tokenizer: its ids that stand for no text, and what it does to a text before
it looks for tokens.

Of a text that went through a tokenizer and back as much must be left as its normalizer left.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import msgspec

from isthmus.programs.model_folders import folders
from isthmus.programs.model_folders.tokens import TextTokens
from isthmus.programs.reading.table import SpecialIds, lost_share
from isthmus.runtime.system.files import read_bytes

_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"
"""What stands for a space in tokens of sentencepiece."""
_BYTE_LEVEL: Final = "ByteLevel"
_ALONE: Final[Mapping[str, Any]] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "BPE", "vocab": {}, "merges": []},
}
"""A tokenizer that has nothing but a normalizer, which is to be added."""


@final
class TokenizerFacts:
    """Of a folder whose tokenizer has been read, so that it is one."""

    def __init__(self, folder: Path, doing: str) -> None:
        self._document = msgspec.json.decode(read_bytes(folder / folders.TOKENIZER))
        self._config = folders.document_in(folder, doing)
        model = self._document.get("model", {})
        vocabulary = model.get("vocab") or {}
        if isinstance(vocabulary, list):  # Unigram has pairs of a token and its score.
            vocabulary = {token: id for id, (token, _) in enumerate(vocabulary)}
        added = {token["content"]: token["id"] for token in self._document.get("added_tokens") or ()}
        self._ids: dict[str, int] = {**vocabulary, **added}
        self._unknown = model.get("unk_id")
        if self._unknown is None:
            self._unknown = self._ids.get(model.get("unk_token") or "")

    def piece(self, id: int) -> str:
        """The token of an id; empty where there is none."""
        return next((token for token, each in self._ids.items() if each == id), "")

    def special(self, others: Sequence[int | None]) -> SpecialIds:
        """The ids of pads and of unknown letters, where these are none of `others`."""
        pad = self._config.get("pad_token_id")
        if not isinstance(pad, int):
            pad = self._ids.get("<pad>", self._ids.get("[PAD]"))
        return SpecialIds(*(None if id in others else id for id in (pad, self._unknown)))

    def lost_share(self, texts: Sequence[str], tokens: TextTokens) -> float | None:
        """The share of characters of texts that tokens do not give back; None without any."""
        normalizer = self._document.get("normalizer")
        normalized = list(texts)
        if normalizer is not None and _BYTE_LEVEL not in json.dumps(normalizer):
            import tokenizers

            alone = tokenizers.Tokenizer.from_str(json.dumps({**_ALONE, "normalizer": normalizer}))
            normalized = [alone.normalizer.normalize_str(text) for text in texts]
        read_back = [tokens.decode(tokens.encode(text.encode())) for text in texts]
        spaced = [[text.replace(_SPACE, " ") for text in each] for each in (normalized, read_back)]
        return lost_share(list(zip(*spaced, strict=True)))
