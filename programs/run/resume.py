"""The resumption of a run whose processes have all died: the conditions on its folder.

Decides whether a run can be resumed; the rest is an ordinary takeover. The next daemon finds in the ledger which lives
there were, takes them for ended, and begins the next life of each host; the recorder recalls its books, and holds the
versions of the last snapshot; shards and learners take them from it like from any other holder. So nothing is restored
that is not restored after a death of some hosts, too. A run that failed before its end had begun, as it does where its
command is gone, counts as interrupted; one with a part of its final model written does not.

Today's configuration may differ from the one with which the run was begun (`differences`). The former spec stays beside
the new one, for the tapes that were written under it.

A run whose folder is lost, or far away, goes on from a store (`snapshots.stored`) in a folder of its own. The contents
of the store become that folder's files, and the rest is the same. Earlier lines and tapes stay where they were.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.programs.islands.elastic_sizes import sizes_here
from isthmus.programs.recorder import memory as recorder_memory
from isthmus.programs.recorder.summary import fragment_sizes
from isthmus.programs.request import new_folder, spec
from isthmus.programs.request.program import Program
from isthmus.programs.request.request import Request
from isthmus.programs.request.run_lock import InUseError, RunLock, user_of
from isthmus.programs.run.differences import changes
from isthmus.programs.run.in_processes import Submitted, apart, submitted
from isthmus.programs.snapshots.fetched import Fetched, fetch
from isthmus.programs.snapshots.snapshots import BEFORE, FOLDER, MANIFEST, Snapshots
from isthmus.programs.snapshots.stored import Head, heads
from isthmus.programs.snapshots.urls import place_of
from isthmus.runtime.daemon.home_daemon import reopen
from isthmus.runtime.daemon.ledger import Ledger
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ids import LEARNER, Member, Replica
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import write_bytes, write_json

OVER: Final = ("summary.json", "over.json")
AT_END: Final = (*OVER, "report.html", "trace.json")
"""Files that are written when a run is over."""


def resumed(folder: Path, request: Callable[[], Request]) -> Submitted:
    """A run that was cut off, ready to go on in its folder; ConfigError, with nothing changed, if it cannot.

    `request` makes today's request.
    """
    doing = f"Resuming {folder}"
    _check_folder(folder, doing)
    told = spec.load(folder)
    files = apart(lambda: _files(folder, told, request, doing))
    with _lock(folder, doing):
        if files:
            spec.put_aside(folder)
            _change(folder, files)
        spec.count_on(folder)
        _reopen(folder)
        for name in AT_END:
            (folder / name).unlink(missing_ok=True)
    return submitted(folder, folder.name)


def is_store(text: str) -> bool:
    """Whether a text names a store of snapshots, and no run folder."""
    folder = Path(text)
    return "://" in text or (not (folder / spec.SPEC).exists() and folder.is_dir() and bool(heads(os.listdir(folder))))


def resumed_from_store(
    text: str, run_dir: Path | None, asked: Callable[[Path, str], Callable[[], Request]]
) -> Submitted:
    """A run whose snapshots are in the store `text`, ready to go on in a new folder, `run_dir` if given.

    ConfigError, with nothing left, if it cannot go on. `asked` takes a folder with the configuration of the run, and
    the store, and returns the `request` argument of `resumed`.
    """
    place = place_of(text)
    doing = f"Resuming {place.text}"
    base = new_folder.RUNS.absolute() if run_dir is None else run_dir.absolute().parent
    with aside(base, doing) as fresh:
        found = fetch(place, fresh, DISK, doing)
        told = spec_of(fresh, found.head, doing)
        (fresh / spec.CLUSTER).unlink(missing_ok=True)  # It goes on here alone.
        files = apart(lambda: _files(fresh, told, asked(fresh, place.text), doing, is_elsewhere=True))
        chosen = new_folder.choose(run_dir, Program(told.job.program).name, datetime.now())
        folder = new_folder.make(chosen, files[new_folder.CONFIG], is_given=run_dir is not None)
        with _lock(folder, doing), new_folder.prepared(folder):
            for path in sorted(fresh.iterdir()):
                path.replace(folder / path.name)
            _change(folder, files)
            _settle(folder, found)
    new_folder.point_latest_to(folder)
    return submitted(folder, folder.name)


def _reopen(folder: Path) -> None:
    """Have the ledger know that the run goes on, without the learners that it is to do without."""
    learners = spec.load(folder).roles.get(LEARNER, 0)
    reopen(folder, lambda replica: replica.role == LEARNER and replica.slot >= learners)


def _settle(folder: Path, found: Fetched) -> None:
    """Set a run's count of lives and its time to continue from the snapshot."""
    head = found.head
    spec.count_from(folder, head.at)
    with closing(Ledger(folder)) as ledger:
        ledger.give(Member(Replica(role, slot), life) for role, slot, life in head.lives)
    _reopen(folder)
    tell_faults(folder, found.faults)


