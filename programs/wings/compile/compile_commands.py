"""The command that compiles a run for absent TPUs: compile."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.programs.command import options
from isthmus.programs.command.commands import FAILED, Commands
from isthmus.programs.command.request_command import takes_options
from isthmus.programs.command.request_options import Options
from isthmus.programs.command.run_commands import PANEL

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
    as_json: options.AsJson = False,
) -> None:
    """Compile a run for absent TPUs: memory and cost of a step.

    What fills the memory, and what a step costs: of the functions of its learners, by libtpu, which needs no TPU.

    Exit status 1 if an island is too small. Nothing is started, and no step is timed.
    """
    from isthmus.programs.wings.compile.compile_ahead import compile_for

    if not compile_for(requested, islands or [], fit=fit, as_json=as_json):
        raise typer.Exit(FAILED)


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
