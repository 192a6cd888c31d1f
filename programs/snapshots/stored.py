"""Snapshots in a store: the objects that make one up, which one is good, and which are removed.

Decides that without renaming or locks, which object stores lack. Theory of operation:

- An object is never changed. Each life of a recorder has names of its own: `TERM-LIFE` before all of them, where a run
  that goes on from a store is in the next term. So no writer, though it lives on after it was replaced, can spoil the
  objects of another.
- The values of a fragment's version are put once, each as one object. Then comes the *head*, one object with all else:
  the manifest, with size and digest of each, and the small files that a run needs to go on. A store shows an object
  whole or not at all, and to all readers after the answer (S3 promises both); where one does not, a torn head does not
  match its own digest, and neither do torn values. So a snapshot is good from one moment on: that in which its head is
  there. A transfer that is interrupted before leaves the snapshot before as it was.
- Heads are ordered by term, life and number. The newest that is whole is read, compared byte for byte.
- The two newest heads stay, and the objects that they name. The rest of this life, and of earlier ones, goes; heads
  first.
- A writer that finds the head of a later life writes no more: its run has gone on elsewhere.

The contents of the store are a copy of those on the disk of the run's home. So a store that is away costs nothing but
age: once it is back, it is given the newest snapshot, and objects that it already has are not sent again.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, NamedTuple, final

import msgspec
import xxhash

from isthmus.programs.snapshots.snapshots import Entry, Manifest
from isthmus.programs.snapshots.store import Store, words
from isthmus.programs.snapshots.whole_states import StateEntry

HEAD: Final = "snapshot-"
VALUES: Final = "values-"
FORMAT: Final = 1
HEAD_BYTES_MAX: Final = 64 << 20
"""The files of a run beside its model have some hundreds of kilobytes; the books of very many lives some megabytes."""
VALUES_BYTES_MAX: Final = 64 << 30
KEPT: Final = 2
_FILE: Final = re.compile(r"[a-z]+-\d+(-\d+)*\.safetensors")
_MAGIC: Final = b"isthmus snapshot\n"
_DIGEST: Final = 16


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One snapshot of the run named `run`, whose folder was `home` (MACHINE:PATH).

    Its `manifest`, the small `files` of that folder by name, and the newest known `lives`, as (role, slot,
    incarnation); `at` is the run's clock, nanoseconds.
    """

    format: int
    run: str
    home: str
    term: int
    life: int
    at: int
    manifest: Manifest
    files: dict[str, bytes]
    lives: list[tuple[str, int, int]]

    def values(self, entry: Entry | StateEntry) -> str:
        """The name of the object that has the values of an entry."""
        return f"{VALUES}{_writer(self.term, self.life)}-{entry.file}"


class Readable(NamedTuple):
    """A head and its name; and the faults of newer ones."""

    name: str
    head: Head
    faults: list[str]


def head_name(term: int, life: int, number: int) -> str:
    """The name of a head; names are in the order of snapshots."""
    return f"{HEAD}{_writer(term, life)}-{number:08}"


def heads(names: list[str]) -> list[str]:
    """The names of heads, the newest first."""
    return sorted((name for name in names if name.startswith(HEAD)), reverse=True)


def read_head(store: Store, name: str) -> Head:
    """A head by its name; ValueError if it is not valid, OSError if the store cannot be read."""
    data = store.get(name, HEAD_BYTES_MAX)
    told, body = data[len(_MAGIC) : len(_MAGIC) + _DIGEST], data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or xxhash.xxh3_128_digest(body) != told:
        raise ValueError(f"{name} is not what was written: {len(data)} bytes")
    if (found := msgspec.msgpack.decode(body, type=_Versioned).format) != FORMAT:
        raise ValueError(f"{name}: expected format {FORMAT}, found {found}; a newer isthmus may read it")
    head = msgspec.msgpack.decode(body, type=Head)
    for entry in head.manifest.entries:
        if not _FILE.fullmatch(entry.file):
            raise ValueError(f"{name}: expected the name of a file of values, found {entry.file[:100]!r}")
    return head


def encoded(head: Head) -> bytes:
    """A head as an object."""
    body = msgspec.msgpack.encode(head)
    return _MAGIC + xxhash.xxh3_128_digest(body) + body


