"""The command that serves a page about runs: dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.programs.command.commands import Commands
from isthmus.programs.command.run_commands import PANEL, Cluster, Run

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def dashboard(
    run: Run = None,
    cluster: Cluster = None,
    port: Annotated[int, typer.Option("--port", metavar="N", help="Where it is; 0: any port that is free.")] = 0,
    address: Annotated[
        str, typer.Option("--address", metavar="ADDRESS", help="Of this machine; off loopback only with a token.")
    ] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="The password of the page; or ISTHMUS_DASHBOARD_TOKEN."),
    ] = None,
    base_path: Annotated[
        str,
        typer.Option(
            "--base-path",
            metavar="PATH|URL",
            help="Where a proxy has the page, if its name is not loopback's, or it keeps the path.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Follow runs on a page in the browser.

    The address is the first line of the output. The page only reads; Ctrl-C ends it, and no run.

    RUN may be a folder of runs.
    """
    from isthmus.programs.wings.dashboard import page_request

    page_request.dashboard(run, cluster, address, port, token_file, base_path)


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
