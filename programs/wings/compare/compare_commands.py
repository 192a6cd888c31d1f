"""The command that trains by several programs and seeds: compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.programs.command import options
from isthmus.programs.command.commands import FAILED, Commands
from isthmus.programs.command.options import EXPERIMENTS
from isthmus.programs.command.request_command import takes_options
from isthmus.programs.command.request_options import Options
from isthmus.runtime.errors import ConfigError

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=EXPERIMENTS)
@takes_options("program", "run_dir", "transport")
def compare(
    requested: Options,
    programs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROGRAM",
            help="As for train; the first is the reference. Default: data-parallel decoupled-diloco.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="How many seeds, from --seed on.")] = 3,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="section.key=A,B",
            help="A side for each of these values; may be repeated: then for each combination.",
            show_default=False,
        ),
    ] = None,
    without: Annotated[
        str | None,
        typer.Option(
            "--without",
            metavar="SITE",
            help="What a machine with data of its own brings to the others: with --cluster FILE, whose sites train "
            "again with it and without it, each seed.",
            show_default=False,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        typer.Option(
            "--margin", metavar="X", help="By how much a loss may differ, and be as good.", show_default=False
        ),
    ] = None,
    speeds: Annotated[
        str | None,
        typer.Option(
            "--speeds",
            metavar="S,S,...",
            help="In virtual time, at these speeds of the slots; one 1 for all alike.",
            rich_help_panel=options.WHERE,
        ),
    ] = None,
    delay_ms: Annotated[
        float | None,
        typer.Option(
            "--delay",
            metavar="MS",
            help="In virtual time: what a transfer between hosts takes, where a step takes 10. Default: 1.",
            show_default=False,
            rich_help_panel=options.WHERE,
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="The folder of the runs. Default: runs/compare-ID.",
            rich_help_panel=options.WHERE,
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Train by several programs and seeds, and compare the losses.

    With intervals of differences, and one learner alone as the control.

    The same call goes on where it was broken off, and shows again what came of it.

    Exit status 1 if a run failed.
    """
    if without is not None:
        from isthmus.programs.wings.compare import leaving_out

        others = {"--sweep": sweep, "--margin": margin, "--speeds": speeds, "--delay": delay_ms, "PROGRAM": programs}
        leaving_out.refuse_others(others)
        if not leaving_out.leave_out(leaving_out.LeavingOut(requested, without, seeds, folder), as_json=as_json):
            raise typer.Exit(FAILED)
        return
    if requested.cluster is not None:
        do = "Leave it out, or name a site with --without."
        raise ConfigError("Reading --cluster", "runs of this machine, which are compared", "a cluster file", do)
    from isthmus.programs.wings.compare.comparing import CompareOptions
    from isthmus.programs.wings.compare.comparing import compare as comparing

    comparison = CompareOptions(requested, programs or [], sweep or [], seeds, margin, speeds, delay_ms, folder)
    if not comparing(comparison, as_json=as_json):
        raise typer.Exit(FAILED)


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
