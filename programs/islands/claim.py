"""The island of this machine that a learner takes: the first that no living process has.

An island is a locked file, for all runs of a user on this machine. The kernel releases a lock when its process ends,
for whatever reason, so that no ownership has to be recorded: a daemon may die, and be followed by another, and a
learner's next life finds the island of its last one free.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, final

from isthmus.runtime.errors import ConfigError


@final
class Claim:
    """An island that this process has, until it ends."""

    def __init__(self, island: int, locks: list[BinaryIO]) -> None:
        self.island, self._locks = island, locks

    def close(self) -> None:
        """Release the claim."""
        for lock in self._locks:
            lock.close()


def claim(islands: Sequence[Sequence[str]], folder: Path | None = None) -> Claim:
    """The first free island; each is given as the names of the resources that it needs for itself.

    ConfigError if none is free.
    """
    folder = _folder() if folder is None else folder
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.lstat().st_uid != os.getuid():
        raise ConfigError("Taking an island", f"{folder}, of this user", "another user's", "Remove it.")
    for number, names in enumerate(islands):
        locks = _locked(folder / f"{name}.lock" for name in names)
        if locks is not None:
            return Claim(number, locks)
    do = "End what has them, or start fewer learners here: run.learners, or `islands` of this machine."
    raise ConfigError("Taking an island", f"one of {len(islands)} that is free", "all of them taken", do)


def _locked(paths: Iterable[Path]) -> list[BinaryIO] | None:
    """These files, locked; None, and none locked, if another process has one."""
    locks: list[BinaryIO] = []
    for path in paths:
        lock = path.open("ab")
        locks.append(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            for each in locks:
                each.close()
            return None
    return locks


def _folder() -> Path:
    """The folder of this user's locks."""
    return Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"isthmus-islands-{os.getuid()}"
