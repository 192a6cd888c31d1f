"""Going on with a run whose processes have all died: what its folder must have for that.

Decides whether a run can be resumed; what follows is an ordinary takeover. The next daemon finds in the ledger which
lives there were, takes them for ended, and begins the next life of each host; the recorder recalls its books, and holds
the versions of the last snapshot; shards and learners take them from it like from any other holder. So nothing is
restored that is not restored after a death of some hosts, too. A run that failed before its end had begun, as it does
where its command is gone, was cut off in this sense; one of whose final model a part is written was not.

What the configuration asks for today may differ from what the run was begun with (`differences`). The spec that there
was then stays beside the new one, for the tapes that were written under it.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from isthmus.programs.recorder import memory as recorder_memory
from isthmus.programs.request import new_folder, spec
from isthmus.programs.request.request import Request
from isthmus.programs.request.run_lock import InUseError, RunLock
from isthmus.programs.run.differences import changes, pinned
from isthmus.programs.run.in_processes import Submitted, apart, submitted
from isthmus.programs.snapshots.snapshots import BEFORE, FOLDER, MANIFEST
from isthmus.runtime.daemon.reopen import reopen
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.roles import LEARNER
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import write_bytes, write_json

OVER: Final = ("summary.json", "over.json")
_OF_END: Final = ("report.html", "trace.json")


def resumed(folder: Path, request: Callable[[list[str]], Request]) -> Submitted:
    """A run that was cut off, ready to go on in its folder; ConfigError, with nothing changed, where it cannot.

    `request` makes what is asked for today, with some more settings, as texts of --set.
    """
    doing = f"Resuming {folder}"
    _check_folder(folder, doing)
    told = spec.load(folder)
    files = apart(lambda: _files(told, request, doing))
    with _lock(folder, doing):
        if files:
            _change(folder, files)
        spec.count_on(folder)
        learners = spec.load(folder).roles.get(LEARNER, 0)
        reopen(folder, lambda replica: replica.role == LEARNER and replica.slot >= learners)
        for name in (*OVER, *_OF_END):
            (folder / name).unlink(missing_ok=True)
    return submitted(folder, folder.name)


def _files(told: spec.Spec, request: Callable[[list[str]], Request], doing: str) -> dict[str, Any]:
    """What is written in place of the run's files by name, where anything changes."""
    from isthmus.programs.request.graph_view import as_json

    try:
        graph = told.graph()
    except ConfigError as error:
        expected = f"the graph that it was begun with, {told.fingerprint}"
        do = "The program or isthmus itself was changed since. Undo that, or start a new run."
        raise ConfigError(doing, expected, f"another one now, {error.faults[0].found}", do) from None
    made = request([])
    found = changes(told, made.job, doing)
    if kept := pinned(graph, made.job.settings if found else {}):
        made = request([f"program.{name}={value}" for name, value in kept.items()])
    asked = spec.of(made, zero_ns=told.zero_ns, cpu_seconds=told.cpu_seconds)
    here = {**asdict(told.here), "learners": asked["here"]["learners"]}
    wanted = {**asked, "run": told.run, "argv": list(told.argv), "here": here}
    if spec.read(json.loads(json.dumps(wanted))) == told:
        return {}
    placement = {node.name: platform.node() for node in made.graph.nodes}
    shape = as_json(made.graph, made.proof, made.fingerprint, placement)
    return {spec.SPEC: wanted, "graph.json": shape, new_folder.CONFIG: new_folder.document(made.config)}


def _change(folder: Path, files: Mapping[str, Any]) -> None:
    """Write the files of a run that goes on in another way; the spec last, so that whatever comes between, the next
    resume finds the change not made yet."""
    spec.put_aside(folder)
    write_bytes(folder / new_folder.CONFIG, files[new_folder.CONFIG].encode())
    for name in ("graph.json", spec.SPEC):
        write_json(folder / name, files[name])


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
