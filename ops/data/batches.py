"""Which batch a learner trains on: a pure function of its place in the data, or a stream with a state.

Decides the windows of a batch, and what an epoch of a torch loader is. Positions count the batches of a slot from 0,
over all its lives (`positions`). `corpus` has the text and its split; no file is read here, and torch is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal, Protocol, TypeAlias, final, runtime_checkable

import msgpack  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt

from isthmus.ops.data.corpus import BYTE_VOCABULARY, READING, Corpus, DataError, TokenIds, check_ids
from isthmus.ops.data.held_out import Extract, HeldOut, apart, overlapping
from isthmus.ops.data.positions import STATE_SIZE_BYTES_MAX, State, of_slot

Split: TypeAlias = Literal["train", "evaluation"]
Batch: TypeAlias = dict[str, np.ndarray[Any, np.dtype[Any]]]

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


@final
@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a batch are counted, because padding, masks or packing make them differ.

    - `count(batch)`: an integer from 0 to `at_most`, of the NumPy batch on the host; a pure function. A batch of 0
      tokens makes no step: it is left out.
    - `at_most`: the most tokens that a batch can have; no learner may claim more for a step.
    """

    count: Callable[[Any], int]
    at_most: int


TokensPerBatch: TypeAlias = int | tuple[int, ...] | Tokens
"""The tokens of a task's batches: of every one, by slot, or counted."""


def tokens_in(batch: Any, tokens: TokensPerBatch, slot: int) -> int:
    """The tokens of a batch of a slot. DataError where the task's count is no integer from 0 to its bound."""
    if not isinstance(tokens, Tokens):
        return of_slot(tokens, slot)
    counted: Any = tokens.count(batch)
    if isinstance(counted, int | np.integer) and not isinstance(counted, bool) and 0 <= counted <= tokens.at_most:
        return int(counted)
    do = "Return int(...) of what the batch has, and give Tokens(count, at_most=N) the most that one can have."
    expected = f"an integer from 0 to {tokens.at_most}"
    raise DataError("Counting the tokens of a batch, by count(batch) of the task", expected, repr(counted)[:60], do)


EMPTY_MAX: Final = 4096
"""Batches without a token in a row, beyond which a learner gives up: where one in a hundred has any, that many in a row
happen once in 10^17 times; the shipped task makes them in 0.2 s."""


def nothing_in(count: int, slot: int) -> DataError:
    """The error of a task whose batches are empty."""
    do = "Look at what count(batch) counts, and at the data of this slot."
    return DataError(
        f"Counting the tokens of the batches of slot {slot}", "a batch with tokens", f"{count} without", do
    )


def windows_of(side: TokenIds, starts: npt.NDArray[np.int64], length: int) -> npt.NDArray[Any]:
    """The windows that begin at `starts`, [len(starts), length]."""
    return np.stack([side.window(int(start), length) for start in starts])


def dtype_of(vocabulary: int) -> np.dtype[Any]:
    """The dtype of a batch: the smallest of uint8, uint16 and int32 that holds every token id."""
    return np.dtype(next(kind for kind in (np.uint8, np.uint16, np.int32) if vocabulary - 1 <= np.iinfo(kind).max))


def token_batch(tokens: npt.NDArray[Any], vocabulary: int, at: At) -> Batch:
    """A batch of token ids [sequences, length]. DataError for an id outside the vocabulary."""
    if tokens.dtype != np.uint8 or vocabulary < BYTE_VOCABULARY:
        check_ids(tokens, vocabulary, f"the batch at {at}")
    return {"tokens": tokens.astype(dtype_of(vocabulary), copy=False)}


