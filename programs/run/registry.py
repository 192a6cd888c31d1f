"""The living daemons of this user on this machine: one small file for each, in the user's state folder.

Decides that a machine's daemon has its name to itself, by a lock that the kernel releases with the process, and lets
`isthmus status --all` find runs. A machine's daemon also notes its runs, so that the next one of that name can adopt
them. Private daemons, one per run, leave a file while they live; the file of a killed one is cleared away here.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self, final

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import write_json
from isthmus.runtime.system.processes import started_at


@final
@dataclass(frozen=True, slots=True)
class Run:
    """A run of a daemon; `is_watched`: a command has to renew its lease."""

    folder: str
    is_watched: bool


@final
@dataclass(frozen=True, slots=True)
class Entry:
    """A daemon; `name` is empty for a private one."""

    name: str
    endpoint: str
    pid: int
    started: int | None
    runs: tuple[Run, ...]

    @property
    def is_living(self) -> bool:
        """Whether the process is still the one that wrote this."""
        return self.started is not None and started_at(self.pid) == self.started

    @classmethod
    def mine(cls, name: str, endpoint: str, runs: Iterable[Run]) -> Self:
        """The entry of this process."""
        return cls(name, endpoint, os.getpid(), started_at(os.getpid()), tuple(runs))


def state_folder() -> Path:
    """The folder where this user's daemons register."""
    home = os.environ.get("XDG_STATE_HOME")
    return _below(Path(home) if home else Path.home() / ".local" / "state")


def living() -> list[Entry]:
    """Every daemon that lives, machines' daemons first."""
    entries = []
    for path in sorted(state_folder().glob("*/*.json")):
        entry = _read(path)
        if entry is not None and entry.is_living:
            entries.append(entry)
        elif path.parent.name == _PRIVATE:
            path.unlink(missing_ok=True)
    return sorted(entries, key=lambda entry: (not entry.name, entry.name))


def machine(name: str, home: Path) -> Entry | None:
    """The daemon of machine `name` whose XDG_STATE_HOME is `home`, if it lives."""
    entry = _read(_below(home) / _MACHINES / f"{name}.json")
    return entry if entry is not None and entry.is_living else None


def _below(home: Path) -> Path:
    return home / "isthmus" / "daemons"


_MACHINES: Final = "machines"
_PRIVATE: Final = "runs"


@final
class Claim:
    """A machine's daemon has its name to itself for as long as the process lives."""

    def __init__(self, name: str) -> None:
        """Take the name; ConfigError if another daemon of this user has it."""
        self._path = state_folder() / _MACHINES / f"{name}.json"
        self._name = name
        doing = f"Starting the daemon {name!r}"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = self._path.with_suffix(".lock").open("ab")
        except OSError as error:
            do = "Set XDG_STATE_HOME to a folder that it may write to."
            raise ConfigError(doing, f"to write to {self._path.parent}", str(error), do) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            other = _read(self._path)
            found = "one of this name" if other is None else f"one with process id {other.pid} at {other.endpoint}"
            self._lock.close()
            do = "Take another --name, or end that one first."
            raise ConfigError(doing, "a name that no daemon on this machine has", found, do) from None
        entry = _read(self._path)
        self.former: tuple[Run, ...] = () if entry is None else entry.runs

    def write(self, endpoint: str, runs: Iterable[Run]) -> None:
        """Write this daemon's endpoint and runs."""
        write_json(self._path, asdict(Entry.mine(self._name, endpoint, runs)))

    def close(self, *, forget: bool) -> None:
        """Give the name back; `forget` unless a next daemon of this name is to adopt the runs."""
        if forget:
            self._path.unlink(missing_ok=True)
        self._lock.close()


@final
class Private:
    """The note of a daemon of one run; a state folder that cannot be written to costs a line of `status --all`."""

    def __init__(self, endpoint: str, folder: Path) -> None:
        self._path = state_folder() / _PRIVATE / f"{os.getpid()}.json"
        with suppress(OSError):
            write_json(self._path, asdict(Entry.mine("", endpoint, [Run(str(folder), is_watched=True)])))

    def close(self) -> None:
        """Take the note away."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _read(path: Path) -> Entry | None:
    """The entry in a file; None if the file is missing or not an entry."""
    try:
        told = json.loads(path.read_text())
        runs = tuple(Run(str(run["folder"]), bool(run["is_watched"])) for run in told["runs"])
        return Entry(str(told["name"]), str(told["endpoint"]), int(told["pid"]), told["started"], runs)
    except (OSError, ValueError, KeyError, TypeError):
        return None
