"""Exclusive use of a run folder: a lock on its file `run.lock`, which the kernel releases with the process that has it.

The process that carries a run out, its daemon or the command itself, has the lock for as long as it lives; so the next
daemon of a run finds it free, however the one before it ended. The file names its last owner, for people, and is never
removed: a lock on a file that is gone keeps no process out.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

LOCK: Final = "run.lock"
_TRIES_MAX: Final = 10
_PAUSE_SECONDS: Final = 0.02
"""A process that only looks (`user_of`) has the lock for some microseconds."""


class InUseError(Exception):
    """A process that lives has this run folder."""


@final
class RunLock:
    """The lock on a folder, until it is closed, or this process ends; child processes do not inherit it."""

    def __init__(self, folder: Path) -> None:
        """Take it; InUseError if another process has it, OSError if there is no such folder."""
        self._file = _opened(folder / LOCK)
        for tries in range(1, _TRIES_MAX + 1):
            if _is_taken(self._file):
                break
            if tries == _TRIES_MAX:
                user = _said(self._file)
                os.close(self._file)
                raise InUseError(f"a run that goes on there, of process {user}")
            time.sleep(_PAUSE_SECONDS)
        with suppress(OSError):  # A disk that takes nothing: the pid is missing, but the lock holds.
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock. Idempotent."""
        if self._file != -1:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def user_of(folder: Path) -> str:
    """The id of the process that has a run folder; empty if none has."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return "" if _is_taken(file) else _said(file)
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    """The file, made if it is missing; read-only if the disk takes no writes."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _is_taken(file: int) -> bool:
    """Whether this process has the lock now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _said(file: int) -> str:
    """The pid in the file of the process that has the lock."""
    return os.pread(file, 32, 0).decode("ascii", "replace").strip() or "of an unknown number"
