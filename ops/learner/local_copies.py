"""Copies of a learner's state on its machine, which its next life there takes over: made, found and checked here.

Decides when a copy is made, and whether one that is found is whole and of this slot. What is in it, and what becomes of
that, is `recovery`'s. Two kinds of copies have the same form: one of the local leaves on the machine's disk, now and
then, and one of all that the learner has in the machine's memory, often (`InMemory`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias, final

import msgspec
import numpy as np
import xxhash

from isthmus.ops.exchange.messages import Vector
from isthmus.ops.island.life import LeafPart
from isthmus.ops.recovery.hold import Form, flat, form_of, formed, type_of


class Pace(NamedTuple):
    """How often copies are made: the first after `first_ns`, then after pauses that double up to `every_ns`, and never
    after fewer than `steps` steps, or sooner than `share` times what the learner spent on the copy before."""

    first_ns: int
    every_ns: int
    steps: int
    share: int


SECOND_NS: Final = 1_000_000_000
ON_DISK: Final = Pace(SECOND_NS, 15 * SECOND_NS, steps=0, share=400)
"""As seldom as snapshots: a disk may be slow, and moments of seconds ago serve as well."""
IN_MEMORY: Final = Pace(SECOND_NS, SECOND_NS, steps=4, share=200)
"""What a killed process has trained since is lost: half a pause, in the mean. Steps of a quarter of a second and more
have time for a copy between them; of shorter ones the second bounds what it costs."""
FOLDER: Final = "local"
_MAGIC: Final = b"isthmus local 3\n"
_DIGEST: Final = 16
_PART_BYTES: Final = 1 << 24
HELD_BYTES_MAX: Final = 32 << 20
"""Bytes of leaves that wait to be written, unless a single part is larger, or the model is."""
HELD_SHARE: Final = 3
"""Of a large model's bytes a third may wait: AdamW's moments, twice the model, are then read at six boundaries, and a
first copy is whole within ten steps that last longer than it takes to write a part of it."""
PART_BYTES_MIN: Final = 8 << 20
"""Bytes of the parts that are read at one step for a copy in memory, unless a fragment is larger: a millisecond or
two."""
LAST_NS: Final = 5 * SECOND_NS
"""How long a learner that leaves may write its last copy. What it has answered is on its way meanwhile."""
READ_BYTES_MAX: Final = 8 << 20
"""Bytes of a part, where a learner reads its leaves in parts."""
_LENGTH: Final = 4


class Writing(Protocol):
    """Work on a disk beside the caller's."""

    def is_alive(self) -> bool:
        """Whether it goes on."""

    def join(self) -> None:
        """Wait for its end."""


