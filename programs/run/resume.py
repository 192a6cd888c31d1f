"""Going on with a run whose processes have all died: what its folder must have for that.

Decides whether a run can be resumed; what follows is an ordinary takeover. The next daemon finds in the ledger which
lives there were, takes them for ended, and begins the next life of each host; the recorder recalls its books, and holds
the versions of the last snapshot; shards and learners take them from it like from any other holder. So nothing is
restored that is not restored after a death of some hosts, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

from isthmus.programs.recorder.snapshots import BEFORE, FOLDER, MANIFEST
from isthmus.programs.request import spec
from isthmus.programs.request.request import Request
from isthmus.programs.request.run_lock import user_of
from isthmus.programs.run.in_processes import Submitted, apart, submitted
from isthmus.runtime.errors import ConfigError

OVER: Final = ("summary.json", "over.json")
CLUSTER: Final = "cluster.json"


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
    spec.count_on(folder)
    return submitted(folder, folder.name)


def _check_folder(folder: Path, doing: str) -> None:
    if not (folder / spec.SPEC).exists():
        found = "no spec.json" if folder.is_dir() else "no such folder"
        do = "Runs with --transport inproc cannot be resumed: they have no daemon."
        raise ConfigError(doing, "the folder of a run in processes", found, do)
    if (folder / CLUSTER).exists():
        do = "Its home's daemon takes it over when it is started again."
        raise ConfigError(doing, "a run of this machine alone", "one of a cluster", do)
    if user := user_of(folder):
        found = f"one that goes on, of process {user}"
        raise ConfigError(doing, "a run that was cut off", found, f"Look at it: isthmus status {folder}")
    for name in OVER:
        if (folder / name).exists():
            outcome = json.loads((folder / name).read_text())["outcome"]
            raise ConfigError(doing, "a run that was cut off", f"one that is over: {outcome}", "Start a new run.")
    if not any((folder / FOLDER / name).exists() for name in (MANIFEST, BEFORE)):
        do = "It was cut off before the first one, or its program gives no model to keep. Start it again."
        raise ConfigError(doing, f"a snapshot in {folder / FOLDER}", "none", do)
