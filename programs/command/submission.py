"""A request made ready for the machines of a cluster: placed, and checked with each before anything is written."""

from __future__ import annotations

import resource
from typing import Any

from isthmus.programs.ahead.known import finder
from isthmus.programs.cluster import digest
from isthmus.programs.cluster.cluster_file import Cluster
from isthmus.programs.cluster.handover import Handover, Sites
from isthmus.programs.cluster.placing import elastic_sizes, placed
from isthmus.programs.machine.client import Daemon
from isthmus.programs.request import spec
from isthmus.programs.request.request import Request
from isthmus.runtime.errors import ConfigError, Fault, PlacementError
from isthmus.runtime.graph.placement import Placement


def handover(request: Request, cluster: Cluster, folder: str) -> Handover:
    """The handover to the home of a run, for a folder of that name there.

    ConfigError with the refusals of all machines, and the obstacles to placing the run.
    """
    from isthmus.programs.cluster.placement_view import nodes_placed
    from isthmus.programs.request.graph_view import as_json

    daemon = Daemon.of(cluster)
    faults: list[Fault] = []
    placement = Placement({}, daemon.name)
    try:
        placement = placed(request, cluster.topology, finder(request))
    except PlacementError as error:
        faults = list(error.faults)
    job = request.job
    found = digest.digest(job.program, job.task.text)
    sites = Sites.of(daemon.name, cluster.machines, placement.machines, found)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    told = spec.of(request, zero_ns=0, cpu_seconds=sum(usage.ru_utime + usage.ru_stime for usage in used))
    told["processes"] = list(placement.processes)
    if not faults:
        told["elastic"] = elastic_sizes(request, cluster.topology, placement)
    message = {
        "type": "check",
        "program": job.program,
        "task": job.task.text,
        "computing": told["computing"],
        "run": folder or request.name,
        "cluster": sites.as_data(),
        "faults": [list(fault) for fault in faults],
    }
    _check(daemon, message, faults)
    shape = as_json(request.graph, request.proof, request.fingerprint, nodes_placed(request, placement))
    return Handover(request.name, folder, request.config_text, shape, told, sites)


def _check(daemon: Daemon, message: dict[str, Any], faults: list[Fault]) -> None:
    """Let the home ask all machines; ConfigError with their refusals, and the faults that are known already."""
    try:
        daemon.say(message)
    except ConfigError as error:
        raise ConfigError.of([*(fault for fault in faults if fault not in error.faults), *error.faults]) from None
