"""What a file is by its name: rows of one format or another, token ids, or plain text; and whether it is packed."""

from __future__ import annotations

from pathlib import PurePath
from typing import Final, NamedTuple, final

from isthmus.ops.data.corpus import READING, CorpusFile, DataError

LINES: Final = "JSON lines"
LIST: Final = "a JSON list"
PARQUET: Final = "parquet"
ARROW: Final = "arrow"
CSV: Final = "csv"
TSV: Final = "tsv"
TOKENS: Final = "token ids"
TEXT: Final = "text"

_BY_SUFFIX: Final = {
    ".jsonl": LINES,
    ".ndjson": LINES,
    ".json": LIST,
    ".parquet": PARQUET,
    ".arrow": ARROW,
    ".csv": CSV,
    ".tsv": TSV,
    ".npy": TOKENS,
    ".bin": TOKENS,
}
ROWS: Final = ", ".join(suffix for suffix, kind in _BY_SUFFIX.items() if kind != TOKENS)
"""The suffixes of files of rows, for messages."""
PACKED: Final = (".gz", ".zst")


@final
class FileForm(NamedTuple):
    """`kind`: a constant of this module; `packed`: one of PACKED, or empty."""

    kind: str
    packed: str

    @property
    def has_rows(self) -> bool:
        """Whether a file has rows, each a document with its text in a column."""
        return self.kind not in (TEXT, TOKENS)


def form_of(path: str | PurePath) -> FileForm:
    """The form of a file, by its suffixes in any case."""
    name = PurePath(path)
    packed = suffix if (suffix := name.suffix.lower()) in PACKED else ""
    inner = PurePath(name.stem).suffix.lower() if packed else suffix
    return FileForm(_BY_SUFFIX.get(inner, TEXT), packed)


def check_bytes(files: tuple[CorpusFile, ...]) -> tuple[CorpusFile, ...]:
    """The same files, on whose bytes, or ids, a model is to be trained. DataError where the bytes are of no text."""
    for file in files:
        form = form_of(file.path)
        if form.packed:
            do = f"Unpack it first ({'gunzip' if form.packed == '.gz' else 'unzstd'}), or leave it out."
            raise DataError(READING, "files whose bytes are a text", f"{file.path}, packed", do)
        if form.kind in (PARQUET, ARROW):
            do = (
                "Write its texts into a file of text, or leave it out; a model folder (--model FOLDER) reads rows, "
                "with their text in task.column."
            )
            raise DataError(READING, "files whose bytes are a text", f"{file.path}, a table in {form.kind}", do)
    return files