def newest(store: Store, take: Callable[[Head, Entry | StateEntry, bytes], None]) -> Readable | None:
    """The newest complete snapshot, with the faults of newer ones; None if the store has none.

    Each of its values is handed to `take`, which raises ValueError for a wrong one; some values of incomplete snapshots
    may be handed over before. ValueError if all are incomplete, OSError if the store cannot be read.
    """
    faults: list[str] = []
    for name in heads(store.names()):
        try:
            head = read_head(store, name)
            for entry in head.manifest.entries:
                take(head, entry, _values(store, head, entry))
        except FileNotFoundError as error:
            faults.append(f"{name}: {words(error)}")
        except ValueError as error:
            faults.append(f"{name}: {error}")
        else:
            return Readable(name, head, faults)
    if faults:
        raise ValueError("; ".join(faults))
    return None


def _values(store: Store, head: Head, entry: Entry | StateEntry) -> bytes:
    name = head.values(entry)
    try:
        data = store.get(name, VALUES_BYTES_MAX)
    except FileNotFoundError:
        raise ValueError(f"{name} is missing") from None
    if len(data) != entry.bytes or xxhash.xxh3_128_hexdigest(data) != entry.digest:
        raise ValueError(f"{name} is not what was written: {len(data)} of {entry.bytes} bytes")
    return data


@final
class StoredSnapshots:
    """The stored snapshots of one life of a run's recorder, in one term of the run."""

    def __init__(self, store: Store, run: str, home: str, term: int, life: int) -> None:
        self._store, self._run, self._home, self._term, self._life = store, run, home, term, life
        self._put: set[str] = set()
        """Names of objects that this life has put, and not taken away."""
        self._is_compared = False

    def writing(
        self,
        manifest: Manifest,
        read: Callable[[str], bytes],
        files: Callable[[], dict[str, bytes]],
        lives: Mapping[tuple[str, int], int],
        at: int,
    ) -> Iterator[int]:
        """Put a snapshot; yields the bytes of each object that was put. It is good once this is exhausted.

        `read` gives the values by the name of their file, `files` the small files, once the values are stored. OSError
        if the store refuses, and for a life that was replaced.
        """
        self._check_newest()
        told = [(role, slot, incarnation) for (role, slot), incarnation in sorted(lives.items())]
        head = Head(FORMAT, self._run, self._home, self._term, self._life, at, manifest, {}, told)
        for entry in manifest.entries:
            if (name := head.values(entry)) not in self._put:
                self._store.put(name, read(entry.file))
                self._put.add(name)
                yield entry.bytes
        self._check_newest()
        data = encoded(msgspec.structs.replace(head, files=files()))
        name = head_name(self._term, self._life, manifest.number)
        self._put.add(name)  # Also if it is refused: it may have arrived.
        self._store.put(name, data)
        yield len(data)
        self._forget()

    def _check_newest(self) -> None:
        """OSError unless this life may write to this place."""
        names = heads(self._store.names())
        if not names or names[0] in self._put:
            return
        if names[0] > f"{HEAD}{_writer(self._term, self._life)}":
            raise OSError(errno.ESTALE, f"the run goes on elsewhere, and takes the snapshots there: {names[0]}")
        if not self._is_compared:
            with suppress(ValueError, FileNotFoundError):
                if (found := read_head(self._store, names[0]).run) != self._run:
                    raise OSError(errno.EEXIST, f"snapshots of another run are there: {found}")
            self._is_compared = True

    def _forget(self) -> None:
        """Remove objects outside the newest heads; failures are left for the next call."""
        with suppress(OSError):
            names = self._store.names()
            kept: set[str] = set()
            for name in heads(names)[KEPT:]:
                self._store.remove(name)
            for name in heads(names)[:KEPT]:
                try:
                    head = read_head(self._store, name)
                except ValueError:
                    return  # The objects of a damaged head are unknown.
                kept |= {head.values(entry) for entry in head.manifest.entries}
            mine = f"{VALUES}{_writer(self._term, self._life)}"
            for name in names:
                if name.startswith(VALUES) and name not in kept and (name < mine or name in self._put):
                    self._store.remove(name)
                    self._put.discard(name)


class _Versioned(msgspec.Struct):
    format: int


def _writer(term: int, life: int) -> str:
    """A name that sorts by (term, life); each home of a run numbers lives far beyond those of the home before it."""
    return f"{term:04}-{life:012}"
