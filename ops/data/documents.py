"""The documents of a corpus: files or rows of files, or pieces of them where they are few.

Decides what a document is, which ones are held out, and how few make pieces of them; `routing` decides which shard a
document belongs to, `shards` what a path trains on. Files are read elsewhere.

What is held out is decided before anything is cut, by the rule of `corpus.load` with rows in the place of files: so the
held-out text of plain files is the same with a router and without, and no piece of a held-out file is trained on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np
import numpy.typing as npt
import xxhash

from isthmus.ops.data.corpus import Segment, TokenIds, held_out_from, key_of

Integers: TypeAlias = npt.NDArray[np.int64]

DOCUMENTS_A_SHARD_MIN: Final = 64
"""Documents for each shard below which they are cut: with fewer, shards are neither alike in size nor of one kind."""
PIECE_TOKENS_MAX: Final = 4096
_LINE_END: Final = ord("\n")


@final
@dataclass(frozen=True)
class Documents:
    """Documents, none of them empty, in their order.

    - `segments`: arrays of token ids, of a file each.
    - `places`: int64[documents, 3], the segment of each, and where it begins and ends there.
    - `labels`: the source of each document, a number in `names`: int64[documents].
    - `names`: what sources are called.
    """

    segments: tuple[Segment, ...]
    places: Integers
    labels: Integers
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: int) -> Segment:
        """The ids of a document."""
        segment, begin, end = map(int, self.places[index])
        return self.segments[segment][begin:end]

    @property
    def lengths(self) -> Integers:
        """The tokens of each document, which are bytes where the data are text: int64[documents]."""
        return self.places[:, 2] - self.places[:, 1]

    def those(self, which: npt.NDArray[Any]) -> Documents:
        """Some of them, by numbers or by a mask [documents]."""
        return Documents(self.segments, self.places[which], self.labels[which], self.names)

    def tokens(self) -> TokenIds:
        """All of them, one after the other, without a separator. Neighbours in a file stay one segment."""
        runs: list[list[int]] = []
        for segment, begin, end in self.places.tolist():
            if runs and runs[-1][0] == segment and runs[-1][2] == begin:
                runs[-1][2] = end
            else:
                runs.append([segment, begin, end])
        return TokenIds(self.segments[segment][begin:end] for segment, begin, end in runs)

    def heads(self, length: int) -> Integers:
        """The first tokens of each, int64[documents, length]; -1 beyond the end of a document."""
        heads = np.full((len(self), length), -1, np.int64)
        for row, (segment, begin, end) in zip(heads, self.places.tolist(), strict=True):
            ids = self.segments[segment][begin : min(end, begin + length)]
            row[: len(ids)] = ids
        return heads


class FileDocuments(NamedTuple):
    """The documents of one file: `ids` [tokens] of all of them, where each ends, and the source of each."""

    ids: Segment
    ends: Sequence[int]
    sources: Sequence[str]


def gathered(files: Iterable[FileDocuments]) -> Documents:
    """The documents of files, in their order; empty ones are left out."""
    segments: list[Segment] = []
    places: list[tuple[int, int, int]] = []
    labels: list[int] = []
    names: dict[str, int] = {}
    for file in files:
        begin = 0
        for end, source in zip(file.ends, file.sources, strict=True):
            if end > begin:
                places.append((len(segments), begin, end))
                labels.append(names.setdefault(source, len(names)))
            begin = end
        segments.append(file.ids)
    return Documents(
        tuple(segments),
        np.asarray(places, np.int64).reshape(-1, 3),
        np.asarray(labels, np.int64),
        tuple(names),
    )


@final
@dataclass(frozen=True)
class SplitDocuments:
    """The two sides of the split. `is_cut`: documents were so few that they were cut into pieces.

    `digest` is an xxh3-128 in hex of all documents before they were cut, in any order.
    """

    train: Documents
    held_out: Documents
    is_cut: bool
    digest: str


def split_documents(documents: Documents, shards: int) -> SplitDocuments:
    """The sides of the split, in documents for so many shards."""
    files = [documents[index] for index in range(len(documents))]
    cuts = documents.places[:, 1] + np.asarray(held_out_from(files), np.int64)
    train, held_out = (
        Documents(documents.segments, places, documents.labels, documents.names)
        for places in (
            np.column_stack((documents.places[:, :2], cuts)),
            np.column_stack((documents.places[:, 0], cuts, documents.places[:, 2])),
        )
    )
    sides = [side.those(side.lengths > 0) for side in (train, held_out)]
    is_cut = len(documents) < DOCUMENTS_A_SHARD_MIN * shards and documents.lengths.max(initial=0) > PIECE_TOKENS_MAX
    train, held_out = (pieces(side) if is_cut else side for side in sides)
    digest = xxhash.xxh3_128_hexdigest("".join(sorted(map(key_of, files))).encode())
    return SplitDocuments(train, held_out, bool(is_cut), digest)


def pieces(documents: Documents) -> Documents:
    """Documents of at most 4,096 tokens: longer ones are cut at the last end of a line (a byte 10) in the second half
    of a piece, or at its end."""
    places: list[tuple[int, int, int]] = []
    owners: list[int] = []
    for owner, (segment, begin, end) in enumerate(documents.places.tolist()):
        ids = documents.segments[segment]
        while begin < end:
            cut = min(end, begin + PIECE_TOKENS_MAX)
            if cut < end:
                middle = begin + PIECE_TOKENS_MAX // 2
                lines = np.flatnonzero(ids[middle:cut] == _LINE_END)
                cut = middle + int(lines[-1]) + 1 if len(lines) else cut
            places.append((segment, begin, cut))
            owners.append(owner)
            begin = cut
    rows = np.asarray(places, np.int64).reshape(-1, 3)
    return Documents(documents.segments, rows, documents.labels[np.asarray(owners, np.int64)], documents.names)
