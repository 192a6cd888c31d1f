"""The command about runs for which no machines are rented yet: plan."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isthmus.programs.arguments.group import Commands
from isthmus.programs.arguments.options import AsJson, Page
from isthmus.programs.command.run_commands import PANEL

commands = typer.Typer(cls=Commands)
_FORMATS = "float32, bf16, int8 or int4"


@commands.command(rich_help_panel=PANEL)
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
    page: Page = None,
    as_json: AsJson = False,
) -> None:
    """What a run would need of links, memory and money, by program.

    Only the merge is measured, on this machine; everything else is computed.
    """
    from isthmus.programs.plan import rates, shown
    from isthmus.programs.plan.plan import plan_of
    from isthmus.programs.plan.wanted import Wanted, check, islands_of
    from isthmus.programs.report.sheet import write_sheet

    wanted = Wanted(
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
    )
    check(wanted)
    found = plan_of(wanted, rates.measure(wanted))
    if page is not None:
        write_sheet(page, shown.sheet(found))
    typer.echo(json.dumps(shown.as_object(found), indent=2) if as_json else shown.table(found), nl=as_json)
