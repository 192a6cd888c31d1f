"""The data node: a task's batches of one slot, in order, from the beginning of this life, and how many per firing."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final, Protocol, final

from isthmus.ops.data.batches import EMPTY_MAX, At, Stream, next_batch, nothing_in, opened, packed, tokens_in, unpacked
from isthmus.ops.data.corpus import DataError
from isthmus.ops.data.positions import Beginning, Cursor, Place, State, beginning

MAKING_NS: Final = 1_000_000
"""The longest firing: its first batch leaves with its last, and the consumer may be waiting for the first."""
BATCHES_MAX: Final = 8
"""Every firing costs hops between threads, and its first batch meets cold caches: 200 us, and 50 us each after it, with
the shipped task. A row of eight spreads most of that."""
LEFT_OUT_MAX: Final = 32
"""Ranges of empty batches that are remembered. Each that matters follows a batch which was not taken yet: of those
there are at most two firings' and what the queue holds, two."""
AHEAD_SIZE_BYTES_MAX: Final = 1 << 20
"""Bytes of the batches that a firing makes beyond the first."""


class Source(Protocol):
    """Makes the batches of one slot."""

    def seek(self, begin: Beginning) -> int:
        """Go to a position, or as near before it as is quick; returns the position of the next batch."""

    def batch_at(self, position: int) -> Any:
        """The next batch, which is that of `position`."""

    def state(self) -> State | None:
        """The state with which another source of the same slot continues from here."""


class _Function:
    """A task's pure function `batch(at)`: it has no state, and every position is near."""

    def __init__(self, task: Any, seed: int, slot: int, slots: int, learners: int) -> None:
        self._batch, self._at = task.batch, (seed, slot)
        self._others = slots, learners

    def seek(self, begin: Beginning) -> int:
        return begin.position

    def batch_at(self, position: int) -> Any:
        return self._batch(At(*self._at, position, "train", *self._others))

    def state(self) -> None:
        return None


class _Streamed:
    """A task's stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def seek(self, begin: Beginning) -> int:
        if begin.state is not None:
            self._stream.set_state(unpacked(begin.state))
        return begin.state_position

    def batch_at(self, position: int) -> Any:
        return next_batch(self._stream, position)

    def state(self) -> State | None:
        return packed(self._stream.get_state())


def source_of(task: Any, seed: int, slot: int, slots: int, learners: int) -> Source:
    """The source of a slot's batches, at its first one."""
    if getattr(task, "stream", None) is None:
        return _Function(task, seed, slot, slots, learners)
    return _Streamed(opened(task, slot, slots, seed))


