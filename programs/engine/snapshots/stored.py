"""Snapshots in a store beside the run folder: what makes one up, which one is good, which are removed, and which stores
are valid.

Decides that without renaming or locks, which object stores lack. A store is only required to put an object whole, get
it, list names and remove one, so a folder and every filesystem of fsspec serve. The contents are a copy of the
snapshots on the disk of the run's home: a store that is away costs nothing but age.
"""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

import msgspec
import xxhash

from isthmus.programs.engine.snapshots.snapshots import Entry, Manifest, OtherFormatError, Versioned, check_data
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import write_bytes
from isthmus.runtime.system.refusals import remedy


class Store(Protocol):
    """Objects by name; OSError if the store refuses, or cannot be reached."""

    def put(self, name: str, data: bytes) -> None:
        """Store an object durably, in place of any other of its name."""

    def get(self, name: str, bytes_max: int) -> bytes:
        """The whole object; FileNotFoundError if there is none, OSError if it has more than `bytes_max` bytes."""

    def names(self) -> list[str]:
        """The names of all objects, in order; empty if nothing was ever put."""

    def remove(self, name: str) -> None:
        """Remove an object, if it exists."""


@final
class FolderStore:
    """A folder of a disk, its files written aside, synced and renamed."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self._folder, self._disk = folder, disk

    def put(self, name: str, data: bytes) -> None:
        write_bytes(self._folder / name, data, self._disk)

    def get(self, name: str, bytes_max: int) -> bytes:
        data = self._disk.read(self._folder / name)
        if len(data) > bytes_max:
            raise OSError(f"{name} has {len(data)} bytes: expected at most {bytes_max}")
        return data

    def names(self) -> list[str]:
        return [name for name in self._disk.sizes(self._folder) if not name.startswith(".")]

    def remove(self, name: str) -> None:
        self._disk.remove(self._folder / name)


def words(error: OSError) -> str:
    """The reason in an error of a store or a disk."""
    return error.strerror or str(error) or os.strerror(error.errno or 5)


HEAD: Final = "snapshot-"
VALUES: Final = "values-"
CLAIM: Final = "claim-"
FORMAT: Final = 3
READABLE: Final = (2, FORMAT)
"""As of the manifests in the heads."""
HEAD_BYTES_MAX: Final = 64 << 20
"""The files of a run beside its model have some hundreds of kilobytes; the books of very many lives some megabytes."""
PATH_MAX: Final = 16 << 10
"""Bytes of MACHINE:PATH."""
VALUES_BYTES_MAX: Final = 64 << 30
KEPT: Final = 2
_FILE: Final = re.compile(r"[a-z]+-\d+(-\d+)*\.(safetensors|local)")
_MAGIC: Final = b"isthmus snapshot\n"
_DIGEST: Final = 16


def home_text(folder: Path) -> str:
    """The run folder `folder` of this machine, as MACHINE:PATH."""
    return f"{platform.node()}:{folder.absolute()}"


class StoreTerm(NamedTuple):
    """A run's time between two resumes from a store.

    The `number` counts up from 1; `claim` tells two commands apart that begin the same one.
    """

    number: int = 1
    claim: str = "0" * 8

    def __str__(self) -> str:
        return f"{self.number:04}-{self.claim}"

    @classmethod
    def parse(cls, text: str) -> StoreTerm:
        """The term of this text; ValueError for another one."""
        number, _, claim = text.partition("-")
        if not re.fullmatch(r"\d{4,9}-[0-9a-f]{8}", text):
            raise ValueError(f"expected a term such as {cls()}, found {text[:100]!r}")
        return cls(int(number), claim)


class SnapshotHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One snapshot of a run."""

    format: int
    run: str
    """Its name."""
    home: str
    """The run's folder, as MACHINE:PATH."""
    term: StoreTerm
    life: int
    at: int
    """The run's clock, nanoseconds."""
    manifest: Manifest
    files: dict[str, bytes]
    """The small ones of that folder, by name."""
    lives: list[tuple[str, int, int]]
    """The newest known ones, as (role, slot, incarnation)."""

    def values(self, entry: Entry) -> str:
        """The name of the object that has the values of an entry."""
        return f"{VALUES}{_writer(self.term, self.life)}-{entry.file}"


