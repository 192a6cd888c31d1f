"""What training data is, as a table that a user sees before anything starts, and what of it cannot be meant.

A `DataTally` counts while files are read, so that nothing is read or tokenized twice; its `DataTable` is plain values.
A share that cannot be told, such as that of pads where the token that pads also ends texts, is None.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import PurePath
from typing import Any, Final, NamedTuple, final

import msgspec
import numpy as np
import numpy.typing as npt

from isthmus.ops.data.corpus import CHECKED_TOKENS_MAX, READING, ZEROS_OF_MIN
from isthmus.programs.reading.forms import LIST, PACKED, TEXT, FileForm, form_of
from isthmus.programs.reading.found import FoundFiles, LeftOutFiles, by_reason
from isthmus.programs.reading.row_forms import CHAT_COMPLETIONS, CHATS
from isthmus.runtime.errors import Fault

PAD_SHARE_MAX: Final = 1 / 5
ZERO_SHARE_MAX: Final = 1 / 2
LOST_SHARE_MAX: Final = 1 / 100
JSON_SHARE_MAX: Final = 1 / 2
EPOCHS_MAX: Final = 100
"""More epochs are warned of."""

MARKS: Final = "marks"
PREFIXES: Final = "prefixes"

SHOWN: Final = 3
"""Documents that are read back from their ids."""
SHOWN_CHARACTERS: Final = 60
SHOWN_TOKENS: Final = 256
"""Of a document, that are read back."""
_SAMPLE_CHARACTERS: Final = 1 << 14
"""Of a file, that are sent through a tokenizer and back."""
_SAMPLES_MAX: Final = 16

Ids = npt.NDArray[Any]


@final
@dataclass(frozen=True, slots=True)
class LongestDocument:
    """The document with the most tokens: the file, and which of its documents, from 1."""

    path: str
    document: int
    tokens: int


@final
@dataclass(frozen=True, slots=True)
class DataTable:
    """What was found, what is held out included. None: not known, or not measured; an older table has fewer fields."""

    files: int
    bytes: int
    tokens: int
    tokens_by_kind: Mapping[str, int] = field(default_factory=dict)
    """By suffix."""
    documents: int | None = None
    """None for token ids, whose documents are not known; likewise `without_text` and `longest`."""
    predicted: int | None = None
    """The tokens that are to be predicted: not those of prompts, and of what users say in chats."""
    documents_by_form: Mapping[str, int] = field(default_factory=dict)
    """Texts, completions, chats (`row_forms`)."""
    answers_by: tuple[str, ...] = ()
    """How it is known which tokens of chats are the assistant's: MARKS, PREFIXES."""
    chats_without_stop: int | None = None
    """Chats whose answers have no token at which a model stops."""
    epochs: float | None = None
    """The tokens to train on, in passes over those that are predicted."""
    pad_share: float | None = None
    unknown_share: float | None = None
    zero_share: float | None = None
    lost_share: float | None = None
    """The characters that a tokenizer loses of a sample."""
    json_share: float | None = None
    """The share of plain text that is JSON as a whole, files of one object included."""
    json_path: str | None = None
    """The first such file."""
    without_text: int | None = None
    longest: LongestDocument | None = None
    begins_with: tuple[str, ...] = ()
    """The tokens before a text, as texts."""
    ends_with: tuple[str, ...] = ()
    """Those behind it."""
    beginnings: tuple[str, ...] = ()
    """Of some documents, read back from their ids."""
    learned: tuple[str, ...] = ()
    """Likewise what is to be predicted, of some documents of which that is not all."""
    left_out: tuple[LeftOutFiles, ...] = ()
    cache: str | None = None
    """Whether the tokens lay in the cache (FOUND), lie there now (MADE), or are NOT_KEPT (`token_files`); None where
    none are made."""
    cache_reason: str | None = None
    """Why they are not kept, or one that was there was not taken."""

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> DataTable:
        """What `as_dict` gave, perhaps of an older version; ValueError for something else."""
        return msgspec.convert(document, cls)

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @property
    def is_all_predicted(self) -> bool:
        """Whether nothing of it is read alone."""
        return self.predicted in (None, self.tokens)

    def figures(self) -> dict[str, int]:
        """How much there is."""
        return {"files": self.files, "bytes": self.bytes, "tokens": self.tokens}

    def for_budget(self, tokens: int) -> DataTable:
        """The same data, on which so many tokens are to be trained."""
        return replace(self, epochs=tokens / self.predicted if self.predicted else None)

    def faults(self) -> Iterator[Fault]:
        """What of this cannot be meant."""
        if self.pad_share is not None and self.pad_share > PAD_SHARE_MAX:
            do = "Leave out padding where the ids are made; batches are cut here."
            yield Fault(READING, f"at most {PAD_SHARE_MAX:.0%} of pads among the tokens", f"{self.pad_share:.1%}", do)
        if self.zero_share is not None and self.zero_share >= ZERO_SHARE_MAX and self.tokens >= ZEROS_OF_MIN:
            do = "Set task.token_dtype to that of .bin files (uint32 for ids of four bytes), or correct the ids."
            yield Fault(READING, "less than half of the ids zero", f"{self.zero_share:.1%}", do)
        if self.json_share is not None and self.json_share > JSON_SHARE_MAX:
            do = (
                "Name it .jsonl (an object a line) or .json (a list of objects), the text of a row is in task.column; "
                "or leave it out."
            )
            yield Fault(READING, "documents that are texts", f"JSON in {self.json_path}, with its braces", do)
        if self.lost_share is not None and self.lost_share > LOST_SHARE_MAX:
            do = "Take the tokenizer that belongs to this model and these texts."
            expected = f"a tokenizer that gives texts back but for {LOST_SHARE_MAX:.0%} of their characters"
            yield Fault(READING, expected, f"{self.lost_share:.1%} lost", do)

    def warnings(self) -> Iterator[Fault]:
        """What is odd, and wrong only if not intended."""
        if self.epochs is not None and self.epochs > EPOCHS_MAX:
            do = "Give more data, or set fewer tokens."
            found = f"{self.epochs:,.0f}, of {self.predicted:,} tokens"
            yield Fault(READING, f"at most {EPOCHS_MAX} passes over the data", found, do)
        if self.chats_without_stop:
            do = "Name the token that ends an answer as eos_token_id in generation_config.json, or take its template."
            found = f"{self.chats_without_stop:,} chats without one"
            yield Fault(READING, "answers with a token at which the model stops (eos_token_id)", found, do)


