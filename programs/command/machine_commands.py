"""The commands about machines: doctor, daemon, keygen, admit, invite, join, expel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from isthmus.programs.command.commands import Commands
from isthmus.programs.command.options import (
    AcceptChanges,
    Grace,
    MetricsHost,
    MetricsPort,
    ResumeOrStart,
    RunDir,
    metrics_at,
)
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.addresses import LOOPBACK

PANEL: Final = "Machines"

commands = typer.Typer(cls=Commands)

UntilOver: TypeAlias = Annotated[
    bool,
    typer.Option("--until-over", help="End when no run goes on here any more: 0, or 1 if one has failed."),
]

OwnData: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Learners here train on this file or folder, in place of a run's data; may be repeated. It stays here.",
        show_default=False,
    ),
]

ViaEvery: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--via-every",
        metavar="SECONDS",
        help="How often it writes there, and looks. Default: .5 for a store, .2 for a folder.",
    ),
]


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
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="FILE.toml", help="Begin the run of this cluster file, whose home this machine is."
        ),
    ] = None,
    run_dir: RunDir = None,
    resume_or_start: ResumeOrStart = False,
    accept_changes: AcceptChanges = False,
    until_over: UntilOver = False,
    grace: Grace = GRACE_SECONDS,
    via: Annotated[
        str | None,
        typer.Option("--via", metavar="URL", help="A store or shared folder, for machines that reach nothing else."),
    ] = None,
    via_every: ViaEvery = None,
    data: OwnData = None,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsHost = LOOPBACK,
) -> None:
    """Run the daemon of this machine, which supervises its runs.

    It takes runs that `isthmus train --cluster` hands over, and does its part in those of other machines.

    Ctrl-C asks its runs to stop and waits for them; a second one ends them at once.

    SIGTERM sets them aside for its next start: exit status 75. With --run it begins one by itself.
    """
    from isthmus.programs.engine.machine.serve import OwnRunRequest, serve

    if run is None and (run_dir is not None or resume_or_start):
        doing, do = "Reading the command line of `isthmus daemon`", "Name the run with --run FILE.toml."
        raise ConfigError(doing, "--run beside --run-dir and --resume-or-start", "none", do)
    if accept_changes and not resume_or_start:
        do = "Add --run FILE.toml --resume-or-start; for a run that was handed over: isthmus train --resume RUN."
        raise ConfigError("Reading --accept-changes", "--resume-or-start beside it", "none", do)
    own = None if run is None else OwnRunRequest(run, run_dir, resume_or_start, accept_changes)
    metrics = metrics_at(metrics_port, metrics_address)
    status = serve(
        name,
        listen,
        config,
        grace,
        ports=ports,
        own=own,
        until_over=until_over,
        metrics=metrics,
        via=via,
        every=via_every,
        own_data=data or (),
    )
    raise typer.Exit(status)


@commands.command(rich_help_panel=PANEL)
def join(
    home: Annotated[
        str | None, typer.Argument(metavar="[tcp://HOME:PORT]", help="Where the daemon listens whose runs are joined.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What this machine is to be called; an invitation may say it."),
    ] = None,
    invite: Annotated[
        Path | None,
        typer.Option("--invite", metavar="FILE|-", help="An invitation of the home: no more is needed. -: by stdin."),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", metavar="FILE", help="The cluster file that has the home.")
    ] = None,
    islands: Annotated[int, typer.Option("--islands", metavar="N", help="How many learners it takes.")] = 1,
    server_key: Annotated[
        str | None,
        typer.Option("--server-key", metavar="KEY|FILE", help="The public key of the home, or its NAME.pub."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="machine.toml", help="Which modules it may load, and its key.")
    ] = None,
    island: Annotated[
        str | None,
        typer.Option("--island", metavar="NAME", help="The island that this machine is a part of, with others."),
    ] = None,
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank", metavar="R", help="Its number there, from 0. Default: as Slurm, LeaderWorkerSet or RANK say."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option("--size", metavar="N", help="The machines of that island. Default: likewise.")
    ] = None,
    wait: Annotated[
        float | None,
        typer.Option("--wait", metavar="SECONDS", help="How long to wait for the home. Default: for ever."),
    ] = None,
    until_over: UntilOver = False,
    grace: Grace = GRACE_SECONDS,
    via: Annotated[
        str | None,
        typer.Option("--via", metavar="URL", help="A store or shared folder, the home's, too: the only way."),
    ] = None,
    via_every: ViaEvery = None,
    data: OwnData = None,
    metrics_port: MetricsPort = None,
    metrics_address: MetricsHost = LOOPBACK,
) -> None:
    """Offer this machine's islands to the runs of another machine.

    It only dials out, and waits for the home. Ctrl-C takes it away again; SIGTERM, too, with exit status 75: the same
    name gets its slots back. Without a home, the text of an invitation may stand in ISTHMUS_INVITE.
    """
    from isthmus.programs.engine.machine.invitations import STANDARD_INPUT, GivenText
    from isthmus.programs.engine.machine.joining import JoinRequest
    from isthmus.programs.engine.machine.joining import join as offer
    from isthmus.programs.loop_script import INVITE

    if island is None and (rank is not None or size is not None):
        do = "Name the island that this machine is a part of, with --island NAME."
        raise ConfigError("Reading --rank and --size", "--island beside them", "none", do)
    part = None if island is None else (island, rank, size)
    metrics = metrics_at(metrics_port, metrics_address)
    variable = os.environ.pop(INVITE, None)  # No process that this one starts is to have it.
    given = None if variable is None else GivenText(INVITE, os.fsencode(variable))
    if invite == STANDARD_INPUT and home is None and cluster is None:
        invite, given = None, GivenText.on_standard_input()
    request = JoinRequest(
        home,
        name,
        islands,
        server_key,
        config,
        invite,
        wait,
        until_over,
        cluster,
        grace,
        metrics,
        given,
        part,
        via=via,
        every=via_every,
        own_data=tuple(data or ()),
    )
    raise typer.Exit(offer(request))


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
def invite(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="The machine that may join.")] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", help="How many names --for admits.", show_default=False)
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option("--for", metavar="PREFIX", help="Instead of a NAME: machines whose names begin so."),
    ] = None,
    cluster: Annotated[
        Path | None, typer.Option("--cluster", metavar="FILE", help="The cluster file that has the home.")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", metavar="tcp://HOST:PORT", help="Where others reach the home.")
    ] = None,
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="The home, where there are several.")
    ] = None,
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="As 12h or 7d. Default: never.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--to", metavar="FILE", help="What to write. Default: NAME.invite or PREFIX.invite.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option("--owner", metavar="OWNER", help="Whose its machines are: a merge bounds them together."),
    ] = None,
    weight_share_max: Annotated[
        float | None,
        typer.Option(
            "--weight-share-max",
            metavar="X",
            help="The largest share of a merge of that owner, or of each machine. Default: the program's.",
        ),
    ] = None,
    islands: Annotated[
        int | None, typer.Option("--islands", metavar="N", help="How many islands each machine may offer. Default: 8.")
    ] = None,
    as_line: Annotated[
        bool, typer.Option("--line", help="Print one line that says the same: for ISTHMUS_INVITE, chats and secrets.")
    ] = False,
) -> None:
    """Write an invitation to this home, for `isthmus join --invite`.

    One for a NAME is used up once. One with --for admits N names, and a name again, with another key, once its machine
    has left or was silent for 30 s. `isthmus expel NAME` (or PREFIX) withdraws it.
    """
    from isthmus.programs.engine.machine.invitations import InviteRequest
    from isthmus.programs.engine.machine.invitations import invite as write

    terms = owner, weight_share_max, islands
    invited = write(InviteRequest(name, count, prefix, cluster, address, machine, expires, to, *terms))
    typer.echo(invited.text, err=as_line)
    if as_line:
        typer.echo(invited.line)


@commands.command(rich_help_panel=PANEL)
def expel(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The machine that is to go.")],
    machine: Annotated[
        str | None,
        typer.Option("--machine", metavar="NAME", help="Whose runs it leaves, where several daemons are here."),
    ] = None,
    grace: Annotated[
        float,
        typer.Option("--grace", metavar="SECONDS", help="For its learners to answer once more. Default: none."),
    ] = 0.0,
) -> None:
    """Remove a machine from the runs that have their home here.

    Its hosts end, and its key is admitted no longer.
    """
    from isthmus.programs.engine.machine import admissions

    typer.echo(admissions.expel_machine(name, machine, grace))
