"""The folder of a launch, `launches/NAME`: what was printed, and launch.json, by which later commands know it.

launch.json is written before anything is submitted, so that a launcher that is killed half-way leaves nothing that
`isthmus launch down` does not find.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any, Final, Self, final

import msgspec

from isthmus.programs.wings.launch.launch_file import LaunchRequest, LaunchTable, name_of
from isthmus.runtime.errors import ConfigError, nearest
from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.files import read_text, write_json
from isthmus.runtime.system.locks import FileLock
from isthmus.runtime.system.refusals import is_absent, reason, remedy

LAUNCHES: Final = Path("launches")
NOTE: Final = "launch.json"
LOCK: Final = "launch.lock"
RUN: Final = "run"
"""The run folder below that of the launch, where the engine's machines share it."""


@final
@dataclass(frozen=True, slots=True)
class Launch:
    """A launch as its folder has it, whose path has no links: by it engines know jobs. `table` are the keys of
    [launch] and `asked` those of the run that were asked for."""

    folder: Path
    engine: str
    name: str
    islands: int
    nodes_per_island: int
    slots_max: int
    grace: float
    table: LaunchTable = field(default_factory=LaunchTable)
    asked: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: str, request: LaunchRequest, folder: Path) -> Self:
        """The launch of a request."""
        numbers = (request.islands, request.nodes_per_island, request.slots_max, request.grace)
        return cls(folder.resolve(), engine, request.name, *numbers, request.table, request.asked)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The launch in a folder; ConfigError if there is none."""
        doing = f"Looking for a launch in {folder}"
        try:
            noted = json.loads(read_text(folder / NOTE))
            return cls(folder.resolve(), **{**noted, "table": msgspec.convert(noted["table"], LaunchTable)})
        except FileNotFoundError:
            do = "Type it where `isthmus launch` was typed, or name the folder with --to."
            raise ConfigError(doing, f"{NOTE}, which `isthmus launch` writes", "none", do) from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            do = "Take the folder away, once the engine has nothing of it."
            raise ConfigError(
                doing, f"{NOTE} as it was written", f"{type(error).__name__}: {error}", remedy(error, do)
            ) from None

    def write(self) -> None:
        """Write launch.json, whole or not at all."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "folder"}
        write_json(self.folder / NOTE, {**values, "table": msgspec.to_builtins(self.table)})

    @contextmanager
    def busy(self) -> Iterator[int]:
        """For what looks and then submits or ends: waits for other launchers, and for commands that a killed one has
        left. They hold the lock that is yielded, a descriptor, as long as they live. Within itself it is the same."""
        path = self.folder / LOCK
        if path in _held:
            yield _held[path]
            return
        while True:
            with _opened(path) as lock:
                held = FileLock(lock.fileno(), path)
                try:
                    held.take(waits=True)
                except OSError as error:
                    do = "Name a folder on another disk with --to."
                    raise ConfigError(f"Locking {path}", "to lock it", reason(error), remedy(error, do)) from None
                if not _is_at(lock.fileno(), path):  # Whoever had it took the folder away.
                    held.release()
                    continue
                _held[path] = lock.fileno()
                try:
                    yield _held[path]
                finally:
                    del _held[path]
                    held.release()
                return

    def with_islands(self, islands: int) -> Launch:
        """The same with another number of islands, written."""
        launch = replace(self, islands=islands)
        launch.write()
        return launch


_held: Final[dict[Path, int]] = {}
"""The locks of this process, by their paths."""


def _opened(path: Path) -> IO[bytes]:
    """The file, in a folder that is made; ConfigError if it cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return opened_at_end(path)
    except OSError as error:
        do = "Name another folder with --to."
        raise ConfigError(f"Writing to {path.parent}", "to write", reason(error), remedy(error, do)) from None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the open file is the one at that path."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError as error:
        if is_absent(error):
            return False
        raise


def folder_for(name: str, to: Path | None) -> Path:
    """The folder of a launch of that name, by a path without links."""
    return (LAUNCHES / name if to is None else to).resolve()


def find(file: Path | None, to: Path | None) -> Launch:
    """The launch in the folder `to`, or that of a file, or the only one here; ConfigError if there is none."""
    if to is not None:
        return Launch.read(to)
    if file is not None:
        return Launch.read(folder_for(name_of(file), None))
    names = sorted(path.parent.name for path in LAUNCHES.glob(f"*/{NOTE}"))
    if len(names) != 1:
        found = f"{len(names)}: {', '.join(names)}" if names else "none"
        do = f"Name its FILE. {nearest('', names)}" if names else "Type it where `isthmus launch` was typed."
        raise ConfigError(f"Looking for a launch in {LAUNCHES}", "one", found, do)
    return Launch.read(LAUNCHES / names[0])
