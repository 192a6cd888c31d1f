"""`isthmus train` in processes: under a private daemon or the one that is the home of a cluster's runs, watched or
detached.

A home is called before anything is prepared, and asks all other machines whether they take the request before anything
is written, so that a request which is wrong leaves nothing behind.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from isthmus.programs.arguments.options import Options
from isthmus.programs.cluster.cluster_file import Cluster
from isthmus.programs.cluster.handover import Handover
from isthmus.programs.machine import client as machine_client
from isthmus.programs.machine.client import Daemon
from isthmus.programs.run.in_processes import Submitted, apart, detach, submit_apart
from isthmus.programs.run.resume import resumed
from isthmus.programs.terminal.live import preparing, warn, watching
from isthmus.programs.training import start_on_machine, start_processes
from isthmus.runtime.errors import ConfigError


def train(asked: Options, *, is_detached: bool, quiet: bool) -> None:
    """Prepare the run that was asked for, and start it; watch it unless it is detached."""
    cluster = asked.cluster
    if asked.transport == "inproc":
        option = "--detach" if cluster is None else "--cluster"
        do = "Leave --transport out."
        raise ConfigError(f"Reading {option}", "a run in processes", "--transport inproc", do)
    if cluster is not None:
        _train_there(asked, cluster, is_detached=is_detached, quiet=quiet)
        return
    with preparing(quiet=quiet):
        submitted = submit_apart(lambda: asked.request().to_train())
    warn(submitted.warnings)
    _run(submitted, is_detached=is_detached, quiet=quiet)


def resume(folder: Path, asked: Options, *, is_detached: bool, quiet: bool) -> None:
    """Go on with a run that was cut off; watch it unless it is detached."""
    given = asked.resumed(folder)
    with preparing(quiet=quiet):
        submitted = resumed(folder, lambda sets: given.with_sets(sets).request().to_train())
    _run(submitted, is_detached=is_detached, quiet=quiet)


def _run(submitted: Submitted, *, is_detached: bool, quiet: bool) -> None:
    if is_detached:
        detach(submitted)
        typer.echo(_parting(submitted, "by itself", quiet=quiet))
        return
    with watching(submitted, quiet=quiet) as view:
        start_processes(submitted, view)


def _train_there(asked: Options, cluster: Cluster, *, is_detached: bool, quiet: bool) -> None:
    """Let the machines of a cluster train."""
    daemon = Daemon.of(cluster)
    folder = machine_client.folder_there(daemon, daemon.find()["root"], asked.run_dir)

    def work() -> dict[str, Any]:
        from isthmus.programs.command.submission import handover

        # Which folder it will be is for the home to say.
        return handover(replace(asked, run_dir=None).request().to_train(), cluster, folder).as_data()

    with preparing(quiet=quiet):
        handed = Handover.read(apart(work))
    if is_detached:
        submitted = machine_client.hand_over_detached(daemon, handed)
        typer.echo(_parting(submitted, f"under the daemon {daemon.name}", quiet=quiet))
        return
    start_on_machine(daemon, handed, lambda submitted: watching(submitted, quiet=quiet))


def _parting(submitted: Submitted, whose: str, *, quiet: bool) -> str:
    """What somebody needs to know who leaves a run alone."""
    folder = submitted.run_dir
    name = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    if quiet:
        return name
    return "\n".join(
        [
            f"{submitted.name} goes on {whose}; the run folder is {name}",
            f"watch it   isthmus status --watch {name}",
            f"stop it    isthmus stop {name}",
        ]
    )
