"""The folder of a run on the machine that becomes its home: a copy of the former home's, or on a disk that both share.

Decides whether a run can go on there, and which files are written for that. The folder may be as old as its copy. So
from the ledger only two facts are used: that the run goes on, and which machines were left out of it; the stations
report which lives there are. The model is in the snapshot, and, where it is newer, with the live hosts.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.cluster.handover import Sites
from isthmus.programs.request import spec
from isthmus.programs.run.resume import AT_END, check_cut_off, check_whole
from isthmus.runtime.daemon import home_daemon
from isthmus.runtime.daemon.site import HERE
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.supervision.incidents import Moved
from isthmus.runtime.system.files import write_json

_DO_SUPERSEDED: Final = "Look at it there: isthmus status --cluster FILE."


@final
@dataclass(frozen=True, slots=True)
class Estate:
    """The remains of a run in its `folder`: spec, sites under the former home, its `term`, and all machines so far."""

    folder: Path
    told: spec.Spec
    sites: Sites
    term: int
    machines: tuple[str, ...]


def read(folder: Path, doing: str) -> Estate:
    """The estate in a folder; ConfigError if its run cannot go on under another home."""
    check_cut_off(folder, doing)
    check_whole(folder, doing)
    if not (folder / spec.CLUSTER).exists():
        do = f"Go on with it on its own machine: isthmus train --resume {folder}"
        raise ConfigError(doing, "a run of a cluster", f"no {spec.CLUSTER} in {folder}", do)
    try:
        sites = Sites.load(folder)
    except (OSError, LookupError, TypeError, ValueError) as error:
        do = "Copy the run folder again."
        raise ConfigError(doing, f"a {spec.CLUSTER}", f"{type(error).__name__}: {error}", do) from None
    journal = home_daemon.journal_of(folder)
    if journal is None:
        return Estate(folder, spec.load(folder), sites, sites.term, tuple(sites.sites))
    if isinstance(journal.failure, Moved):
        found = f"one that goes on under {journal.failure.home!r}, in term {journal.failure.term}"
        raise ConfigError(doing, "a run whose home was lost", found, _DO_SUPERSEDED)
    joined = dict.fromkeys((*sites.sites, *(machine for _, machine in journal.machines)))
    return Estate(folder, spec.load(folder), sites, max(journal.term, sites.term), tuple(joined))


def write(estate: Estate, sites: Sites, secret: Path | None, former: Path | None) -> None:
    """Turn the folder into that of the new home in `sites`; `former` is the folder that its hosts of this run know.

    OSError or sqlite3.Error on failure. The new home is written last: after an interruption the next try finds the run
    as it was left.
    """
    folder = estate.folder
    told: Mapping[str, Any] = json.loads((folder / spec.SPEC).read_text())
    Sites.put_aside(folder, spec.put_aside(folder))
    home_daemon.move(folder, former)
    for name in (*AT_END, HERE):
        (folder / name).unlink(missing_ok=True)
    here = asdict(sites.here(secret))
    spec.write(folder, {**told, "zero_ns": time.monotonic_ns() - spec.age_ns(told), "here": here})
    write_json(folder / spec.CLUSTER, sites.as_data())
