"""Files as documents: JSON lines and lists, parquet, arrow, csv, tsv and plain text, by their names (`forms`).

A file of plain text is one document; each row of the others is one, by its fields or columns (`row_forms`). A .json
file of one object that is no row is text, such as package.json in a repository of code. Rows are read one after the
other, so that what a process holds does not grow with a file. What is packed (.gz, .zst) is unpacked as it is read; for
parquet and arrow, which are read from several places, into a file without a name.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import shutil
import sys
import tempfile
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, TextIO, final

import msgspec

from isthmus.programs.reading.forms import ARROW, CSV, LINES, LIST, ROWS, TEXT, TOKENS, TSV, form_of
from isthmus.programs.reading.row_forms import TEXTS, Row, RowForms, TextRow, without_nulls
from isthmus.runtime.errors import ConfigError, shortened
from isthmus.runtime.system.refusals import remedy

ROW_CHARACTERS_MAX: Final = 1 << 28
"""Of an object in a JSON list: more is held by no process that only looks for its end."""
_CHARACTERS: Final = 1 << 16
_SHOWN: Final = 20
"""Characters of what is no JSON."""
_CORRECT: Final = "Correct the file, or leave it out."


def texts_of(path: Path, fields: Mapping[str, str], doing: str) -> Iterator[tuple[bytes, ...]]:
    """The documents of a file, each a text for every field, as `documents_of`; ConfigError for rows of another form."""
    for row in documents_of(path, fields, doing):
        if not isinstance(row, TextRow) or row.form != TEXTS:
            do = f"Name a field of texts with {list(fields)[-1]}; model folders alone are trained on {row.form}."
            raise ConfigError(doing, f"texts in {path}", row.form, do)
        yield row.texts


def documents_of(path: Path, fields: Mapping[str, str], doing: str) -> Iterator[Row]:
    """The documents of a file; ConfigError for a file that cannot be read, or rows that are none.

    `fields`: the columns of a row, by the setting that names each; that of the text comes last. A file of plain text is
    refused where there are several.
    """
    form = form_of(path)
    forms = RowForms(path, fields, doing)
    if form.kind == TOKENS:
        do = "Unpack it first, or leave it out." if form.packed else "Leave it out."
        raise ConfigError(doing, f"text, or rows ({ROWS})", f"{path}, token ids", do)
    if form.kind == TEXT and len(fields) > 1:
        do = f"Leave {next(iter(fields))} out, or the file."
        raise ConfigError(doing, f"prompts in rows of {ROWS}", f"{path}, plain text", do)
    with ExitStack() as opened:
        try:
            file = opened.enter_context(_unpacked(path, form.packed, doing))
            if form.kind == TEXT:
                yield TextRow((_utf8(file.read(), path, doing),))
            elif form.kind == LINES:
                yield from _lines(file, path, forms, doing)
            elif form.kind == LIST:
                may_be_text = not form.packed and len(fields) == 1
                yield from _list(opened.enter_context(_decoded(file)), path, forms, doing, may_be_text=may_be_text)
            elif form.kind in (CSV, TSV):
                text = opened.enter_context(_decoded(file))
                yield from _separated(text, path, "\t" if form.kind == TSV else ",", forms, doing)
            else:
                yield from _table(opened.enter_context(_seekable(file, form.packed)), path, form.kind, forms, doing)
        except (EOFError, zlib.error) as error:
            raise ConfigError(
                doing, f"whole {form.packed} data in {path}", shortened(str(error), 200), _CORRECT
            ) from None
        except OSError as error:
            do = remedy(error, _CORRECT)
            raise ConfigError(doing, f"{form.kind} in {path}", shortened(str(error), 200), do) from None


def blocks_of_text(path: Path, doing: str) -> Iterator[bytes]:
    """The bytes of a file of plain text, some at a time; ConfigError for one that cannot be read."""
    form = form_of(path)
    try:
        with _unpacked(path, form.packed, doing) as file:
            while block := file.read(_CHARACTERS):
                yield block
    except (EOFError, zlib.error) as error:
        raise ConfigError(doing, f"whole {form.packed} data in {path}", shortened(str(error), 200), _CORRECT) from None
    except OSError as error:
        raise ConfigError(
            doing, f"{form.kind} in {path}", shortened(str(error), 200), remedy(error, _CORRECT)
        ) from None


def is_one_object(path: Path) -> bool:
    """Whether a file of JSON is one object and nothing else, which is no list of rows."""
    try:
        with path.open("rb") as file, _decoded(file) as characters:
            text = _JsonText(characters)
            return text.next_character() == "{" and isinstance(text.value(), dict) and not text.next_character()
    except (OSError, ValueError, RecursionError):
        return False


def _unpacked(path: Path, packed: str, doing: str) -> BinaryIO:
    if packed == ".gz":
        return gzip.open(path)  # type: ignore[return-value]
    if packed == ".zst":
        pyarrow = _pyarrow(doing, f"to unpack {path}")
        return io.BufferedReader(pyarrow.CompressedInputStream(pyarrow.OSFile(str(path)), "zstd"))
    return path.open("rb")


@contextmanager
def _decoded(file: BinaryIO) -> Iterator[TextIO]:
    """The characters of a file in UTF-8, with its ends of lines as they are; the file stays open."""
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    try:
        yield text
    finally:
        text.detach()


def _seekable(file: BinaryIO, packed: str) -> BinaryIO:
    """A file that is read from several places."""
    if not packed:
        return file
    whole = tempfile.TemporaryFile()  # noqa: SIM115
    shutil.copyfileobj(file, whole)
    whole.seek(0)
    return whole


def _pyarrow(doing: str, what_for: str) -> Any:
    try:
        import pyarrow
    except ImportError:
        do = "Install it beside isthmus: in a clone, pip install -e '.[parquet]'."
        raise ConfigError(doing, f"the library pyarrow, {what_for}", "none", do) from None
    return pyarrow


def _utf8(text: bytes, path: Path, doing: str) -> bytes:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        do = "Convert it to UTF-8, or leave it out."
        raise ConfigError(doing, f"text in UTF-8 in {path}", str(error), do) from None
    return text


def _lines(file: BinaryIO, path: Path, forms: RowForms, doing: str) -> Iterator[Row]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = _value(line.removeprefix(BOM_UTF8) if number == 1 else line)
        except (ValueError, RecursionError) as error:
            do = "Write one JSON object a line; correct this one, or leave it out."
            raise ConfigError(doing, f"JSON in line {number} of {path}", _what_is_no_json(error), do) from None
        yield forms.row(row, f"line {number} of {path}")


def _value(line: bytes) -> Any:
    """The value of a line; ValueError where there is none. Python writes NaN, which is no JSON, and reads it."""
    try:
        return msgspec.json.decode(line)
    except msgspec.DecodeError:
        return json.loads(line)


def _what_is_no_json(error: Exception) -> str:
    """What is wrong, and at which character of a line, which has no lines of its own."""
    if isinstance(error, json.JSONDecodeError):
        rest = error.doc[error.pos : error.pos + _SHOWN].rstrip("\r\n")
        there = repr(rest) if rest else "the end of the line"
        return f"{there} at character {error.pos + 1} ({error.msg})"
    return shortened(str(error), 200)


def _list(file: TextIO, path: Path, forms: RowForms, doing: str, *, may_be_text: bool) -> Iterator[Row]:
    """The rows of a list of objects; or of objects one after the other, which many call .json.

    One object alone is a row if it has the fields of one, and else a text, where it `may_be_text`: `found` leaves those
    out that lie beside rows.
    """
    text, number = _JsonText(file), 1
    do = "Write a list of objects, [{...}, {...}], or one object a line in a file named .jsonl."
    try:
        match text.next_character():
            case "[":
                is_list, end = True, "]"
                text.skip()
            case "{":
                is_list, end = False, ""
            case other:
                actual = f"{other!r} at its beginning" if other else "an empty file"
                raise ConfigError(doing, f"a list of objects in {path}", actual, do)
        while (character := text.next_character()) != end:
            where = f"row {number} of {path}"
            if character != "{":
                raise ConfigError(doing, f"an object in {where}", f"{character!r}" if character else "its end", do)
            row = text.value()
            character = text.next_character()
            if not is_list and number == 1 and not character and not forms.is_row(row):
                if not may_be_text:
                    raise ConfigError(doing, f"a list of objects in {path}", "one object", do)
                yield TextRow((_utf8(path.read_bytes(), path, doing),))
                return
            yield forms.row(row, where)
            if is_list and character == ",":
                text.skip()
                if text.next_character() == end:
                    raise ConfigError(doing, f"an object behind the comma of {where}", f"{end!r}", do)
            elif is_list and character != end:
                raise ConfigError(
                    doing, f"a comma or ] behind {where}", f"{character!r}" if character else "its end", do
                )
            number += 1
        if is_list:
            text.skip()
            if rest := text.next_character():
                raise ConfigError(doing, f"nothing behind the list in {path}", f"{rest!r}", do)
    except (ValueError, RecursionError) as error:
        raise ConfigError(doing, f"JSON in row {number} of {path}", shortened(str(error), 200), do) from None


@final
class _JsonText:
    """The values of a file of JSON, of which no more is held than the next. ValueError where there is none."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._held, self._at = "", 0
        self._decoder = json.JSONDecoder()

    def next_character(self) -> str:
        """The next that is no white space, which is not skipped; empty at the end."""
        while True:
            rest = self._held[self._at :].lstrip(" \t\r\n")
            if rest:
                self._at = len(self._held) - len(rest)
                return rest[0]
            self._held, self._at = self._file.read(_CHARACTERS), 0
            if not self._held:
                return ""

    def skip(self) -> None:
        """Skip the next character."""
        self._at += 1

    def value(self) -> Any:
        """The object that begins here: an object is whole where its last brace is."""
        size = _CHARACTERS
        while True:
            try:
                value, self._at = self._decoder.raw_decode(self._held, self._at)
                return value
            except json.JSONDecodeError:
                more = self._file.read(size) if len(self._held) < ROW_CHARACTERS_MAX else ""
                if not more:
                    raise
                self._held, self._at, size = self._held[self._at :] + more, 0, 2 * size


