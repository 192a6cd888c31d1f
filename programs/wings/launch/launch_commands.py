"""The commands of launches: on an engine, and scale, status, down."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from isthmus.programs.command.commands import Commands
from isthmus.programs.command.machine_commands import PANEL
from isthmus.programs.command.options import WHERE, AcceptChanges, AsJson, Grace
from isthmus.programs.command.request_command import takes_options
from isthmus.programs.engine.request.grace import GRACE_SECONDS

if TYPE_CHECKING:
    from isthmus.programs.command.request_options import Options

commands = typer.Typer(cls=Commands)

FILE_HELP: Final = "What is trained, as in a cluster file, and the table launch."
File: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE.toml", help=FILE_HELP, show_default=False)]
Of: TypeAlias = Annotated[
    Path | None,
    typer.Argument(metavar="FILE.toml", help="The file that was launched. Default: the only launch here."),
]
Islands: TypeAlias = Annotated[
    int | None, typer.Option("--islands", metavar="N", help="How many learners. Default: 1.", rich_help_panel=WHERE)
]
Nodes: TypeAlias = Annotated[
    int, typer.Option("--nodes-per-island", metavar="M", help="The machines of each.", rich_help_panel=WHERE)
]
Print: TypeAlias = Annotated[
    bool,
    typer.Option("--print", help="Show what would be submitted, or write it --to a folder.", rich_help_panel=WHERE),
]
To: TypeAlias = Annotated[
    Path | None,
    typer.Option("--to", metavar="DIR", help="The launch folder. Default: launches/NAME.", rich_help_panel=WHERE),
]

InviteBy: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--invite-by",
        metavar="file|env",
        help="On Slurm: env where islands share no folder with the home.",
        rich_help_panel=WHERE,
    ),
]

ENGINES: Final = {
    "slurm": "Launch a run on Slurm: a job for the home, an element of a job array for each island.",
    "ray": "Launch a run on Ray: an actor for the home, and for each node of an island.",
    "kubernetes": "Launch a run on Kubernetes: a Job for the home, and for each machine of an island.",
}
"""The engines of `programs/wings/launch/engine.py`, with the help of each one's command."""


def _add(engine: str, about: str) -> None:
    @commands.command(engine, help=about)
    @takes_options("program", "run_dir", "transport", "cluster")
    def on_engine(
        requested: Options,
        file: File,
        islands: Islands = None,
        nodes_per_island: Nodes = 1,
        is_printed: Print = False,
        to: To = None,
        grace: Grace = GRACE_SECONDS,
        invite_by: InviteBy = None,
        accept_changes: AcceptChanges = False,
    ) -> None:
        from isthmus.programs.wings.launch.launch_options import LaunchOptions, launch

        asked = requested, file, islands, nodes_per_island, grace, is_printed, to, invite_by
        launch(engine, LaunchOptions(*asked, accepts_changes=accept_changes))


for _engine, _about in ENGINES.items():
    _add(_engine, _about)


@commands.command(hidden=True)
def settle(
    file: Annotated[Path, typer.Argument(metavar="CLUSTER.toml", help="The home's file.", show_default=False)],
    islands: Annotated[int, typer.Option("--islands", metavar="N", help="How many learners.", show_default=False)],
) -> None:
    """Prepare a request where its home is, and add what follows from the number of islands: for scripts of launches."""
    from isthmus.programs.wings.launch import launch_options

    launch_options.settle(file, islands)


@commands.command()
def scale(
    islands: Annotated[int, typer.Argument(metavar="N", help="How many islands there are to be.", show_default=False)],
    file: Of = None,
    to: To = None,
) -> None:
    """Bring a launch to N islands, while it trains."""
    from isthmus.programs.wings.launch import folder, launching

    typer.echo(launching.scale(folder.find(file, to), islands))


@commands.command()
def status(file: Of = None, to: To = None, as_json: AsJson = False) -> None:
    """Show what the engine has of a launch."""
    from isthmus.programs.wings.launch import folder
    from isthmus.programs.wings.launch.launch_options import shown

    typer.echo(shown(folder.find(file, to), as_json=as_json))


@commands.command()
def down(file: Of = None, to: To = None) -> None:
    """End a launch, and free all that it has; what it trained goes on with the next launch of its file."""
    from isthmus.programs.wings.launch import folder, launching

    typer.echo(launching.down(folder.find(file, to)))


def offer(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    about = "Launch a run on Slurm, Ray or Kubernetes; scale it, end it."
    app.add_typer(commands, name="launch", rich_help_panel=PANEL, help=about)
