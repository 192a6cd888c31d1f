"""The text of a training run as token ids, and the part of it that is held out.

Decides how files become ids, and where the split is. Which files there are, its callers say; which windows a batch
takes, `batches`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, final

import numpy as np
import xxhash

READING = "Reading the training data"


class DataError(ValueError):
    """Data that cannot be trained on: what was being done, what was expected, what was found, what to do."""

    def __init__(self, action: str, expected: str, found: str, remedy: str) -> None:
        self.action, self.expected, self.found, self.remedy = action, expected, found, remedy
        super().__init__(f"{action}: expected {expected}, found {found}.\n  {remedy}")


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file to read. Size and time of change make a changed file another Source, so that it can be a cache's key."""

    path: str
    size_bytes: int
    changed_ns: int
    renewed_ns: int = 0
    """The time of change of its entry (ctime), which no program sets back; 0 where it does not matter."""

    @property
    def holds_tokens(self) -> bool:
        """Whether it holds token ids and not text, by its name."""
        return self.path.lower().endswith((".npy", ".bin"))


Segment: TypeAlias = np.ndarray[Any, np.dtype[Any]]

BYTE_VOCABULARY = 256
HELD_OUT_DIVISOR = 20
WHOLE_FILES_MIN = 20

# Larger files are mapped, so that the learners of one machine share their pages; smaller ones are read and joined.
MAPPED_SIZE_BYTES_MIN = 16 << 20
# Checking every id of a larger file would take longer than a wrong request may; `batches` checks each window again.
CHECKED_TOKENS_MAX = 1 << 26
ZEROS_OF_MIN = 16
"""Of fewer ids half may be zero by chance."""
_BLOCK_TOKENS = 1 << 22
KEY_TOKENS = 1 << 16
"""Of a file, from its beginning, that tell it from others."""
_WIDTH_TOKENS = 1 << 20


