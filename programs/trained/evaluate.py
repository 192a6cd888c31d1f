"""How well a language model predicts a text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from isthmus.ops.data.batches import Batch
from isthmus.ops.data.corpus import CorpusFile, DataError, TokenIds, whole
from isthmus.programs.model_folders.texts import documents_in
from isthmus.programs.model_folders.tokens import ByteTokens, Ids, TextTokens
from isthmus.programs.reading.forms import check_bytes
from isthmus.programs.reading.found import find
from isthmus.programs.trained.text_model import TextModel, settings_of
from isthmus.runtime.errors import ConfigError

LOGITS_MAX: Final = 1 << 24
"""Logits of a batch, of which each is four bytes: what a machine without a GPU has room for."""
COLUMN: Final = "text"
"""The column of rows that has their text, where neither a run nor an option names one."""
CONTEXT_MAX: Final = 1024
"""The tokens of a window, for a model that could take more."""


@final
class TextLoss(NamedTuple):
    """`loss` in nats a token, over all predicted `tokens` of all `windows`; `bits_per_byte` of the text, None where it
    is not known how many bytes it has."""

    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    windows: int


def evaluate(model: TextModel, data: Path | None, doing: str, column: str | None = None) -> TextLoss:
    """The loss of a model on all of the text in a file or folder; without one on the held-out text of its run.

    Files are read as for the training of a model folder, or of bytes. `column` of rows has their text: by default that
    of the model's run, else "text". Prompts are read, and not predicted, and of chats the assistant's tokens are.

    The text is cut into windows of the model's context (of 1024 tokens at most), so that every token but the first is
    predicted once, from what its window has before it. ConfigError where there is no text.
    """
    if data is None:
        if column is not None:
            raise ConfigError(doing, "--data beside --column", "none", "Name a file or folder with --data.")
        held_out = _sum(model, ((batch["tokens"], _counts(batch)) for batch in model.held_out(doing)))
        return held_out.evaluation(held_out.tokens if isinstance(model.tokens, ByteTokens) else None)
    ids, text_bytes = _ids(model, data, column, doing)
    if len(ids) < 2:
        raise ConfigError(doing, "a text of at least two tokens", f"{len(ids)} in {data}", "Name another with --data.")
    total = _sum(model, _windows(model, ids))
    if not total.tokens:
        raise ConfigError(doing, "tokens to predict", f"none in {data}", "Name another with --data.")
    return total.evaluation(text_bytes)


def _counts(batch: Batch) -> npt.NDArray[np.bool_] | None:
    """Which predictions of a batch count; None where all do."""
    return batch["weights"] > 0 if "weights" in batch else None


@final
class Sum(NamedTuple):
    """The sum of the losses of all predicted tokens, nats, and how many of them and of windows there are."""

    loss: float
    tokens: int
    windows: int

    def evaluation(self, text_bytes: int | None) -> TextLoss:
        """The means; `text_bytes` of text were predicted, None where that is not known."""
        mean = self.loss / self.tokens
        bits = self.loss / math.log(2) / text_bytes if text_bytes else None
        return TextLoss(mean, float(np.exp(mean)), bits, self.tokens, self.windows)


def _ids(model: TextModel, data: Path, column: str | None, doing: str) -> tuple[TokenIds, int | None]:
    """The tokens of a text, and how many bytes of it are predicted."""
    try:
        has_documents = not isinstance(model.tokens, ByteTokens)
        sources = find([str(data)], are_texts=has_documents, are_rows=has_documents).files
        if model.tokens is None or any(source.holds_tokens for source in sources):
            settings = (None if model.run is None else settings_of(model.run, doing)) or {}
            token_dtype = settings.get("token_dtype", "uint16")
            return whole(sources, vocabulary=model.vocabulary, token_dtype=token_dtype), None
        if isinstance(model.tokens, ByteTokens):
            ids = whole(check_bytes(sources))
            return ids, len(ids) - 1
        return _encoded(model.tokens, sources, _fields(model, column, doing), doing)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error
    except OSError as error:
        raise ConfigError(doing, f"a text at {data}", str(error), "Name another with --data.") from None


def _fields(model: TextModel, column: str | None, doing: str) -> dict[str, str]:
    """The columns of rows, by what names each."""
    settings = (None if model.run is None else settings_of(model.run, doing)) or {}
    prompt = settings.get("prompt")
    return {
        **({} if prompt is None else {"task.prompt": prompt}),
        "--column": column or settings.get("column") or COLUMN,
    }


def _encoded(
    tokens: TextTokens, sources: tuple[CorpusFile, ...], fields: Mapping[str, str], doing: str
) -> tuple[TokenIds, int]:
    """The tokens of documents, one after the other, and the bytes of what is predicted.

    Tokens of prompts, those of chats that are not the assistant's, and those that begin a text, are read, and not
    predicted: their ids are complements. Without any before it, nothing predicts the first token of all.
    """
    begins = ~np.asarray(tokens.begin, np.int32)
    parts: list[Ids] = []
    text_bytes = 0
    paths = (Path(source.path) for source in sources)
    for document in (each for path in paths for each in documents_in(path, fields, tokens, None, doing)):
        is_chat = document.by is not None
        ids = document.ids if is_chat else np.concatenate([begins, document.ids[len(begins) :]])
        text_bytes += document.predicted_bytes
        if not parts and len(ids) and ids[0] >= 0:
            after = 0 if is_chat else tokens.bytes_after_first(document.text)
            text_bytes -= len(tokens.decode(ids[:1]).encode()) if is_chat else document.predicted_bytes - after
        parts += [ids] if len(ids) else []
    return TokenIds(parts), text_bytes


def _windows(model: TextModel, ids: TokenIds) -> Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]]:
    """Batches of windows [sequences, length + 1], each of which begins with the last token of the one before it, and
    which of their predictions count."""
    length = min(model.context or CONTEXT_MAX, CONTEXT_MAX, len(ids) - 1)
    sequences = max(1, LOGITS_MAX // (length * model.vocabulary))
    starts = range(0, len(ids) - 1, length)
    for first in range(0, len(starts), sequences):
        tokens = np.zeros((sequences, length + 1), np.int32)
        counts = np.zeros((sequences, length), bool)
        for row, start in enumerate(starts[first : first + sequences]):
            size = min(length + 1, len(ids) - start)
            window = ids.window(start, size)
            tokens[row, :size] = np.where(window < 0, ~window, window)
            counts[row, : size - 1] = window[1:] >= 0
        yield tokens, counts


def _sum(model: TextModel, batches: Iterator[tuple[npt.NDArray[Any], npt.NDArray[np.bool_] | None]]) -> Sum:
    total, tokens, windows = 0.0, 0, 0
    for batch, counts in batches:
        losses = model.predictor.token_losses(batch)
        counts = np.ones(losses.shape, bool) if counts is None else counts
        total += float(losses[counts].sum())
        tokens += int(counts.sum())
        windows += int(counts.any(axis=1).sum())
    return Sum(total, tokens, windows)
