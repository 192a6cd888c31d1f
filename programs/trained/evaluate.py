"""How well a language model predicts a text."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, cast, final

import numpy as np
import numpy.typing as npt

from isthmus.ops.data.batches import Batch
from isthmus.ops.data.corpus import CorpusFile, DataError, TokenIds, check_ids, vocabulary_of, whole
from isthmus.programs.model_folders.folders import day_of_templates, tokenizer_documents_in
from isthmus.programs.model_folders.texts import documents_in
from isthmus.programs.model_folders.tokens import ByteTokens, FolderTokens, Ids
from isthmus.programs.reading.forms import check_bytes
from isthmus.programs.reading.found import find
from isthmus.programs.reading.token_files import TokenWriter, name_of, token_file
from isthmus.programs.trained.text_model import TextModel, settings_of
from isthmus.runtime.errors import ConfigError

LOGITS_MAX: Final = 1 << 24
"""Logits of a batch, of which each is four bytes: what a machine without a GPU has room for."""
COLUMN: Final = "text"
"""The column of rows that has their text, where neither a run nor an option names one."""
CONTEXT_MAX: Final = 1024
"""The tokens of a window, for a model that could take more."""
NO_LOSSES: Final = np.zeros(0)
NO_COUNTS: Final = np.zeros(0, np.int64)


@final
class FileLoss(NamedTuple):
    """The same of one file, as it was read under the name `data`; None where nothing of it is predicted."""

    path: str
    data: str
    loss: float | None
    bits_per_byte: float | None
    tokens: int


@final
class TextLoss(NamedTuple):
    """`loss` in nats a token, over all predicted `tokens` of all `windows`; `bits_per_byte` of the text, None where it
    is not known how many bytes it has; and the loss of each of its `files`, none of the held-out text of a run."""

    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    windows: int
    files: tuple[FileLoss, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**self._asdict(), "files": [each._asdict() for each in self.files]}


def evaluate(
    model: TextModel,
    data: Path | Sequence[Path] | None,
    doing: str,
    column: str | None = None,
    prompt: str | None = None,
) -> TextLoss:
    """The loss of a model on all of the text in files or folders; without any on the held-out text of its run.

    Files are read as for the training of a model folder, or of bytes. `column` of rows has their text, and `prompt`
    what comes before it: by default those of the model's run, else "text" and none. Prompts are read, and not
    predicted, and of chats the assistant's tokens are.

    The text of each of `data` is cut into windows of the model's context (of 1024 tokens at most), so that every token
    but the first is predicted once, from what its window has before it, which may be of the file before. ConfigError
    where there is no text, and for a file that comes twice.
    """
    if data is None:
        for option, name in {"--column": column, "--prompt": prompt}.items():
            if name is not None:
                raise ConfigError(doing, f"--data beside {option}", "none", "Name a file or folder with --data.")
        held_out = _sum(model, (_Windows(batch["tokens"], _counts(batch)) for batch in model.held_out(doing)))
        return _loss(held_out, [held_out.tokens if isinstance(model.tokens, ByteTokens) else None])
    texts = [_text(model, path, column, prompt, doing) for path in ([data] if isinstance(data, Path) else data)]
    _check_once(texts, doing)
    try:
        sums = [_sum(model, _windows(model, text.ids), len(text.paths), text.ends) for text in texts]
    except DataError as error:
        raise ConfigError(doing, error.expected, error.found, error.remedy) from error
    total = Sum(sum(each.loss for each in sums), sum(each.tokens for each in sums), sum(each.windows for each in sums))
    if not total.tokens:
        found = f"none in {', '.join(text.data for text in texts)}"
        raise ConfigError(doing, "tokens to predict", found, "Name another with --data.")
    files = [file for text, each in zip(texts, sums, strict=True) for file in _file_losses(text, each)]
    return _loss(total, [size for text in texts for size in text.sizes])._replace(files=tuple(files))


def _loss(found: Sum, sizes: Sequence[int | None]) -> TextLoss:
    """The means of a sum; so many bytes of each text were predicted, None where that is not known."""
    return found.evaluation(None if None in sizes else sum(size or 0 for size in sizes))


def _file_losses(text: _Text, found: Sum) -> Iterator[FileLoss]:
    """The loss of each file of a text."""
    for path, size, loss, tokens in zip(text.paths, text.sizes, found.losses, found.counts, strict=True):
        bits = float(loss) / math.log(2) / size if size else None
        yield FileLoss(path, text.data, float(loss) / int(tokens) if tokens else None, bits, int(tokens))


def _check_once(texts: Sequence[_Text], doing: str) -> None:
    """ConfigError where a file is in several texts: it would count as often."""
    where: dict[str, str] = {}
    for text in texts:
        for path in text.paths:
            if (first := where.setdefault(os.path.realpath(path), text.data)) is not text.data:
                found = f"{path} below {first} and {text.data}"
                raise ConfigError(doing, "each file once, below one --data", found, "Leave one of them out.")


def _counts(batch: Batch) -> npt.NDArray[np.bool_] | None:
    """Which predictions of a batch count; None where all do."""
    return batch["weights"] > 0 if "weights" in batch else None


@final
class Sum(NamedTuple):
    """The sum of the losses of all predicted tokens, nats, and how many of them and of windows there are; `losses` and
    `counts` are those of each file."""

    loss: float
    tokens: int
    windows: int
    losses: npt.NDArray[np.float64] = NO_LOSSES
    counts: npt.NDArray[np.int64] = NO_COUNTS

    def evaluation(self, text_bytes: int | None) -> TextLoss:
        """The means; `text_bytes` of text were predicted, None where that is not known."""
        mean = self.loss / self.tokens
        bits = self.loss / math.log(2) / text_bytes if text_bytes else None
        return TextLoss(mean, float(np.exp(mean)), bits, self.tokens, self.windows)


@final
class _Text(NamedTuple):
    """The tokens of what `data` names: of its files, one after the other, each of which ends at one of `ends`; `sizes`
    are the bytes of each that are predicted, None where these are not known."""

    data: str
    paths: list[str]
    ids: TokenIds
    ends: npt.NDArray[np.int64]
    sizes: Sequence[int | None]


@final
class _Read(NamedTuple):
    """The same fields, of the files that were read."""

    ids: TokenIds
    ends: npt.NDArray[np.int64]
    sizes: Sequence[int | None]

    @classmethod
    def joined(cls, parts: Sequence[TokenIds], sizes: Sequence[int | None]) -> _Read:
        """Of the ids of each file."""
        ids = TokenIds(segment for part in parts for segment in part.segments)
        return cls(ids, np.cumsum([len(part) for part in parts], dtype=np.int64), sizes)


def _text(model: TextModel, data: Path, column: str | None, prompt: str | None, doing: str) -> _Text:
    """The tokens of a text, of two at least."""
    try:
        has_documents = not isinstance(model.tokens, ByteTokens)
        sources = find([str(data)], are_texts=has_documents, are_rows=has_documents).files
        if model.tokens is None or any(source.holds_tokens for source in sources):
            settings = (None if model.run is None else settings_of(model.run, doing)) or {}
            parts = _each_whole(sources, model.vocabulary, settings.get("token_dtype", "uint16"))
            read = _Read.joined(parts, [None for _ in parts])
        elif isinstance(model.tokens, ByteTokens):
            parts = _each_whole(check_bytes(sources))
            read = _Read.joined(parts, [len(ids) - (not number) for number, ids in enumerate(parts)])
        else:
            tokens = cast(FolderTokens, model.tokens)  # What is not of bytes is of a folder.
            read = _encoded(tokens, model.vocabulary, sources, _fields(model, column, prompt, doing), doing)
    except DataError as error:
        raise ConfigError(error.action, error.expected, error.found, error.remedy) from error
    except OSError as error:
        raise ConfigError(doing, f"a text at {data}", str(error), "Name another with --data.") from None
    if (count := len(read.ids)) < 2:
        raise ConfigError(doing, "a text of at least two tokens", f"{count} in {data}", "Name another with --data.")
    return _Text(str(data), [source.path for source in sources], *read)


def _each_whole(
    sources: Sequence[CorpusFile], vocabulary: int | None = None, token_dtype: str = "uint16"
) -> list[TokenIds]:
    """The ids of each file; DataError where some are of another kind than others."""
    vocabulary_of(sources, vocabulary)
    return [whole([source], vocabulary=vocabulary, token_dtype=token_dtype) for source in sources]


def _fields(model: TextModel, column: str | None, prompt: str | None, doing: str) -> dict[str, str]:
    """The columns of rows, by what names each."""
    settings = (None if model.run is None else settings_of(model.run, doing)) or {}
    prompt = prompt or settings.get("prompt")
    return {
        **({} if prompt is None else {"--prompt": prompt}),
        "--column": column or settings.get("column") or COLUMN,
    }


def _encoded(
    tokens: FolderTokens, vocabulary: int, sources: tuple[CorpusFile, ...], fields: Mapping[str, str], doing: str
) -> _Read:
    """The tokens of the documents of each file, one after the other, and the bytes of what is predicted.

    Tokens of prompts, those of chats that are not the assistant's, and those that begin a text, are read, and not
    predicted: their ids are complements. Without any before it, nothing predicts the first token of all.
    """
    documents = tokenizer_documents_in(tokens.folder)
    options = {"evaluation": [*tokens.options, *fields.values(), day_of_templates(documents, tokens.day)]}
    name = name_of(sources, documents, options)
    file = token_file(name, sources, vocabulary, lambda writer: _written(writer, tokens, sources, fields, doing))
    return _Read(file.whole(), np.cumsum(file.sizes, dtype=np.int64), file.facts["text_bytes"])


def _written(
    writer: TokenWriter, tokens: FolderTokens, sources: tuple[CorpusFile, ...], fields: Mapping[str, str], doing: str
) -> dict[str, list[int]]:
    """Write the tokens of files, and count the bytes of what is predicted of each."""
    begins = ~np.asarray(tokens.begin, np.int32)
    sizes, is_first = list[int](), True
    for source in sources:
        text_bytes = 0
        for some in documents_in(Path(source.path), fields, tokens, None, doing):
            parts: list[Ids] = []
            for document in some:
                is_chat = document.by is not None
                ids = document.ids if is_chat else np.concatenate([begins, document.ids[len(begins) :]])
                text_bytes += document.predicted_bytes
                if is_first and len(ids) and ids[0] >= 0:
                    after = 0 if is_chat else tokens.bytes_after_first(document.text)
                    text_bytes -= len(tokens.decode(ids[:1]).encode()) if is_chat else document.predicted_bytes - after
                is_first = is_first and not len(ids)
                parts.append(ids)
            writer.add(np.concatenate(parts))
        writer.end_file()
        sizes.append(text_bytes)
    return {"text_bytes": sizes}


@final
class _Windows(NamedTuple):
    """A batch of windows [sequences, length + 1], which of their predictions [sequences, length] count, all where that
    is None, and the place in the text of the first token of each window, int64[sequences]."""

    tokens: npt.NDArray[Any]
    counts: npt.NDArray[np.bool_] | None
    starts: npt.NDArray[np.int64] = NO_COUNTS


def _windows(model: TextModel, ids: TokenIds) -> Iterator[_Windows]:
    """Batches of windows, each of which begins with the last token of the one before it."""
    length = min(model.context or CONTEXT_MAX, CONTEXT_MAX, len(ids) - 1)
    sequences = max(1, LOGITS_MAX // (length * model.vocabulary))
    starts = range(0, len(ids) - 1, length)
    for first in range(0, len(starts), sequences):
        tokens = np.zeros((sequences, length + 1), np.int32)
        counts = np.zeros((sequences, length), bool)
        for row, start in enumerate(starts[first : first + sequences]):
            size = min(length + 1, len(ids) - start)
            window = ids.window(start, size)
            if not ids.are_marked:  # Of large files of ids the beginning alone was looked at.
                check_ids(window, model.vocabulary, f"the window at {start:,}")
            tokens[row, :size] = np.where(window < 0, ~window, window)
            counts[row, : size - 1] = window[1:] >= 0
        places = np.zeros(sequences, np.int64)
        places[: len(starts[first : first + sequences])] = starts[first : first + sequences]
        yield _Windows(tokens, counts, places)


def _sum(model: TextModel, batches: Iterator[_Windows], files: int = 0, ends: npt.NDArray[np.int64] = NO_COUNTS) -> Sum:
    """The losses of all windows, and those of each of so many files, which end at `ends`."""
    total, tokens, windows = 0.0, 0, 0
    by_file, counted = np.zeros(files), np.zeros(files, np.int64)
    for batch in batches:
        losses = model.predictor.token_losses(batch.tokens)
        counts = np.ones(losses.shape, bool) if batch.counts is None else batch.counts
        total += float(losses[counts].sum())
        tokens += int(counts.sum())
        windows += int(counts.any(axis=1).sum())
        if files:
            predicted = batch.starts[:, None] + 1 + np.arange(losses.shape[1])
            file = np.searchsorted(ends, predicted[counts], side="right")
            by_file += np.bincount(file, losses[counts], files)
            counted += np.bincount(file, minlength=files)
    return Sum(total, tokens, windows, by_file, counted)