@final
class TokenIds:
    """A sequence of token ids in several segments (integer arrays of one axis), of which large ones are mapped.

    `are_mapped`: all of them are, also small ones, and stay as they are. `are_marked`: some are complements, of tokens
    that are not to be predicted; in others a negative id is an error.
    """

    def __init__(self, segments: Iterable[Segment], *, are_mapped: bool = False, are_marked: bool = False) -> None:
        self.are_marked = are_marked
        self.segments = tuple(segment for segment in segments if len(segment)) if are_mapped else _join(segments)
        self._ends = np.cumsum([len(segment) for segment in self.segments], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def window(self, start: int, length: int) -> Segment:
        """The ids [length] from `start` on, for 0 <= start <= len(self) - length; it may cross files."""
        index = int(np.searchsorted(self._ends, start, side="right"))
        start -= int(self._ends[index]) - len(self.segments[index])
        parts = [self.segments[index][start : start + length]]
        missing = length - len(parts[0])
        while missing:
            index += 1
            parts.append(self.segments[index][:missing])
            missing -= len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


@final
@dataclass(frozen=True)
class Corpus:
    """The two sides of the split, and the number of different ids: every id is in [0, vocabulary).

    `hashed_as`: the dtype of the ids that the digest is of, where they are stored in another.
    """

    train: TokenIds
    evaluation: TokenIds
    vocabulary: int
    hashed_as: np.dtype[Any] | None = None

    @cached_property
    def digest(self) -> str:
        """xxh3-128 in hex over vocabulary, split and all ids; the first call reads everything once."""
        digest = xxhash.xxh3_128(f"{self.vocabulary}/{len(self.train)}/{len(self.evaluation)}".encode())
        for segment in (*self.train.segments, *self.evaluation.segments):
            for start in range(0, len(segment), _BLOCK_TOKENS):
                digest.update(np.ascontiguousarray(segment[start : start + _BLOCK_TOKENS], self.hashed_as).data)
        return digest.hexdigest()


def load(sources: Sequence[CorpusFile], *, vocabulary: int | None = None, token_dtype: str = "uint16") -> Corpus:
    """The corpus in `sources`; `token_dtype` ("uint16" or "uint32") is that of `.bin` files.

    DataError if token files come without a vocabulary or beside text, or text with a vocabulary below 256; if a
    file cannot be read, has another form, or holds an id outside [0, vocabulary).

    A file is bytes, whose vocabulary is 256, or token ids, whose vocabulary must be given: `.npy` (one axis, any
    integer dtype) and `.bin` (raw little-endian uint16 or uint32).

    The split depends on the files' contents only, never on learners or slots. With at least 20 distinct files whole
    files are held out: one in twenty, the first in the order of a hash of their contents. So copies of one file fall on
    one side. A file of more than a twentieth of all tokens is never held out; the smallest of n >= 20 files is no
    larger than that, so something always is. With fewer files, it is the last twentieth of each. Each side is one
    sequence: its files in order, joined without a separator.
    """
    vocabulary = vocabulary_of(sources, vocabulary)
    return split_of(
        [read(source, vocabulary, np.dtype(token_dtype).newbyteorder("<")) for source in sources], vocabulary
    )


def split_of(files: Sequence[Segment], vocabulary: int) -> Corpus:
    """The corpus of files that are token ids already, each one integer array; the split is that of `load`."""
    train, evaluation = _split(files)
    return Corpus(TokenIds(train), TokenIds(evaluation), vocabulary)


def split_of_one(
    ids: Segment, sizes: Sequence[int], keys: Sequence[str], vocabulary: int, hashed_as: np.dtype[Any]
) -> Corpus:
    """The corpus of files whose ids lie one after the other in one mapped array; nothing of it is copied or read.

    `sizes` and `keys`: the tokens of each file, and its `key_of` in the dtype `hashed_as`.
    """
    ends = np.cumsum(sizes, dtype=np.int64)
    begins = ends - np.asarray(sizes, np.int64)
    cuts = begins + np.asarray(cuts_of(keys, sizes), np.int64)
    train, evaluation = (
        TokenIds((ids[begin:end] for begin, end in _runs(places)), are_mapped=True)
        for places in (zip(begins.tolist(), cuts.tolist(), strict=True), zip(cuts.tolist(), ends.tolist(), strict=True))
    )
    return Corpus(train, evaluation, vocabulary, hashed_as)


def _runs(places: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The same places, with neighbours joined, and without empty ones."""
    runs: list[list[int]] = []
    for begin, end in places:
        if runs and runs[-1][1] == begin:
            runs[-1][1] = end
        elif begin < end:
            runs.append([begin, end])
    return runs


def whole(sources: Sequence[CorpusFile], *, vocabulary: int | None = None, token_dtype: str = "uint16") -> TokenIds:
    """All ids in `sources`, nothing held out; arguments and errors are those of `load`."""
    vocabulary = vocabulary_of(sources, vocabulary)
    return TokenIds(read(source, vocabulary, np.dtype(token_dtype).newbyteorder("<")) for source in sources)


def vocabulary_of(sources: Sequence[CorpusFile], vocabulary: int | None) -> int:
    """The number of different ids in files, with what is given for token ids. DataError where that does not fit."""
    texts = [source.path for source in sources if not source.holds_tokens]
    tokens = [source.path for source in sources if source.holds_tokens]
    if texts and tokens:
        actual = f"text ({texts[0]}) and tokens ({tokens[0]})"
        raise DataError(READING, "text files or token files (.npy, .bin)", actual, "Train on one kind.")
    if texts and vocabulary is not None and vocabulary < BYTE_VOCABULARY:
        expected = f"a vocabulary of at least {BYTE_VOCABULARY}, because text ({texts[0]}) is read as bytes"
        raise DataError(READING, expected, f"vocabulary={vocabulary}", "Leave task.vocabulary out.")
    if tokens and vocabulary is None:
        remedy = "Give task.vocabulary=N, or another file name if these are bytes."
        raise DataError(READING, f"the vocabulary size of the tokens in {tokens[0]}", "none", remedy)
    return vocabulary or BYTE_VOCABULARY


def read(source: CorpusFile, vocabulary: int, bin_dtype: np.dtype[Any]) -> Segment:
    """The ids of a file, mapped where it is large. DataError for one that cannot be read, or has another form."""
    try:
        if source.path.lower().endswith(".npy"):
            ids = np.load(source.path, mmap_mode="r", allow_pickle=False)
        elif source.path.lower().endswith(".bin"):
            ids = np.memmap(source.path, bin_dtype, mode="r")
        elif source.size_bytes >= MAPPED_SIZE_BYTES_MIN:
            ids = np.memmap(source.path, np.uint8, mode="r")
        else:
            ids = np.fromfile(source.path, np.uint8)
    except (OSError, ValueError) as error:
        form = f"{bin_dtype.name} ids (task.token_dtype)" if source.path.lower().endswith(".bin") else "a readable file"
        remedy = "Correct the file, or leave it out."
        raise DataError(READING, f"{form} in {source.path}", f"{type(error).__name__}: {error}", remedy) from error
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        actual = f"{ids.dtype} of shape {ids.shape}"
        remedy = "Save the ids as one integer array of one axis."
        raise DataError(READING, f"integers along one axis in {source.path}", actual, remedy)
    if source.holds_tokens:
        check_ids(ids[:CHECKED_TOKENS_MAX], vocabulary, source.path)
    if source.path.lower().endswith(".bin"):
        _check_width(ids[:_WIDTH_TOKENS], source.path)
    return np.asarray(ids)


def check_ids(ids: Segment, vocabulary: int, where: str) -> None:
    """Raise DataError unless every one of `ids` is in [0, vocabulary)."""
    if not ids.size:
        return
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or most >= vocabulary:
        do = "Correct task.vocabulary (and task.token_dtype of .bin files), or the file."
        raise DataError(READING, f"token ids from 0 to {vocabulary - 1} in {where}", f"ids {least} to {most}", do)


def _check_width(ids: Segment, where: str) -> None:
    """Raise DataError where half of `ids` are zero: the upper halves of wider ones."""
    zeros = len(ids) - int(np.count_nonzero(ids))
    if len(ids) < ZEROS_OF_MIN or 2 * zeros < len(ids):
        return
    narrow = ids.dtype.itemsize == 2
    do = "Set task.token_dtype=uint32 for ids of four bytes" if narrow else "Save ids of eight bytes as .npy"
    expected = f"{ids.dtype.name} ids (task.token_dtype) in {where}"
    raise DataError(READING, expected, f"{zeros / len(ids):.0%} of them zero", f"{do}, or correct the file.")


def _split(files: Sequence[Segment]) -> tuple[list[Segment], list[Segment]]:
    """The training files, and the held-out ones."""
    pairs = list(zip(files, held_out_from(files), strict=True))
    return [ids[:cut] for ids, cut in pairs if cut], [ids[cut:] for ids, cut in pairs if cut < len(ids)]


def key_of(ids: Segment) -> str:
    """16 hex digits that tell the contents of files apart: of its beginning and its length, which identify a file well
    enough, so that a mapped one is not read to its end."""
    return key_by(ids[:KEY_TOKENS], len(ids))


def key_by(beginning: Segment, tokens: int) -> str:
    """The `key_of` of so many tokens, of which the first KEY_TOKENS are given."""
    key = xxhash.xxh3_64(np.ascontiguousarray(beginning).data)
    key.update(str(tokens).encode())
    return key.hexdigest()


def held_out_from(files: Sequence[Segment]) -> list[int]:
    """Where the held-out part of each file begins: 0 for a file that is held out, its length for one that is not."""
    return cuts_of([key_of(ids) for ids in files], [len(ids) for ids in files])


def cuts_of(keys: Sequence[str], sizes: Sequence[int]) -> list[int]:
    """`held_out_from`, of files of these keys and sizes."""
    groups: dict[str, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    if len(groups) < WHOLE_FILES_MIN:
        return [size - size // HELD_OUT_DIVISOR for size in sizes]
    size_max = sum(sizes) // HELD_OUT_DIVISOR
    small = [group for _, group in sorted(groups.items()) if sum(sizes[index] for index in group) <= size_max]
    held_out = {index for group in small[: len(groups) // HELD_OUT_DIVISOR] for index in group}
    return [0 if index in held_out else size for index, size in enumerate(sizes)]


def _join(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """The same sequence, with neighbours of one dtype copied together where each is too small to be mapped."""
    joined: list[Segment] = []
    small: list[Segment] = []
    for segment in segments:
        if not len(segment):
            continue
        is_small = segment.nbytes < MAPPED_SIZE_BYTES_MIN
        if small and not (is_small and segment.dtype == small[0].dtype):
            joined.append(np.concatenate(small))
            small = []
        (small if is_small else joined).append(segment)
    if small:
        joined.append(np.concatenate(small))
    return tuple(joined)
