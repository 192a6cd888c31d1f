"""Texts of files, as the tokens of a model.

`rows` has the documents of a file. A document begins with what the tokenizer puts before a text, and the token that
ends a text follows it, as far as the model has these; documents are packed one after the other. A row may have a prompt
in another field, which comes first, and which is not to be predicted: its tokens, and those that begin the document,
are the complements of their ids (`ops.data.batches`). Prompt and text become tokens apart. A long file of plain text is
read in pieces where the tokenizer gives the same ids for these (`cuts`), else whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from isthmus.programs.model_folders.cuts import pieces_of
from isthmus.programs.model_folders.tokens import Ids, TextTokens
from isthmus.programs.reading.forms import TEXT, form_of
from isthmus.programs.reading.rows import blocks_of_text, documents_of
from isthmus.programs.reading.table import DataTally
from isthmus.runtime.errors import ConfigError

TOGETHER: Final = 1024
"""Documents that are tokenized at once, on all cores; fewer where they are long."""
TOGETHER_BYTES: Final = 1 << 18
"""Of texts that are tokenized at once, beyond which no document is added: meanwhile the library takes 150 times as much
(500 bytes a token, of SmolLM2's on the documents of this repository)."""

LONG_BYTES: Final = 4 << 20
"""Of plain text, beyond which it is read in pieces."""


def blocks_of(
    path: Path,
    fields: Mapping[str, str],
    tokens: TextTokens,
    end: int | None,
    doing: str,
    tally: DataTally | None = None,
) -> Iterator[Ids]:
    """The tokens of a file, some documents at a time; ConfigError for one that has no such column, or cannot be read.

    `fields`: the columns of a row, by the setting that names each; that of the text comes last. `tally` counts them.
    """
    begins = np.asarray(tokens.begin, np.int32)
    begins = ~begins if len(fields) > 1 else begins
    ends = np.asarray([] if end is None else [end], np.int32)
    if form_of(path).kind == TEXT and len(fields) == 1 and _is_long(path, doing) and tokens.is_cut:
        yield from _long(path, tokens, begins, ends, doing, tally)
        return
    for some in together(documents_of(path, fields, doing)):
        *prompts, texts = (tokens.encode_all(column) for column in zip(*some, strict=True))
        parts: list[Ids] = []
        sizes = []
        for ids in zip(*prompts, texts, strict=True):
            parts += [begins, *(~prompt for prompt in ids[:-1]), ids[-1], ends]
            sizes.append(len(begins) + sum(map(len, ids)) + len(ends))
        block = np.concatenate(parts)
        if tally is not None:
            tally.add_documents(str(path), [row[-1] for row in some], texts, sizes)
            tally.add_block(str(path), block)
        yield block


def _is_long(path: Path, doing: str) -> bool:
    """Whether a text is read in pieces: that which may be JSON is not, because nobody could say whether it is."""
    if not form_of(path).packed and path.exists() and path.stat().st_size <= LONG_BYTES:
        return False
    held = bytearray()
    for block in blocks_of_text(path, doing):
        held += block
        if len(held) > LONG_BYTES:
            return bytes(held.lstrip()[:1]) not in (b"{", b"[", b"")
    return False


def _long(path: Path, tokens: TextTokens, begins: Ids, ends: Ids, doing: str, tally: DataTally | None) -> Iterator[Ids]:
    """The tokens of a long text, which is cut where that changes none of them."""
    size_bytes = count = 0
    first: tuple[bytes, Ids] | None = None
    yield begins
    for some in together((piece,) for piece in pieces_of(blocks_of_text(path, doing))):
        texts = [piece for (piece,) in some]
        _check_utf8(b"".join(texts), size_bytes, path, doing)
        blocks = tokens.encode_all(texts)
        first = first or (texts[0], blocks[0])
        block = np.concatenate(blocks)
        size_bytes, count = size_bytes + sum(map(len, texts)), count + len(block)
        if tally is not None:
            tally.add_block(str(path), block)
        yield block
    yield ends
    if tally is not None and first is not None:
        tally.add_block(str(path), np.concatenate([begins, ends]))
        tally.add_long_document(str(path), *first, size_bytes, len(begins) + count + len(ends))


def _check_utf8(text: bytes, at: int, path: Path, doing: str) -> None:
    """ConfigError for a text, `at` so many bytes in its file, that is not in UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        actual = f"{error.reason} in byte {at + error.start:,}"
        raise ConfigError(doing, f"text in UTF-8 in {path}", actual, "Convert it to UTF-8, or leave it out.") from None


def together(documents: Iterable[tuple[bytes, ...]]) -> Iterator[list[tuple[bytes, ...]]]:
    """The same documents, as many at a time as are tokenized at once."""
    some: list[tuple[bytes, ...]] = []
    size = 0
    for document in documents:
        some.append(document)
        size += sum(map(len, document))
        if len(some) == TOGETHER or size >= TOGETHER_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some
