"""Texts of files, as the tokens of a model: plain text, JSON lines and parquet, by their names.

A file of plain text is one document; each line of a .jsonl file, and each row of a .parquet file, has one in a field or
column. The token that ends a text, if the model has one, follows each document, and documents are packed one after the
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from isthmus.programs.model_folders.tokens import Ids, TextTokens
from isthmus.runtime.errors import ConfigError, nearest

TOGETHER: Final = 1024
"""Documents that are tokenized at once, on all cores."""


def ids_of(path: Path, column: str, tokens: TextTokens, end: int | None, doing: str) -> Ids:
    """The tokens of a file; ConfigError for one that has no such column, or cannot be read."""
    ends = np.asarray([] if end is None else [end], np.int32)
    parts: list[Ids] = []
    documents = _documents(path, column, doing)
    while some := list(islice(documents, TOGETHER)):
        for ids in tokens.encode_all(some):
            parts += [ids, ends]
    return np.concatenate(parts) if parts else ends[:0]


def _documents(path: Path, column: str, doing: str) -> Iterator[bytes]:
    do = "Correct the file, or leave it out."
    try:
        if path.suffix == ".jsonl":
            yield from _lines(path, column, doing)
        elif path.suffix == ".parquet":
            yield from _rows(path, column, doing)
        else:
            yield path.read_bytes()
    except OSError as error:
        raise ConfigError(doing, f"text in {path}", str(error), do) from None


def _lines(path: Path, column: str, doing: str) -> Iterator[bytes]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row: Any = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                do = "Write one JSON object a line."
                raise ConfigError(doing, f"JSON in line {number} of {path}", str(error), do) from None
            text = row.get(column) if isinstance(row, dict) else None
            if not isinstance(text, str):
                there = sorted(map(str, row)) if isinstance(row, dict) else []
                raise _no_column(f"line {number} of {path}", column, there, doing)
            yield text.encode(errors="replace")


def _rows(path: Path, column: str, doing: str) -> Iterator[bytes]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        do = "Install it beside isthmus: in a clone, pip install -e '.[parquet]'."
        raise ConfigError(doing, "the library pyarrow", "none", do) from None
    try:
        file = parquet.ParquetFile(path)
        if column not in file.schema_arrow.names:
            raise _no_column(str(path), column, file.schema_arrow.names, doing)
        for batch in file.iter_batches(columns=[column]):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    do = "Name a column of texts with task.column."
                    raise ConfigError(doing, f"texts in column {column!r} of {path}", type(text).__name__, do)
                yield text.encode()
    except ArrowException as error:
        do = "Correct the file, or leave it out."
        raise ConfigError(doing, f"parquet in {path}", str(error)[:200], do) from None


def _no_column(where: str, column: str, there: Sequence[str], doing: str) -> ConfigError:
    do = f"Name another with task.column. {nearest(column, there)}"
    return ConfigError(doing, f"a text in {column!r} of {where}", ", ".join(there) or "no fields", do)