@final
class InOrder:
    """The batches of a slot at rising positions, of which some may be left out."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._next: int | None = None
        self._stream_state: tuple[int, State | None] = (0, None)

    def know(self, position: int, state: State) -> None:
        """Start from this state of the stream, which is that before batch `position`, once a later one is asked for."""
        self._stream_state = position, state

    def batch(self, position: int) -> Any:
        """The batch at a position, which is greater than that of the last one; a stream is read up to there."""
        if self._next is None:
            start = self._stream_state if self._stream_state[0] <= position else (0, None)
            self._next = self._source.seek(Beginning(position, *start))
        for skipped in range(self._next, position):
            self._source.batch_at(skipped)
        self._next = position + 1
        return self._source.batch_at(position)


class Batches:
    """Emits the batches of this slot, one to eight a firing.

    In a first life from position 0, in a later one, once all shards have sent it a `place`, from after the merged
    batches of the lives before it. A firing makes as many as take about 1 ms, by the time of each in the last firing,
    and no more than 1 MiB beyond the first: slow or large batches are made one at a time. The capacity of the Queue
    bounds how many may wait at the consumer; the rest of a firing is held here until there is room, and nothing is made
    meanwhile. So at most capacity + 7 batches are ahead of the consumer; that holds for a stream, too, which is read in
    this node's thread. `cursor` carries the beginning of a later life, and the states of a stream. A stream without a
    known state is read, and discarded, up to the beginning. Batches without a token are left out, and `cursor` says at
    which positions; more than EMPTY_MAX in a row are a DataError.
    """

    outputs = ("batch", "cursor")
    collects = ("place",)
    schemas: Final = {"place": Place}
    calls_user: Final = True

    def __init__(self, task: Any, *, learners: int, slots: int) -> None:
        self._task, self._learners, self._slots = task, learners, slots
        self._position = self._begin = 0
        self._count = 1
        self._places: dict[int, Place] = {}
        self._form: Any = None
        self._left_out: deque[list[int]] = deque(maxlen=LEFT_OUT_MAX)
        self._empty = 0
        self.is_idle = False

    def open(self, context: Any) -> None:
        """Set the life and slot, and open the stream."""
        self._member, self._now = context.member, context.now
        seed, slot = context.seed, self._member.replica.slot
        self._source = source_of(self._task, seed, slot, self._slots, self._learners)
        self.is_idle = self._member.incarnation > 1 and "place" in context.connected

    def __call__(self, place: Mapping[Any, Place] | None = None) -> list[tuple[str, Any]]:
        """The next batches; none as long as the beginning is unknown."""
        if self.is_idle:
            self._record_places(place or {})
            begin = beginning(self._places.values(), self._member.replica.slot, self._member.incarnation)
            if begin is None:
                return []
            self.is_idle = False
            self._begin, self._position = begin.position, self._source.seek(begin)
            if self._position == self._begin:
                return [("cursor", self._cursor())]
        is_winding = self._position < self._begin
        made = self._make(min(self._count, self._begin - self._position) if is_winding else self._count)
        if is_winding:
            return [("cursor", self._cursor())] if self._position == self._begin else []
        batches = [batch for position, batch in made if not self._leave_out(position, batch)]
        cursor = self._cursor()
        # Before the batches: the position of each follows from what was left out before it.
        cursors = [("cursor", cursor)] if cursor["state"] is not None or len(batches) < len(made) else []
        return [*cursors, *(("batch", batch) for batch in batches)]

    def _leave_out(self, position: int, batch: Any) -> bool:
        """Whether the batch at a position has no token, and so makes no step."""
        slot = self._member.replica.slot
        if tokens_in(batch, self._task.tokens_per_batch, slot):
            self._empty = 0
            return False
        self._empty += 1
        if self._empty > EMPTY_MAX:
            raise nothing_in(self._empty, slot)
        if self._left_out and self._left_out[-1][1] == position:
            self._left_out[-1][1] += 1
        else:
            self._left_out.append([position, position + 1])
        return True

    def _record_places(self, places: Mapping[Any, Place]) -> None:
        """Keep the last place of each shard for this life: they arrive one after the other."""
        own = self._member.replica.slot, self._member.incarnation
        mine = [each for each in places.values() if (each["slot"], each["incarnation"]) == own]
        self._places |= {each["shard"]: each for each in mine}

    def _make(self, count: int) -> list[tuple[int, Any]]:
        """The next batches, with their positions."""
        begun, first = self._now(), self._position
        batches = [self._source.batch_at(position) for position in range(first, first + count)]
        for batch in batches:
            self._check(batch)
            self._position += 1
        self._count = _count(len(batches), self._now() - begun, max(map(_size_bytes, batches)))
        return list(enumerate(batches, first))

    def _check(self, batch: Any) -> None:
        """DataError for a batch that is not like the first: a step is compiled for one form."""
        form = form_of(batch)
        self._form = self._form or form
        if form != self._form:
            name = next(each for each in sorted({*form, *self._form}) if form.get(each) != self._form.get(each))
            actual = f"{form.get(name, 'nothing')} at position {self._position} of slot {self._member.replica.slot}"
            expected = f"{self._form.get(name, 'nothing')} at {name}, as in the first batch"
            remedy = "Give every batch the same structure, shapes and dtypes: pad or drop what does not fit."
            raise DataError("Making the batches of the task", expected, actual, remedy)

    def _cursor(self) -> Cursor:
        left_out = [list(each) for each in self._left_out]
        return Cursor(begin=self._begin, position=self._position, state=self._source.state(), left_out=left_out)


def form_of(batch: Any, name: str = "batch") -> dict[str, str]:
    """The form of a batch: dtype and shape of its arrays, or the type of other leaves, by path."""
    if isinstance(batch, Mapping):
        return {path: form for key in batch for path, form in form_of(batch[key], f"{name}/{key}").items()}
    if isinstance(batch, list | tuple):
        return {path: form for i, each in enumerate(batch) for path, form in form_of(each, f"{name}/{i}").items()}
    shape = getattr(batch, "shape", None)
    return {name: type(batch).__name__ if shape is None else f"{batch.dtype}{list(shape)}"}


def _count(count: int, duration_ns: int, size_bytes: int) -> int:
    """The number of batches to make in a firing.

    The last one made `count`, the largest of `size_bytes` (both from 1), in `duration_ns`; where time stands still, the
    maximum.
    """
    in_time = MAKING_NS * count // duration_ns if duration_ns else BATCHES_MAX
    in_memory = 1 + AHEAD_SIZE_BYTES_MAX // size_bytes
    return max(1, min(in_time, in_memory, BATCHES_MAX))


def _size_bytes(batch: Any) -> int:
    """Bytes of the arrays of a batch, and eight for everything else in it."""
    size_bytes: int | None = getattr(batch, "nbytes", None)
    if size_bytes is not None:
        return size_bytes or 8
    if isinstance(batch, Mapping):
        return sum(map(_size_bytes, batch.values())) or 8
    if isinstance(batch, list | tuple):
        return sum(map(_size_bytes, batch)) or 8
    return 8
