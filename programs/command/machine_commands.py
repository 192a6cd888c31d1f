"""The commands about machines: daemon, keygen, admit, join, expel."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from isthmus.programs.command.options import Commands, Grace
from isthmus.programs.engine.run.interrupts import GRACE_SECONDS

PANEL: Final = "Machines"

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
def daemon(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What cluster files call this machine.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="tcp://ADDRESS:PORT", help="Where it listens: with keys anywhere.")
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="machine.toml", help="Which modules it may load, its key, whom it admits."),
    ] = None,
    ports: Annotated[
        str,
        typer.Option(
            "--ports", metavar="A-B", help="Where hosts listen; A-A: nowhere but behind the daemon's own port."
        ),
    ] = "",
    grace: Grace = GRACE_SECONDS,
) -> None:
    """Run the daemon of this machine, which supervises its runs.

    It takes runs that `isthmus train --cluster` hands over, and does its part in those of other machines.

    Ctrl-C asks its runs to stop and waits for them; a second one ends them at once.

    SIGTERM sets them aside for its next start: exit status 75.
    """
    from isthmus.programs.engine.machine.serve import serve

    raise typer.Exit(serve(name, listen, config, grace, ports))


@commands.command(rich_help_panel=PANEL)
def keygen(name: Annotated[str, typer.Argument(metavar="NAME", help="The machine's name.")]) -> None:
    """Make a key pair for a machine: NAME.key (secret) and NAME.pub."""
    from isthmus.programs.engine.machine import admissions

    typer.echo(admissions.keygen(name))


@commands.command(rich_help_panel=PANEL)
def admit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The machine that may connect from now on.")],
    key: Annotated[str, typer.Argument(metavar="KEY|FILE", help="Its public key, or its NAME.pub.")],
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="Whose daemon: needed where there are several.")
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="Its key may also start, watch and stop runs here.")
    ] = False,
) -> None:
    """Allow another machine to connect to the daemon of this one.

    It may offer islands to the runs here, and, as an operator, start, watch and stop them.
    """
    from isthmus.programs.engine.machine import admissions

    typer.echo(admissions.admit_machine(name, key, machine, is_operator=operator))


@commands.command(rich_help_panel=PANEL)
def join(
    home: Annotated[
        str, typer.Argument(metavar="tcp://HOME:PORT", help="Where the daemon listens whose runs are joined.")
    ],
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What this machine is to be called.")],
    islands: Annotated[int, typer.Option("--islands", metavar="N", help="How many learners it takes.")] = 1,
    server_key: Annotated[
        str | None,
        typer.Option("--server-key", metavar="KEY|FILE", help="The public key of the home, or its NAME.pub."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="machine.toml", help="Which modules it may load, and its key.")
    ] = None,
    grace: Grace = GRACE_SECONDS,
) -> None:
    """Offer this machine's islands to the runs of another machine.

    It only dials out. Ctrl-C takes it away again; SIGTERM, too, with exit status 75: the same name gets its slots back.
    """
    from isthmus.programs.engine.machine.serve import join

    raise typer.Exit(join(home, name, islands, server_key, config, grace))


@commands.command(rich_help_panel=PANEL)
def expel(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The machine that is to go.")],
    machine: Annotated[
        str | None,
        typer.Option("--machine", metavar="NAME", help="Whose runs it leaves, where several daemons are here."),
    ] = None,
) -> None:
    """Remove a machine from the runs that have their home here.

    Its hosts end, and its key is admitted no longer.
    """
    from isthmus.programs.engine.machine import admissions

    typer.echo(admissions.expel_machine(name, machine))
