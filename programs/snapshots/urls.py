"""The places for a run's snapshots beside its folder: the values of `run.snapshots`, and how each is opened.

Decides the valid places: a folder (a path, or file://), which is written through the disk of the host, and every URL of
which fsspec knows the scheme. A place that cannot be used gives one message, before anything is started. Credentials
are never part of it: each filesystem finds them where its own tools do (environment, files of the user).

A call of fsspec has no limit of time of its own; `courier` keeps one that hangs from holding up anything else.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, final

from isthmus.programs.snapshots.store import FolderStore, Store, words
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import Disk

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
class Place:
    """The store of snapshots of the run named `run`, whose folder is `home` (MACHINE:PATH).

    `text` is a folder's absolute path, or a URL. `in_background`: by a thread, as on the real clock.
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
        self._url, self._scheme = url, scheme_of(url)
        self._filesystem, self._root = _told(lambda: _filesystem(url))

    def put(self, name: str, data: bytes) -> None:
        more = {"chunksize": _CHUNK_BYTES, "max_concurrency": 1} if self._scheme in _S3 else {}

        def put() -> None:
            if self._scheme not in _BUCKETS:
                self._filesystem.makedirs(self._root, exist_ok=True)
            self._filesystem.pipe_file(self._path(name), data, **more)

        _told(put)

    def get(self, name: str, bytes_max: int) -> bytes:
        size = _told(lambda: self._filesystem.size(self._path(name)))
        if size is not None and size > bytes_max:
            raise OSError(errno.EFBIG, f"{name} has {size} bytes: expected at most {bytes_max}")
        return bytes(_told(lambda: self._filesystem.cat_file(self._path(name))))

    def names(self) -> list[str]:
        def names() -> list[str]:
            self._filesystem.invalidate_cache()
            try:
                return [str(path) for path in self._filesystem.ls(self._root, detail=False)]
            except FileNotFoundError:
                return []

        return sorted(path.rstrip("/").rpartition("/")[2] for path in _told(names) if not path.endswith("/"))

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            _told(lambda: self._filesystem.rm_file(self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def scheme_of(url: str) -> str:
    """The scheme of a URL; '' of a path."""
    return url.partition("://")[0].lower() if "://" in url else ""


def place_of(text: str, folder: Path | None = None) -> Place:
    """The place that a text names, with paths relative to `folder`; ConfigError if it cannot be used here."""
    doing, scheme = f"Reading {KEY}", scheme_of(text)
    if scheme in ("", "file", "local"):
        path = Path(text.partition("://")[2] if scheme else text).expanduser()
        if not text or (scheme and not path.is_absolute()):
            raise ConfigError(doing, "a folder, or a URL such as s3://bucket/path", repr(text), "Name one.")
        return Place(os.path.abspath((folder or Path.cwd()) / path))
    if "::" in text:
        do = "Name the store itself: what goes through a cache is not there to stay when it says so."
        raise ConfigError(doing, "one filesystem", f"a chain, {text!r}", do)
    import fsspec

    known = sorted(fsspec.available_protocols())
    if scheme not in known:
        do = "Name a folder, or for example s3://bucket/path, gs://bucket/path or sftp://machine/path."
        raise ConfigError(doing, "a URL whose scheme fsspec knows", repr(text), do)
    try:
        fsspec.get_filesystem_class(scheme)
    except ImportError as error:
        do = "Install it beside isthmus: in a clone, pip install -e '.[s3]'." if scheme in _S3 else str(error)
        raise ConfigError(doing, f"the package for {scheme}:// beside fsspec", "none installed", do) from None
    if not text.partition("://")[2].strip("/"):
        raise ConfigError(doing, "a path behind the scheme", repr(text), f"As in {scheme}://bucket/path.")
    return Place(text.rstrip("/"))


def check(place: Place, disk: Disk, *, run: str = "") -> None:
    """Put a test object, read it and remove it; ConfigError if that fails, or the place has another run's snapshots."""
    from isthmus.programs.snapshots.stored import heads, read_head

    doing, name, data = f"Reading {KEY}", f"{_PROBE}{secrets.token_hex(8)}", secrets.token_bytes(64)
    do = "Look at its name, and at the credentials of this machine."
    if place.is_folder:
        do = "Name another folder, or make this one writable."
    try:
        store = place.open(disk)
        found = heads(store.names())
        store.put(name, data)
        try:
            is_there = store.get(name, len(data)) == data
        finally:
            store.remove(name)
    except OSError as error:
        raise ConfigError(doing, f"a place that can be written, {place.text}", words(error), do) from None
    if not is_there:
        raise ConfigError(doing, f"a place that gives back what it was given, {place.text}", "something else", do)
    if found:
        try:
            other = read_head(store, found[0]).run
        except (ValueError, OSError):
            other = ""
        if other != run or not run:
            told = f"those of {other}" if other else "some that cannot be read"
            do = f"Name another place; or go on with that run: isthmus train --resume {place.text}"
            raise ConfigError(doing, f"{place.text} without snapshots of another run", told, do)


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


def _told(work: Callable[[], _T]) -> _T:
    """The result of `work`; its errors are raised as OSError."""
    try:
        return work()
    except FileNotFoundError:
        raise
    except Exception as error:
        told = " ".join(str(part) for part in error.args if isinstance(part, str)) or str(error)
        raise OSError(errno.EIO, f"{type(error).__name__}: {told}".rstrip(": ")) from error