class Readable(NamedTuple):
    """A head, and the faults of newer ones."""

    head: SnapshotHead
    faults: list[str]


def head_name(term: StoreTerm, life: int, number: int) -> str:
    """The name of a head; names are in the order of snapshots."""
    return f"{HEAD}{_writer(term, life)}-{number:08}"


def heads(names: list[str]) -> list[str]:
    """The names of heads, the newest first."""
    return sorted((name for name in names if name.startswith(HEAD)), reverse=True)


def read_head(store: Store, name: str) -> SnapshotHead:
    """A head by its name; ValueError if it is not valid, OtherFormatError if another version of isthmus wrote it, and
    OSError if the store cannot be read."""
    data = store.get(name, HEAD_BYTES_MAX)
    digest, body = data[len(_MAGIC) : len(_MAGIC) + _DIGEST], data[len(_MAGIC) + _DIGEST :]
    if not data.startswith(_MAGIC) or xxhash.xxh3_128_digest(body) != digest:
        raise ValueError(f"{name} is not what was written: {len(data)} bytes")
    if (version := msgspec.msgpack.decode(body, type=Versioned).format) not in READABLE:
        raise OtherFormatError.at(name, FORMAT, version)
    head = msgspec.msgpack.decode(body, type=SnapshotHead)
    for entry in head.manifest.entries:
        if not _FILE.fullmatch(entry.file):
            raise ValueError(f"{name}: expected the name of a file of values, found {entry.file[:100]!r}")
    return head


def encoded(head: SnapshotHead) -> bytes:
    """A head as an object."""
    body = msgspec.msgpack.encode(head)
    return _MAGIC + xxhash.xxh3_128_digest(body) + body


def newest(store: Store, accept: Callable[[SnapshotHead, Entry, bytes], None]) -> Readable | None:
    """The newest complete snapshot, with the faults of newer ones; None if the store has none.

    Each of its values is handed to `accept`, which raises ValueError for a wrong one; some values of incomplete ones
    may be handed over before. ValueError if all are incomplete, OSError if the store cannot be read.
    """
    faults: list[str] = []
    for name in heads(store.names()):
        try:
            head = read_head(store, name)
            for entry in head.manifest.entries:
                accept(head, entry, _values(store, head, entry))
        except FileNotFoundError as error:
            faults.append(f"{name}: {words(error)}")
        except ValueError as error:
            faults.append(f"{name}: {error}")
        else:
            return Readable(head, faults)
    if faults:
        raise ValueError("; ".join(faults))
    return None


def _values(store: Store, head: SnapshotHead, entry: Entry) -> bytes:
    name = head.values(entry)
    try:
        data = store.get(name, VALUES_BYTES_MAX)
    except FileNotFoundError:
        raise ValueError(f"{name} is missing") from None
    check_data(entry, data, name)
    return data


