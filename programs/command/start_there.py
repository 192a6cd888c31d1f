"""`isthmus train --cluster`: a run whose home is another machine.

The home is called before anything is prepared, and asks all other machines whether they take the request before
anything is written, so that a wrong request leaves nothing behind: the request is placed, and checked with each of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import typer

from isthmus.programs.command.metered import viewing
from isthmus.programs.command.request_options import Options
from isthmus.programs.command.start import Starting, parting
from isthmus.programs.engine.cluster import handover as digest
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.handover import Handover, Sites
from isthmus.programs.engine.cluster.placement import Placement
from isthmus.programs.engine.cluster.placing import elastic_sizes, needs_found, placed, site_warnings
from isthmus.programs.engine.machine import handing_over
from isthmus.programs.engine.machine.client import DaemonClient
from isthmus.programs.engine.machine.script_question import ScriptQuestion
from isthmus.programs.engine.request import new_spec
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.loop_task import asked_by
from isthmus.programs.study.terminal.live import announce, preparing
from isthmus.programs.training import start_on_machine
from isthmus.runtime.errors import ConfigError, Fault, PlacementError
from isthmus.runtime.system.processes import cpu_seconds


def train_there(options: Options, cluster: Cluster, starting: Starting) -> None:
    """Let the machines of a cluster train."""
    is_detached, quiet = starting.is_detached, starting.quiet
    with preparing(quiet=quiet):
        prepared = prepared_there(options, cluster)
    daemon, handed = DaemonClient.of(cluster), prepared.handed
    announce(prepared.chosen, prepared.warnings, prepared.data, quiet=quiet)
    if is_detached:
        submitted = handing_over.hand_over_detached(daemon, handed)
        typer.echo(parting(submitted, f"under the daemon {daemon.name}", quiet=quiet))
        return
    start_on_machine(daemon, handed, lambda submitted: viewing(starting.meter, submitted, quiet=quiet))


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
    return Handover(request.name, folder, request.config_text, shape, run_spec, sites, data), digests


def _check(daemon: DaemonClient, message: dict[str, Any], faults: list[Fault]) -> dict[str, str]:
    """Let the home ask all machines, and return by machine the digests of a script; ConfigError with their refusals,
    and the faults that are known already."""
    try:
        return dict(daemon.say(message)["scripts"])
    except ConfigError as error:
        raise ConfigError.of([*(fault for fault in faults if fault not in error.faults), *error.faults]) from None
