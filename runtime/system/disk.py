"""The disk interface of a host, to write files and read them, and its implementation by the kernel.

It decides nothing: guarantees after a failure are built on top of it, in `files`. A host gets its disk as an argument,
like its clock, so that a simulation can pass one that fills up, fails, or loses power.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final, Generic, Literal, NamedTuple, Protocol, TypeVar, final

from isthmus.runtime.system import run_memory

_MASK: Final = os.umask(0o077)
"""The umask with which this process started."""
os.umask(_MASK)


def _repaired(mode: int, owner: int, usual: int) -> int | None:
    """The permissions to give a file or folder whose owner lacks one of the bits `owner`; None if none is lacking.

    A task may change the umask at any time, and the files of a run are read by its other processes. Permissions that
    suffice stay as they are: a setgid folder, an access control list or the file system may have set them.
    """
    bits = stat.S_IMODE(mode)
    return None if bits & owner == owner else bits | (usual & ~_MASK)


def make_usable(descriptor: int) -> None:
    """Let its owner read and write an open file, whatever the umask was with which it was made."""
    if (mode := _repaired(os.fstat(descriptor).st_mode, 0o600, 0o666)) is not None:
        os.fchmod(descriptor, mode)


class IrregularFileError(OSError):
    """There is something at a path, and it is no regular file: a pipe, a socket, a device or a folder.

    To read a pipe waits for its writer for ever, and a device may have no end.
    """


_KINDS: Final = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


def open_regular(path: Path, mode: Literal["rb", "r+b"] = "rb") -> BinaryIO:
    """The regular file at a path, which may be a link to one, for reading, or with "r+b" for writing in place, too.

    IrregularFileError, at once, for what is no regular file; OSError as of open().
    """
    flags = os.O_RDWR if mode == "r+b" else os.O_RDONLY
    return open(os.fspath(path), mode, opener=lambda name, _: _regular(path, flags))


def opened_at_end(path: Path, *, follows_links: bool = False) -> BinaryIO:
    """A file for appending, made where there is none: a lock, or a log. A link is followed only if it is said.

    IrregularFileError, at once, for what is no regular file; OSError as of open().
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | (0 if follows_links else os.O_NOFOLLOW)
    return open(os.fspath(path), "ab", opener=lambda name, _: _regular(path, flags))


def check_regular(path: Path) -> None:
    """IrregularFileError for what is no regular file, OSError for what cannot be read: before it is handed to a
    library, which would wait for it."""
    os.close(_regular(path, os.O_RDONLY))


def beside(path: Path, before: str = ".") -> Path:
    """A new name for what is to replace a file: nobody can lay something there beforehand."""
    return path.with_name(f"{before}{path.name}.{secrets.token_hex(8)}")


NEW: Final = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a file is made where nothing may be."""


def _regular(path: Path, flags: int) -> int:
    """A descriptor of the regular file at a path, opened without waiting."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    except OSError as error:
        if error.errno == errno.ENXIO:  # A socket; a pipe without a reader, for a writer; a device without a driver.
            raise _irregular(path, os.stat(path).st_mode) from None
        raise
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise _irregular(path, mode)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _irregular(path: Path, mode: int) -> IrregularFileError:
    kind = next((name for is_of, name in _KINDS if is_of(mode)), "something else")
    return IrregularFileError(errno.EINVAL, f"it is {kind}, and no regular file", str(path))


class File(Protocol):
    """A file that is open for writing at its end."""

    @property
    def size(self) -> int:
        """Bytes in it now."""

    def last(self) -> bytes:
        """The last byte; empty for an empty file."""

    def write(self, data: bytes) -> int:
        """Append bytes; returns how many there was room for. OSError if none."""

    def sync(self) -> None:
        """Return when all that was written would survive a power failure; OSError if that is not certain."""

    def close(self) -> None:
        """Close the file."""


