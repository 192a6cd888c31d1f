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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

ROOT: Final = Path("/dev/shm")
"""Where Linux keeps files in memory (tmpfs); in a container often 64 MB of it."""
_RUN: Final = ".run"
"""In each folder: the path of its run folder."""
_MODE: Final = 0o700


def folder_of(run: Path) -> Path | None:
    """The folder in memory of the run in `run`, made where it is missing; None where this machine has no such memory,
    or somebody else has laid something in its place."""
    path = path_of(run)
    try:
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
    """The bytes that are free in it; 0 where that cannot be known."""
    with suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    return 0


def forget(run: Path) -> None:
    """Remove the folder in memory of the run in `run`, if there is one."""
    shutil.rmtree(path_of(run), ignore_errors=True)


def sweep(is_living: Callable[[Path], bool]) -> None:
    """Remove the folders of runs of this account that ended without a word: `is_living` says of a run folder whether
    its run goes on here."""
    of_account = path_of(Path()).parent
    with suppress(OSError):
        for folder in of_account.iterdir() if _is_own(of_account) else ():
            with suppress(FileNotFoundError):  # Of one that is made just now.
                if not is_living(Path(os.fsdecode((folder / _RUN).read_bytes()))):
                    shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    """Whether it is a folder, no link, of this account; OSError where nothing is there."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def path_of(run: Path) -> Path:
    """Where the folder of a run is, if there is one."""
    digest = hashlib.sha256(os.fsencode(run.absolute())).hexdigest()[:32]
    return ROOT / f"isthmus-{os.geteuid()}" / digest
