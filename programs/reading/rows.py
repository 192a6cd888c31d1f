"""Files of rows, and of plain text, as documents: JSON lines, parquet and arrow, by their names.

A file of plain text is one document; each line of a .jsonl file, and each row of a .parquet or .arrow file, is one,
with its text in a field or column.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.runtime.errors import ConfigError, nearest
from isthmus.runtime.system.refusals import remedy

TABLES: Final = (".jsonl", ".parquet", ".arrow")
"""Files of rows."""


def documents_of(path: Path, fields: Mapping[str, str], doing: str) -> Iterator[tuple[bytes, ...]]:
    """The documents of a file, each a text for every field; ConfigError for a file that cannot be read, or lacks one.

    `fields`: the columns of a row, by the setting that names each. A file of plain text is refused where there are
    several.
    """
    do = "Correct the file, or leave it out."
    try:
        if path.suffix == ".jsonl":
            yield from _lines(path, fields, doing)
        elif path.suffix in TABLES:
            yield from _rows(path, fields, doing)
        elif len(fields) > 1:
            do = f"Leave {next(iter(fields))} out, or the file."
            raise ConfigError(doing, f"prompts in rows of {', '.join(TABLES)}", f"{path}, plain text", do)
        else:
            yield (_utf8(path.read_bytes(), path, doing),)
    except OSError as error:
        raise ConfigError(doing, f"text in {path}", str(error), remedy(error, do)) from None


def _utf8(text: bytes, path: Path, doing: str) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        do = "Convert it to UTF-8, or leave it out."
        raise ConfigError(doing, f"text in UTF-8 in {path}", str(error), do) from None
    return text


def _lines(path: Path, fields: Mapping[str, str], doing: str) -> Iterator[tuple[bytes, ...]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row: Any = msgspec.json.decode(line.removeprefix(BOM_UTF8) if number == 1 else line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                do = "Write one JSON object a line."
                raise ConfigError(doing, f"JSON in line {number} of {path}", str(error), do) from None
            row = row if isinstance(row, dict) else {}
            for setting, column in fields.items():
                if column not in row:
                    raise _no_column(f"line {number} of {path}", setting, column, sorted(map(str, row)), doing)
                if not isinstance(row[column], str):
                    raise _no_text(f"{column!r} of line {number} of {path}", row[column], doing)
            yield tuple(row[column].encode(errors="replace") for column in fields.values())


def _rows(path: Path, fields: Mapping[str, str], doing: str) -> Iterator[tuple[bytes, ...]]:
    try:
        from pyarrow import ArrowException
    except ImportError:
        do = "Install it beside isthmus: in a clone, pip install -e '.[parquet]'."
        raise ConfigError(doing, "the library pyarrow", "none", do) from None
    try:
        names, batches = _arrow(path) if path.suffix == ".arrow" else _parquet(path, list(fields.values()))
        for setting, column in fields.items():
            if column not in names:
                raise _no_column(str(path), setting, column, names, doing)
        for batch in batches:
            columns = [batch.column(column).to_pylist() for column in fields.values()]
            for row in zip(*columns, strict=True):
                yield tuple(_text(text, path, doing) for text in row)
    except (ArrowException, UnicodeDecodeError) as error:
        do = "Correct the file, or leave it out."
        raise ConfigError(doing, f"{path.suffix[1:]} in {path}", str(error)[:200], do) from None


def _parquet(path: Path, columns: Sequence[str]) -> tuple[list[str], Iterator[Any]]:
    """The names of all columns, and the rows of some, in batches."""
    from pyarrow import parquet

    file = parquet.ParquetFile(path)
    return file.schema_arrow.names, file.iter_batches(columns=list(columns))


def _arrow(path: Path) -> tuple[list[str], Iterator[Any]]:
    """The names of all columns, and the rows, in batches: of a stream, as datasets writes them, or of a file."""
    from pyarrow import ArrowInvalid, ipc, memory_map

    source = memory_map(str(path))
    try:
        stream = ipc.open_stream(source)
    except ArrowInvalid:
        file = ipc.open_file(source)
        return file.schema.names, (file.get_batch(index) for index in range(file.num_record_batches))
    return stream.schema.names, iter(stream)


def _text(text: Any, path: Path, doing: str) -> bytes:
    if not isinstance(text, str):
        raise _no_text(f"each row of {path}", text, doing)
    return text.encode()


def _no_text(where: str, value: Any, doing: str) -> ConfigError:
    is_null = value is None
    do = "Leave rows without a text out." if is_null else "Name a column of texts."
    return ConfigError(doing, f"a text in {where}", "null" if is_null else f"a {type(value).__name__}", do)


def _no_column(where: str, setting: str, column: str, there: Sequence[str], doing: str) -> ConfigError:
    do = f"Name another with {setting}. {nearest(column, there)}"
    return ConfigError(doing, f"a text in {column!r} of {where}", ", ".join(there) or "no fields", do)
