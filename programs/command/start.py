"""`isthmus train` in processes: under a private daemon or under the home of a cluster's runs, watched or detached.

A home is called before anything is prepared, and asks all other machines whether they take the request before anything
is written, so that a wrong request leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from isthmus.programs.arguments.options import Options
from isthmus.programs.cluster.cluster_file import Cluster
from isthmus.programs.cluster.handover import Handover
from isthmus.programs.machine import client as machine_client
from isthmus.programs.machine.client import Daemon
from isthmus.programs.request import spec
from isthmus.programs.request.request import Request
from isthmus.programs.run.differences import check_program
from isthmus.programs.run.in_processes import Submitted, apart, detach, submit_apart
from isthmus.programs.run.resume import is_store, resumed, resumed_from_store
from isthmus.programs.snapshots.urls import KEY
from isthmus.programs.terminal.live import announce, preparing, watching
from isthmus.programs.training import start_on_machine, start_processes
from isthmus.runtime.errors import ConfigError, Fault


def train(asked: Options, *, is_detached: bool, quiet: bool) -> None:
    """Prepare the requested run, and start it; watch it unless it is detached."""
    cluster = asked.cluster
    if asked.transport == "inproc":
        option = "--detach" if cluster is None else "--cluster"
        do = "Leave --transport out."
        raise ConfigError(f"Reading {option}", "a run in processes", "--transport inproc", do)
    if cluster is not None:
        _train_there(asked, cluster, is_detached=is_detached, quiet=quiet)
        return
    with preparing(quiet=quiet):
        submitted = submit_apart(lambda: asked.request().to_train().with_store())
    announce(submitted.chosen, submitted.warnings, quiet=quiet)
    _run(submitted, is_detached=is_detached, quiet=quiet)


def resume(where: str, asked: Options, *, is_detached: bool, quiet: bool) -> None:
    """Go on with a run that was cut off, in its folder or from a store; watch it unless it is detached."""
    is_elsewhere = is_store(where)
    asked.check_resume(*(["run_dir"] if is_elsewhere else []))

    def request(folder: Path, sets: list[str]) -> Request:
        told, wanted = spec.load(folder), asked.resumed(folder).with_sets(sets)
        check_program(told, wanted.program_reference(), f"Resuming {where}")
        return wanted.request().to_train().with_store(run=told.run)

    def from_store(aside: Path, place: str) -> Callable[[], Request]:
        is_set = any(each.split("=")[0].strip() == KEY for each in asked.sets or ())
        more = [] if is_set else [f"{KEY}={place}"]
        return partial(request, aside, more)

    with preparing(quiet=quiet):
        if is_elsewhere:
            submitted = resumed_from_store(where, asked.run_dir, from_store)
        else:
            submitted = resumed(Path(where), partial(request, Path(where), []))
    _run(submitted, is_detached=is_detached, quiet=quiet)


def resume_elsewhere(run: str, cluster: Cluster | None, home: str | None, run_dir: Path | None) -> None:
    """Make another machine the home of a run whose home was lost: of its folder there, or of the snapshots at a URL."""
    if cluster is None:
        do = f"Name the machines with --cluster FILE.toml; a run of this machine alone: isthmus train --resume {run}"
        raise ConfigError("Reading the command line of `isthmus resume`", "--cluster", "none", do)
    daemon = Daemon.next_of(cluster, home)
    taken = machine_client.resume_there(daemon, cluster, run, run_dir)
    lines = [
        f"{daemon.name} is the home of {taken['name']}, in term {taken['term']}; its folder there is {taken['run']}"
    ]
    lines += [f"{machine} does not take part yet: {why}" for machine, why in taken["missing"].items()]
    lines.append(f"watch it   isthmus status --watch {taken['run']}        (on {daemon.name})")
    typer.echo("\n".join(lines))


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

        # The home chooses the folder.
        request = replace(asked, run_dir=None).request().to_train().with_store()
        data = handover(request, cluster, folder).as_data()
        return {"handover": data, "warnings": request.warnings, "chosen": dict(request.chosen)}

    with preparing(quiet=quiet):
        prepared = apart(work)
    handed = Handover.read(prepared["handover"])
    announce(prepared["chosen"], [Fault(*warning) for warning in prepared["warnings"]], quiet=quiet)
    if is_detached:
        submitted = machine_client.hand_over_detached(daemon, handed)
        typer.echo(_parting(submitted, f"under the daemon {daemon.name}", quiet=quiet))
        return
    start_on_machine(daemon, handed, lambda submitted: watching(submitted, quiet=quiet))


def _parting(submitted: Submitted, whose: str, *, quiet: bool) -> str:
    """The text for a user who detaches from a run."""
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
