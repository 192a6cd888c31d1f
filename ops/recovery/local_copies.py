"""Copies of a learner's own state, moments above all, on the disk of its machine, for its next life.

Decides when one is made, and whether one that is found is used. A copy is made in the background, one at a time, and so
seldom that the learner itself spends at most a 400th of its time on it, until it has the leaves in memory: after a
second, then after twice as long each time, up to 15 s, or up to 400 times the duration of the last one.

A copy that is found is from a life of the same slot before this one, on this machine: some seconds old, beside a model
that is newer. Moments are means over many steps, so an old copy is nearer to what was lost than none. It is not synced:
the death of a process does not touch it, and after a power failure its digest tells whether it is whole. If anything is
wrong with it, or with the disk, the learner just begins with none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, final

import msgspec
import numpy as np
import xxhash

from isthmus.ops.recovery.leaves import Form, flat, form_of, formed, type_of

FIRST_NS: Final = 1_000_000_000
EVERY_NS: Final = 15_000_000_000
"""As between two snapshots."""
SHARE: Final = 400
FOLDER: Final = "local"
_MAGIC: Final = b"isthmus local 1\n"
_DIGEST: Final = 16
_PART_BYTES: Final = 1 << 24


class Disk(Protocol):
    """The operations used of a host's disk."""

    def create(self, path: Path) -> Any: ...

    def rename(self, path: Path, target: Path) -> None: ...

    def read(self, path: Path) -> bytes: ...


class Copy(NamedTuple):
    """A copy that was found: its life, the number of that life's steps, and the leaves."""

    incarnation: int
    step: int
    leaves: list[Any]


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    slot: int
    incarnation: int
    step: int
    forms: list[Form]


@final
class LocalCopies:
    """The copies of one life of a slot, in the run's `folder` on this machine; `now` is in nanoseconds."""

    def __init__(self, folder: Path, disk: Disk, slot: int, incarnation: int, now: Callable[[], int]) -> None:
        self._path, self._disk = folder / FOLDER / f"learner-{slot}", disk
        self._slot, self._incarnation, self._now = slot, incarnation, now
        self._pause, self._next_at = FIRST_NS, 0
        self._thread: threading.Thread | None = None

    def found(self) -> Copy | None:
        """The copy of a former life; None if there is none that can be read."""
        try:
            data = memoryview(self._disk.read(self._path))
        except OSError:
            return None
        try:
            return self._read(data)
        except (ValueError, msgspec.DecodeError, IndexError):
            return None

    def is_due(self) -> bool:
        """Whether it is time for the next copy."""
        now = self._now()
        if not self._next_at:
            self._next_at = now + self._pause
        return now >= self._next_at and (self._thread is None or not self._thread.is_alive())

    def keep(self, step: int, leaves: Callable[[], Sequence[np.ndarray[Any, Any]]]) -> None:
        """Copy the `leaves` after `step` steps; they are called for now, and must not change afterwards."""
        begun = self._now()
        taken = list(leaves())
        took = self._now() - begun
        self._pause = min(2 * self._pause, EVERY_NS)
        self._next_at = begun + max(self._pause, SHARE * took)
        self._thread = threading.Thread(target=self._write, args=(step, taken), name="local copy", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait for the end of the copy that is being made."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, step: int, leaves: list[np.ndarray[Any, Any]]) -> None:
        beside = self._path.with_name(f".{self._path.name}.{self._incarnation}")
        with suppress(OSError):
            file = self._disk.create(beside)
            try:
                for part in self._parts(step, leaves):
                    if file.write(part) < len(part):
                        return  # The disk is full: the one before stays.
            finally:
                file.close()
            self._disk.rename(beside, self._path)

    def _parts(self, step: int, leaves: list[np.ndarray[Any, Any]]) -> Iterator[bytes]:
        """The bytes of a copy, one bounded part at a time."""
        header = msgspec.msgpack.encode(
            _Header(self._slot, self._incarnation, step, [form_of(leaf) for leaf in leaves])
        )
        whole = xxhash.xxh3_128()
        yield _MAGIC + len(header).to_bytes(4, "big")
        for data in (header, *(flat(leaf).data for leaf in leaves)):
            for begin in range(0, len(data), _PART_BYTES):
                part = bytes(data[begin : begin + _PART_BYTES])
                whole.update(part)
                yield part
        yield whole.digest()

    def _read(self, data: memoryview) -> Copy | None:
        begin = len(_MAGIC) + 4
        told, body = data[-_DIGEST:], data[begin:-_DIGEST]
        if bytes(data[: len(_MAGIC)]) != _MAGIC or xxhash.xxh3_128_digest(body) != told:
            return None
        size = int.from_bytes(data[len(_MAGIC) : begin], "big")
        header = msgspec.msgpack.decode(body[:size], type=_Header)
        if header.slot != self._slot or header.incarnation >= self._incarnation:
            return None
        leaves, at = [], size
        for name, shape in header.forms:
            count = int(np.prod(shape, dtype=np.int64)) * type_of(name).itemsize
            leaves.append(formed(np.frombuffer(body[at : at + count], np.uint8), name, shape))
            at += count
        return Copy(header.incarnation, header.step, leaves)
