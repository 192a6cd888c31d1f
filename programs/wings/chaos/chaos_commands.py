"""The command about runs under deliberate faults: chaos."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.programs.command import options
from isthmus.programs.command.commands import FAILED, Commands
from isthmus.programs.command.options import EXPERIMENTS

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=EXPERIMENTS)
def chaos(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PLAN.toml] [PROGRAM ...]",
            help="Which faults, and which programs. Without a plan every kind of process is struck once; without "
            "programs decoupled-diloco, data-parallel and elastic-data-parallel are tried.",
            show_default=False,
        ),
    ] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run-dir", metavar="DIR", help="Where runs and figures go. Default: runs/chaos-DATE-TIME."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Kill processes of real runs, and measure what that costs.

    Each program is trained twice: once undisturbed, and once under the faults of the plan.

    Exit status 1 if a run failed, or a fault cannot be proved to have happened.
    """
    from isthmus.programs.wings.chaos import striking

    if not striking.chaos(what or [], run_dir, as_json=as_json):
        raise typer.Exit(FAILED)


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
