"""Copies of a learner's state on its machine, which its next life there takes over: made, found and checked here.

Decides when a copy of the local leaves is made, on the machine's disk now and then, in its memory more often, and
whether a file that is found is whole. What becomes of what is in it is `recovery`'s.
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

from isthmus.ops.island.life import LeafPart
from isthmus.ops.recovery.hold import Form, flat, form_of, formed, type_of
from isthmus.ops.recovery.local_files import copy_path


class CopyPace(NamedTuple):
    """How often copies are made: the first after `first_ns`, then after pauses that double up to `every_ns`, and never
    after fewer than `steps` steps, or sooner than `share` times what the learner spent on the copy before."""

    first_ns: int
    every_ns: int
    steps: int
    share: int


SECOND_NS: Final = 1_000_000_000
ON_DISK: Final = CopyPace(SECOND_NS, 15 * SECOND_NS, steps=0, share=400)
"""As seldom as snapshots: a disk may be slow, and moments of seconds ago serve as well."""
IN_MEMORY: Final = CopyPace(SECOND_NS, SECOND_NS, steps=4, share=200)
"""What a killed process has trained since is lost: half a pause, in the mean. Steps of a quarter of a second and more
have time for a copy between them; of shorter ones the second bounds what it costs."""
_MAGIC: Final = b"isthmus local 2\n"
_DIGEST: Final = 16
_PART_BYTES: Final = 1 << 24
HELD_BYTES_MAX: Final = 32 << 20
"""Bytes of leaves that wait to be written, unless a single part is larger, or the model is."""
HELD_SHARE: Final = 3
"""Of a large model's bytes a third may wait: AdamW's moments, twice the model, are then read at six boundaries, and a
first copy is whole within ten steps that last longer than it takes to write a part of it."""
STEP_BYTES: Final = 8 << 20
"""Bytes that are read at one step for copies in memory, unless a part is larger: a millisecond or two."""
LAST_NS: Final = 5 * SECOND_NS
"""How long a learner that leaves may write its last copy. What it has answered is on its way meanwhile."""
READ_BYTES_MAX: Final = 8 << 20
"""Bytes of a part, where a learner reads its leaves in parts."""
_LENGTH: Final = 4


class WorkBeside(Protocol):
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

    def write_beside(self, work: Callable[[], None]) -> WorkBeside: ...


Chunk: TypeAlias = tuple[list[LeafPart], bool]
"""Parts of the leaves of a copy, and whether they are its last."""


class Copy(NamedTuple):
    """A copy that was found: its life, the number of that life's steps, and the leaves."""

    incarnation: int
    step: int
    leaves: list[Any]


class _LeavesFooter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    slot: int
    incarnation: int
    step: int
    forms: list[Form]


