"""The names of this user's machine daemons on this computer: who has one, where it listens, and which runs it has.

Decides that a machine's daemon has its name to itself. It also notes the machine's runs, so that the next daemon of
that name can adopt them.
"""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple, final

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.files import read_text, user_folder, write_json
from isthmus.runtime.system.locks import FileLock
from isthmus.runtime.system.refusals import is_own, reason, remedy
from isthmus.runtime.wire.daemon_notes import DaemonNote

_MACHINES: Final = Path("isthmus", "daemons", "machines")
"""Below the state folder of a user."""


@final
@dataclass(frozen=True, slots=True)
class DaemonRun:
    """A run of a daemon; `is_watched`: a command has to renew its lease."""

    folder: str
    is_watched: bool


class DaemonEntry(NamedTuple):
    """A machine's daemon, and its runs."""

    note: DaemonNote
    runs: tuple[DaemonRun, ...]


def machines_folder() -> Path:
    """The folder where the machines' daemons of this user register."""
    home = user_folder("XDG_STATE_HOME", ".local/state")
    return (_without_home() if home is None else home) / _MACHINES


def admitted_path(machine: str) -> Path:
    """The list of those that the machine whose daemon has this name admits (`admissions`)."""
    return machines_folder() / f"{machine}.admitted"


def _without_home() -> Path:
    """The folder for the state of a user without a home; ConfigError if it is another user's."""
    folder = Path(tempfile.gettempdir()) / f"isthmus-state-{os.getuid()}"
    with suppress(FileNotFoundError):
        if folder.lstat().st_uid != os.getuid():
            do = "Set HOME, or XDG_STATE_HOME, to a folder of this user."
            raise ConfigError("Looking for daemons", f"{folder}, of this user", "another user's", do)
    return folder


def living(home: Path | None = None) -> dict[str, DaemonEntry]:
    """Every machine's daemon that lives, by its name; of the user whose XDG_STATE_HOME is `home`, or of this one."""
    paths = sorted((machines_folder() if home is None else home / _MACHINES).glob("*.json"))
    entries = {path.stem: entry for path in paths if (entry := _read(path)) is not None}
    return {name: entry for name, entry in entries.items() if entry.note.is_living}


class NameTakenError(ConfigError):
    """Another daemon of this user on this computer has the `name`."""

    name = ""


@final
class NameClaim:
    """A machine's daemon has its name to itself for as long as the process lives: the kernel releases its lock."""

    def __init__(self, name: str) -> None:
        """Take the name; NameTakenError if another daemon of this user has it, ConfigError if it cannot be noted."""
        self._path = machines_folder() / f"{name}.json"
        self._name = name
        doing = f"Starting the daemon {name!r}"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = opened_at_end(self._path.with_suffix(".lock"))
        except OSError as error:
            do = "Set XDG_STATE_HOME to a folder that it may write to."
            do = do if error.errno == errno.EROFS else remedy(error, do)  # Of a container whose root is read-only.
            raise ConfigError(doing, f"to write to {self._path.parent}", reason(error), do) from None
        try:
            self._claim = FileLock(self._lock.fileno(), Path(self._lock.name))
            is_taken = self._claim.take()
        except OSError as error:
            self._lock.close()
            do = "Set XDG_STATE_HOME to a folder on another disk."
            raise ConfigError(doing, f"to lock {self._lock.name}", reason(error), remedy(error, do)) from None
        if not is_taken:
            other = _read(self._path)
            actual = (
                "one of this name"
                if other is None
                else f"one with process id {other.note.pid} at {other.note.endpoint}"
            )
            self._lock.close()
            do = "Take another name, or end that one first."
            taken = NameTakenError(doing, "a name that no daemon on this machine has", actual, do)
            taken.name = name
            raise taken
        entry = _read(self._path)
        self.former: tuple[DaemonRun, ...] = () if entry is None else entry.runs

    def write(self, endpoint: str, runs: Iterable[DaemonRun]) -> None:
        """Write this daemon's endpoint and runs."""
        note = DaemonNote.mine(endpoint, self._name)
        write_json(self._path, {**asdict(note), "runs": [asdict(run) for run in runs]})

    def close(self, *, forget: bool) -> None:
        """Give the name back; `forget` unless a next daemon of this name is to adopt the runs."""
        if forget:
            self._path.unlink(missing_ok=True)
        self._claim.release()
        self._lock.close()


def _read(path: Path) -> DaemonEntry | None:
    """The entry in a file; None if the file is missing or not an entry. OSError where this process has no descriptor
    for it: its runs are not to be forgotten."""
    try:
        entry = json.loads(read_text(path))
        runs = tuple(DaemonRun(str(run["folder"]), bool(run["is_watched"])) for run in entry["runs"])
        return DaemonEntry(DaemonNote.of(entry), runs)
    except OSError as error:
        if is_own(error):
            raise
        return None
    except (ValueError, KeyError, TypeError):
        return None
