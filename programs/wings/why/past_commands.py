"""The commands about past events of a run: why, replay."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.programs.command.commands import FAILED, Commands
from isthmus.programs.command.options import AsJson
from isthmus.programs.command.run_commands import PANEL, Run

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def why(
    run: Run = None,
    fragment: Annotated[int | None, typer.Option("--fragment", metavar="P", help="Of this fragment.")] = None,
    version: Annotated[
        str | None, typer.Option("--version", metavar="N", help="This version of it, as N or EPOCH.N; or its newest.")
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The newest of all; the default.")] = False,
    as_json: AsJson = False,
) -> None:
    """Explain one merge: its contributors, late answers, and reasons.

    From merges.jsonl, the tape of the syncer, trace.json and events.jsonl.

    It may be asked while the run goes on.
    """
    from isthmus.programs.study.terminal import status
    from isthmus.programs.wings.why import past as why_view
    from isthmus.programs.wings.why.why import MergeQuery

    wanted = MergeQuery.of(fragment, version, is_last=last)
    why_view.show_why(status.whole_folder_of(run), wanted, as_json=as_json)


@commands.command(rich_help_panel=PANEL)
def replay(run: Run = None, as_json: AsJson = False) -> None:
    """Replay the tapes of a run, and check that cores decide the same.

    A tape has what a host or a daemon was told, and what its core decided.

    A fresh core is told the same; exit status 1 if it decides anything else.
    """
    from isthmus.programs.study.terminal import status
    from isthmus.programs.wings.why import past as replay_view

    if not replay_view.show_replay(status.whole_folder_of(run), as_json=as_json):
        raise typer.Exit(FAILED)


def offer(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(commands)
