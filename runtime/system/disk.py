"""The disk interface of a host, to write files and read them, and its implementation by the kernel.

It decides nothing: guarantees after a failure are built on top of it, in `files`. A host gets its disk as an argument,
like its clock, so that a simulation can pass one that fills up, fails, or loses power.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol, final

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

    def create(self, path: Path) -> File:
        """Open a new file, or an existing one that is emptied; its folder is created if it is missing."""

    def rename(self, path: Path, target: Path) -> None:
        """Rename a file within its folder, atomically, in place of an existing one."""

    def remove(self, path: Path) -> None:
        """Delete a file, if it exists."""

    def read(self, path: Path) -> bytes:
        """The contents of a file."""

    def sizes(self, path: Path) -> dict[str, int]:
        """The names and bytes of the files in a folder, sorted; empty where there is no folder."""

    def sync_folder(self, path: Path) -> None:
        """Return when the names in a folder would survive a power failure."""


@final
class KernelFile:
    """A file of this machine, by its descriptor."""

    def __init__(self, path: Path, flags: int) -> None:
        self._descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if (mode := _repaired(os.fstat(self._descriptor).st_mode, 0o600, 0o666)) is not None:
            os.fchmod(self._descriptor, mode)

    @property
    def size(self) -> int:
        """Bytes in it now."""
        return os.fstat(self._descriptor).st_size

    def last(self) -> bytes:
        size = self.size
        return os.pread(self._descriptor, 1, size - 1) if size else b""

    def write(self, data: bytes) -> int:
        return os.write(self._descriptor, data)

    def sync(self) -> None:
        """Return when the disk reports that it has all of it."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        os.close(self._descriptor)


@final
class KernelDisk:
    """The files of this machine."""

    def append(self, path: Path) -> File:
        self._make_folder(path.parent)
        return KernelFile(path, os.O_RDWR | os.O_APPEND)

    def create(self, path: Path) -> File:
        self._make_folder(path.parent)
        return KernelFile(path, os.O_RDWR | os.O_TRUNC)

    def rename(self, path: Path, target: Path) -> None:
        path.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

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

    def _make_folder(self, path: Path) -> None:
        """Create a folder and its parents durably."""
        if not path.is_dir():
            self._make_folder(path.parent)
            path.mkdir(exist_ok=True)
            if (mode := _repaired(path.stat().st_mode, 0o700, 0o777)) is not None:
                path.chmod(mode)
            self.sync_folder(path.parent)


DISK: Final = KernelDisk()