@final
class StoredSnapshots:
    """The stored snapshots of one life of a run's recorder, in one term of the run.

    - An object is never changed, and each life of a recorder has names of its own (`TERM-CLAIM-LIFE`): no writer, even
      one that lives on after it was replaced, can spoil the objects of another.
    - Values are put first, then the head, with size and digest of each: a snapshot is good from the moment at which its
      head is there. A torn head or torn values do not match their digests.
    - Heads are ordered by term, life and number. The newest that is whole is read; the two newest stay with their
      objects, the others are removed, heads first.
    - A writer that finds the head of a later life writes no more: its run has gone on elsewhere.
    """

    def __init__(self, store: Store, run: str, home: str, term: StoreTerm, life: int) -> None:
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
        rows = [(role, slot, incarnation) for (role, slot), incarnation in sorted(lives.items())]
        head = SnapshotHead(FORMAT, self._run, self._home, self._term, self._life, at, manifest, {}, rows)
        for entry in manifest.entries:
            if (name := head.values(entry)) not in self._put:
                self._store.put(name, read(entry.file))
                self._put.add(name)
                yield entry.bytes
        self._check_there([head.values(entry) for entry in manifest.entries], self._check_newest())
        data = encoded(msgspec.structs.replace(head, files=files()))
        name = head_name(self._term, self._life, manifest.number)
        self._put.add(name)  # Also if it is refused: it may have arrived.
        self._store.put(name, data)
        yield len(data)
        self._forget()

    def _check_there(self, values: list[str], names: list[str]) -> None:
        """OSError unless these values are among the names in the store: a head may name no other."""
        missing = sorted(set(values) - set(names))
        self._put.difference_update(missing)  # They are put again.
        if missing:
            raise OSError(errno.EIO, f"the store has lost {missing[0]}, which it had taken")

    def _check_newest(self) -> list[str]:
        """The names of all objects; OSError unless this life may write to this place."""
        everything = self._store.names()
        names = heads(everything)
        if not names or names[0] in self._put:
            return everything
        if names[0] > f"{HEAD}{_writer(self._term, self._life)}":
            raise OSError(errno.ESTALE, f"the run goes on elsewhere, and takes the snapshots there: {names[0]}")
        if not self._is_compared:
            with suppress(ValueError, FileNotFoundError):
                try:
                    other = read_head(self._store, names[0]).run
                except OtherFormatError as error:
                    raise OSError(errno.EEXIST, f"snapshots of another version are there: {error}") from None
                if other != self._run:
                    raise OSError(errno.EEXIST, f"snapshots of another run are there: {other}")
            self._is_compared = True
        return everything

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
                except (ValueError, OtherFormatError):
                    return  # Its objects are unknown.
                kept |= {head.values(entry) for entry in head.manifest.entries}
            mine = f"{VALUES}{_writer(self._term, self._life)}"
            for name in names:
                if name.startswith(VALUES) and name not in kept and (name < mine or name in self._put):
                    self._store.remove(name)
                    self._put.discard(name)
                if name.startswith(CLAIM) and name < f"{CLAIM}{self._term}":
                    self._store.remove(name)


def _writer(term: StoreTerm, life: int) -> str:
    """A name that sorts by (term, life); each home of a run numbers lives far beyond those of the home before it."""
    return f"{term}-{life:012}"


class TermClaim(NamedTuple):
    """The newest claim in a store: which term, and the folder (MACHINE:PATH) in which the run goes on then."""

    term: StoreTerm
    home: str


def newest_claim(store: Store) -> TermClaim | None:
    """The newest claim of a term, None if there is none; OSError if the store cannot be read."""
    names = [name for name in store.names() if name.startswith(CLAIM)]
    if not names:
        return None
    try:
        return TermClaim(StoreTerm.parse(names[-1].removeprefix(CLAIM)), store.get(names[-1], PATH_MAX).decode())
    except (ValueError, FileNotFoundError):
        return None


WITHDRAWAL_SECONDS: Final = 5.0
"""The time that another command has to withdraw a claim of the same term."""
_LOOK_SECONDS: Final = 0.25


def claim(store: Store, after: StoreTerm, home: str, nonce: str) -> StoreTerm:
    """Claim the term that follows `after`, for a run that goes on in `home`; `nonce` is eight hexadecimal digits.

    `after` is the newest term that was known when the snapshot was fetched. OSError if another command has claimed a
    term since. A claim is an object that nobody else writes. Who sees a second one with a greater nonce withdraws; who
    sees a lesser one waits until it is withdrawn. So one command at most goes on: of two that have put their claims at
    least one sees the other's.
    """
    mine = StoreTerm(after.number + 1, nonce)
    name = f"{CLAIM}{mine}"
    store.put(name, home.encode())
    until = time.monotonic() + WITHDRAWAL_SECONDS
    while True:
        least = f"{CLAIM}{mine.number:04}-"
        rivals = [each for each in store.names() if each.startswith(CLAIM) and each >= least and each != name]
        if not rivals:
            return mine
        if max(rivals) > name or time.monotonic() > until:
            store.remove(name)
            raise OSError(errno.EBUSY, f"another command resumes it now, in {_home_of(store, max(rivals))}")
        time.sleep(_LOOK_SECONDS)


