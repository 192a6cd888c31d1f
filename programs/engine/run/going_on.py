"""How a run that a signal has interrupted goes on: the command that its user types.

Decides between the command by which it was begun, where that says so itself (`--resume-or-start`), a resume of its
folder, the next daemon of its home, where it is of a cluster, and a new beginning, where it had no snapshot yet.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from isthmus.programs.engine.request.new_folder import CONFIG
from isthmus.runtime.supervision.home_events import INTERRUPTED
from isthmus.runtime.system.files import read_bytes

Way: TypeAlias = Literal["same command", "resume", "daemon", "begin again"]

OR_START: Final = "--resume-or-start"
_SPEC, _CLUSTER, _PROGRAM = "spec.json", "cluster.json", "isthmus"
_WORDS: Final[Mapping[Way, str]] = {
    "same command": "the same command, in the same folder: {command}",
    "resume": "{command}",
    "daemon": "the next daemon of its home{home}, started as before",
    "begin again": "no snapshot was taken yet; to begin it again: {command}",
}


@dataclass(frozen=True, slots=True)
class GoingOn:
    """A way on; `command` is what to type, '' where a daemon is to be started; `home` is its machine, '' if unknown."""

    way: Way
    command: str = ""
    home: str = ""

    def words(self) -> str:
        """What to do to go on."""
        return _WORDS[self.way].format(command=self.command, home=self.home and f", {self.home}")


def going_on(folder: Path, outcome: str) -> GoingOn | None:
    """How the run in a folder goes on; None if it was not interrupted. Without a spec here its home is elsewhere."""
    if outcome != INTERRUPTED:
        return None
    if not (folder / _SPEC).exists() or (folder / _CLUSTER).exists():
        return GoingOn("daemon", home=str(_object(folder / _CLUSTER).get("home", "")))
    typed = _typed(folder)
    if OR_START in typed:
        return GoingOn("same command", shlex.join([_PROGRAM, *typed]))
    from isthmus.programs.engine.snapshots.snapshot_files import has_snapshot

    name = _short(folder)
    if not has_snapshot(folder):
        return GoingOn("begin again", shlex.join([_PROGRAM, "train", "--config", str(Path(name, CONFIG))]))
    return GoingOn("resume", shlex.join([_PROGRAM, "train", "--resume", name]))


def _typed(folder: Path) -> Sequence[str]:
    """The words of the command that began a run, without its name; none where its spec cannot be read."""
    from isthmus.programs.engine.request import spec

    try:
        return spec.load(folder).settings.argv[1:]
    except (OSError, ValueError, KeyError, TypeError):
        return ()


def _object(path: Path) -> dict[str, Any]:
    """The object in a file of JSON; empty where there is none."""
    try:
        found = json.loads(read_bytes(path))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _short(folder: Path) -> str:
    """The folder, relative to the current one if it is below it."""
    return os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
