"""Documents of files, as the tokens of a model.

`rows` has the documents of a file. A text begins with what the tokenizer puts before one, and the token that ends a
text follows it, as far as the model has these; a chat is what the folder's template makes of it, and nothing else
(`chats`). Documents are packed one after the other.

What is read, and not predicted, are the complements of ids (`ops.data.batches`): of a prompt, with what begins the
document, and of a chat all but the answers of the assistant. Prompt and text become tokens apart, as they do where a
model is asked. A long file of plain text is read in pieces where the tokenizer gives the same ids for these (`cuts`),
else whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, final

import numpy as np

from isthmus.programs.model_folders.chats import By, ChatTemplate
from isthmus.programs.model_folders.cuts import pieces_of
from isthmus.programs.model_folders.tokens import FolderTokens, Ids, TextTokens
from isthmus.programs.reading.forms import TEXT, form_of
from isthmus.programs.reading.row_forms import TEXTS, ChatRow, Row, TextRow
from isthmus.programs.reading.rows import blocks_of_text, documents_of
from isthmus.programs.reading.table import DataTally
from isthmus.runtime.errors import ConfigError

T = TypeVar("T")
TOGETHER: Final = 1024
"""Documents that are tokenized at once, on all cores; fewer where they are long."""
TOGETHER_BYTES: Final = 1 << 18
"""Of texts that are tokenized at once, beyond which no document is added: meanwhile the library takes 150 times as much
(500 bytes a token, of SmolLM2's on the documents of this repository)."""

LONG_BYTES: Final = 4 << 20
"""Of plain text, beyond which it is read in pieces."""


@final
class DocumentIds(NamedTuple):
    """The tokens of a document, int32[length], of which the complements are not predicted.

    `form`: a constant of `row_forms`. `text`: what is in it, without prompts; `shown`: the tokens of it. `by`: how it
    is known which tokens of a chat are the assistant's. `predicted_bytes`: those of the text that is predicted, without
    what ends a text.
    """

    ids: Ids
    form: str
    text: bytes
    shown: Ids
    by: By | None = None
    predicted_bytes: int = 0


def documents_in(
    path: Path, fields: Mapping[str, str], tokens: TextTokens, end: int | None, doing: str
) -> Iterator[list[DocumentIds]]:
    """The documents of a file, some at a time; ConfigError for what cannot be read, or a model does not take.

    `fields`: the columns of a row, by the setting that names each; that of the text comes last.
    """
    for some in _together(documents_of(path, fields, doing), _size_of):
        documents: list[DocumentIds] = []
        for kind, group in groupby(some, type):
            if kind is TextRow:
                documents += _texts([each for each in group if isinstance(each, TextRow)], tokens, end)
            else:
                documents += _chats([each for each in group if isinstance(each, ChatRow)], tokens, doing)
        yield documents


def blocks_of(
    path: Path,
    fields: Mapping[str, str],
    tokens: TextTokens,
    end: int | None,
    doing: str,
    tally: DataTally | None = None,
) -> Iterator[Ids]:
    """The tokens of the documents of a file, some at a time, as `documents_in`; `tally` counts them."""
    if form_of(path).kind == TEXT and len(fields) == 1 and _is_long(path, doing) and tokens.is_cut:
        begins, ends = np.asarray(tokens.begin, np.int32), np.asarray([] if end is None else [end], np.int32)
        yield from _long(path, tokens, begins, ends, doing, tally)
        return
    for some in documents_in(path, fields, tokens, end, doing):
        block = np.concatenate([each.ids for each in some])
        if tally is not None:
            sizes = [len(each.ids) for each in some]
            tally.add_documents(str(path), [each.text for each in some], [each.shown for each in some], sizes)
            for each in some:
                tally.add_form(each.form, each.ids, each.by)
            tally.add_block(str(path), block)
        yield block


def _size_of(row: Row) -> int:
    """The bytes of text in a row."""
    return sum(map(len, row.texts)) if isinstance(row, TextRow) else len(row.text)


def _together(parts: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """The same parts, as many at a time as are tokenized at once."""
    some: list[T] = []
    size = 0
    for part in parts:
        some.append(part)
        size += size_of(part)
        if len(some) == TOGETHER or size >= TOGETHER_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


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
    for texts in _together(pieces_of(blocks_of_text(path, doing)), len):
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
        tally.add_form(TEXTS, ends)
        tally.add_long_document(str(path), *first, size_bytes, len(begins) + count + len(ends))


def _check_utf8(text: bytes, at: int, path: Path, doing: str) -> None:
    """ConfigError for a text, `at` so many bytes in its file, that is not in UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        actual = f"{error.reason} in byte {at + error.start:,}"
        raise ConfigError(doing, f"text in UTF-8 in {path}", actual, "Convert it to UTF-8, or leave it out.") from None


def _texts(rows: Sequence[TextRow], tokens: TextTokens, end: int | None) -> Iterator[DocumentIds]:
    """The documents of texts, all with as many prompts."""
    begins = np.asarray(tokens.begin, np.int32)
    begins = ~begins if len(rows[0].texts) > 1 else begins
    ends = np.asarray([] if end is None else [end], np.int32)
    encoded = [tokens.encode_all(column) for column in zip(*(row.texts for row in rows), strict=True)]
    for row, ids in zip(rows, zip(*encoded, strict=True), strict=True):
        whole = np.concatenate([begins, *(~prompt for prompt in ids[:-1]), ids[-1], ends])
        yield DocumentIds(whole, row.form, row.texts[-1], ids[-1], predicted_bytes=len(row.texts[-1]))


def _chats(rows: Sequence[ChatRow], tokens: TextTokens, doing: str) -> Iterator[DocumentIds]:
    """The documents of chats."""
    if not isinstance(tokens, FolderTokens):
        do = "Give texts, or train a model folder that has a chat template."
        raise ConfigError(doing, f"texts, for a model of bytes, in {rows[0].where}", rows[0].form, do)
    template = ChatTemplate(tokens.folder, doing, tokens.day)
    for row, chat in zip(rows, template.chats(rows, tokens), strict=True):
        ids = np.where(chat.is_answer, chat.ids, ~chat.ids)
        yield DocumentIds(ids, row.form, row.text, chat.ids, chat.by, chat.answer_bytes)