@final
class LocalCopies:
    """The copies of one life of a slot at `path`; `now` is in nanoseconds, `held_max` how many bytes of parts may wait
    to be written.

    A copy is made beside the steps, one at a time, at its pace, and only some of a large state is in memory at a time;
    moments of different steps serve as well as those of one step. It is not synced: the death of a process does not
    touch it, and after a power failure its digest tells whether it is whole. If anything is wrong with it, or with the
    disk, the learner begins with none.
    """

    def __init__(
        self,
        path: Path,
        disk: HostDisk,
        slot: int,
        incarnation: int,
        now: Callable[[], int],
        pace: CopyPace = ON_DISK,
        held_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._path, self._disk, self._pace = path, disk, pace
        self._slot, self._incarnation, self._now = slot, incarnation, now
        self._held_max = held_max
        self._pause, self._next_at, self._next_step = pace.first_ns, 0, 0
        self._writing: WorkBeside | None = None
        self._begun = self._took = 0
        self._parts: Iterator[LeafPart] | None = None
        """Those of the copy in progress that were not read yet, if there is one; the others are sent to the file."""

    @classmethod
    def on_disk(
        cls, folder: Path, disk: HostDisk, slot: int, incarnation: int, now: Callable[[], int], model_bytes: int = 0
    ) -> Self:
        """Those of local leaves in the run's `folder`; `model_bytes` is the size of the merged leaves."""
        held_max = max(HELD_BYTES_MAX, model_bytes // HELD_SHARE)
        return cls(copy_path(folder, slot), disk, slot, incarnation, now, ON_DISK, held_max)

    @classmethod
    def in_memory(cls, folder: Path, disk: HostDisk, slot: int, incarnation: int, now: Callable[[], int]) -> Self:
        """Those of local leaves in `folder`, one in memory."""
        return cls(copy_path(folder, slot), disk, slot, incarnation, now, IN_MEMORY, STEP_BYTES)

    def former(self) -> Copy | None:
        """The copy of a former life; None if there is none that can be read."""
        try:
            return self._read(memoryview(self._disk.read(self._path)))
        except (OSError, ValueError, IndexError):
            return None

    def remove_unfinished(self) -> None:
        """Remove what lives before this one were writing of this slot when they were killed."""
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

    @property
    def is_open(self) -> bool:
        """Whether a copy is in progress of which not all was read."""
        return self._parts is not None

    def keep(self, step: int, parts: Callable[[], Iterable[LeafPart]]) -> None:
        """Copy leaves, all of whose parts are given, after `step` steps, or more of them if a copy is in progress;
        those that are read now must not change afterwards."""
        now = self._now()
        if self._parts is None:
            self._parts, self._file, self._begun, self._took = iter(parts()), self._written(step), now, 0
            next(self._file)
        chunk, size = list[LeafPart](), 0
        while size < self._held_max and (part := next(self._parts, None)) is not None:
            chunk.append(part)
            size += part.values.nbytes
            del part
        is_whole = size < self._held_max
        self._took += self._now() - now
        if is_whole:
            self._parts, self._pause = None, min(2 * self._pause, self._pace.every_ns)
            self._next_at = self._begun + max(self._pause, self._pace.share * self._took)
            self._next_step = step + self._pace.steps
        self._writing = self._disk.write_beside(partial(_send, self._file, (chunk, is_whole)))

    def keep_last(self, step: int, parts: Callable[[], Iterable[LeafPart]]) -> None:
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
        forms = list[Form]()
        parts, is_whole = yield
        with closing(self._disk.create(beside)) as file:
            sealed = SealedFile(file)
            while parts or not is_whole:
                while parts:
                    values, leaf = parts.pop(0)
                    forms += [] if leaf is None else [form_of(leaf)]
                    sealed.write(flat(values).data)
                    del values, leaf
                if not is_whole:
                    parts, is_whole = yield
            sealed.seal(msgspec.msgpack.encode(_LeavesFooter(self._slot, self._incarnation, step, forms)))

    def _read(self, data: memoryview) -> Copy | None:
        values, last = opened(data)
        footer = msgspec.msgpack.decode(last, type=_LeavesFooter)
        if footer.slot != self._slot or footer.incarnation >= self._incarnation:
            return None
        leaves, at = [], 0
        for name, shape in footer.forms:
            count = int(np.prod(shape, dtype=np.int64)) * type_of(name).itemsize
            leaves.append(formed(np.frombuffer(values[at : at + count], np.uint8), name, shape))
            at += count
        return Copy(footer.incarnation, footer.step, leaves)


@final
class SealedFile:
    """A file that is whole only with its seal: what was written, what is told of it, and a digest of both."""

    def __init__(self, file: Any) -> None:
        self._file, self._digest = file, xxhash.xxh3_128()
        self.write(_MAGIC)

    def write(self, data: bytes | memoryview) -> None:
        """Append; OSError where there is no room for all of it."""
        for begin in range(0, len(data), _PART_BYTES):
            part = data[begin : begin + _PART_BYTES]
            self._digest.update(part)
            if self._file.write(part) < len(part):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def seal(self, told: bytes) -> None:
        """End it with what is told of it."""
        self.write(told + len(told).to_bytes(_LENGTH, "big"))
        self.write(self._digest.digest())


def opened(data: memoryview) -> tuple[memoryview, memoryview]:
    """What was written into a sealed file, and what is told of it; ValueError unless it is whole."""
    digest, body = data[-_DIGEST:], data[:-_DIGEST]
    if bytes(data[: len(_MAGIC)]) != _MAGIC or xxhash.xxh3_128_digest(body) != digest:
        raise ValueError("a copy that is not whole")
    end = len(body) - _LENGTH
    begin = end - int.from_bytes(body[end:], "big")
    return body[len(_MAGIC) : begin], body[begin:end]


def newest_of(copies: Iterable[LocalCopies | None]) -> Copy | None:
    """The newest copy of a former life among those that are found; where a place has none any more, older ones stay in
    another."""
    found = (each.former() for each in copies if each is not None)
    return max(
        (each for each in found if each is not None), key=lambda each: (each.incarnation, each.step), default=None
    )


def newest_copy(folder: Path, disk: HostDisk, slot: int, incarnation: int, now: Callable[[], int]) -> Copy | None:
    """The newest copy of a slot's former lives that is found for the run in `folder`, in memory or on disk."""
    life, memory = (disk, slot, incarnation, now), disk.memory_of(folder, 0)
    often = None if memory is None else LocalCopies.in_memory(memory, *life)
    return newest_of((often, LocalCopies.on_disk(folder, *life)))


def own_bytes(folder: Path, disk: HostDisk, slot: int) -> int:
    """The bytes of the files of a slot in a folder."""
    try:
        sizes = disk.sizes(copy_path(folder, slot).parent)
    except OSError:
        return 0
    return sum(size for name, size in sizes.items() if name.partition(".")[0] == copy_path(folder, slot).name)


def _send(file: Generator[None, Chunk, None], chunk: Chunk) -> None:
    with suppress(OSError, StopIteration):  # The latter at its end, and after an error.
        file.send(chunk)
