"""The shards of a corpus: the windows that a path trains on, and the held-out documents of each shard.

    corpus = ShardedCorpus.of(split, router, vocabulary)
    corpus.train[shard], corpus.held_out[shard]        # Documents
    windows = ShardedWindows(corpus, sequences=8, length=65)
    windows.batch(at, shard)                           # {"tokens": [sequences of the slot, length]}, of that shard
    windows.evaluation_batches                         # their number, over all shards
    windows.evaluation_shard(position)                 # the shard, thus the path, of an evaluation batch
    PathWindows(windows).batch(at)                     # of the shard of the slot's path

Which slot trains which path is decided elsewhere. Slots of one path draw from the whole shard of the path, each its own
windows by slot and position, as slots of one model do from the whole corpus: none repeats another's. With one shard of
all documents a batch is that of `Windows`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self, final

import numpy as np

from isthmus.ops.data.batches import At, Batch, token_batch, windows_of
from isthmus.ops.data.corpus import READING, DataError
from isthmus.ops.data.documents import Documents, Integers, SplitDocuments
from isthmus.ops.data.held_out import WINDOWS, Extract, HeldOut, overlapping, windows_in
from isthmus.ops.data.positions import of_slot
from isthmus.ops.data.routing import Router


@final
@dataclass(frozen=True)
class ShardedCorpus:
    """The documents of each shard, in their order, and the number of different token ids."""

    train: tuple[Documents, ...]
    held_out: tuple[Documents, ...]
    vocabulary: int
    fingerprint: str
    """That of the router."""

    @classmethod
    def of(cls, split: SplitDocuments, router: Router, vocabulary: int) -> Self:
        """The shards of a split; DataError for a router that was made of other data."""
        router.check_data(split.digest)
        sides = (split.train, split.held_out)
        train, held_out = (
            tuple(side.those(shards == shard) for shard in range(router.shards))
            for side in sides
            for shards in [router.shards_of(side)]
        )
        return cls(train, held_out, vocabulary, router.fingerprint)

    @property
    def shards(self) -> int:
        """How many."""
        return len(self.train)


@final
class ShardedWindows:
    """Batches of `sequences` windows of `length` consecutive tokens each, of one shard.

    As a tuple, `sequences` gives each slot its own number, and the evaluation that of slot 0. DataError if a shard's
    training documents are shorter than one batch, or no shard's held-out ones have a window.

    Evaluation batches are of one shard each: at least 256 windows in all, evenly spaced over the held-out documents of
    a shard. Shards have them in proportion to their held-out tokens, at least one, so that the mean over batches is
    nearly that over tokens; a shard whose held-out documents have no window has none. Where a number is given as
    `held_out`, there are so many windows, which do not overlap, each a batch, or all that a shard has.
    """

    def __init__(
        self, corpus: ShardedCorpus, sequences: int | tuple[int, ...], length: int, held_out: int | None = None
    ) -> None:
        self.corpus, self.sequences, self.length = corpus, sequences, length
        self._train = [documents.tokens() for documents in corpus.train]
        self._held_out = [documents.tokens() for documents in corpus.held_out]
        most = sequences if isinstance(sequences, int) else max(sequences)
        for shard, side in enumerate(self._train):
            if len(side) < most * length:
                do = "Give more data, set fewer shards, or make task.batch or task.context smaller."
                expected = f"at least {most * length} tokens for training in shard {shard}"
                raise DataError(READING, expected, str(len(side)), do)
        sizes = [len(side) if len(side) >= length else 0 for side in self._held_out]
        self._there = [windows_in(size, length) for size in sizes]
        rows = of_slot(sequences, 0)
        if held_out is None:
            self._counts = _allotted(sizes, -(-WINDOWS // rows))
        else:
            self._counts = np.minimum(_allotted(sizes, held_out), self._there)
        self._is_apart = held_out is not None
        if not self._counts.sum():
            found = str(max(map(len, self._held_out)))
            do = "Give more data, or set fewer shards."
            raise DataError(READING, f"at least {length} held-out tokens in a shard", found, do)
        self._ends = np.cumsum(self._counts)

    @property
    def evaluation_batches(self) -> int:
        """The number of batches of the evaluation, of all shards."""
        return int(self._ends[-1])

    def evaluation_shard(self, position: int) -> int:
        """The shard of the batch of the evaluation at a position, which begins anew after the last."""
        return int(np.searchsorted(self._ends, position % self.evaluation_batches, side="right"))

    def batch(self, at: At, shard: int = 0) -> Batch:
        """{"tokens": [sequences of the slot, length]}: newly made, and the same for the same `at` and `shard`.

        A batch of the evaluation is of the shard of its position, whatever `shard` is.
        """
        if at.split == "train":
            side = self._train[shard]
            starts = at.rng().integers(0, len(side) - self.length, of_slot(self.sequences, at.slot), endpoint=True)
        else:
            shard = self.evaluation_shard(at.position)
            side, index = self._held_out[shard], at.position % self.evaluation_batches
            starts = self._evaluated(shard).starts(index - int(self._ends[shard] - self._counts[shard]))
        return token_batch(windows_of(side, starts, self.length), self.corpus.vocabulary, at)

    @property
    def extract(self) -> Extract | None:
        """What the evaluation reads; None where windows may overlap."""
        there = sum(self._there)
        return Extract(self.evaluation_batches, there, self.length - 1) if self._is_apart else None

    def _evaluated(self, shard: int) -> HeldOut:
        """The windows of the evaluation of a shard."""
        tokens, count = len(self._held_out[shard]), int(self._counts[shard])
        if self._is_apart:
            return HeldOut(count, 1, self._there[shard], self.length - 1, tokens - self.length)
        return overlapping(tokens, self.length, of_slot(self.sequences, 0), count)


@final
class PathWindows:
    """The batches of a task whose paths train on a shard each: slot n trains path n modulo their number.

    Of the evaluation split the slot is the path, and each path has the batches of its own shard. DataError if a shard
    has no held-out window.
    """

    def __init__(self, windows: ShardedWindows) -> None:
        self._windows, self._paths = windows, windows.corpus.shards
        shards = [windows.evaluation_shard(position) for position in range(windows.evaluation_batches)]
        self.evaluation_batches = tuple(shards.count(shard) for shard in range(self._paths))
        """The number of batches of the evaluation, by path."""
        if not min(self.evaluation_batches):
            lacking = self.evaluation_batches.index(0)
            do = "Give more data, set fewer shards, or route with another seed."
            expected = f"at least {windows.length} held-out tokens in each shard"
            raise DataError(READING, expected, f"fewer in shard {lacking}", do)
        self.extract = windows.extract
        self._firsts = [sum(self.evaluation_batches[:shard]) for shard in range(self._paths)]

    @property
    def corpus(self) -> ShardedCorpus:
        """What the paths train on."""
        return self._windows.corpus

    def batch(self, at: At) -> Batch:
        """As `ShardedWindows.batch`, of the shard of the path."""
        path = at.slot % self._paths
        if at.split == "train":
            return self._windows.batch(at, path)
        position = self._firsts[path] + at.position % self.evaluation_batches[path]
        return self._windows.batch(replace(at, position=position))


def _allotted(sizes: list[int], least: int) -> Integers:
    """Batches of each shard, int64[shards]: in proportion to sizes, at least `least` in all, and one for each size
    above 0."""
    shares = np.array(sizes, np.float64) * least / max(sum(sizes), 1)
    counts = np.where(np.array(sizes) > 0, np.maximum(np.floor(shares), 1), 0).astype(np.int64)
    for shard in np.argsort(counts - shares, kind="stable")[: max(least - int(counts.sum()), 0)]:
        counts[shard] += sizes[shard] > 0
    return counts
