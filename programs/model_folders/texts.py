"""Texts of files, as the tokens of a model.

`rows` has the documents of a file. A document begins with what the tokenizer puts before a text, and the token that
ends a text follows it, as far as the model has these; documents are packed one after the other. A row may have a prompt
in another field, which comes first, and which is not to be predicted: its tokens, and those that begin the document,
are the complements of their ids (`ops.data.batches`). Prompt and text become tokens apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from isthmus.programs.model_folders.tokens import Ids, TextTokens
from isthmus.programs.reading.rows import documents_of
from isthmus.programs.reading.table import DataTally

TOGETHER: Final = 1024
"""Documents that are tokenized at once, on all cores; fewer where they are long."""
TOGETHER_BYTES: Final = 1 << 20
"""Of texts that are tokenized at once, beyond which no document is added: the library has a hundred bytes a token."""


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
