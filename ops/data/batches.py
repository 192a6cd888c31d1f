"""Which batch a learner trains on, as a pure function of its place in the data.

It decides the windows of a batch; `corpus` has the text and its split. `At` names a batch: seed, slot, position and
split. There is no iterator and no state, so that a learner resumes exactly, a batch can be made ahead of its time or
again, and a test can request any of them.

Every slot draws its windows uniformly from the whole training split: with shards of the text each learner would fit
another distribution, and merging would have to undo that. Evaluation windows are the same in every run: evenly spaced
over the held-out text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, final

import numpy as np

from isthmus.ops.data.corpus import BYTE_VOCABULARY, Corpus, check_ids
from isthmus.ops.data.files import READING, DataError

Split: TypeAlias = Literal["train", "evaluation"]
Batch: TypeAlias = dict[str, np.ndarray[Any, np.dtype[Any]]]

EVALUATION_WINDOWS_MIN = 256

_SPLITS = ("train", "evaluation")
# Any constant would do: it only keeps these streams apart from others that use Philox with the seed alone.
_PHILOX_KEY = 0x6973_7468_6D75_7300
_WORD_MAX = (1 << 64) - 1


@final
@dataclass(frozen=True, slots=True)
class At:
    """The place of a batch in the data: `position` counts the batches of `slot` from 0, over all its lives.

    Numbers are in [0, 2^64). `slots` is how many slots the run may ever have, `learners` how many learners it began
    with: a task that divides the data among slots divides by `slots`, because machines may join. The evaluation is of
    one slot, and one learner. ValueError for another number or split.
    """

    seed: int
    slot: int
    position: int
    split: Split = "train"
    slots: int = field(default=1, repr=False)
    learners: int = field(default=1, repr=False)

    def __post_init__(self) -> None:
        numbers = (self.seed, self.slot, self.position)
        if min(numbers) < 0 or max(numbers) > _WORD_MAX:
            raise ValueError(f"seed, slot and position are numbers from 0 to 2^64 - 1: {self}")
        if self.split not in _SPLITS:
            raise ValueError(f"split is one of {_SPLITS}: {self}")

    def rng(self) -> np.random.Generator:
        """A fresh generator that depends on seed, slot, position and split, and on nothing else; the same each time.

        Philox (Salmon et al., SC 2011) is a keyed function of a counter of 256 bits: the seed is in the key, the other
        fields in the counter's upper three words, so two streams never meet before 2^64 blocks are drawn.
        """
        counter = (0, self.position, self.slot, _SPLITS.index(self.split))
        return np.random.Generator(
            np.random.Philox(key=np.array((self.seed, _PHILOX_KEY), np.uint64), counter=np.array(counter, np.uint64))
        )


def of_slot(numbers: int | Sequence[int], slot: int) -> int:
    """The number of a slot, where all slots have the same or each its own; slots beyond the last have the last."""
    return numbers if isinstance(numbers, int) else numbers[min(slot, len(numbers) - 1)]


@final
@dataclass(frozen=True, slots=True)
class Windows:
    """Batches of `sequences` windows of `length` consecutive tokens each.

    As a tuple, `sequences` gives each slot its own number, and the evaluation that of slot 0. DataError if the training
    split is shorter than one batch, or the held-out text shorter than one window.
    """

    corpus: Corpus
    sequences: int | tuple[int, ...]
    length: int

    def __post_init__(self) -> None:
        most = self.sequences if isinstance(self.sequences, int) else max(self.sequences)
        for name, side, needed in (
            ("training", self.corpus.train, most * self.length),
            ("held-out", self.corpus.evaluation, self.length),
        ):
            if len(side) < needed:
                do = "Give more data with --data, or make task.batch or task.context smaller."
                raise DataError(READING, f"at least {needed} tokens in the {name} split", str(len(side)), do)

    @property
    def evaluation_batches(self) -> int:
        """The number of batches of the evaluation: at least 256 windows, in whole batches."""
        return -(-EVALUATION_WINDOWS_MIN // of_slot(self.sequences, 0))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of a batch: the smallest of uint8, uint16 and int32 that holds every token id."""
        return np.dtype(
            next(t for t in (np.uint8, np.uint16, np.int32) if self.corpus.vocabulary - 1 <= np.iinfo(t).max)
        )

    def batch(self, at: At) -> Batch:
        """{"tokens": [sequences of the slot, length]}: newly made, and the same for the same `at`.

        The evaluation is `evaluation_batches` long, from position 0, regardless of seed and slot, and begins anew after
        it.
        """
        side = self.corpus.train if at.split == "train" else self.corpus.evaluation
        tokens = np.stack([side.window(int(start), self.length) for start in self.starts(at)])
        if tokens.dtype != np.uint8 or self.corpus.vocabulary < BYTE_VOCABULARY:
            check_ids(tokens, self.corpus.vocabulary, f"the batch at {at}")
        return {"tokens": tokens.astype(self.dtype, copy=False)}

    def starts(self, at: At) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where each window of the batch begins in its side of the split, int64[sequences of the slot]."""
        if at.split == "train":
            last = len(self.corpus.train) - self.length
            return at.rng().integers(0, last, of_slot(self.sequences, at.slot), endpoint=True)
        last = len(self.corpus.evaluation) - self.length
        return self._evaluation_starts(at.position % self.evaluation_batches, last)

    def _evaluation_starts(self, position: int, last: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        sequences = of_slot(self.sequences, 0)
        count = self.evaluation_batches * sequences
        index = np.arange(position * sequences, (position + 1) * sequences, dtype=np.int64)
        return index * last // (count - 1)
