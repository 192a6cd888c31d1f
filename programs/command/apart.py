"""`isthmus train` in processes: under a private daemon or the one of a machine, watched or detached.

A machine's daemon is called before anything is prepared, and asked whether it takes the request before anything is
written, so that a request which is wrong leaves nothing behind.
"""

from __future__ import annotations

import os
from pathlib import Path

import typer

from isthmus.programs import machine_client
from isthmus.programs.cluster import Machine
from isthmus.programs.command.live import preparing, watching
from isthmus.programs.command.options import Options
from isthmus.programs.processes import Submitted, detach, submit_apart
from isthmus.programs.request import Request
from isthmus.programs.training import start_on_machine, start_processes
from isthmus.runtime.errors import ConfigError


def train(asked: Options, *, is_detached: bool, quiet: bool) -> None:
    """Prepare the run that was asked for, and start it; watch it unless it is detached."""
    machine = None if asked.cluster is None else asked.cluster.machine
    if asked.transport == "inproc":
        option = "--detach" if machine is None else "--cluster"
        do = "Leave --transport out."
        raise ConfigError(f"Reading {option}", "a run in processes", "--transport inproc", do)
    if machine is not None:
        machine_client.find(machine)
    with preparing(quiet=quiet):
        submitted = submit_apart(lambda: _request(asked, machine), None if machine is None else machine.name)
    if is_detached:
        if machine is None:
            detach(submitted)
        else:
            machine_client.hand_over_detached(machine, submitted)
        typer.echo(_parting(submitted, machine, quiet=quiet))
        return
    with watching(submitted, quiet=quiet) as view:
        if machine is None:
            start_processes(submitted, view)
        else:
            start_on_machine(machine, submitted, view)


def _request(asked: Options, machine: Machine | None) -> Request:
    request = asked.request().to_train()
    return request if machine is None else machine_client.permitted(machine, request)


def _parting(submitted: Submitted, machine: Machine | None, *, quiet: bool) -> str:
    """What somebody needs to know who leaves a run alone."""
    folder = submitted.run_dir
    name = os.path.relpath(folder) if folder.is_relative_to(Path.cwd()) else str(folder)
    if quiet:
        return name
    whose = "by itself" if machine is None else f"under the daemon {machine.name}"
    return "\n".join(
        [
            f"{submitted.name} goes on {whose}; the run folder is {name}",
            f"watch it   isthmus status --watch {name}",
            f"stop it    isthmus stop {name}",
        ]
    )
