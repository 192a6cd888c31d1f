"""The command about runs under deliberate faults: chaos.

The command about runs for which no machines are rented yet: plan.

The commands about simulated runs: simulate world, goodput, speeds, borrowed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isthmus.programs.command import options
from isthmus.programs.command.commands import FAILED, Commands
from isthmus.programs.command.options import AsJson, Page, whole_numbers
from isthmus.programs.command.run_commands import PANEL

if TYPE_CHECKING:
    from isthmus.programs.engine.report.sheet import Sheet

chaos_commands = typer.Typer(cls=Commands)


@chaos_commands.command(rich_help_panel=PANEL)
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
    from isthmus.programs.command import lab as striking

    if not striking.chaos(what or [], run_dir, as_json=as_json):
        raise typer.Exit(FAILED)


plan_commands = typer.Typer(cls=Commands)
_FORMATS = "a format of `program.push`"


@plan_commands.command(rich_help_panel=PANEL)
def plan(
    parameters: Annotated[float, typer.Option("--parameters", metavar="N", help="Of the model, as in 12e9.")],
    step_seconds: Annotated[float, typer.Option("--step-seconds", metavar="S", help="What an inner step takes.")],
    learners: Annotated[int, typer.Option("--learners", metavar="M")] = 4,
    island: Annotated[
        list[str] | None,
        typer.Option(
            "--island",
            metavar="KIND:TOPOLOGY",
            help="Of all learners, or one for each: v6e:4x4.",
            show_default=False,
        ),
    ] = None,
    interval: Annotated[int, typer.Option("--interval", metavar="H", help="Steps from merge to merge.")] = 24,
    fragments: Annotated[int, typer.Option("--fragments", metavar="P")] = 24,
    overlap: Annotated[int, typer.Option("--overlap", metavar="TAU", help="Steps until it is back.")] = 2,
    shards: Annotated[int, typer.Option("--shards", metavar="S", help="Of the syncer.")] = 1,
    push: Annotated[str, typer.Option("--push", help=f"How answers travel: {_FORMATS}.")] = "int4",
    update: Annotated[str, typer.Option("--update", help="How merged fragments travel.")] = "float32",
    gradients: Annotated[str, typer.Option("--gradients", help="How data-parallel's travel.")] = "float32",
    gradient_share: Annotated[
        float, typer.Option("--gradient-share", metavar="X", help="Of a step, in which they may cross.")
    ] = 1.0,
    link_gbits: Annotated[
        float | None, typer.Option("--link-gbits", metavar="G", help="What each learner's link carries a second.")
    ] = None,
    chips: Annotated[int | None, typer.Option("--chips", metavar="N", help="In all, if not as islands say.")] = None,
    failures: Annotated[float, typer.Option("--failures-per-year", metavar="F", help="Of a chip.")] = 1.0,
    price: Annotated[float | None, typer.Option("--price", help="Of a chip and hour.")] = None,
    via_every: Annotated[
        float | None,
        typer.Option("--via-every", metavar="SECONDS", help="Learners reach the home through a store: how often."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", metavar="N", help="Of a learner, for the bytes.")] = 1000,
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """Estimate bandwidth, memory, failures and cost before renting.

    Only the merge is measured, on this machine; everything else is computed.
    """
    from isthmus.programs.study.lab import plan
    from isthmus.programs.study.lab.plan import PlanRequest, check, islands_of

    wanted = PlanRequest(
        parameters,
        learners,
        step_seconds,
        islands_of(island or [], learners),
        interval=interval,
        fragments=fragments,
        overlap=overlap,
        shards=shards,
        push=push,
        update=update,
        gradients=gradients,
        gradient_share=gradient_share,
        link_bits=None if link_gbits is None else link_gbits * 1e9,
        chips=chips,
        failures_per_year=failures,
        price_per_hour=price,
        via_every=via_every,
        steps=steps,
    )
    check(wanted)
    _show(plan.sheet(plan.plan_of(wanted, plan.measure(wanted))), page, as_json=as_json)


def _show(sheet: Sheet, page: Path | None, *, as_json: bool) -> None:
    """Print a result, and write its page where one is wanted."""
    from isthmus.programs.engine.report.page import write_sheet
    from isthmus.programs.study.terminal.figures import show

    if page is not None:
        write_sheet(page, sheet)
    show(sheet, as_json=as_json)


simulate_commands = typer.Typer(cls=Commands, help="Simulate runs, or their goodput, without any machine.")


@simulate_commands.callback(invoke_without_command=True)
def simulations(ctx: typer.Context) -> None:
    """Simulate runs, or their goodput, without any machine: nothing is left behind."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@simulate_commands.command()
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
    as_json: AsJson = False,
) -> None:
    """Run whole clusters in virtual time, with faults from the seed, and check that nothing is broken.

    Exit status 1 if something is; the same seed shows it again.
    """
    from isthmus.programs.command import lab as simulating

    asked = {"deaths": is_deadly, "gangs": has_gangs, "notices": has_notices, "liars": has_liars}
    beside = [name for name, is_asked in asked.items() if is_asked]
    if not simulating.world(seed, seeds, program, least=each, beside=beside, as_json=as_json):
        raise typer.Exit(FAILED)


@simulate_commands.command()
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
    from isthmus.programs.study.lab import goodput

    cells = goodput.cells(whole_numbers(learners, "--learners"), whole_numbers(chips, "--chips"), seeds)
    _show(goodput.sheet(cells, seeds), page, as_json=as_json)