def _separated(file: TextIO, path: Path, separator: str, forms: RowForms, doing: str) -> Iterator[Row]:
    """The rows of a table in text, whose first row has the names of its columns."""
    csv.field_size_limit(sys.maxsize)
    rows = csv.reader(file, delimiter=separator, strict=True)
    do = "Correct the row: quotes stand around a field that has a separator, a quote or an end of line."
    try:
        names = next(rows, [])
        at = {}
        for column in forms.columns(names, f"the first row of {path}", has_lists=False):
            if names.count(column) > 1:
                do = "Rename one of them."
                raise ConfigError(doing, f"one column {column!r} in {path}", f"{names.count(column)} of it", do)
            at[column] = names.index(column)
        for row in rows:
            if row and len(row) != len(names):
                expected = f"{len(names)} fields, as the first row has, up to line {rows.line_num} of {path}"
                raise ConfigError(doing, expected, str(len(row)), do)
            if row:
                fields = {column: row[index] for column, index in at.items()}
                yield forms.row(fields, f"line {rows.line_num} of {path}")
    except (csv.Error, UnicodeDecodeError) as error:
        expected = f"fields in UTF-8 in line {rows.line_num} of {path}"
        raise ConfigError(doing, expected, shortened(str(error), 200), do) from None


def _table(file: BinaryIO, path: Path, kind: str, forms: RowForms, doing: str) -> Iterator[Row]:
    """The rows of parquet or arrow."""
    pyarrow = _pyarrow(doing, f"to read {path}")
    try:
        number = 0
        for columns, batch in _arrow(file, path, forms) if kind == ARROW else _parquet(file, path, forms):
            values = [batch.column(column).to_pylist() for column in columns]
            for row in zip(*values, strict=True):
                number += 1
                fields = {column: without_nulls(value) for column, value in zip(columns, row, strict=True)}
                yield forms.row(fields, f"row {number} of {path}")
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ConfigError(doing, f"{kind} in {path}", shortened(str(error), 200), _CORRECT) from None


def _parquet(file: BinaryIO, path: Path, forms: RowForms) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The columns that are read, and rows of these, in batches."""
    from pyarrow import parquet

    table = parquet.ParquetFile(file)
    columns = forms.columns(table.schema_arrow.names, str(path), has_lists=True)
    return ((columns, batch) for batch in table.iter_batches(columns=list(columns)))


def _arrow(file: BinaryIO, path: Path, forms: RowForms) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The same, of a stream, as datasets writes them, or of a file."""
    from pyarrow import ArrowInvalid, ipc

    try:
        stream = ipc.open_stream(file)
    except ArrowInvalid:
        file.seek(0)
        table = ipc.open_file(file)
        columns = forms.columns(table.schema.names, str(path), has_lists=True)
        return ((columns, table.get_batch(index)) for index in range(table.num_record_batches))
    columns = forms.columns(stream.schema.names, str(path), has_lists=True)
    return ((columns, batch) for batch in stream)
