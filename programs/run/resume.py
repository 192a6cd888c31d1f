"""Going on with a run whose processes have all died: what its folder must have for that.

Decides whether a run can be resumed; what follows is an ordinary takeover. The next daemon finds in the ledger which
lives there were, takes them for ended, and begins the next life of each host; the recorder recalls its books, and holds
the versions of the last snapshot; shards and learners take them from it like from any other holder. So nothing is
restored that is not restored after a death of some hosts, too. A run that failed before its end had begun, as it does
where its command is gone, was cut off in this sense; one of whose final model a part is written was not.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from isthmus.programs.recorder import memory as recorder_memory
from isthmus.programs.recorder.snapshots import BEFORE, FOLDER, MANIFEST
from isthmus.programs.request import spec
from isthmus.programs.request.request import Request
from isthmus.programs.request.run_lock import InUseError, RunLock
from isthmus.programs.run.in_processes import Submitted, apart, submitted
from isthmus.runtime.daemon.reopen import reopen
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import DISK

OVER: Final = ("summary.json", "over.json")
_OF_END: Final = ("report.html", "trace.json")


def resumed(folder: Path, request: Callable[[], Request]) -> Submitted:
    """A run that was cut off, ready to go on in its folder; ConfigError, with nothing changed, where it cannot.

    `request` is what the folder's config.toml asks for today: it must be the graph that the run was begun with.
    """
    doing = f"Resuming {folder}"
    _check_folder(folder, doing)
    told = spec.load(folder)
    found = apart(lambda: {"fingerprint": request().fingerprint})["fingerprint"]
    if found != told.fingerprint:
        expected = f"the graph that it was begun with, {told.fingerprint}"
        do = "The program, the layout of its model or isthmus itself was changed since. Undo that, or start a new run."
        raise ConfigError(doing, expected, f"config.toml asks for another one now, {found}", do)
    with _lock(folder, doing):
        spec.count_on(folder)
        reopen(folder)
        for name in (*OVER, *_OF_END):
            (folder / name).unlink(missing_ok=True)
    return submitted(folder, folder.name)


def _why_no_spec(folder: Path) -> str:
    """Why there is no run in processes in a folder, or ''."""
    try:
        return "one in one process" if spec.load(folder).transport == spec.INPROC else ""
    except FileNotFoundError:
        return "no spec.json" if folder.is_dir() else "no such folder"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"a {spec.SPEC} that cannot be read: {error}"


def _lock(folder: Path, doing: str) -> RunLock:
    try:
        return RunLock(folder)
    except InUseError as error:
        do = f"Look at it: isthmus status {folder}"
        raise ConfigError(doing, "a run that was cut off", f"{error}", do) from None


def _check_folder(folder: Path, doing: str) -> None:
    if found := _why_no_spec(folder):
        do = "Runs with --transport inproc cannot be resumed: they have no daemon."
        raise ConfigError(doing, "the folder of a run in processes", found, do)
    if (folder / spec.CLUSTER).exists():
        do = "That is not built. Start it again."
        raise ConfigError(doing, "a run of this machine alone", "one of a cluster", do)
    _lock(folder, doing).close()
    memory = recorder_memory.load(folder, DISK)
    outcomes = [json.loads((folder / name).read_text())["outcome"] for name in OVER if (folder / name).exists()]
    if outcomes and (outcomes[0] != "failed" or memory is None or memory.final):
        raise ConfigError(doing, "a run that was cut off", f"one that is over: {outcomes[0]}", "Start a new run.")
    if not any((folder / FOLDER / name).exists() for name in (MANIFEST, BEFORE)):
        do = "It was cut off before the first one, or its program gives no model to keep. Start it again."
        raise ConfigError(doing, f"a snapshot in {folder / FOLDER}", "none", do)