def _home_of(store: Store, name: str) -> str:
    try:
        return store.get(name, PATH_MAX).decode(errors="replace")
    except FileNotFoundError:
        return "a folder that it has given up"


MEMORY: Final = "memory"
KEY: Final = "run.snapshots"
_CHUNK_BYTES: Final = 16 << 20
"""Part size of uploads to an object store: at most this much of a fragment is in memory twice."""
_S3: Final = ("s3", "s3a")
_BUCKETS: Final = (*_S3, "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "r2", MEMORY)
"""Schemes without folders: to make one there makes a bucket."""
_PROBE: Final = "probe-"
_T = TypeVar("_T")


@final
@dataclass(frozen=True, slots=True)
class StorePlace:
    """The store of snapshots of the run named `run`, whose folder is `home` (MACHINE:PATH).

    `text` is a folder's absolute path, or a URL. `in_background`: by a thread, as on the real clock.

    A place that cannot be used gives one message before anything is started. Credentials are never part of it: each
    filesystem finds them where its own tools do. A call of fsspec has no time limit of its own; a courier (`keeping`)
    keeps one that hangs from holding up anything else.
    """

    text: str
    run: str = ""
    home: str = ""
    in_background: bool = True

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder on the disk of a host."""
        return "://" not in self.text

    def open(self, disk: Disk) -> Store:
        """The store; OSError if it cannot be reached."""
        return FolderStore(Path(self.text), disk) if self.is_folder else UrlStore(self.text)


@final
class UrlStore:
    """The objects under a URL, by fsspec; all errors of its filesystem become OSErrors with their message."""

    def __init__(self, url: str) -> None:
        self._scheme = scheme_of(url)
        self._filesystem, self._root = _as_os_error(lambda: _filesystem(url))

    def put(self, name: str, data: bytes) -> None:
        more = {"chunksize": _CHUNK_BYTES, "max_concurrency": 1} if self._scheme in _S3 else {}

        def put() -> None:
            if self._scheme not in _BUCKETS:
                self._filesystem.makedirs(self._root, exist_ok=True)
            self._filesystem.pipe_file(self._path(name), data, **more)

        _as_os_error(put)

    def get(self, name: str, bytes_max: int) -> bytes:
        # One request: no more than one byte too many is sent, whatever is there.
        data = bytes(_as_os_error(lambda: self._filesystem.cat_file(self._path(name), start=0, end=bytes_max + 1)))
        if len(data) > bytes_max:
            raise OSError(errno.EFBIG, f"{name} is larger: expected at most {bytes_max} bytes")
        return data

    def names(self) -> list[str]:
        def names() -> list[str]:
            self._filesystem.invalidate_cache()
            try:
                return [str(path) for path in self._filesystem.ls(self._root, detail=False)]
            except FileNotFoundError:
                return []

        return sorted(path.rstrip("/").rpartition("/")[2] for path in _as_os_error(names) if not path.endswith("/"))

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            _as_os_error(lambda: self._filesystem.rm_file(self._path(name)))

    def remove_all(self, names: list[str]) -> None:
        """Remove objects, if they exist: with one request where the store can."""
        if self._scheme in _S3 and names:
            _as_os_error(lambda: self._filesystem.rm([self._path(name) for name in names]))
        else:
            for name in names:
                self.remove(name)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def scheme_of(url: str) -> str:
    """The scheme of a URL; '' of a path."""
    return url.partition("://")[0].lower() if "://" in url else ""


def place_of(text: str, folder: Path | None = None, *, doing: str = f"Reading {KEY}") -> StorePlace:
    """The place that a text names, with paths relative to `folder`; ConfigError if it cannot be used here."""
    scheme = scheme_of(text)
    if scheme in ("", "file", "local"):
        path = Path(os.path.expanduser(text.partition("://")[2] if scheme else text))
        if not text or (scheme and not path.is_absolute()):
            raise ConfigError(doing, "a folder, or a URL such as s3://bucket/path", repr(text), "Name one.")
        return StorePlace(os.path.abspath((folder or Path.cwd()) / path))
    if "::" in text:
        do = "Name the store itself: what goes through a cache is not there to stay when it says so."
        raise ConfigError(doing, "one filesystem", f"a chain, {text!r}", do)
    import fsspec

    schemes = sorted(fsspec.available_protocols())
    if scheme not in schemes:
        do = "Name a folder, or for example s3://bucket/path, gs://bucket/path or sftp://machine/path."
        raise ConfigError(doing, "a URL whose scheme fsspec knows", repr(text), do)
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        do = "Install it beside isthmus: in a clone, pip install -e '.[s3]'." if scheme in _S3 else str(error)
        raise ConfigError(doing, f"the package for {scheme}:// beside fsspec", "none installed", do) from None
    if not text.partition("://")[2].strip("/"):
        raise ConfigError(doing, "a path behind the scheme", repr(text), f"As in {scheme}://bucket/path.")
    return StorePlace(text.rstrip("/"))


def check(place: StorePlace, disk: Disk, *, run: str = "") -> None:
    """Put a test object, read it and remove it; ConfigError if that fails, or the place has another run's snapshots."""

    doing, name, data = f"Reading {KEY}", f"{_PROBE}{secrets.token_hex(8)}", secrets.token_bytes(64)
    do = "Look at its name, and at the credentials of this machine."
    if place.is_folder:
        do = "Name another folder, or make this one writable."
    try:
        store = place.open(disk)
        present = heads(store.names())
        store.put(name, data)
        try:
            is_there = store.get(name, len(data)) == data
        finally:
            store.remove(name)
    except OSError as error:
        raise ConfigError(
            doing, f"a place that can be written, {place.text}", words(error), remedy(error, do)
        ) from None
    if not is_there:
        raise ConfigError(doing, f"a place that gives back what it was given, {place.text}", "something else", do)
    if present:
        try:
            other = read_head(store, present[0]).run
        except (ValueError, OSError, OtherFormatError):
            other = ""
        if other != run or not run:
            actual = f"those of {other}" if other else "some that cannot be read"
            do = f"Name another place; or go on with that run: isthmus train --resume {place.text}"
            raise ConfigError(doing, f"{place.text} without snapshots of another run", actual, do)


def _filesystem(url: str) -> tuple[Any, str]:
    import fsspec

    options: dict[str, Any] = {}
    if scheme_of(url) in _S3:
        limits = {"connect_timeout": 5, "read_timeout": 30, "retries": {"total_max_attempts": 1}}
        options = {"config_kwargs": limits, "use_listings_cache": False, "skip_instance_cache": True}
    filesystem, root = fsspec.core.url_to_fs(url, **options)
    if options:
        filesystem.retries = 2  # Each waits by itself; `offers` tries again later.
    return filesystem, root.rstrip("/")


def _as_os_error(work: Callable[[], _T]) -> _T:
    """The result of `work`; its errors are raised as OSError."""
    try:
        return work()
    except FileNotFoundError:
        raise
    except Exception as error:
        message = " ".join(str(part) for part in error.args if isinstance(part, str)) or str(error)
        number = (isinstance(error, OSError) and error.errno) or errno.EIO
        raise OSError(number, f"{type(error).__name__}: {message}".rstrip(": ")) from error
