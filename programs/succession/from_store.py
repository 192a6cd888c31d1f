"""The folder of a run whose home was lost together with its folder: made from the newest snapshot in the run's store.

It is made below the root of the next home's daemon. Decides which stores may be read for that, and the use of a
snapshot. Everything is in a hidden folder first, until it is known that the run can go on, so that a wrong request
leaves nothing. Files that the store lacks (ledger, lines and tapes) are lost with the home, as where a ledger is lost:
the stations report which lives there are.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from isthmus.programs.cluster.run_root import RunRoot
from isthmus.programs.request import new_folder, spec
from isthmus.programs.request.program import Program
from isthmus.programs.run.resume import spec_of, tell_faults
from isthmus.programs.snapshots.fetched import Fetched, fetch
from isthmus.programs.snapshots.urls import Place, place_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.disk import DISK


def place(url: str, doing: str) -> Place:
    """The store at a URL; ConfigError for an invalid one, and for a folder.

    Requests may name no folder of this machine outside its root.
    """
    found = place_of(url)
    if found.is_folder:
        do = "Name what run.snapshots was; or copy a run folder below the root of the next home, and name that."
        raise ConfigError(doing, "a URL that names a store, such as s3://bucket/path", repr(url[:500]), do)
    return found


def fetched(store: Place, aside: Path, doing: str) -> Fetched:
    """Write the newest complete snapshot into the empty folder `aside`.

    ConfigError if there is none, if its run is alive on this machine, or if its run is not of a cluster.
    """
    found = fetch(store, aside, DISK, doing)
    told = spec_of(aside, found.head, doing)
    if not (aside / spec.CLUSTER).exists():
        do = f"Go on with it on any machine: isthmus train --resume {store.text}"
        raise ConfigError(doing, "a run of a cluster", f"{told.run}, a run of one machine", do)
    return found


def settled(found: Fetched, aside: Path, root: RunRoot, name: str) -> Path:
    """The run folder `name` below the root, or without a name the program's next free one, made of the fetched files.

    Its times count on. ConfigError if it cannot be made.
    """
    told = spec.load(aside)
    config = (aside / new_folder.CONFIG).read_text()
    folder = root.make(name, Program(told.job.program).name, datetime.now(), config)
    with new_folder.prepared(folder):
        for path in sorted(aside.iterdir()):
            path.replace(folder / path.name)
        spec.count_from(folder, found.head.at)
        tell_faults(folder, found.faults)
    return folder
