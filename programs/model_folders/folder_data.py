"""The data that a model folder is trained on: files as token ids, by the folder's tokenizer, and what is told of them.

Texts are read once on a machine, some documents at a time: their ids, and the table that was counted meanwhile, lie in
a token file of the cache (`reading.token_files`), which every process of a run maps. Files of token ids are read as
they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np

from isthmus.ops.data.corpus import Corpus, CorpusFile, TokenIds, load, read, whole
from isthmus.programs.model_folders import folders
from isthmus.programs.model_folders.texts import blocks_of
from isthmus.programs.model_folders.tokens import FolderTokens, Marked
from isthmus.programs.reading.forms import ROWS
from isthmus.programs.reading.found import FoundFiles, by_reason, find
from isthmus.programs.reading.table import DataTable, DataTally, SpecialIds, lost_share
from isthmus.programs.reading.token_files import TokenFile, TokenWriter, name_of, token_file
from isthmus.runtime.errors import ConfigError

DOING: Final = "Reading the training data"


class TextMarks(NamedTuple):
    """How a document becomes tokens, by the settings of these names."""

    bos: Marked | None
    eos: Marked | None
    special_in_text: bool | None
    day: str | None = None
    """What chat templates take for today; None for the day of now."""

    def tokens(self, folder: Path, vocabulary: int, doing: str) -> FolderTokens:
        """The tokenizer of a folder; ConfigError where there is none, or it has no such token."""
        is_former = self.special_in_text is None
        bos = self.bos or ("off" if is_former else "folder")
        special = is_former or bool(self.special_in_text)
        return FolderTokens(
            folder, vocabulary, doing, bos=bos, special_in_text=special, is_former=is_former, day=self.day
        )

    def end(self, folder: Path, vocabulary: int, doing: str) -> int | None:
        """The token that ends a document; the first, where there are several. ConfigError for one that the model does
        not have."""
        document = folders.document_in(folder, doing)
        former = next(iter(folders.ends_in(document)), None)
        end = former if self.special_in_text is None else folders.document_end_in(folder, document, doing)
        where = f"{folders.GENERATION} or {folders.CONFIG}"
        if self.eos == "off" or (end is None and self.eos != "on"):
            return None
        if end is None:
            do = "Set task.eos to folder, or leave it out."
            raise ConfigError(doing, f"an eos_token_id in {where}", "none", do)
        if not 0 <= end < vocabulary:
            do = f"Correct eos_token_id in {where}; null is for a model without."
            raise ConfigError(doing, f"an eos_token_id below {vocabulary}, the size of the vocabulary", str(end), do)
        return end


def marks_of(settings: Mapping[str, Any]) -> TextMarks:
    """How documents become tokens, by the settings of a task."""
    return TextMarks(*(settings.get(key) for key in TextMarks._fields))


@final
@dataclass(frozen=True, slots=True)
class FolderData:
    """The files and folders `data`, for the model of a folder with so many token ids; the other fields are settings.

    DataError or ConfigError for what cannot be read.
    """

    folder: Path
    vocabulary: int
    data: tuple[str, ...]
    column: str
    prompt: str | None
    token_dtype: str
    marks: TextMarks

    def read(self) -> tuple[Corpus, bool]:
        """All ids, and which of them are held out; and whether some are not to be predicted, which are complements."""
        found = self._found()
        if self._held(found) is not None:
            return _loaded(found.files, self.vocabulary, self.token_dtype), False
        file = self._file(found)
        return file.corpus(self.vocabulary), self.prompt is not None or file.is_marked

    def whole(self, found: FoundFiles) -> TokenIds:
        """All ids of files that were found, nothing held out."""
        if self._held(found) is not None:
            return whole(found.files, vocabulary=self.vocabulary, token_dtype=self.token_dtype)
        return self._file(found).whole()

    def table(self) -> DataTable:
        """What the data are."""
        found = self._found()
        if (held := self._held(found)) is not None:
            _loaded(found.files, self.vocabulary, self.token_dtype)
            return self._tally_of_ids(held).table(found)
        file = self._file(found)
        table = DataTable.read(file.facts)
        return replace(table, left_out=by_reason(found.left_out), cache=file.origin, cache_reason=file.reason or None)

    def _found(self) -> FoundFiles:
        return find(self.data, are_texts=True, are_rows=True)

    def _held(self, found: FoundFiles) -> list[CorpusFile] | None:
        """The files of token ids; None where there are none."""
        held = [file for file in found.files if file.holds_tokens]
        if held and self.prompt is not None:
            do = "Leave task.prompt out."
            raise ConfigError(DOING, f"prompts in rows of {ROWS}", f"{held[0].path}, token ids", do)
        return held or None

    def _tally_of_ids(self, held: list[CorpusFile]) -> DataTally:
        tally = DataTally()
        if (self.folder / folders.TOKENIZER).is_file():
            tokens, end = self._tokens(self.marks)
            tally = DataTally(_special(tokens, end), tokens.decode)
        for file in held:
            tally.add_file(file.path, read(file, self.vocabulary, np.dtype(self.token_dtype).newbyteorder("<")))
        return tally

    def _file(self, found: FoundFiles) -> TokenFile:
        documents = folders.tokenizer_documents_in(self.folder)
        day = folders.day_of_templates(documents, self.marks.day)
        marks = self.marks._replace(day=day)
        name = name_of(found.files, documents, {"training": [self.vocabulary, self.column, self.prompt, *marks]})
        return token_file(name, found.files, self.vocabulary, lambda writer: self._written(found, writer, marks))

    def _written(self, found: FoundFiles, writer: TokenWriter, marks: TextMarks) -> Mapping[str, Any]:
        """Write the ids of all files; the result is their table."""
        tokens, end = self._tokens(marks)
        begins_with, ends_with = (
            tuple(map(tokens.piece, ids)) for ids in (tokens.begin, () if end is None else (end,))
        )
        stops = folders.stops_in(self.folder, folders.document_in(self.folder, DOING), DOING)
        tally = DataTally(_special(tokens, end), tokens.decode, begins_with, ends_with, stops)
        fields = {**({} if self.prompt is None else {"task.prompt": self.prompt}), "task.column": self.column}
        for file in found.files:
            for ids in blocks_of(Path(file.path), fields, tokens, end, DOING, tally):
                writer.add(ids)
            writer.end_file()
        return tally.table(FoundFiles(found.files), lost_share(map(tokens.there_and_back, tally.samples))).as_dict()

    def _tokens(self, marks: TextMarks) -> tuple[FolderTokens, int | None]:
        """The tokenizer, and the token that ends a document."""
        reading = f"Reading the model folder {self.folder}"
        tokens = marks.tokens(self.folder, self.vocabulary, DOING)
        return tokens, marks.end(self.folder, self.vocabulary, reading)


@lru_cache(maxsize=2)
def _loaded(files: tuple[CorpusFile, ...], vocabulary: int, token_dtype: str) -> Corpus:
    """The corpus of files of token ids, read once for all learners of a process."""
    return load(files, vocabulary=vocabulary, token_dtype=token_dtype)


def _special(tokens: FolderTokens, end: int | None) -> SpecialIds:
    """The ids of pads and of unknown letters, where these do not begin or end documents, too: no count tells these
    apart."""
    marks = {*tokens.begin, end}
    return SpecialIds(*(None if id in marks else id for id in (tokens.pad, tokens.unknown)))
