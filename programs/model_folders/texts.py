"""Documents of files, as the tokens of a model.

`rows` has the documents of a file. A text begins with what the tokenizer puts before one, and the token that ends a
text follows it, as far as the model has these; a chat is what the folder's template makes of it, and nothing else
(`chats`). Documents are packed one after the other.

What is read, and not predicted, are the complements of ids (`ops.data.batches`): of a prompt, with what begins the
document, and of a chat all but the answers of the assistant. Prompt and text become tokens apart, as they do where a
model is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Final, NamedTuple, final

import numpy as np

from isthmus.programs.model_folders.chats import By, ChatTemplate
from isthmus.programs.model_folders.tokens import FolderTokens, Ids, TextTokens
from isthmus.programs.reading.row_forms import ChatRow, TextRow
from isthmus.programs.reading.rows import documents_of
from isthmus.programs.reading.table import DataTally
from isthmus.runtime.errors import ConfigError

TOGETHER: Final = 1024
"""Documents that are tokenized at once, on all cores."""


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
) -> Iterator[DocumentIds]:
    """The documents of a file, one after the other; ConfigError for what cannot be read, or a model does not take.

    `fields`: the columns of a row, by the setting that names each; that of the text comes last.
    """
    rows = documents_of(path, fields, doing)
    while some := list(islice(rows, TOGETHER)):
        for kind, group in groupby(some, type):
            if kind is TextRow:
                yield from _texts([each for each in group if isinstance(each, TextRow)], tokens, end)
            else:
                yield from _chats([each for each in group if isinstance(each, ChatRow)], tokens, doing)


def ids_in(
    path: Path,
    fields: Mapping[str, str],
    tokens: TextTokens,
    end: int | None,
    doing: str,
    tally: DataTally | None = None,
) -> Iterator[Ids]:
    """The tokens of each document of a file, as `documents_in`, which `tally` counts, but for those of the file."""
    documents = documents_in(path, fields, tokens, end, doing)
    while some := list(islice(documents, TOGETHER)):
        if tally is not None:
            sizes = [len(each.ids) for each in some]
            tally.add_documents(str(path), [each.text for each in some], [each.shown for each in some], sizes)
            for each in some:
                tally.add_form(each.form, each.ids, each.by)
        yield from (each.ids for each in some)


def ids_of(
    path: Path,
    fields: Mapping[str, str],
    tokens: TextTokens,
    end: int | None,
    doing: str,
    tally: DataTally | None = None,
) -> Ids:
    """The tokens of a file, as `ids_in`, one after the other; `tally` counts them."""
    parts = list(ids_in(path, fields, tokens, end, doing, tally))
    whole = np.concatenate(parts) if parts else np.asarray([], np.int32)
    if tally is not None:
        tally.add_file(str(path), whole)
    return whole


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
    template = ChatTemplate(tokens.folder, doing)
    for row, chat in zip(rows, template.chats(rows, tokens), strict=True):
        ids = np.where(chat.is_answer, chat.ids, ~chat.ids)
        yield DocumentIds(ids, row.form, row.text, chat.ids, chat.by, chat.answer_bytes)
