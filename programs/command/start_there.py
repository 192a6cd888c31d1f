"""`isthmus train --cluster`: a run whose home is another machine.

The home is called before anything is prepared, and asks all other machines whether they take the request before
anything is written, so that a wrong request leaves nothing behind: the request is placed, and checked with each of
them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import typer

from isthmus.programs.command.metered import viewing
from isthmus.programs.command.request_options import Options
from isthmus.programs.command.start import Starting, parting, resumed_request
from isthmus.programs.engine.cluster import handover as digest
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.handover import Handover, MachineSite, Sites
from isthmus.programs.engine.cluster.placement import Placement
from isthmus.programs.engine.cluster.placing import elastic_sizes, needs_found, placed, site_warnings
from isthmus.programs.engine.machine import handing_over
from isthmus.programs.engine.machine.client import DaemonClient
from isthmus.programs.engine.machine.script_question import ScriptQuestion
from isthmus.programs.engine.recorder.graph_parts import fragments_in
from isthmus.programs.engine.request import new_spec
from isthmus.programs.engine.request.reference import is_open_loop
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.request.sources import of_now
from isthmus.programs.engine.request.spec import CLUSTER, SPEC, Spec, load
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.engine.run.resume import MachinesFound, check_run_files, is_store, resumed_on_machines
from isthmus.programs.loop_task import asked_by
from isthmus.programs.study.terminal.live import announce, announce_resumption, preparing
from isthmus.programs.training import watch_there
from isthmus.runtime.daemon.home_daemon import journal_of
from isthmus.runtime.errors import ConfigError, Fault, PlacementError
from isthmus.runtime.supervision.incidents import SupersededHome
from isthmus.runtime.system.processes import boot_id, cpu_seconds


def train_there(options: Options, cluster: Cluster, starting: Starting) -> None:
    """Let the machines of a cluster train."""
    with preparing(quiet=starting.quiet):
        prepared = prepared_there(options, cluster)
    daemon = DaemonClient.of(cluster)
    announce(prepared.chosen, prepared.warnings, prepared.data, quiet=starting.quiet)
    _start(daemon, partial(handing_over.hand_over, daemon, prepared.handed), starting)


def _start(daemon: DaemonClient, begin: handing_over.BeginRun, starting: Starting, *, is_resumed: bool = False) -> None:
    """Begin a run, and watch it unless it is detached."""
    quiet = starting.quiet
    if starting.is_detached:
        submitted = handing_over.detached(daemon, begin)
        typer.echo(parting(submitted, f"under the daemon {daemon.name}", quiet=quiet))
        return
    watch_there(daemon, begin, lambda submitted: viewing(starting.meter, submitted, quiet=quiet, is_resumed=is_resumed))


def resume_there(where: str, options: Options, cluster: Cluster, starting: Starting) -> None:
    """Go on with the run of a cluster, whose home this machine is, from its snapshot on all of its machines."""
    doing = f"Resuming {where}"
    options.check_resume("cluster")
    if is_store(where):
        do = f"Make a machine its home: isthmus resume {where} --cluster {options.cluster}"
        raise ConfigError(doing, "a run folder beside --cluster", "a store of snapshots", do)
    daemon = DaemonClient.of(cluster)
    folder = _folder_here(daemon, where, doing)
    asked = ScriptQuestion(daemon, cluster)

    def request_of(of: Path, more: Mapping[str, Any], doing: str) -> Request:
        with asked_by(asked):
            return resumed_request(options, of, more, doing)

    def machines_of(of: Path, before: Spec, today: Request) -> MachinesFound:
        name = handing_over.folder_there(daemon, daemon.find()["root"], of)
        sites, unlike = _machines_again(daemon, cluster, Sites.load(of), before, today, name, doing)
        return MachinesFound(sites.as_data(), asked.digest, list(asked.warnings(unlike)))

    with preparing(quiet=starting.quiet):
        ready = resumed_on_machines(folder, request_of, machines_of, accepts=starting.accepts_changes)
    announce_resumption(ready, quiet=starting.quiet)
    _start(daemon, partial(handing_over.go_on, daemon, ready), starting, is_resumed=True)


def _folder_here(daemon: DaemonClient, where: str, doing: str) -> Path:
    """The folder of a run of a cluster on this machine, which is that of its home."""
    there = daemon.find()
    if there["boot"] != boot_id().decode():  # A disk that both have shows the folder, but neither clock nor processes.
        do = f"Type it on the machine of the daemon {daemon.name!r}."
        raise ConfigError(doing, f"the machine of {daemon.name!r}, the first of the cluster file", "another one", do)
    root, path = Path(there["root"]), Path(os.path.expanduser(where))
    folder = path.resolve() if path.exists() else root / path
    if not (folder / CLUSTER).exists():
        found = "one of a single machine" if (folder / SPEC).exists() else f"none in {folder}"
        do = f"Type it on the machine of the daemon {daemon.name!r}, and name the folder of the run there."
        if (folder / SPEC).exists():
            do = "Leave --cluster out."
        raise ConfigError(doing, "the folder of a run of a cluster, on its home", found, do)
    check_run_files(folder, doing)
    journal = journal_of(folder)
    if journal is not None and isinstance(journal.failure, SupersededHome):
        found, do = f"one that goes on under {journal.failure.home!r}", "Type it there."
        raise ConfigError(doing, f"a run whose home is {daemon.name!r}", found, do)
    known = load(folder)
    if other := next((each["run"] for each in there["runs"] if each["name"] == known.run), None):
        do = f"Look at it: isthmus status {other}"
        raise ConfigError(doing, "a run that was cut off", f"one that goes on in {other}", do)
    if is_open_loop(known.job.task.text):
        do = "Undo what was changed, and start its home, isthmus daemon --run FILE --resume-or-start, and each loop; "
        do += "with other files begin another run."
        expected = "a run whose hosts its machines start"
        raise ConfigError(doing, expected, "one of loops that start themselves, with files of their own", do)
    handing_over.folder_there(daemon, str(root), folder)
    return folder


def _machines_again(
    daemon: DaemonClient, cluster: Cluster, former: Sites, before: Spec, today: Request, name: str, doing: str
) -> tuple[Sites, dict[str, str]]:
    """The machines of a run that goes on, with files that are alike by now, and by machine the digests of its script;
    ConfigError with the refusals of all."""
    if former.home != daemon.name:
        do = f"Name {former.home!r} first in the cluster file; if it is lost: isthmus resume."
        raise ConfigError(doing, f"the daemon of its home, {former.home!r}", f"that of {daemon.name!r}", do)
    today_sites = [MachineSite.of(machine, cluster.topology.region_of(machine)) for machine in cluster.machines]
    known = [site for site in today_sites if site.name in former.sites]
    job = today.job
    sites = replace(former.moved(former.home, known, former.term), digest=digest.digest(job.program, job.task.text))
    message = {
        "type": "check",
        "program": job.program,
        "task": job.task.text,
        "computing": list(before.computing),
        "run": name,
        "cluster": sites.as_data(),
        "faults": [],
    }
    return sites, _check(daemon, message, [])


class PreparedThere(NamedTuple):
    """A run that its home takes: what is handed over, and what is told of it."""

    handed: Handover
    warnings: Sequence[Fault]
    chosen: Mapping[str, Any]
    data: Sequence[str]


def prepared_there(options: Options, cluster: Cluster) -> PreparedThere:
    """Prepare a run of a cluster, and have all of its machines check it; ConfigError with all faults."""
    daemon = DaemonClient.of(cluster)
    folder = handing_over.folder_there(daemon, daemon.find()["root"], options.run_dir)

    def work() -> dict[str, Any]:
        asked = ScriptQuestion(daemon, cluster)
        with asked_by(asked):
            # The home chooses the folder.
            request = replace(options, run_dir=None).request().to_train().with_store()
        handed, unlike = handover(request, cluster, folder, asked.digest)
        warnings = [*request.warnings, *site_warnings(request, cluster.topology), *asked.warnings(unlike)]
        lines = request.data_lines
        return {"handover": handed.as_data(), "warnings": warnings, "chosen": dict(request.chosen), "data": lines}

    prepared = in_child(work)
    warnings = [Fault(*warning) for warning in prepared["warnings"]]
    return PreparedThere(Handover.read(prepared["handover"]), warnings, prepared["chosen"], prepared["data"])


def handover(
    request: Request, cluster: Cluster, folder: str, script_digest: str = ""
) -> tuple[Handover, dict[str, str]]:
    """The handover to the home of a run, for a folder of that name there, and by machine the digests of its script;
    `script_digest`: that of the one that was asked.

    ConfigError with the refusals of all machines, and the obstacles to placing the run.
    """
    from isthmus.programs.engine.cluster.prediction import nodes_placed
    from isthmus.programs.engine.request.graph_view import as_json

    daemon = DaemonClient.of(cluster)
    faults: list[Fault] = []
    placement = Placement({}, daemon.name)
    try:
        placement = placed(request, cluster.topology, needs_found(request))
    except PlacementError as error:
        faults = list(error.faults)
    job = request.job
    modules_digest = digest.digest(job.program, job.task.text)
    sites = Sites.of(daemon.name, cluster.machines, placement.machines, modules_digest)
    run_spec = new_spec.of(request, zero_ns=0, cpu_seconds=cpu_seconds(with_children=True))
    run_spec["settings"]["processes"] = list(placement.processes)
    run_spec["script_digest"] = script_digest
    if not faults:
        run_spec["elastic"] = elastic_sizes(request, cluster.topology, placement)
    message = {
        "type": "check",
        "program": job.program,
        "task": job.task.text,
        "computing": run_spec["computing"],
        "run": folder or request.name,
        "cluster": sites.as_data(),
        "faults": [list(fault) for fault in faults],
    }
    digests = _check(daemon, message, faults)
    shape = as_json(request.graph, request.proof, request.fingerprint, nodes_placed(request, placement))
    data = {} if request.data is None else request.data.as_dict()
    files = of_now(job.program, job.task.text, fragments_in(request.graph))
    return Handover(request.name, folder, request.config_text, shape, run_spec, sites, data, files), digests


def _check(daemon: DaemonClient, message: dict[str, Any], faults: list[Fault]) -> dict[str, str]:
    """Let the home ask all machines, and return by machine the digests of a script; ConfigError with their refusals,
    and the faults that are known already."""
    try:
        return dict(daemon.say(message)["scripts"])
    except ConfigError as error:
        raise ConfigError.of([*(fault for fault in faults if fault not in error.faults), *error.faults]) from None
