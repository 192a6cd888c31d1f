"""The commands about simulated runs: simulate world, goodput, speeds, borrowed."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isthmus.programs.arguments.group import FAILED, Commands
from isthmus.programs.arguments.options import AsJson, Page, whole_numbers

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
    as_json: AsJson = False,
) -> None:
    """Run whole clusters in virtual time, with faults from the seed, and check that nothing is broken.

    Exit status 1 if something is; the same seed shows it again.
    """
    from isthmus.programs.command import simulate as simulating

    if not simulating.world(
        seed, seeds, program, least=each, is_deadly=is_deadly, has_gangs=has_gangs, as_json=as_json
    ):
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
    from isthmus.programs.goodput import shown
    from isthmus.programs.goodput.cells import cells
    from isthmus.programs.report.sheet import write_sheet

    found = cells(whole_numbers(learners, "--learners"), whole_numbers(chips, "--chips"), seeds)
    if page is not None:
        write_sheet(page, shown.sheet(found, seeds))
    typer.echo(json.dumps(shown.as_object(found), indent=2) if as_json else shown.table(found), nl=as_json)


@commands.command()
def speeds(
    learners: Annotated[int, typer.Option("--learners", metavar="N")] = 4,
    slower: Annotated[float, typer.Option("--slower", metavar="X", help="Speed of the slower half.")] = 0.68,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Of a learner, on average.")] = 100,
    seed: Annotated[int, typer.Option("--seed", metavar="S")] = 0,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Learners of two speeds: goodput if everybody waits, or nobody, with and without grace.

    Whole runs of the real cores in virtual time, beside what was published.
    """
    from isthmus.programs.mixtures import shown
    from isthmus.programs.mixtures.speeds import mixed
    from isthmus.programs.report.sheet import write_sheet

    found = mixed(learners, slower, steps, seed)
    if page is not None:
        write_sheet(page, shown.sheet(found, slower))
    typer.echo(json.dumps(shown.as_object(found, slower), indent=2) if as_json else shown.table(found), nl=as_json)


@commands.command()
def borrowed(
    learners: Annotated[int, typer.Option("--learners", metavar="N", help="Without the borrowed ones.")] = 4,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Of a learner, without others.")] = 200,
    seed: Annotated[int, typer.Option("--seed", metavar="S")] = 0,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Learners that join half-way, 25 to 300 % more: the time to finish.

    Whole runs of the real cores in virtual time, beside what was published.
    """
    from isthmus.programs.mixtures import shown
    from isthmus.programs.mixtures.borrowed import borrowed as cases_of
    from isthmus.programs.report.sheet import write_sheet

    found = cases_of(learners, steps, seed)
    if page is not None:
        write_sheet(page, shown.borrowed_sheet(found))
    told = json.dumps(shown.borrowed_object(found), indent=2) if as_json else shown.borrowed_table(found)
    typer.echo(told, nl=as_json)