@final
class SpecialIds(NamedTuple):
    """The ids of a vocabulary that stand for no text; None where there is none of its own."""

    pad: int | None = None
    unknown: int | None = None


@final
@dataclass(slots=True)
class DataTally:
    """Counts what is read. `decode` gives the text of ids, where that is known."""

    special: SpecialIds = field(default_factory=SpecialIds)
    decode: Callable[[Ids], str] | None = None
    begins_with: tuple[str, ...] = ()
    ends_with: tuple[str, ...] = ()
    stops: tuple[int, ...] = ()
    """The ids at which the model stops."""
    _tokens: Counter[str] = field(default_factory=Counter)
    _unpredicted: int = 0
    _forms: Counter[str] = field(default_factory=Counter)
    _answers_by: set[str] = field(default_factory=set)
    _without_stop: int | None = None
    _looked: int = 0
    """Ids of which it was counted how many are special."""
    _looked_in: Counter[str] = field(default_factory=Counter)
    """The same, by path."""
    _special: Counter[str] = field(default_factory=Counter)
    _documents: Counter[str] = field(default_factory=Counter)
    """By path."""
    _without_text: int | None = None
    _longest: LongestDocument | None = None
    _beginnings: list[str] = field(default_factory=list)
    _learned: list[str] = field(default_factory=list)
    _plain_bytes: int = 0
    _json_bytes: int = 0
    _json_path: str | None = None
    samples: list[str] = field(default_factory=list)
    """Texts to send through the tokenizer and back."""

    def add_documents(self, path: str, texts: Sequence[bytes], ids: Sequence[Ids], tokens: Sequence[int]) -> None:
        """Count some documents of a file: each text, its ids, and how many tokens the document has in all."""
        most = int(np.argmax(tokens))
        if self._longest is None or tokens[most] > self._longest.tokens:
            self._longest = LongestDocument(path, self._documents[path] + most + 1, int(tokens[most]))
        self._without_text = (self._without_text or 0) + sum(not text.strip() for text in texts)
        if not self._documents[path] and len(self.samples) < _SAMPLES_MAX:
            self.samples.append(b"\n".join(texts)[:_SAMPLE_CHARACTERS].decode(errors="ignore"))
        self._documents[path] += len(texts)
        self._show(ids)
        if form_of(path).kind == TEXT or _is_whole(path, texts):
            for text in texts:
                self._plain_bytes += len(text)
                if is_json(text):
                    self._json_bytes += len(text)
                    self._json_path = self._json_path or path

    def add_long_document(self, path: str, beginning: bytes, ids: Ids, size_bytes: int, tokens: int) -> None:
        """Count a file of plain text, no JSON, that is one document: how it begins, the ids of that, and what it has in
        all."""
        self.add_documents(path, [beginning], [ids], [tokens])
        self._plain_bytes += size_bytes - len(beginning)

    def add_form(self, form: str, ids: Ids, answers_by: str | None = None) -> None:
        """Count a document, of a form of `row_forms`, by its ids, of which complements are not to be predicted;
        `answers_by`: how its answers are known, if it is a chat."""
        self._forms[form] += 1
        if unpredicted := int(np.count_nonzero(ids < 0)):
            self._unpredicted += unpredicted
            if self.decode is not None and len(self._learned) < SHOWN:
                self._learned.append(self.decode(ids[ids >= 0][:SHOWN_TOKENS])[:SHOWN_CHARACTERS])
        if answers_by is not None:
            self._answers_by.add(answers_by)
            has_stop = bool(np.isin(ids, self.stops).any())
            self._without_stop = (self._without_stop or 0) + (not has_stop)

    def _show(self, documents: Sequence[Ids]) -> None:
        for ids in documents[: SHOWN - len(self._beginnings)]:
            if self.decode is not None:
                self._beginnings.append(self.decode(ids[:SHOWN_TOKENS])[:SHOWN_CHARACTERS])

    def add_file(self, path: str, ids: Ids) -> None:
        """Count the ids of a whole file, whose documents are not known. Those of prompts are complements."""
        self.add_block(path, ids)
        self._show([ids])

    def add_block(self, path: str, ids: Ids) -> None:
        """Count the next ids of a file."""
        self.add_size(path, len(ids))
        looked = ids[: CHECKED_TOKENS_MAX - self._looked_in[path]]
        self._looked_in[path] += len(looked)
        self.add_ids(looked)

    def add_size(self, path: str, tokens: int, *, beginning: Ids | None = None) -> None:
        """Count a file that has so many tokens; it is one document, if its `beginning` is given."""
        self._tokens[kind_of(path)] += tokens
        if beginning is not None:
            self._documents[path] += 1
            self._show([beginning])
            if self._longest is None or tokens > self._longest.tokens:
                self._longest = LongestDocument(path, 1, tokens)

    def add_ids(self, ids: Ids) -> None:
        """Count how many of some ids are special."""
        looked = ids[:CHECKED_TOKENS_MAX]
        if looked.dtype.kind == "i":
            looked = np.where(looked < 0, ~looked, looked)
        self._looked += len(looked)
        for name, id in {"pad": self.special.pad, "unknown": self.special.unknown, "zero": 0}.items():
            if id is not None:
                self._special[name] += len(looked) - int(np.count_nonzero(looked if id == 0 else looked != id))

    def table(self, found: FoundFiles, lost_share: float | None = None) -> DataTable:
        """All that was counted."""
        is_known = bool(sum(self._documents.values()))
        has_pad, has_unknown = self.special.pad is not None, self.special.unknown is not None
        return DataTable(
            files=len(found.files),
            bytes=sum(file.size_bytes for file in found.files),
            documents=sum(self._documents.values()) if is_known else None,
            tokens=sum(self._tokens.values()),
            tokens_by_kind=dict(self._tokens),
            predicted=sum(self._tokens.values()) - self._unpredicted,
            documents_by_form=dict(self._forms),
            answers_by=tuple(sorted(self._answers_by)),
            chats_without_stop=self._without_stop,
            pad_share=self._share("pad") if has_pad else None,
            unknown_share=self._share("unknown") if has_unknown else None,
            zero_share=self._share("zero"),
            lost_share=lost_share,
            json_share=self._json_bytes / self._plain_bytes if self._plain_bytes else None,
            json_path=self._json_path,
            without_text=self._without_text,
            longest=self._longest,
            begins_with=self.begins_with,
            ends_with=self.ends_with,
            beginnings=tuple(self._beginnings),
            learned=tuple(self._learned),
            left_out=by_reason(found.left_out),
        )

    def _share(self, name: str) -> float | None:
        return self._special[name] / self._looked if self._looked else None


