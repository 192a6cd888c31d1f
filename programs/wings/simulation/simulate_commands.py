"""The commands about simulated runs: simulate world, goodput."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.programs.command.commands import FAILED, Commands
from isthmus.programs.command.options import EXPERIMENTS, AsJson, Page, whole_numbers

commands = typer.Typer(cls=Commands, help="Simulate runs, or their goodput, without any machine.")


@commands.callback(invoke_without_command=True)
def simulations(ctx: typer.Context) -> None:
    """Simulate runs, or their goodput, without any machine: nothing is left behind."""
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
    is_deadly: Annotated[
        bool,
        typer.Option(
            "--deaths",
            help="Also have every process die at once, at each step of a snapshot; --each counts these then.",
        ),
    ] = False,
    has_gangs: Annotated[
        bool,
        typer.Option(
            "--gangs",
            help="Islands of several processes, some elastic; --each asks that all happens to them that can.",
        ),
    ] = False,
    has_notices: Annotated[
        bool,
        typer.Option("--notices", help="Also have machines told to leave, the home among them, and started again."),
    ] = False,
    has_liars: Annotated[
        bool,
        typer.Option("--liars", help="A minority of those who brought machines lie, from several machines each."),
    ] = False,
    learners: Annotated[
        int | None,
        typer.Option(
            "--learners",
            metavar="M",
            help="So many in each universe; one of 16 dies, and one joins for 32. Left out: 2 to 4, by the seed.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run whole clusters in virtual time, with faults from the seed, and check that nothing is broken.

    Exit status 1 if something is; the same seed shows it again.
    """
    from isthmus.programs.wings.simulation import simulating

    asked = {"deaths": is_deadly, "gangs": has_gangs, "notices": has_notices, "liars": has_liars}
    beside = [name for name, is_asked in asked.items() if is_asked]
    if not simulating.world(seed, seeds, program, least=each, beside=beside, learners=learners, as_json=as_json):
        raise typer.Exit(FAILED)


@commands.command()
def goodput(
    learners: Annotated[
        str, typer.Option("--learners", metavar="N,...", help="Numbers of learners of decoupled-diloco.")
    ] = "2,4,8,16",
    chips: Annotated[
        str, typer.Option("--chips", metavar="N,...", help="Numbers of chips in all.")
    ] = "150e3,300e3,600e3,1.2e6,2.4e6",
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="Days to simulate of each.")] = 8,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Goodput when chips fail once a year, of learners of thousands of slices, beside what was published.

    An event model, calibrated to the published cells. Nothing is trained.
    """
    from isthmus.programs.wings.report.page import show_sheet
    from isthmus.programs.wings.simulation import goodput

    cells = goodput.cells(whole_numbers(learners, "--learners"), whole_numbers(chips, "--chips"), seeds)
    show_sheet(goodput.sheet(cells, seeds), page, as_json=as_json)


def offer(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    about = "Simulate runs, or their goodput, without any machine."
    app.add_typer(commands, name="simulate", rich_help_panel=EXPERIMENTS, help=about)
