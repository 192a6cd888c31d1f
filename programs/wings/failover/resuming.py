"""`isthmus resume`: asks the daemon of a machine to be the next home of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from isthmus.programs.engine.cluster import cluster_file
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.cluster.handover import MachineSite
from isthmus.programs.engine.machine.client import DaemonClient
from isthmus.programs.engine.machine.handing_over import folder_there
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.control_messages import Message


def resume_elsewhere(run: str, cluster: Cluster | None, home: str | None, run_dir: Path | None) -> None:
    """Make another machine the home of a run whose home was lost: of its folder there, or of the snapshots at a URL."""
    if cluster is None:
        do = f"Name the machines with --cluster FILE.toml; a run of this machine alone: isthmus train --resume {run}"
        raise ConfigError("Reading the command line of `isthmus resume`", "--cluster", "none", do)
    daemon = DaemonClient.next_of(cluster, home)
    answer = _resume_there(daemon, cluster, run, run_dir)
    lines = [
        f"{daemon.name} is the home of {answer['name']}, in term {answer['term']}; its folder there is {answer['run']}"
    ]
    lines += [f"{machine} does not take part yet: {why}" for machine, why in answer["missing"].items()]
    lines.append(f"watch it   isthmus status --watch {answer['run']}        (on {daemon.name})")
    typer.echo("\n".join(lines))


def _resume_there(daemon: DaemonClient, cluster: Cluster, run: str, run_dir: Path | None) -> Message:
    """Make the machine of a daemon the home of a run; returns the daemon's answer.

    `run` is a folder there, or a URL of snapshots, which go into a new folder there (`run_dir`, if given). ConfigError
    if it is refused, for example because a machine with an address has the run.
    """
    is_store = "://" in run
    if run_dir is not None and not is_store:
        do = "Leave it out: the run goes on in its folder."
        raise ConfigError("Reading --run-dir", "a URL as RUN beside it", f"the folder {run}", do)
    others = [machine for machine in cluster.machines if machine.address is not None and machine.name != daemon.name]
    going_on: dict[str, list[str]] = {}
    for machine in others:
        if cluster_file.is_listening(str(machine.address)):
            there = DaemonClient(machine.name, str(machine.address), daemon.keys, machine.public_key or "")
            going_on[machine.name] = [str(each["name"]) for each in there.find()["runs"]]
    name = folder_there(daemon, daemon.find()["root"], run_dir if is_store else Path(run))
    sites = [asdict(MachineSite.of(machine, cluster.topology.region_of(machine))) for machine in cluster.machines]
    message = {"type": "restore", "url": run} if is_store else {"type": "resume"}
    return daemon.say({**message, "run": name, "sites": sites, "going_on": going_on})
