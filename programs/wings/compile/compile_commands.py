"""The command that compiles a run for absent TPUs: compile."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.programs.command import options
from isthmus.programs.command.commands import FAILED, Commands
from isthmus.programs.command.request_command import takes_options
from isthmus.programs.command.request_options import Options
from isthmus.programs.command.run_commands import PANEL
from isthmus.runtime.errors import ConfigError

commands = typer.Typer(cls=Commands)


@commands.command("compile", rich_help_panel=PANEL)
@takes_options("run_dir", "transport", "cluster")
def compile_ahead(
    requested: Options,
    islands: Annotated[
        list[str] | None,
        typer.Option(
            "--island",
            metavar="KIND:TOPOLOGY",
            help="An island, as v5p:2x2x1 or v6e:2x2; may be repeated, the first is learner 0's.",
            rich_help_panel=options.WHERE,
            show_default=False,
        ),
    ] = None,
    fit: Annotated[
        bool,
        typer.Option("--fit", help="Find the largest batch that fits, too.", rich_help_panel=options.WHERE),
    ] = False,
    here: Annotated[
        bool,
        typer.Option(
            "--here",
            help="For a learner of this machine: what a run by the same options reads.",
            rich_help_panel=options.WHERE,
        ),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Compile a run for this machine, or for absent TPUs.

    What fills the memory, and what a step costs: of the functions of its learners, by libtpu, which needs no TPU. With
    --here they are compiled for the devices of a learner of this machine, and kept: a run reads them.

    Exit status 1 if an island is too small. Nothing is started, and no step is timed.
    """
    from isthmus.programs.wings.compile.compile_ahead import compile_for, compile_here

    if here:
        if islands or fit:
            found = "--island" if islands else "--fit"
            raise ConfigError("Reading --here", "no island that is elsewhere", found, "Leave one of them out.")
        compile_here(requested, as_json=as_json)
        return
    if not compile_for(requested, islands or [], fit=fit, as_json=as_json):
        raise typer.Exit(FAILED)


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
