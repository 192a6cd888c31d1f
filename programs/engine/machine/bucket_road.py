"""The store that a passage goes through: a folder that machines share, or what fsspec knows by a URL.

It decides which places can be used, and that one which cannot is refused before anything starts. An object is put
whole, fetched whole or not at all, and of at most a given size, whatever somebody has put there under its name.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol, final

from isthmus.programs.engine.machine import bucket_keys
from isthmus.programs.engine.snapshots.stored import UrlStore, place_of, words
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import put_bytes

NAMES_MAX: Final = 10_000
"""In one listing: several times what all passages of a home may have there."""
FOLDER_SECONDS: Final = 0.2
STORE_SECONDS: Final = 0.5
"""Intervals: at most one object each way, and one look for the next, in such a time. An item is then under way for
about that, and two or three requests; at the price of S3 twice as often costs twice as much, a tenth of a dollar an
hour."""
EVERY_MIN: Final = 0.05
EVERY_MAX: Final = 10.0
KEY: Final = "Reading --via"
_ASIDE: Final = ".aside-"


class Road(Protocol):
    """Objects by name; OSError where the store refuses, or cannot be reached. Calls may come from several threads."""

    def put(self, name: str, data: bytes) -> None:
        """Put an object."""

    def fetch(self, name: str, bytes_max: int) -> bytes | None:
        """An object; None if there is none. What is no object, or too large, is empty."""

    def names(self) -> list[str]:
        """The names of the objects, NAMES_MAX at most."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects, if they are there."""


@final
class FolderRoad:
    """A folder. Objects are written aside and renamed, so that none is seen in part.

    It is made once, with the one above it; when it is missing later, the share is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        if not folder.parent.is_dir() and not folder.parent.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"no folder {folder.parent}")
        folder.mkdir(parents=True, exist_ok=True)

    def put(self, name: str, data: bytes) -> None:
        put_bytes(self._folder / name, data, before=_ASIDE)

    def fetch(self, name: str, bytes_max: int) -> bytes | None:
        # A client of NFS remembers that a name was not there until it opens the folder again.
        with os.scandir(self._folder):
            pass
        try:
            # Neither a link nor a pipe, which somebody else may have put there, leads elsewhere or holds this up.
            handle = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO) or (error.errno == errno.EACCES and self._has(name)):
                return b""
            raise
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_size > bytes_max:
                return b""
            with open(handle, "rb", closefd=False) as file:
                return file.read(bytes_max)
        finally:
            os.close(handle)

    def _has(self, name: str) -> bool:
        """Whether the folder can be searched, and has a name: what may not be read then is that object alone."""
        try:
            os.lstat(self._folder / name)
        except OSError:
            return False
        return True

    def names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            found = [entry.name for entry in islice(entries, NAMES_MAX)]
        return [name for name in found if not name.startswith(".") or name.startswith(_ASIDE)]

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(FileNotFoundError, IsADirectoryError):
                (self._folder / name).unlink()


@final
class UrlRoad:
    """What is under a URL, by fsspec."""

    def __init__(self, url: str) -> None:
        self._store = UrlStore(url)

    def put(self, name: str, data: bytes) -> None:
        self._store.put(name, data)

    def fetch(self, name: str, bytes_max: int) -> bytes | None:
        try:
            return self._store.get(name, bytes_max)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.EFBIG, errno.EINVAL):  # An empty object has no first byte that could be asked for.
                return b""
            raise

    def names(self) -> list[str]:
        return self._store.names()[:NAMES_MAX]

    def remove(self, names: Iterable[str]) -> None:
        self._store.remove_all(list(names))


class RoadPlace(NamedTuple):
    """The text of a store, and the interval in seconds at which it is used."""

    text: str
    every: float

    @property
    def is_folder(self) -> bool:
        return "://" not in self.text

    @property
    def shown(self) -> str:
        """The place as a user gives it."""
        return f"file://{self.text}" if self.is_folder else self.text

    def under(self, name: str) -> RoadPlace:
        """The part of it that has this name."""
        return self._replace(text=f"{self.text}/{name}")

    def open(self) -> Road:
        """The store; OSError if it cannot be reached."""
        return FolderRoad(Path(self.text)) if self.is_folder else UrlRoad(self.text)


def road_place(text: str, every: float | None) -> RoadPlace:
    """The place that the text of --via names; ConfigError if it cannot be one."""
    bucket_keys.check_installed(KEY)
    place = place_of(text, doing=KEY)
    seconds = (FOLDER_SECONDS if place.is_folder else STORE_SECONDS) if every is None else every
    if not EVERY_MIN <= seconds <= EVERY_MAX:
        do = "Leave it out for the usual one."
        raise ConfigError("Reading --via-every", f"{EVERY_MIN:g} to {EVERY_MAX:g} seconds", f"{seconds:g}", do)
    return RoadPlace(place.text, seconds)


def check(place: RoadPlace) -> None:
    """Put a test object, list it, fetch it and remove it; ConfigError if that fails."""
    name, data = f"probe-{secrets.token_hex(8)}", secrets.token_bytes(64)
    do = "Make the folder, or mount it, writable." if place.is_folder else "Look at its name, and at the credentials."
    try:
        road = place.open()
        road.put(name, data)
        try:
            is_there = road.fetch(name, len(data)) == data and name in road.names()
        finally:
            road.remove([name])
    except OSError as error:
        raise ConfigError(KEY, f"a place that can be written, {place.shown}", words(error), do) from None
    if not is_there:
        raise ConfigError(KEY, f"a place that gives back what it was given, {place.shown}", "something else", do)
