"""Locks on files, which the kernel releases with the process that has them (flock(2)), also on disks without locks.

Decides whether another process has a file. Only EAGAIN says that; any other error is this process's or the disk's, and
is raised. On a disk that has no locks (some NFS, Lustre and FUSE) a note of host and process stands in for the lock: a
symbolic link beside the file, because it is made whole or not at all, and only by one. A note of a process that has
ended is no lock. Of a process on another host nobody here can know whether it lives: its note counts, and whoever meets
it is told its name, so that they can look there.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self, final

from isthmus.runtime.system.disk import NEW, beside
from isthmus.runtime.system.processes import boot_id, started_at
from isthmus.runtime.system.refusals import LOCKED, LOCKLESS, is_absent

NOTE_SUFFIX: Final = ".held"
"""Of the note that stands in for the lock on a file."""
_TAKING_SUFFIX: Final = ".held.taking"
"""Of the note of whoever removes a dead one: of two that do, one would remove what the other has just made."""
LINKLESS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP})
"""Of a symbolic link: the disk has none."""
_PAUSE_SECONDS: Final = 0.05
_FIELDS: Final = 4


class LockHolder(NamedTuple):
    """A process that has a file: its host, its number, when it started (`processes.started_at`), and the boot of its
    host."""

    host: str
    pid: int
    started: int
    boot: str

    @classmethod
    def this(cls) -> Self:
        """This process."""
        return cls(_host(), os.getpid(), started_at(os.getpid()) or 0, boot_id().decode())

    @classmethod
    def of(cls, text: str) -> Self | None:
        """The one that a note names; None where it is none."""
        fields = text.split()
        if len(fields) != _FIELDS or not (fields[1].isdecimal() and fields[2].isdecimal()):
            return None
        return cls(fields[0], int(fields[1]), int(fields[2]), fields[3])

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this host."""
        return self.host == _host()

    @property
    def has_ended(self) -> bool:
        """Whether it is known to have ended."""
        return self.is_here and (self.boot != boot_id().decode() or started_at(self.pid) != self.started)

    def note(self) -> str:
        """What a note of it says."""
        return " ".join(map(str, self))


@final
class FileLock:
    """The lock on the open `file`, which is at `path`; not taken at first."""

    def __init__(self, file: int, path: Path) -> None:
        self._file, self._path = file, path
        self._is_noted = False

    @classmethod
    def inherited(cls, file: int) -> Self:
        """The lock that the parent of this process has taken on a file that it passed on."""
        lock = cls(file, Path(os.readlink(f"/proc/self/fd/{file}")))
        lock._is_noted = _flocked(file, waits=False) is None
        lock.sign()
        return lock

    def take(self, *, waits: bool = False) -> bool:
        """Whether this process has it now; `waits` until it has. OSError where that cannot be found out."""
        taken = _flocked(self._file, waits=waits)
        if taken is not None:
            return taken
        self._is_noted = True
        while not _noted(self._path):
            if not waits:
                self._is_noted = False
                return False
            time.sleep(_PAUSE_SECONDS)
        return True

    @property
    def is_noted(self) -> bool:
        """Whether a note stands in for the lock, because the disk has none."""
        return self._is_noted

    def sign(self) -> None:
        """Where a note stands in for the lock: let it name this process from now on."""
        if self._is_noted:
            fresh = beside(self._path)
            os.symlink(LockHolder.this().note(), fresh)
            os.replace(fresh, _note(self._path))

    def release(self) -> None:
        """Where a note stands in for the lock: remove it, unless another process has signed it. A lock itself goes with
        the last descriptor of the file."""
        if self._is_noted and holder_of(self._path) == LockHolder.this():
            with suppress(OSError):
                _note(self._path).unlink(missing_ok=True)
        self._is_noted = False


def alone(file: int) -> bool | None:
    """Whether this process has an open file that no other shares, from now on; None where the disk has no locks."""
    return _flocked(file, waits=False)


def share(file: int) -> bool | None:
    """Whether this process has an open file together with others that share it, a lock of its own alone being let go;
    None where the disk has no locks. It lasts until the last descriptor of this opening is closed."""
    return _flocked(file, waits=False, how=fcntl.LOCK_SH)


def is_locked(file: int, path: Path) -> bool:
    """Whether another process has the lock on an open file; OSError where that cannot be found out. It changes
    nothing, but has the lock for some microseconds."""
    taken = _flocked(file, waits=False)
    if taken is not None:
        if taken:
            fcntl.flock(file, fcntl.LOCK_UN)
        return not taken
    holder = holder_of(path)
    return holder is not None and not holder.has_ended


def holder_of(path: Path) -> LockHolder | None:
    """The process that the note beside a file names; None without one."""
    try:
        return LockHolder.of(os.readlink(_note(path)))
    except OSError as error:
        if is_absent(error):
            return None
        raise


def has_record_locks(folder: Path) -> bool:
    """Whether files in a folder can be locked as databases do it (fcntl(2)); OSError if no file can be made there."""
    probe = beside(folder / "locks")
    file = os.open(probe, os.O_RDWR | NEW, 0o600)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in LOCKLESS:
            return False
        raise
    finally:
        os.close(file)
        with suppress(OSError):
            probe.unlink()
    return True


def _host() -> str:
    return platform.node() or "localhost"


def _note(path: Path) -> Path:
    return path.with_name(path.name + NOTE_SUFFIX)


def _flocked(file: int, *, waits: bool, how: int = fcntl.LOCK_EX) -> bool | None:
    """Whether this process has the lock now, alone or shared; None where the disk has no locks."""
    try:
        fcntl.flock(file, how | (0 if waits else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in LOCKED:
            return False
        if error.errno in LOCKLESS:
            return None
        raise
    return True


def _noted(path: Path) -> bool:
    """Make the note of this process, where there is none, or one of a process that has ended; whether it is made."""
    mine = LockHolder.this()
    if _linked(mine, _note(path)):
        return True
    if not _is_dead(path):
        return False
    taking = path.with_name(path.name + _TAKING_SUFFIX)
    if not _linked(mine, taking):
        with suppress(FileNotFoundError):
            former = LockHolder.of(os.readlink(taking))
            if former is None or former.has_ended:  # It was killed between two system calls.
                taking.unlink(missing_ok=True)
        return False
    try:
        if not _is_dead(path):
            return False
        _note(path).unlink(missing_ok=True)
        return _linked(mine, _note(path))
    finally:
        taking.unlink(missing_ok=True)


def _is_dead(path: Path) -> bool:
    """Whether the note beside a file is of a process that has ended, or gone by now."""
    holder = holder_of(path)
    return holder is None or holder.has_ended


def _linked(holder: LockHolder, note: Path) -> bool:
    try:
        os.symlink(holder.note(), note)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in LINKLESS:
            raise OSError(errno.ENOLCK, "this disk has neither locks nor symbolic links", str(note)) from None
        raise
    return True
