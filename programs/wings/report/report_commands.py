"""The command that writes the report of a run again: report."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from isthmus.programs.command.commands import Commands
from isthmus.programs.command.run_commands import PANEL, Run
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import put_bytes
from isthmus.runtime.system.refusals import remedy

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def report(
    run: Run = None,
    pictures: Annotated[
        Path | None,
        typer.Option("--pictures", metavar="DIR", help="Write timeline.svg there, and absence.svg if a host was away."),
    ] = None,
) -> None:
    """Write the report of a run again, from the files that are there.

    Also of a run that goes on, or that ended without one.
    """
    from isthmus.programs.study.terminal import status
    from isthmus.programs.wings.report.page import absence_svg, timeline_svg, write_report

    folder = status.whole_folder_of(run)
    try:
        written = [write_report(folder)]
        if pictures is not None:
            pictures.mkdir(parents=True, exist_ok=True)
            for name, draw in (("timeline.svg", timeline_svg), ("absence.svg", absence_svg)):
                try:
                    drawing = draw(folder)
                except ValueError as error:
                    typer.echo(f"not drawn: {error}")
                else:
                    put_bytes(pictures / name, drawing.encode())
                    written.append(pictures / name)
    except OSError as error:
        reason = f"{error.strerror or error}: {error.filename}"
        do = "Make room there, or write elsewhere."
        raise ConfigError(
            f"Writing the report of {folder}", "files that can be written", reason, remedy(error, do)
        ) from None
    typer.echo("\n".join(map(str, written)))


def offer(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.add_typer(commands)
