"""The command about runs for which no machines are rented yet: plan."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.programs.command.commands import Commands
from isthmus.programs.command.options import EXPERIMENTS, AsJson, Page

commands = typer.Typer(cls=Commands)


_FORMATS = "a format of `program.push`"


@commands.command(rich_help_panel=EXPERIMENTS)
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
        float, typer.Option("--gradient-share", metavar="X", help="Of a step, in which they may cross; 0: after it.")
    ] = 0.0,
    link_gbits: Annotated[
        float | None, typer.Option("--link-gbits", metavar="G", help="What each learner's link carries a second.")
    ] = None,
    shard_gbits: Annotated[
        float | None, typer.Option("--shard-gbits", metavar="G", help="What each shard's link carries a second.")
    ] = None,
    latency_ms: Annotated[float, typer.Option("--latency-ms", metavar="MS", help="Of that link, one way.")] = 0.0,
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
    from isthmus.programs.engine.run.room_for_hosts import check_compiler
    from isthmus.programs.wings.plan import bounds, plan
    from isthmus.programs.wings.plan.plan import PlanRequest, check, islands_of
    from isthmus.programs.wings.report.page import show_sheet
    from isthmus.runtime.system.control_groups import memory_most

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
        shard_bits=None if shard_gbits is None else shard_gbits * 1e9,
        latency_seconds=latency_ms / 1e3,
        chips=chips,
        failures_per_year=failures,
        price_per_hour=price,
        via_every=via_every,
        steps=steps,
    )
    check(wanted)
    check_compiler("Measuring a merge on this machine")
    show_sheet(bounds.sheet(plan.plan_of(wanted, plan.measure(wanted), memory_most())), page, as_json=as_json)


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