def tell_faults(folder: Path, faults: list[str]) -> None:
    """Add faults of snapshots to the run's recorder memory, which reports them."""
    memory = recorder_memory.load(folder, DISK)
    if faults and memory is not None:
        memory.snapshot_faults = [*memory.snapshot_faults, *faults]
        write_bytes(folder / recorder_memory.FILE, msgspec.msgpack.encode(memory))


def spec_of(folder: Path, head: Head, doing: str) -> spec.Spec:
    """The spec of a fetched run; ConfigError if the run is alive here, or its spec cannot be read."""
    if why := _why_no_spec(folder):
        raise ConfigError(doing, "the spec of a run in processes", *why)
    machine, _, home = head.home.partition(":")
    if machine == platform.node() and (user := user_of(Path(home))):
        do = f"Look at it: isthmus status {home}"
        raise ConfigError(doing, "a run that was cut off", f"one that goes on in {home}, of process {user}", do)
    return spec.load(folder)


@contextmanager
def aside(base: Path, doing: str) -> Iterator[Path]:
    """A new temporary folder in `base`, removed at the end with whatever was not moved out of it."""
    had = base.exists()
    try:
        base.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".resume-", dir=base))
    except OSError as error:
        found = error.strerror or str(error)
        raise ConfigError(doing, f"a folder that can be written, {base}", found, "Name another by --run-dir.") from None
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if not had:
            with suppress(OSError):
                base.rmdir()


def _files(
    folder: Path, told: spec.Spec, request: Callable[[], Request], doing: str, *, is_elsewhere: bool = False
) -> dict[str, Any]:
    """Replacements of the run's files, by name; empty if nothing changes, never empty if `is_elsewhere`.

    ConfigError where it cannot go on like this, or no snapshot in the folder is whole.
    """
    from isthmus.programs.request.graph_view import as_json

    try:
        graph = told.graph()
    except ConfigError as error:
        expected = f"the graph that it was begun with, {told.fingerprint}"
        do = "The program or isthmus itself was changed since. Undo that, or start a new run."
        raise ConfigError(doing, expected, f"another one now, {error.faults[0].found}", do) from None
    check_whole(folder, doing, fragment_sizes(graph))
    made = request()
    changes(told, made.job, doing)
    asked = spec.of(made, zero_ns=told.zero_ns, cpu_seconds=told.cpu_seconds, elastic=sizes_here(made))
    here = {**asdict(told.here), "learners": asked["here"]["learners"]}
    if is_elsewhere:
        here = {**asked["here"], "wall_ns": told.here.wall_ns}
    wanted = {**asked, "run": told.run, "argv": list(told.argv), "here": here}
    if spec.read(json.loads(json.dumps(wanted))) == told and not is_elsewhere:
        return {}
    placement = {node.name: platform.node() for node in made.graph.nodes}
    shape = as_json(made.graph, made.proof, made.fingerprint, placement)
    return {spec.SPEC: wanted, "graph.json": shape, new_folder.CONFIG: made.config_text}


