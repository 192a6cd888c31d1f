"""The command that moves a run to another home: resume."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.programs.command import options
from isthmus.programs.command.commands import Commands
from isthmus.programs.command.run_commands import PANEL
from isthmus.runtime.errors import ConfigError

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def resume(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN|URL", help="Its folder on the machine that is to be its home, or where its snapshots are."
        ),
    ],
    cluster: options.Cluster = None,
    home: Annotated[
        str | None,
        typer.Option(
            "--home",
            metavar="MACHINE",
            help="The next home. Default: the first in the file whose daemon is there.",
            rich_help_panel=options.WHERE,
            show_default=False,
        ),
    ] = None,
    run_dir: options.RunDir = None,
    accept_changes: Annotated[bool, typer.Option("--accept-changes", hidden=True)] = False,
) -> None:
    """Move a run whose home machine was lost to another home.

    It goes on from its last snapshot, of a URL in a new run folder there, and from what hosts on other machines hold,
    which go on as they are.

    A run whose home is there is refused.
    """
    from isthmus.programs.wings.failover.resuming import resume_elsewhere

    if accept_changes:
        do = (
            "Move it as it is; then stop it, and type there isthmus train --resume RUN --cluster FILE --accept-changes."
        )
        expected = "a run that goes on as it is, as its hosts on other machines do"
        raise ConfigError("Reading --accept-changes", expected, "other files", do)
    resume_elsewhere(run, options.cluster_of(cluster), home, run_dir)


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
