"""The command that checks a machine: doctor."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.programs.command.commands import FAILED, Commands
from isthmus.programs.command.machine_commands import PANEL
from isthmus.programs.command.options import AsJson

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def doctor(
    ctx: typer.Context,
    cluster: Annotated[
        Path | None,
        typer.Option(
            "--cluster", metavar="FILE.toml", help="Judge this machine as a part of it, and the way to others."
        ),
    ] = None,
    invite: Annotated[
        Path | None,
        typer.Option("--invite", metavar="FILE|-", help="Judge this machine as one that joins by this invitation."),
    ] = None,
    island: Annotated[
        str | None,
        typer.Option("--for", metavar="ISLAND", help="The machine, or island, of the file that this machine is to be."),
    ] = None,
    link: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--link",
            metavar="A B",
            help="Measure the link between two daemons instead: machines of --cluster, or addresses.",
            show_default=False,
        ),
    ] = None,
    links: Annotated[
        bool, typer.Option("--links", help="Measure those of all pairs of machines of --cluster that have an address.")
    ] = False,
    parameters: Annotated[
        int | None,
        typer.Option("--parameters", metavar="N", help="With a link: what a push of such a model takes, by format."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine, and its way to others, before a run.

    Without options: whether a run on this machine alone would work. Each line is ok, note or fails; what to do follows.

    With --link A B: bandwidth, round trip and loss between two daemons, both ways, within ten seconds, as hosts of a
    run would meet. The key of --cluster has to be an operator's at A; if B has no address, it has to be linked to A.

    Exit status 1 if a check fails.
    """
    if link is not None or links:
        from isthmus.programs.wings.doctor import linking

        linking.check_alone(invite=invite, island=island, is_both=link is not None and links)
        linking.link(link or (), cluster, parameters, as_json=as_json)
        return
    from isthmus.programs.wings.doctor import doctoring

    doctoring.check_no_link(parameters)
    if not doctoring.doctor(cluster, invite, island, ctx.obj, as_json=as_json):
        raise typer.Exit(FAILED)


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
