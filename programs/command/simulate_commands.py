"""The commands about runs that never happen: simulate world."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.programs.command.group import FAILED, Commands
from isthmus.programs.command.options import AsJson

commands = typer.Typer(cls=Commands, help="Try runs that never happened.")


@commands.callback(invoke_without_command=True)
def simulations(ctx: typer.Context) -> None:
    """Try runs that never happened: nothing is trained, nothing is left behind."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@commands.command()
def world(
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="How many seeds: S to S + N - 1.")] = 1,
    program: Annotated[str, typer.Option("--program", metavar="PROGRAM", help="Which program.")] = "decoupled-diloco",
    each: Annotated[
        int,
        typer.Option(
            "--each", metavar="N", help="Fail unless each fault happens N times in each phase, and each guard fires."
        ),
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Run whole clusters in virtual time, with faults from the seed, and check that nothing is broken.

    Exit status 1 if something is; the same seed shows it again.
    """
    from isthmus.programs.command import simulate as simulating

    if not simulating.world(seed, seeds, program, least=each, as_json=as_json):
        raise typer.Exit(FAILED)
