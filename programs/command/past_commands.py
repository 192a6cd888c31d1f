"""The commands about past events of a run: why, replay."""

from __future__ import annotations

from typing import Annotated

import typer

from isthmus.programs.arguments.group import FAILED, Commands
from isthmus.programs.arguments.options import AsJson
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
    """Explain one merge: who was in it, who came too late, and why.

    From merges.jsonl, the tape of the syncer, trace.json and events.jsonl.

    It may be asked while the run goes on.
    """
    from isthmus.programs.terminal import find_run
    from isthmus.programs.terminal import why as why_view
    from isthmus.programs.why.folder import Wanted

    wanted = Wanted.of(fragment, version, is_last=last)
    why_view.show(find_run.folder_of(run), wanted, as_json=as_json)


@commands.command(rich_help_panel=PANEL)
def replay(run: Run = None, as_json: AsJson = False) -> None:
    """Let the cores of a run decide again, from its tapes: is it the same?

    A tape has what a host or a daemon was told, and what its core decided.

    A fresh core is told the same; exit status 1 if it decides anything else.

    Where payloads were kept (--keep-payloads), every merge is computed again: the same bytes?
    """
    from isthmus.programs.terminal import find_run
    from isthmus.programs.terminal import replay as replay_view

    if not replay_view.show(find_run.folder_of(run), as_json=as_json):
        raise typer.Exit(FAILED)