def has_texts(forms: Iterable[str]) -> bool:
    """Whether some forms are of texts, which have tokens around them; templates write chats whole."""
    return not set(forms) <= {CHATS, CHAT_COMPLETIONS}


def kind_of(path: str) -> str:
    """The suffixes of a file in lower case: what it holds, and how it is packed; or "no suffix"."""
    name = PurePath(path.lower())
    suffixes = name.suffixes[-2:] if name.suffix in PACKED else name.suffixes[-1:]
    return "".join(suffixes) or "no suffix"


def _is_whole(path: str, texts: Sequence[bytes]) -> bool:
    """Whether a text is all of a file of JSON, which is one object; that of a row is shorter than its file."""
    return form_of(path) == FileForm(LIST, "") and len(texts) == 1 and len(texts[0]) == os.path.getsize(path)


def is_json(text: bytes) -> bool:
    """Whether a text is JSON as a whole: a list or an object, or an object a line."""
    stripped = text.strip()
    if stripped[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(stripped)
        return True
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        lines = [line for line in io.BytesIO(stripped) if line.strip()]
        return len(lines) > 1 and all(isinstance(msgspec.json.decode(line), dict) for line in (lines[0], lines[-1]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def lost_share(pairs: Iterable[tuple[str, str]]) -> float | None:
    """The share of characters of texts that their readings from ids lack, white space apart, in any order; None without
    any.

    Pieces of words may be joined otherwise than they were parted, which changes white space, and loses no word.
    """
    lost = total = 0
    for text, read_back in pairs:
        characters = Counter("".join(text.split()))
        total += characters.total()
        lost += (characters - Counter("".join(read_back.split()))).total()
    return lost / total if total else None