class Disk(Protocol):
    """The disk of one machine; OSError for every operation that fails."""

    def append(self, path: Path) -> File:
        """Open a file for appending; it is created if it is missing, and so is its folder."""

    def beside(self, path: Path) -> Path:
        """A name for what is to replace a file, which nobody can know before."""

    def create(self, path: Path) -> File:
        """Make a file where nothing is; its folder is created if it is missing."""

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file within its folder, atomically, in place of an existing one."""

    def remove(self, path: Path) -> None:
        """Delete a file, if it exists."""

    def read(self, path: Path) -> bytes:
        """The contents of a file."""

    def read_part(self, path: Path, at: int, size: int) -> bytes:
        """At most `size` bytes of a file, from byte `at` on; fewer where it ends."""

    def sizes(self, path: Path) -> dict[str, int]:
        """The names and bytes of the files in a folder, sorted; empty where there is no folder."""

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder would survive a power failure."""

    def memory_of(self, folder: Path, size: int) -> Path | None:
        """A folder in the machine's memory for hosts of the run in `folder`, with room for `size` bytes; None where
        there is none. What lies there outlives its writer, and neither the run nor a power failure."""

    def write_beside(self, work: Callable[[], None]) -> DiskWork:
        """Begin work on files of this disk beside what the caller does next."""


class DiskWork(Protocol):
    """Work on a disk beside its caller's."""

    def is_alive(self) -> bool:
        """Whether it goes on."""

    def join(self) -> None:
        """Wait for its end."""


NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Errors of a disk that is full, or of which this user has had its share."""
REFUSED_SECONDS: Final = 60.0
"""How long a refusal counts that nothing has followed. What is refused is tried again within a minute, or is lost."""


class _Refusal(NamedTuple):
    """A write that failed: when, for want of how many bytes, and whether more room would do (or a larger quota)."""

    at: float
    size: int
    is_quota: bool


@final
class FullDisks:
    """The disks that had no room for what this process wrote last, each named by where it is mounted; from any thread.

    A disk is no longer full once a write into the same folder succeeds, or there is room for what was refused.
    """

    def __init__(self) -> None:
        self._refused: dict[str, _Refusal] = {}

    def refused(self, folder: Path, error: OSError, size: int = 0) -> None:
        """A write of so many bytes into a folder failed."""
        if error.errno in NO_ROOM:
            self._refused[str(folder)] = _Refusal(time.monotonic(), size, error.errno == errno.EDQUOT)

    def took(self, folder: Path) -> None:
        """A write into a folder succeeded."""
        if self._refused:  # This is after every write.
            self._refused.pop(str(folder), None)

    def now(self) -> tuple[str, ...]:
        """Those that are full now, sorted."""
        if not self._refused:
            return ()
        since, places = time.monotonic() - REFUSED_SECONDS, set[str]()
        for folder, refusal in self._refused.copy().items():
            with suppress(OSError):
                if refusal.at >= since and (refusal.is_quota or not _has_room(folder, refusal.size)):
                    places.add(mount_point(folder))
        return tuple(sorted(places))


def _has_room(folder: str, size: int) -> bool:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > size and (found.f_favail > 0 or not found.f_files)


def mount_point(folder: str) -> str:
    """Where the file system of a folder is mounted; OSError if the folder is gone."""
    path = Path(folder).resolve()
    device = path.stat().st_dev
    for parent in path.parents:
        if parent.stat().st_dev != device:
            return str(path)
        path = parent
    return str(path)


@final
class KernelFile:
    """A file of this machine, by its descriptor. Its errors name it, and are noted in `full`."""

    def __init__(self, path: Path, flags: int, full: FullDisks) -> None:
        self._path, self._full = path, full
        self._is_whole, self._written = bool(flags & os.O_EXCL), 0
        try:
            self._descriptor = _regular(path, flags | os.O_CREAT | os.O_NOFOLLOW)
        except OSError as error:
            full.refused(path.parent, error)
            raise
        make_usable(self._descriptor)

    @property
    def size(self) -> int:
        """Bytes in it now."""
        return os.fstat(self._descriptor).st_size

    def last(self) -> bytes:
        size = self.size
        return os.pread(self._descriptor, 1, size - 1) if size else b""

    def write(self, data: bytes) -> int:
        try:
            count = os.write(self._descriptor, data)
        except OSError as error:
            self._note(error, len(data))
            raise
        if count == len(data):
            self._full.took(self._path.parent)
        self._written += count
        return count

    def sync(self) -> None:
        """Return when the disk reports that it has all of it."""
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            self._note(error)
            raise

    def _note(self, error: OSError, size: int = 0) -> None:
        """A write of so many bytes failed: the error names the file, and the disk is full if it says so."""
        # What is written whole is removed when a part of it is refused, and gives its room back.
        self._full.refused(self._path.parent, error, size + self._written if self._is_whole else size)
        if error.errno is not None:
            error.filename = str(self._path)

    def close(self) -> None:
        os.close(self._descriptor)


@final
class KernelDisk:
    """The files of this machine; `full` are the disks that have no room."""

    def __init__(self) -> None:
        self.full = FullDisks()

    def append(self, path: Path) -> File:
        self._make_folder(path.parent)
        return KernelFile(path, os.O_RDWR | os.O_APPEND, self.full)

    def beside(self, path: Path) -> Path:
        return beside(path)

    def create(self, path: Path) -> File:
        self._make_folder(path.parent)
        return KernelFile(path, os.O_RDWR | os.O_EXCL, self.full)

    def rename(self, path: Path, target: Path) -> None:
        path.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def read(self, path: Path) -> bytes:
        with open_regular(path) as file:
            return file.read()

    def read_part(self, path: Path, at: int, size: int) -> bytes:
        with open_regular(path) as file:
            file.seek(at)
            return file.read(size)

    def sizes(self, path: Path) -> dict[str, int]:
        size_of = {}
        with suppress(FileNotFoundError), os.scandir(path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # Another process has just deleted it.
                    if entry.is_file(follow_symlinks=False):
                        size_of[entry.name] = entry.stat(follow_symlinks=False).st_size
        return dict(sorted(size_of.items()))

    def sync_folder(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def memory_of(self, folder: Path, size: int) -> Path | None:
        memory = run_memory.folder_of(folder)
        return None if memory is None or run_memory.room_in(memory) < size else memory

    def write_beside(self, work: Callable[[], None]) -> DiskWork:
        thread = threading.Thread(target=work, name="beside", daemon=True)
        thread.start()
        return thread

    def _make_folder(self, path: Path) -> None:
        """Create a folder and its parents durably."""
        if not path.is_dir():
            self._make_folder(path.parent)
            path.mkdir(exist_ok=True)
            if (mode := _repaired(path.stat().st_mode, 0o700, 0o777)) is not None:
                path.chmod(mode)
            self.sync_folder(path.parent)


DISK: Final = KernelDisk()


TOLD_SECONDS: Final = 60.0
"""Between two words of one full disk."""
AGAIN_SECONDS: Final = 5.0
"""Without a refusal, until a disk is said to take writes again: some lines may find room where a snapshot does not."""

_Place = TypeVar("_Place")


class FullNews(NamedTuple, Generic[_Place]):
    """The places of full disks to tell of now, and those that take writes again."""

    full: list[_Place]
    again: list[_Place]


@final
class FullNotes(Generic[_Place]):
    """When to tell of full disks, each by a place: at once, and once a minute as long as it stays full."""

    def __init__(self) -> None:
        self._told: dict[_Place, float] = {}
        self._seen: dict[_Place, float] = {}

    def update(self, full: Iterable[_Place], now: float) -> FullNews[_Place]:
        """What to tell, where these are full at `now` (seconds)."""
        self._seen |= dict.fromkeys(full, now)
        due = [place for place, seen in self._seen.items() if seen == now and self._is_due(place, now)]
        self._told |= dict.fromkeys(due, now)
        again = [place for place, seen in self._seen.items() if now - seen >= AGAIN_SECONDS]
        for place in again:
            del self._seen[place]
        return FullNews(due, again)

    def _is_due(self, place: _Place, now: float) -> bool:
        return place not in self._told or now - self._told[place] >= TOLD_SECONDS