def _change(folder: Path, files: Mapping[str, Any]) -> None:
    """Write the changed files of a run; the spec last, so that after an interruption the next resume starts over."""
    write_bytes(folder / new_folder.CONFIG, files[new_folder.CONFIG].encode())
    for name in ("graph.json", spec.SPEC):
        write_json(folder / name, files[name])


def _why_no_spec(folder: Path) -> tuple[str, str] | None:
    """Why there is no run in processes in a folder, and what to do; None if there is one."""
    do = "Name the folder of a run, as it is in runs/."
    try:
        if spec.load(folder).transport != spec.INPROC:
            return None
        return "one in one process", "Runs with --transport inproc cannot be resumed: they have no daemon."
    except FileNotFoundError:
        return (f"no {spec.SPEC}" if folder.is_dir() else "no such folder"), do
    except NotADirectoryError:
        return "a file", do
    except (OSError, ValueError, KeyError, TypeError) as error:
        do = "Resume it with the version of isthmus that began it; if that file is damaged, look for a copy of it."
        return f"a {spec.SPEC} that cannot be read: {error}", do


def _lock(folder: Path, doing: str) -> RunLock:
    try:
        return RunLock(folder)
    except InUseError as error:
        do = f"Look at it: isthmus status {folder}"
        raise ConfigError(doing, "a run that was cut off", f"{error}", do) from None


def _check_folder(folder: Path, doing: str) -> None:
    _check_spec(folder, doing)
    if (folder / spec.CLUSTER).exists():
        do = (
            "Start the daemon of its home again, which goes on with it; "
            f"or let another machine be its home: isthmus resume {folder} --cluster FILE."
        )
        raise ConfigError(doing, "a run of this machine alone", "one of a cluster", do)
    check_cut_off(folder, doing)


def has_snapshot(folder: Path) -> bool:
    """Whether the folder has a snapshot to go on from."""
    return any((folder / FOLDER / name).exists() for name in (MANIFEST, BEFORE))


def check_cut_off(folder: Path, doing: str) -> None:
    """ConfigError unless a folder has a run in processes that was cut off, and can go on from its snapshot. Nothing in
    it is written."""
    _check_spec(folder, doing)
    if user := user_of(folder):
        do = f"Look at it: isthmus status {folder}"
        raise ConfigError(doing, "a run that was cut off", f"one that goes on there, of process {user}", do)
    memory = recorder_memory.load(folder, DISK)
    outcomes = [json.loads((folder / name).read_text())["outcome"] for name in OVER if (folder / name).exists()]
    if outcomes and (outcomes[0] != "failed" or memory is None or memory.final):
        raise ConfigError(doing, "a run that was cut off", f"one that is over: {outcomes[0]}", "Start a new run.")
    if not has_snapshot(folder):
        do = "It was cut off before the first one, or its program gives no model to keep. Start it again."
        raise ConfigError(doing, f"a snapshot in {folder / FOLDER}", "none", do)


def check_whole(folder: Path, doing: str, sizes: Sequence[int] | None = None) -> None:
    """ConfigError unless a snapshot in a folder is whole, and of a model with fragments of these sizes."""
    try:
        is_whole, faults = Snapshots(folder / FOLDER, sizes, DISK).examine()
    except OSError as error:
        is_whole, faults = False, [f"{error.strerror}: {error.filename}"]
    if not is_whole:
        do = "Look for a copy of it, or for what run.snapshots had stored; or start the run again."
        raise ConfigError(doing, f"a snapshot in {folder / FOLDER} that is whole, of this model", "; ".join(faults), do)


def _check_spec(folder: Path, doing: str) -> None:
    if why := _why_no_spec(folder):
        raise ConfigError(doing, "the folder of a run in processes", *why)
