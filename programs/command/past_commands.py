"""The commands about what has happened in a run: why, replay."""

from __future__ import annotations

import typer

from isthmus.programs.command.group import FAILED, Commands
from isthmus.programs.command.options import AsJson
from isthmus.programs.command.run_commands import PANEL, Run

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def replay(run: Run = None, as_json: AsJson = False) -> None:
    """Let the cores of a run decide again, from its tapes, and compare.

    Each tape in the folder has what a host or a daemon was told, and what its core decided. A fresh core is told the
    same; exit status 1 if it decides anything else.

    Payloads are not on tapes: no step and no merge is computed again. The task is not imported.
    """
    from isthmus.programs.terminal import find_run
    from isthmus.programs.terminal import replay as replay_view

    if not replay_view.show(find_run.folder_of(run), as_json=as_json):
        raise typer.Exit(FAILED)
