"""Copies of a learner's own state, moments above all, on the disk of its machine, for its next life.

Decides when one is made, and whether one that is found is used. A copy is made in the background, one at a time, and so
seldom that the learner itself spends at most a 400th of its time on it, until it has the leaves in memory: after a
second, then after twice as long each time, up to 15 s, or up to 400 times the duration of the last one. Only some
leaves of a large state are in memory at a time: the next ones are read after a later step, when those are written.
Moments of different steps serve as well as those of one step, beside a model that is newer than both.

A copy that is found is from a life of the same slot before this one, on this machine: some seconds old, beside a model
that is newer. Moments are means over many steps, so an old copy is nearer to what was lost than none. It is not synced:
the death of a process does not touch it, and after a power failure its digest tells whether it is whole. If anything is
wrong with it, or with the disk, the learner just begins with none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
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
_MAGIC: Final = b"isthmus local 2\n"
_DIGEST: Final = 16
_PART_BYTES: Final = 1 << 24
HELD_BYTES_MAX: Final = 64 << 20
"""Bytes of leaves that wait to be written, unless a single leaf is larger."""
_LENGTH: Final = 4


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


@final
class _Making:
    """A copy in progress: the leaves not read yet, the forms of those that were, and the file so far."""

    def __init__(self, step: int, begun: int, leaves: Callable[[], Iterable[np.ndarray[Any, Any]]]) -> None:
        self.step, self.begun, self.took = step, begun, 0
        self.forms: list[Form] = []
        self.file: Any = None
        self.digest = xxhash.xxh3_128()
        self.is_whole = self.is_lost = False
        self._leaves = iter(leaves())

    def take(self) -> list[np.ndarray[Any, Any]]:
        """The next leaves; after the last `is_whole`."""
        taken: list[np.ndarray[Any, Any]] = []
        held = 0
        while not taken or held < HELD_BYTES_MAX:
            leaf = next(self._leaves, None)
            if leaf is None:
                self.is_whole = True
                break
            taken.append(leaf)
            self.forms.append(form_of(leaf))
            held += leaf.nbytes
        return taken

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes in bounded parts; nothing more once the disk has taken less than a part."""
        for begin in range(0, len(data), _PART_BYTES):
            part = bytes(data[begin : begin + _PART_BYTES])
            if self.is_lost:
                return
            self.digest.update(part)
            self.is_lost = self.file.write(part) < len(part)


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
        self._making: _Making | None = None

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
        """Whether it is time for the next copy, or for more leaves of the one in progress."""
        now = self._now()
        if not self._next_at:
            self._next_at = now + self._pause
        if self._thread is not None and self._thread.is_alive():
            return False
        return self._making is not None or now >= self._next_at

    def keep(self, step: int, leaves: Callable[[], Iterable[np.ndarray[Any, Any]]]) -> None:
        """Copy the `leaves` after `step` steps, or more of them if a copy is in progress; those that are read now must
        not change afterwards."""
        now = self._now()
        making = self._making = self._making or _Making(step, now, leaves)
        taken = making.take()
        making.took += self._now() - now
        if making.is_whole:
            self._making = None
            self._pause = min(2 * self._pause, EVERY_NS)
            self._next_at = making.begun + max(self._pause, SHARE * making.took)
        self._thread = threading.Thread(target=self._write, args=(making, taken), name="local copy", daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait for the end of the copy that is being made."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, making: _Making, leaves: list[np.ndarray[Any, Any]]) -> None:
        """Append leaves to the file; after the last, rename it. If the disk refuses anything, the copy before stays."""
        beside = self._path.with_name(f".{self._path.name}.{self._incarnation}")
        try:
            if making.file is None and not making.is_lost:
                making.file = self._disk.create(beside)
                making.write(_MAGIC)
            while leaves:
                making.write(flat(leaves.pop(0)).data)
            if making.is_whole:
                header = _Header(self._slot, self._incarnation, making.step, making.forms)
                told = msgspec.msgpack.encode(header)
                making.write(told + len(told).to_bytes(_LENGTH, "big"))
                making.write(making.digest.digest())
                if making.file is not None:
                    making.file.close()
                if not making.is_lost:
                    self._disk.rename(beside, self._path)
        except OSError:
            making.is_lost = True

    def _read(self, data: memoryview) -> Copy | None:
        told, body = data[-_DIGEST:], data[:-_DIGEST]
        if bytes(data[: len(_MAGIC)]) != _MAGIC or xxhash.xxh3_128_digest(body) != told:
            return None
        end = len(body) - _LENGTH
        begin = end - int.from_bytes(body[end:], "big")
        header = msgspec.msgpack.decode(body[begin:end], type=_Header)
        if header.slot != self._slot or header.incarnation >= self._incarnation:
            return None
        leaves, at = [], len(_MAGIC)
        for name, shape in header.forms:
            count = int(np.prod(shape, dtype=np.int64)) * type_of(name).itemsize
            leaves.append(formed(np.frombuffer(body[at : at + count], np.uint8), name, shape))
            at += count
        return Copy(header.incarnation, header.step, leaves)
