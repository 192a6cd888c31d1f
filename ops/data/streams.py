"""Batches from an object with a state: its interface, and how its state travels.

A Stream gives the batches of one slot, one after the other, without end. A new one for the same slot, slots and seed
gives the same batches again: a learner's next life, for which no state may be known, is wound forward from there.
Decides which states travel: those that msgpack writes and restores unchanged, of at most STATE_SIZE_BYTES_MAX. Network
input is never unpickled.
"""

from __future__ import annotations

from typing import Any, Final, Protocol, runtime_checkable

import msgpack  # type: ignore[import-untyped]
import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.data.files import DataError
from isthmus.ops.data.places import STATE_SIZE_BYTES_MAX, State

OPENING: Final = "Opening task.stream(slot, slots, seed)"
METHODS: Final = ("__next__", "get_state", "set_state")


@runtime_checkable
class Stream(Protocol):
    """Batches of one slot; Grain's DatasetIterator is one as it is."""

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
        found = f"a {type(stream).__name__} without {', '.join(missing)}"
        do = "Return an iterator with a state, as Grain's are; of a torch DataLoader, LoaderStream(loader)."
        raise DataError(OPENING, "an object with __next__, get_state and set_state", found, do)
    return stream  # type: ignore[no-any-return]


def taken(stream: Stream, position: int) -> Any:
    """The next batch, which is that of `position`. DataError at the end of a stream."""
    try:
        return next(stream)
    except StopIteration:
        do = "Let it begin anew at its end, for example with .repeat() of Grain; the token budget ends the run."
        raise DataError("Reading task.stream", "batches without end", f"the end after {position}", do) from None


def first_batch(task: Any, seed: int, slot: int = 0) -> Any:
    """A batch like those that learners in this slot train on."""
    if getattr(task, "stream", None) is None:
        return task.batch(At(seed, slot, 0))
    return taken(opened(task, slot, slot + 1, seed), 0)


def packed(state: Any) -> State | None:
    """A state as it travels; None where msgpack does not restore it, or it is too large."""
    try:
        found = msgpack.packb(state)
        if len(found) > STATE_SIZE_BYTES_MAX or msgpack.unpackb(found, strict_map_key=False) != state:
            return None
    except (TypeError, ValueError, OverflowError):
        return None
    return np.frombuffer(found, np.uint8)


def unpacked(state: State) -> Any:
    """The state that was packed."""
    return msgpack.unpackb(state.tobytes(), strict_map_key=False)
