"""The command about what crossed between machines: borders."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from isthmus.programs.command.commands import Commands
from isthmus.programs.command.options import AsJson
from isthmus.programs.command.run_commands import PANEL, Run
from isthmus.runtime.errors import ConfigError, printable
from isthmus.runtime.system.refusals import remedy

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def borders(
    run: Run = None,
    digests: Annotated[
        bool, typer.Option("--digests", help="With --json: the digest of each item that a tape has.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what crossed between the machines of a run.

    Between its regions, too. By kind: bytes of TCP, items, the largest, first, last, digests of what tapes have.

    It may be asked while the run goes on.
    """
    from isthmus.programs.study.terminal import status
    from isthmus.programs.wings.borders import borders as accounts
    from isthmus.programs.wings.borders.borders_page import page

    folder = status.whole_folder_of(run)
    try:
        found = accounts.read(folder)
    except (OSError, LookupError, TypeError, ValueError) as error:
        do = "Name a run folder: isthmus status --all shows them."
        raise ConfigError(
            f"Reading {folder}", "graph.json of a run", f"{type(error).__name__}: {error}", remedy(error, do)
        ) from None
    typer.echo(json.dumps(found.as_data(with_digests=digests), indent=2) if as_json else printable(page(found)))


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
