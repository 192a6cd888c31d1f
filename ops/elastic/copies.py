"""Copies of a learner's state in memory that outlives the computing process.

Decides the layout of a copy in memory, and which of two is the newer whole one. A host holds two anonymous files and
passes them to each process that computes for it, one after the other. That process writes to the older of the two, and
its header last, so that if it is killed in the middle of a copy nothing is left of that one, and the one before is
whole.

A copy has all leaves of the state whole, regardless of their mesh: any mesh can take it up.

A host's instructions to the process that computes for it, and that process's view of its form.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, final

import numpy as np

_HEADER: Final = struct.Struct("<4s5Q")
_MARK: Final = b"isth"
FILES: Final = 2
"""One whole copy, and one that is being written."""


class Stored(NamedTuple):
    """The identity of a copy, newer ones greater: the `number`-th under a leader's `life`.

    The learner had begun `steps` and `restarts`; the leaves take `size` bytes.
    """

    life: int
    number: int
    steps: int
    restarts: int
    size: int

    @property
    def name(self) -> tuple[int, int]:
        """Equal for equal copies."""
        return self.life, self.number


NOTHING: Final = (0, 0)
"""The name of no copy: lives count from 1."""


def open_files() -> tuple[int, ...]:
    """Memory for the copies of one island."""
    return tuple(os.memfd_create(f"isthmus-copy-{number}") for number in range(FILES))


def stored(file: int) -> Stored | None:
    """The whole copy in a file, if there is one."""
    data = os.pread(file, _HEADER.size, 0)
    if len(data) < _HEADER.size:
        return None
    mark, *fields = _HEADER.unpack(data)
    return Stored(*fields) if mark == _MARK else None


def whole(files: Sequence[int]) -> list[tuple[Stored, int]]:
    """All whole copies, with their files."""
    return [(each, file) for file in files if (each := stored(file)) is not None]


def newest(files: Sequence[int]) -> tuple[Stored, int] | None:
    """The newest whole copy, and its file."""
    return max(whole(files), default=None)


def keep(files: Sequence[int], name: tuple[int, int]) -> tuple[Stored, int] | None:
    """The copy of this name, and its file; None if it is missing.

    All others are removed, so that nothing resumes from them.
    """
    kept = None
    for what, file in whole(files):
        if what.name == name and kept is None:
            kept = what, file
        else:
            _clear(file, 0)
    return kept


def oldest(files: Sequence[int]) -> int:
    """The file to write next."""
    return min(files, key=lambda file: stored(file) or Stored(0, 0, 0, 0, 0))


def write(file: int, what: Stored, leaves: Iterable[np.ndarray[Any, Any]]) -> None:
    """Write a copy to a file; `leaves` take `what.size` bytes together."""
    _clear(file, what.size)
    with mmap.mmap(file, _HEADER.size + what.size) as memory:
        at = _HEADER.size
        for leaf in leaves:
            np.ndarray(leaf.shape, leaf.dtype, memory, at)[...] = leaf
            at += leaf.nbytes
    _seal(file, what)


def read(file: int, what: Stored, shapes: Iterable[Any]) -> list[np.ndarray[Any, Any]]:
    """The leaves of a copy, with these shapes and dtypes, in memory of their own; ValueError if its size differs."""
    wanted = [(shape.shape, np.dtype(shape.dtype)) for shape in shapes]
    size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in wanted)
    if size != what.size:
        raise ValueError(f"taking up a copy: expected {size} bytes, found {what.size}")
    leaves, at = [], _HEADER.size
    with mmap.mmap(file, _HEADER.size + size, prot=mmap.PROT_READ) as memory:
        for shape, dtype in wanted:
            leaves.append(np.ndarray(shape, dtype, memory, at).copy())
            at += leaves[-1].nbytes
    return leaves


def send(file: int, what: Stored, other: Any) -> None:
    """Send a copy to another process, over a connected socket; OSError if that is gone."""
    other.sendall(_HEADER.pack(_MARK, *what))
    # The slice is closed, too: memory cannot be closed while a traceback keeps a slice of it.
    with (
        mmap.mmap(file, _HEADER.size + what.size, prot=mmap.PROT_READ) as memory,
        memoryview(memory) as data,
        data[_HEADER.size :] as leaves,
    ):
        other.sendall(leaves)


def receive(file: int, size: int, other: Any) -> Stored:
    """Receive a copy of `size` bytes from another process.

    EOFError or OSError if that is gone, ValueError if the size differs.
    """
    _clear(file, size)
    head = bytearray(_HEADER.size)
    with memoryview(head) as data:
        _fill(data, other)
    mark, *fields = _HEADER.unpack(head)
    what = Stored(*fields)
    if mark != _MARK or what.size != size:
        raise ValueError(f"taking a copy from another process: expected {size} bytes, found {what.size}")
    with mmap.mmap(file, _HEADER.size + size) as memory, memoryview(memory) as data, data[_HEADER.size :] as leaves:
        _fill(leaves, other)
    _seal(file, what)
    return what


def _fill(data: memoryview, other: Any) -> None:
    at = 0
    while at < len(data):
        with data[at:] as rest:
            count = other.recv_into(rest)
        if not count:
            raise EOFError("a process of this island is gone")
        at += count


def _clear(file: int, size: int) -> None:
    os.pwrite(file, bytes(_HEADER.size), 0)
    os.ftruncate(file, _HEADER.size + size)


def _seal(file: int, what: Stored) -> None:
    os.pwrite(file, _HEADER.pack(_MARK, *what), 0)


Basis: TypeAlias = tuple[int, int] | None
"""The name of the copy from which a leader continues; NOTHING for none, None for the newest of any process."""


class WorkerSpec(NamedTuple):
    """A host's instructions to its worker.

    Its `number` in form `form`, the `names` of all in it, the leader's life `incarnation`, its address (for others),
    and the copy from which it continues (for the leader).
    """

    number: int
    form: int
    names: tuple[str, ...]
    incarnation: int
    there: tuple[str, str] | None = None
    basis: Basis = None


class WorkerPlace(NamedTuple):
    """A worker's resources from its host.

    The `files` of copies, the leader's `door` and `token`, the devices of each process and their allowed kinds.
    """

    files: tuple[int, ...]
    door: Any
    token: str
    devices: int | None
    kinds: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class FormedGang:
    """One form of an island, as a gang; and itself the island that it makes up."""

    number: int
    form: int
    names: tuple[str, ...]
    there: tuple[str, str] | None
    door: Any
    token: str
    devices: int | None
    kinds: tuple[str, ...]
    copy: tuple[int, int]
    begin: int = 0
    refusal: str = ""

    @classmethod
    def of(cls, spec: WorkerSpec, place: WorkerPlace, copy: tuple[int, int]) -> FormedGang:
        """The gang of a worker that has this copy."""
        return cls(spec.number, spec.form, spec.names, spec.there, *place[1:], copy)

    @property
    def size(self) -> int:
        return len(self.names)

    def find(self) -> tuple[str, str] | None:
        return self.there