@final
@dataclass(frozen=True, slots=True)
class Windows:
    """Batches of `sequences` windows of `length` consecutive tokens each.

    As a tuple, `sequences` gives each slot its own number, and the evaluation that of slot 0. DataError if the training
    split is shorter than one batch, or the held-out text shorter than one window.

    Every slot draws its windows uniformly from the whole training split: with shards of the text each learner would fit
    another distribution, and merging would have to undo that. Evaluation windows are the same in every run: evenly
    spaced over the held-out text, `held_out` of them, which do not overlap (`held_out.apart`), or, of None, 256.

    `is_marked`: some tokens are not to be predicted, such as those of prompts and of what users say in chats; in the
    corpus they are the complements `~id` of their ids. A batch then has `weights`, too: float32[sequences, length - 1],
    0 for such a token and one number for each other, so that the loss is the sum of the losses of tokens times these:
    in training their mean, and over all batches of the evaluation the mean is that of all their tokens. DataError if
    the evaluation has no other token.
    """

    corpus: Corpus
    sequences: int | tuple[int, ...]
    length: int
    is_marked: bool = False
    held_out: int | None = None

    def __post_init__(self) -> None:
        most = self.sequences if isinstance(self.sequences, int) else max(self.sequences)
        for name, side, needed in (
            ("training", self.corpus.train, most * self.length),
            ("held-out", self.corpus.evaluation, self.length),
        ):
            if len(side) < needed:
                do = "Give more data with --data, or make task.batch or task.context smaller."
                raise DataError(READING, f"at least {needed} tokens in the {name} split", str(len(side)), do)
        if self.is_marked and not _predicted_in_evaluation(self):
            do = "Give more data with --data, or look at what of it is to be predicted: isthmus data."
            raise DataError(READING, "tokens to predict in the held-out split", "none, but prompts", do)

    @property
    def evaluated(self) -> HeldOut:
        """The windows of the evaluation."""
        tokens = len(self.corpus.evaluation)
        if self.held_out is None:
            return overlapping(tokens, self.length, of_slot(self.sequences, 0))
        return apart(tokens, self.length, self.held_out, self.corpus.vocabulary)

    @property
    def extract(self) -> Extract | None:
        """What the evaluation reads; None where windows may overlap."""
        held = self.evaluated
        return None if held.there is None else Extract(held.windows, held.there, self.length - 1)

    @property
    def evaluation_batches(self) -> int:
        """The number of batches of the evaluation."""
        return self.evaluated.batches

    def batch(self, at: At) -> Batch:
        """{"tokens": [sequences, length]}, and the weights: newly made, and the same for the same `at`. There are as
        many sequences as the slot has, or as a batch of the evaluation.

        The evaluation is `evaluation_batches` long, from position 0, regardless of seed and slot, and begins anew after
        it.
        """
        side = self.corpus.train if at.split == "train" else self.corpus.evaluation
        tokens = windows_of(side, self.starts(at), self.length)
        weights: Batch = {}
        if self.is_marked:
            counts, tokens = tokens[:, 1:] >= 0, np.where(tokens < 0, ~tokens, tokens)
            whole = counts.sum() if at.split == "train" else _predicted_in_evaluation(self) / self.evaluation_batches
            weights = {"weights": counts / np.float32(max(whole, 1) if at.split == "train" else whole)}
        return token_batch(tokens, self.corpus.vocabulary, at) | weights

    def starts(self, at: At) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where each window of the batch begins in its side of the split, int64[sequences]."""
        if at.split == "train":
            last = len(self.corpus.train) - self.length
            return at.rng().integers(0, last, of_slot(self.sequences, at.slot), endpoint=True)
        held = self.evaluated
        return held.starts(at.position % held.batches)


@lru_cache(maxsize=4)
def _predicted_in_evaluation(windows: Windows) -> int:
    """How many tokens the evaluation predicts."""
    side, length = windows.corpus.evaluation, windows.length
    positions = (At(0, 0, position, "evaluation") for position in range(windows.evaluation_batches))
    starts = (int(start) for at in positions for start in windows.starts(at))
    return sum(int((side.window(start, length)[1:] >= 0).sum()) for start in starts)


def predicted(batch: Batch) -> int:
    """How many tokens a batch of marked windows predicts."""
    return int(np.count_nonzero(batch["weights"]))


OPENING: Final = "Opening task.stream(slot, slots, seed)"
METHODS: Final = ("__next__", "get_state", "set_state")


@runtime_checkable
class Stream(Protocol):
    """Batches of one slot; Grain's DatasetIterator is one as it is.

    A new one for the same slot, slots and seed gives the same batches again: a learner's next life, for which no state
    may be known, is wound forward from there. States travel if msgpack writes and restores them unchanged, in at most
    STATE_SIZE_BYTES_MAX; network input is never unpickled.
    """

    def __next__(self) -> Any:
        """The next batch, always of one structure, shape and dtype."""

    def get_state(self) -> Any:
        """Its position, for `set_state`."""

    def set_state(self, state: Any) -> None:
        """Continue from there."""


def opened(task: Any, slot: int, slots: int, seed: int) -> Stream:
    """The stream of a slot at its first batch. DataError for an object that lacks a method."""
    stream = task.stream(slot, slots, seed)
    missing = [name for name in METHODS if not callable(getattr(stream, name, None))]
    if missing:
        actual = f"a {type(stream).__name__} without {', '.join(missing)}"
        remedy = "Return an iterator with a state, as Grain's are; of a torch DataLoader, LoaderStream(loader)."
        raise DataError(OPENING, "an object with __next__, get_state and set_state", actual, remedy)
    return stream  # type: ignore[no-any-return]


def next_batch(stream: Stream, position: int) -> Any:
    """The next batch, which is that of `position`. DataError at the end of a stream."""
    try:
        return next(stream)
    except StopIteration:
        remedy = "Let it begin anew at its end, for example with .repeat() of Grain; the token budget ends the run."
        raise DataError("Reading task.stream", "batches without end", f"the end after {position}", remedy) from None


def first_batch(task: Any, seed: int, slot: int = 0) -> Any:
    """A batch like those that learners in this slot train on: the first with tokens. DataError if there is none."""
    stream = None if getattr(task, "stream", None) is None else opened(task, slot, slot + 1, seed)
    for position in range(EMPTY_MAX):
        batch = task.batch(At(seed, slot, position)) if stream is None else next_batch(stream, position)
        if tokens_in(batch, task.tokens_per_batch, slot):
            return batch
    raise nothing_in(EMPTY_MAX, slot)


def packed(state: Any) -> State | None:
    """A state as it travels; None where msgpack does not restore it, or it is too large."""
    try:
        data = msgpack.packb(state)
        if len(data) > STATE_SIZE_BYTES_MAX or msgpack.unpackb(data, strict_map_key=False) != state:
            return None
    except (TypeError, ValueError, OverflowError):
        return None
    return np.frombuffer(data, np.uint8)


def unpacked(state: State) -> Any:
    """The state that was packed."""
    return msgpack.unpackb(state.tobytes(), strict_map_key=False)


_DOING: Final = "Making a LoaderStream"


@final
class LoaderStream:
    """The batches of a loader, epoch after epoch, as numpy arrays.

    `loader` can be iterated over and over, and is of one slot: `DataLoader(dataset, batch_size=8, drop_last=True,
    sampler=DistributedSampler(dataset, slots, slot))`, for example. Or it is a function of the number of an epoch,
    whose result is iterated once. DataError for one that shuffles without a generator, whose order cannot be repeated,
    and for one without batches.

    An epoch is one pass over the loader. Where the loader, or a sampler, has `set_epoch`, or the loader a `generator`,
    its order follows from the seed and the number of the epoch, so that an epoch can be read again. A loader that has a
    state of its own (`state_dict`) keeps it; of any other the state is the epoch and the number of its batches, and to
    go back there those batches are read and discarded: as many as have as many samples, where they are of another size
    (`batch_size`) since, and no batch more.
    """

    def __init__(self, loader: Any, *, seed: int = 0) -> None:
        self._epoch_of = loader if callable(loader) and not hasattr(loader, "__iter__") else None
        self._loader, self._seed = loader, seed
        self._epoch = self._count = 0
        self._batches: Iterator[Any] | None = None
        if self._epoch_of is not None:
            self._loader = self._epoch_of(0)
            return
        if not hasattr(loader, "__iter__") or hasattr(loader, "__next__"):
            actual, remedy = f"a {type(loader).__name__}", "Pass the DataLoader itself, not iter(loader)."
            raise DataError(_DOING, "a loader that can be iterated again and again", actual, remedy)
        shuffles = type(getattr(loader, "sampler", None)).__name__ == "RandomSampler"
        if shuffles and getattr(loader, "generator", None) is None:
            remedy = "Pass generator=torch.Generator() to the DataLoader, or a sampler with set_epoch."
            raise DataError(_DOING, "an order that can be repeated", "shuffle=True without a generator", remedy)

    def __next__(self) -> Any:
        """The next batch, of this epoch or the next."""
        if self._batches is None:
            self._batches = self._begun()
        try:
            batch = next(self._batches)
        except StopIteration:
            if not self._count:
                do = "Use fewer slots, a smaller batch, or more data."
                raise DataError("Reading a LoaderStream", "batches in an epoch", "none", do) from None
            self._go_to(self._epoch + 1)
            return next(self)
        self._count += 1
        return as_numpy(batch)

    def get_state(self) -> dict[str, Any]:
        """The epoch, and the position in it."""
        own = self._loader.state_dict() if hasattr(self._loader, "state_dict") else None
        return {"epoch": self._epoch, "count": self._count, "size": self._size, "loader": own}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go to that position."""
        self._go_to(state["epoch"])
        count, was = state["count"], state.get("size")  # A state of an earlier version has none.
        if was and self._size:
            count = count * was // self._size
        if state["loader"] is not None:
            self._loader.load_state_dict(state["loader"])
            self._count = count
            return
        for _ in range(count):
            next(self)

    @property
    def _size(self) -> int | None:
        """The samples of a batch; None for a loader that does not say it."""
        size = getattr(self._loader, "batch_size", None)
        return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None

    def _go_to(self, epoch: int) -> None:
        self._epoch, self._count, self._batches = epoch, 0, None
        if self._epoch_of is not None:
            self._loader = self._epoch_of(epoch)

    def _begun(self) -> Iterator[Any]:
        sampler, generator = getattr(self._loader, "sampler", None), getattr(self._loader, "generator", None)
        for ordered in (self._loader, sampler):
            if ordered is not None and hasattr(ordered, "set_epoch"):
                ordered.set_epoch(self._epoch)
        if generator is not None:
            generator.manual_seed(self._seed + self._epoch)
        return iter(self._loader)


def as_numpy(batch: Any) -> Any:
    """A batch with each tensor as a numpy array; dicts stay dicts, lists and tuples become lists."""
    if isinstance(batch, Mapping):
        return {name: as_numpy(value) for name, value in batch.items()}
    if isinstance(batch, list | tuple):
        return [as_numpy(value) for value in batch]
    return batch.numpy() if hasattr(batch, "numpy") else np.asarray(batch)
