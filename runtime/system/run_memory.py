"""A folder in a machine's memory for each run folder on it: what hosts leave there for their next lives, which a killed
process does not take along, and no disk waits for.

Decides where it is, that nobody else can write there, and when it goes: with its run, however that ends. A machine that
loses power loses it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from isthmus.runtime.system.control_groups import memory_free

ROOT: Final = Path("/dev/shm")
"""Where Linux keeps files in memory (tmpfs); in a container often 64 MB of it."""
KEPT_FREE: Final = 4
"""The part of it that no copy takes."""
UNNAMED_SECONDS: Final = 60.0
"""A folder that is so old, and does not say of which run it is, is swept."""
_RUN: Final = ".run"
"""In each folder: the path of its run folder."""
_MODE: Final = 0o700


def folder_of(run: Path) -> Path | None:
    """The folder in memory of the run in `run`, made where it is missing; None where this machine has no such memory,
    or somebody else has laid something in its place."""
    try:
        path = path_of(run)
        for folder in (path.parent, path):
            folder.mkdir(mode=_MODE, exist_ok=True)
            if not _is_own(folder):
                return None
            folder.chmod(_MODE)  # Whatever the umask was.
        with suppress(FileExistsError):
            descriptor = os.open(path / _RUN, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(os.fsencode(run.absolute()))
    except OSError:
        return None
    return path


def room_in(folder: Path) -> int:
    """The bytes that a run may take in it, 0 where that cannot be known: a quarter stays free, for what else lies in
    such memory, as do tensors of PyTorch's loaders; and there is no more of it than of the machine's, or container's.
    """
    with suppress(OSError):
        found = os.statvfs(folder)
        room = (found.f_bavail - found.f_blocks // KEPT_FREE) * found.f_frsize
        free = memory_free()
        return max(0, room if free is None else min(room, free))
    return 0


def forget(run: Path) -> None:
    """Remove the folder in memory of the run in `run`, if there is one."""
    with suppress(OSError):
        shutil.rmtree(path_of(run), ignore_errors=True)


def sweep(is_living: Callable[[Path], bool]) -> None:
    """Remove the folders of runs of this account that ended without a word: `is_living` says of a run folder whether
    its run goes on here."""
    of_account = _of_account()
    with suppress(OSError):
        for folder in of_account.iterdir() if _is_own(of_account) else ():
            try:
                goes_on = is_living(Path(os.fsdecode((folder / _RUN).read_bytes())))
            except FileNotFoundError:  # It is made just now, or was swept under a living writer, which made it again.
                goes_on = time.time() - folder.stat().st_mtime < UNNAMED_SECONDS
            if not goes_on:
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder, no link, of this account; OSError where nothing is there."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def path_of(run: Path) -> Path:
    """Where the folder of a run is, if there is one; OSError where its run folder is not there.

    It follows from what the run folder is, and not from how it is called: a copy of it, and another container's of the
    same name, have one of their own.
    """
    found = run.stat()
    digest = hashlib.sha256(f"{found.st_dev} {found.st_ino}".encode()).hexdigest()[:32]
    return _of_account() / digest


def _of_account() -> Path:
    return ROOT / f"isthmus-{os.geteuid()}"
