"""How a run continues under another home: whether its home is lost, in which term, and in which folder.

Decides which stores and copies may be read for that, and refuses where one machine has the run as its home, or hears
it. The folder is a copy of the former home's, one on a disk that both share, or made from the newest snapshot in the
run's store. Hosts that are on the machine already continue as the processes they are.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.cluster.handover import MachineSite, RunRoot, Sites
from isthmus.programs.engine.machine.absent_homes import HomeView
from isthmus.programs.engine.request import new_folder, spec
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.run.resume import check_cut_off, check_whole, spec_of, tell_faults
from isthmus.programs.engine.run.standstill import FOR_EVER, stand_still
from isthmus.programs.engine.snapshots.keeping import FetchedSnapshot, fetch
from isthmus.programs.engine.snapshots.moments import MomentsEntry, lay_out
from isthmus.programs.engine.snapshots.stored import StorePlace, place_of
from isthmus.runtime.daemon import home_daemon
from isthmus.runtime.errors import ConfigError, Fault, shortened
from isthmus.runtime.supervision.incidents import SupersededHome
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import read_text, write_json
from isthmus.runtime.system.refusals import remedy
from isthmus.runtime.wire.daemon_notes import HERE

_DO_SUPERSEDED: Final = "Look at it there: isthmus status --cluster FILE."


@final
@dataclass(frozen=True, slots=True)
class TakeoverState:
    """The remains of a run in its `folder`: spec, sites under the former home, its `term`, and all machines so far."""

    folder: Path
    run_spec: spec.Spec
    sites: Sites
    term: int
    machines: tuple[str, ...]
    moments: tuple[MomentsEntry, ...] = ()
    """Those of learners in its snapshot."""


def read(folder: Path, doing: str) -> TakeoverState:
    """The takeover in a folder; ConfigError if its run cannot continue under another home.

    The folder may be as old as its copy, so only two facts of the ledger are used: that the run continues, and which
    machines were left out of it; the stations report which lives there are. The model is in the snapshot, and, where it
    is newer, with the live hosts.
    """
    check_cut_off(folder, doing)
    moments = tuple(check_whole(folder, doing)[1].moments)
    if not (folder / spec.CLUSTER).exists():
        do = f"Go on with it on its own machine: isthmus train --resume {folder}"
        raise ConfigError(doing, "a run of a cluster", f"no {spec.CLUSTER} in {folder}", do)
    try:
        sites = Sites.load(folder)
    except (OSError, LookupError, TypeError, ValueError) as error:
        do = "Copy the run folder again."
        raise ConfigError(doing, f"a {spec.CLUSTER}", f"{type(error).__name__}: {error}", remedy(error, do)) from None
    journal = home_daemon.journal_of(folder)
    if journal is None:
        return TakeoverState(folder, spec.load(folder), sites, sites.term, tuple(sites.sites), moments)
    if isinstance(journal.failure, SupersededHome):
        actual = f"one that goes on under {journal.failure.home!r}, in term {journal.failure.term}"
        raise ConfigError(doing, "a run whose home was lost", actual, _DO_SUPERSEDED)
    joined = dict.fromkeys((*sites.sites, *(machine for _, machine in journal.machines)))
    return TakeoverState(folder, spec.load(folder), sites, max(journal.term, sites.term), tuple(joined), moments)


def write(
    takeover: TakeoverState, sites: Sites, secret: Path | None, former: Path | None, *, elsewhere_ns: int = FOR_EVER
) -> None:
    """Turn the folder into that of the new home in `sites`; `former` is the folder that its hosts of this run know,
    which live; elsewhere hosts may have lived for `elsewhere_ns` since the files of the folder were written.

    OSError or sqlite3.Error on failure. The new home is written last: after an interruption the next try finds the run
    as it was left.
    """
    folder = takeover.folder
    stand_still(folder, elsewhere_ns=elsewhere_ns if former is None else FOR_EVER)
    lay_out(folder, takeover.moments, DISK)
    fields: Mapping[str, Any] = json.loads(read_text(folder / spec.SPEC))
    Sites.archive(folder, spec.archive(folder))
    home_daemon.move(folder, former)
    for name in (*new_folder.AT_END, HERE):
        (folder / name).unlink(missing_ok=True)
    # Learners that have trained on data of this machine's owner go on with these.
    own = None if former is None else spec.load(former).here.own_data
    here = asdict(replace(sites.here(secret), own_data=own))
    spec.write(folder, {**fields, "zero_ns": time.monotonic_ns() - spec.age(fields), "here": here})
    write_json(folder / spec.CLUSTER, sites.as_data())


def check_data(sites: Sites, former: Path | None, *, has_own_data: bool, doing: str) -> None:
    """ConfigError if learners at the new home in `sites` would train on the run's data, where its owner has named
    others: those that the run does not know, because this machine had no part in it."""
    if has_own_data and former is None and sites.here(None).learners:
        expected = "a machine that has trained on its owner's data in this run, or whose owner has named none"
        do = "Start its daemon without --data and [runs] data, or choose another machine."
        raise ConfigError(doing, expected, "one with data of its own, which had no part in the run", do)


def place(url: str, doing: str) -> StorePlace:
    """The store at a URL; ConfigError for an invalid one, and for a folder.

    Requests may name no folder of this machine outside its root.
    """
    store = place_of(url)
    if store.is_folder:
        do = "Name what run.snapshots was; or copy a run folder below the root of the next home, and name that."
        raise ConfigError(doing, "a URL that names a store, such as s3://bucket/path", shortened(repr(url), 500), do)
    return store


def fetched(store: StorePlace, aside: Path, doing: str) -> FetchedSnapshot:
    """Write the newest complete snapshot into the empty folder `aside`.

    ConfigError if there is none, if its run is alive on this machine, or if its run is not of a cluster.
    """
    snapshot = fetch(store, aside, DISK, doing)
    run_spec = spec_of(aside, snapshot, doing)
    if not (aside / spec.CLUSTER).exists():
        do = f"Go on with it on any machine: isthmus train --resume {store.text}"
        raise ConfigError(doing, "a run of a cluster", f"{run_spec.run}, a run of one machine", do)
    return snapshot


def settled(snapshot: FetchedSnapshot, aside: Path, root: RunRoot, name: str) -> Path:
    """The run folder `name` below the root, or without a name the program's next free one, made of the fetched files.

    Its times count on. ConfigError if it cannot be made.

    Everything is in a hidden folder first, until it is known that the run can continue, so that a wrong request leaves
    nothing. Files that the store lacks (ledger, lines and tapes) are lost with the home: the stations report which
    lives there are.
    """
    run_spec = spec.load(aside)
    config = read_text(aside / new_folder.CONFIG)
    folder = root.make(name, Program(run_spec.job.program).name, datetime.now(), config)
    with new_folder.prepared(folder):
        for path in sorted(aside.iterdir()):
            path.replace(folder / path.name)
        spec.rebase_clock(folder, snapshot.head.at)
        tell_faults(folder, snapshot.faults)
    return folder


LOST: Final = "a run whose home was lost"


def check_nowhere(run: str, going_on: Mapping[str, Collection[str]], doing: str) -> None:
    """ConfigError if a run has its home on one of some machines; `going_on` names the runs that do, by machine."""
    alive = next((machine for machine, names in going_on.items() if run in names), None)
    if alive is not None:
        do = f"Leave it there, or end the daemon of {alive!r} first."
        raise ConfigError(doing, LOST, f"{run}, which goes on under {alive!r}", do)


def next_home(name: str, takeover: TakeoverState, sites: Sequence[MachineSite], doing: str) -> MachineSite:
    """The machine of that name among `sites`, those of a cluster file; ConfigError unless it has an address, for the
    other machines look for their home there, and unless that file has a machine of the run."""
    chosen = next((site for site in sites if site.name == name and site.address), None)
    if chosen is None:
        do = "Write [[machine]] with that name and its address into the cluster file, or choose another --home."
        raise ConfigError(doing, f"{name!r} with an address in the cluster file", "none", do)
    names = [site.name for site in sites]
    if not set(names) & set(takeover.machines):
        expected = f"a run of the machines in the cluster file, {', '.join(names)}"
        do = "Name the cluster file of that run, or another run."
        raise ConfigError(doing, expected, f"{takeover.run_spec.run}, of {', '.join(takeover.machines)}", do)
    return chosen


def to_ask(name: str, takeover: TakeoverState, sites: Sequence[MachineSite]) -> list[MachineSite]:
    """The machines that have had a part in a run, but for its lost home and the next one, `name`."""
    sites_by_name = {**takeover.sites.sites, **{site.name: site for site in sites}}
    return [
        sites_by_name.get(each, MachineSite(each))
        for each in takeover.machines
        if each not in (name, takeover.sites.home)
    ]


def next_term(takeover: TakeoverState, standings: Mapping[str, HomeView], doing: str) -> int:
    """The term of the next home, after all known ones; ConfigError, naming the machines, if any hears the present."""
    do = "Wait for its end, or end its daemon. If it was lost just now, try again."
    faults = [
        Fault(doing, LOST, f"its home {each.home!r}, which {name!r} hears", do)
        for name, each in standings.items()
        if each.is_heard
    ]
    if faults:
        raise ConfigError.of(faults)
    return 1 + max((takeover.term, *(each.term for each in standings.values())))