class HostDisk(Protocol):
    """The operations used of a host's disk."""

    def beside(self, path: Path) -> Path: ...

    def create(self, path: Path) -> Any: ...

    def rename(self, path: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def read(self, path: Path) -> bytes: ...

    def sizes(self, path: Path) -> dict[str, int]: ...

    def memory_of(self, folder: Path, size: int) -> Path | None: ...

    def write_beside(self, work: Callable[[], None]) -> Writing: ...


class TrainedPart(NamedTuple):
    """What was trained of a fragment: its `values` as extracted, float32[n], minus those `since` when, float32[n].

    The difference is made where the copy is written: the values may still be on their way from the device.
    """

    values: Any
    since: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the difference."""
        return int(np.prod(np.shape(self.values), dtype=np.int64)) * np.dtype(np.float32).itemsize

    def trained(self) -> Vector:
        """The difference, in memory of its own."""
        return np.asarray(self.values, np.float32) - np.asarray(self.since, np.float32)


Part: TypeAlias = LeafPart | TrainedPart
Chunk: TypeAlias = tuple[list[Part], Any]
"""Parts of a copy and, with its last ones, what is told of all of them; None before."""


class Standing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a copy has of a fragment: work on the version `base`, [incarnation, begin, end, steps] by life, and what it
    has changed, if there is any."""

    base: tuple[int, int]
    work: list[tuple[int, int, int, int]]


class Told(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is told of the parts of a copy, once all are read: the life's `tokens`, and the position that it had
    `reached` in its data; and the standings of its fragments, where it has them."""

    tokens: int = 0
    reached: int = 0
    standings: list[Standing] = []


class Copy(NamedTuple):
    """A copy that was found: its life, the number of that life's steps, the leaves, what is told, and what was trained
    of each fragment of which that is told, float32[n]; None of one in which nothing was."""

    incarnation: int
    step: int
    leaves: list[Any]
    told: Told
    trained: list[Vector | None]


class _Footer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    slot: int
    incarnation: int
    step: int
    sizes: list[int]
    """Of what was trained, by fragment: these come first."""
    forms: list[Form]
    told: Told


@final
class LocalCopies:
    """The copies of one life of a slot at `path`; `now` is in nanoseconds, `held_max` how many bytes of parts may wait
    to be written.

    A copy is made beside the steps, one at a time, at its pace, and only some of a large state is in memory at a time;
    moments of different steps serve as well as those of one step, and a fragment's values are told with its own work.
    It is not synced: the death of a process does not touch it, and after a power failure its digest tells whether it
    is whole. If anything is wrong with it, or with the disk, the learner begins with none.
    """

    def __init__(
        self,
        path: Path,
        disk: HostDisk,
        slot: int,
        incarnation: int,
        now: Callable[[], int],
        pace: Pace = ON_DISK,
        held_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._path, self._disk, self._pace = path, disk, pace
        self._slot, self._incarnation, self._now = slot, incarnation, now
        self._held_max = held_max
        self._pause, self._next_at, self._next_step = pace.first_ns, 0, 0
        self._writing: Writing | None = None
        self._begun = self._took = 0
        self._parts: Iterator[Part] | None = None
        """Those of the copy in progress that were not read yet, if there is one; the others are sent to the file."""

    @classmethod
    def on_disk(
        cls, folder: Path, disk: HostDisk, slot: int, incarnation: int, now: Callable[[], int], model_bytes: int = 0
    ) -> Self:
        """Those of local leaves in the run's `folder`; `model_bytes` is the size of the merged leaves."""
        held_max = max(HELD_BYTES_MAX, model_bytes // HELD_SHARE)
        return cls(_path(folder, slot), disk, slot, incarnation, now, ON_DISK, held_max)

    @classmethod
    def in_memory(
        cls, folder: Path, disk: HostDisk, slot: int, incarnation: int, now: Callable[[], int], part_bytes: int
    ) -> Self:
        """Those of all that a learner has, in `folder`, one of memory: a part of `part_bytes` at a step."""
        return cls(_path(folder, slot), disk, slot, incarnation, now, IN_MEMORY, max(PART_BYTES_MIN, part_bytes))

    def forget(self) -> None:
        """Remove the copy of a former life, which was taken: where it leads to the next death, it does so once."""
        with suppress(OSError):
            self._disk.remove(self._path)

    def former(self) -> Copy | None:
        """The copy of a former life; None if there is none that can be read."""
        try:
            return self._read(memoryview(self._disk.read(self._path)))
        except (OSError, ValueError, IndexError):
            return None

    def remove_unfinished(self) -> None:
        """Remove what lives before this one were writing when they were killed."""
        with suppress(OSError):
            for name in self._disk.sizes(self._path.parent):
                if name.startswith(f".{self._path.name}."):
                    self._disk.remove(self._path.with_name(name))

    def is_due(self, step: int) -> bool:
        """Whether it is time for the next copy, after so many steps, or for more parts of the one in progress."""
        now = self._now()
        if not self._next_at:
            self._next_at, self._next_step = now + self._pause, step + self._pace.steps
        if self._writing is not None and self._writing.is_alive():
            return False
        return self._parts is not None or (now >= self._next_at and step >= self._next_step)

    def keep(self, step: int, parts: Callable[[], Iterable[Part]], told: Callable[[], Told] = Told) -> None:
        """Copy all of these parts after `step` steps, or more of them if a copy is in progress; those that are read now
        must not change afterwards. `told` is called once all are read."""
        now = self._now()
        if self._parts is None:
            self._parts, self._file, self._begun, self._took = iter(parts()), self._written(step), now, 0
            next(self._file)
        chunk, size = list[Part](), 0
        while size < self._held_max and (part := next(self._parts, None)) is not None:
            chunk.append(part)
            size += part.nbytes if isinstance(part, TrainedPart) else part.values.nbytes
            del part
        is_whole = size < self._held_max
        last = told() if is_whole else None
        self._took += self._now() - now
        if is_whole:
            self._parts, self._pause = None, min(2 * self._pause, self._pace.every_ns)
            self._next_at = self._begun + max(self._pause, self._pace.share * self._took)
            self._next_step = step + self._pace.steps
        self._writing = self._disk.write_beside(partial(_send, self._file, (chunk, last)))

    def keep_last(self, step: int, parts: Callable[[], Iterable[Part]]) -> None:
        """Copy all parts, or what is left of the copy in progress, and wait until they are written, LAST_NS at most:
        no step follows, at which the rest would be read."""
        until = self._now() + LAST_NS
        self.settle()
        self.keep(step, parts)
        while self._parts is not None and self._now() < until:
            self.settle()
            self.keep(step, parts)
        self.settle()

    def settle(self) -> None:
        """Wait for the end of what is being written."""
        if self._writing is not None:
            self._writing.join()

    def _written(self, step: int) -> Generator[None, Chunk, None]:
        """Append the parts that are sent to a file; with the last, rename it.

        OSError if the disk refuses anything: then the copy before stays, and nothing beside it.
        """
        beside = self._disk.beside(self._path)
        try:
            yield from self._written_to(beside, step)
        except BaseException:
            with suppress(OSError):
                self._disk.remove(beside)
            raise
        self._disk.rename(beside, self._path)

    def _written_to(self, beside: Path, step: int) -> Generator[None, Chunk, None]:
        digest, sizes, forms = xxhash.xxh3_128(), list[int](), list[Form]()

        def write(data: bytes | memoryview) -> None:
            for begin in range(0, len(data), _PART_BYTES):
                part = data[begin : begin + _PART_BYTES]
                digest.update(part)
                if file.write(part) < len(part):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        parts, told = yield
        with closing(self._disk.create(beside)) as file:
            write(_MAGIC)
            while parts or told is None:
                while parts:
                    part = parts.pop(0)
                    if isinstance(part, TrainedPart):
                        values = part.trained()
                        sizes.append(values.size)
                    else:
                        values = part.values
                        forms += [] if part.leaf is None else [form_of(part.leaf)]
                    write(flat(values).data)
                    del values, part
                if told is None:
                    parts, told = yield
            footer = msgspec.msgpack.encode(_Footer(self._slot, self._incarnation, step, sizes, forms, told))
            write(footer + len(footer).to_bytes(_LENGTH, "big"))
            write(digest.digest())

    def _read(self, data: memoryview) -> Copy | None:
        digest, body = data[-_DIGEST:], data[:-_DIGEST]
        if bytes(data[: len(_MAGIC)]) != _MAGIC or xxhash.xxh3_128_digest(body) != digest:
            return None
        end = len(body) - _LENGTH
        begin = end - int.from_bytes(body[end:], "big")
        footer = msgspec.msgpack.decode(body[begin:end], type=_Footer)
        if footer.slot != self._slot or footer.incarnation >= self._incarnation:
            return None
        at = len(_MAGIC)

        def next_bytes(count: int) -> Any:
            nonlocal at
            at += count
            return np.frombuffer(body[at - count : at], np.uint8)

        sizes, trained = list(footer.sizes), list[Vector | None]()
        for each in footer.told.standings:
            trained.append(next_bytes(4 * sizes.pop(0)).view(np.float32) if each.work else None)
        leaves = [
            formed(next_bytes(int(np.prod(shape, dtype=np.int64)) * type_of(name).itemsize), name, shape)
            for name, shape in footer.forms
        ]
        return Copy(footer.incarnation, footer.step, leaves, footer.told, trained)


def newest_copy(folder: Path, disk: HostDisk, slot: int, incarnation: int, now: Callable[[], int]) -> Copy | None:
    """What a life of a slot finds of the lives before it in the run's `folder`: in memory, else on disk."""
    life, memory = (disk, slot, incarnation, now), disk.memory_of(folder, 0)
    kept = None if memory is None else LocalCopies.in_memory(memory, *life, part_bytes=0).former()
    return LocalCopies.on_disk(folder, *life).former() if kept is None else kept


def _path(folder: Path, slot: int) -> Path:
    return folder / FOLDER / f"learner-{slot}"


def _send(file: Generator[None, Chunk, None], chunk: Chunk) -> None:
    with suppress(OSError, StopIteration):  # The latter at its end, and after an error.
        file.send(chunk)
