"""The commands about runs: train, graph, compile, compare, status, dashboard, stop, logs.

The commands about past events of a run: why, replay.
"""

from __future__ import annotations

import json
import platform
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import typer

from isthmus.programs.command import options
from isthmus.programs.command.commands import Commands
from isthmus.programs.command.request_command import takes_options
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.runtime.errors import ConfigError, nearest, printable
from isthmus.runtime.system.addresses import LOOPBACK

if TYPE_CHECKING:
    from isthmus.programs.command.metered import Meter
    from isthmus.programs.command.request_options import Options
    from isthmus.programs.engine.cluster.cluster_file import Cluster as ClusterFile
    from isthmus.programs.engine.metrics.exporter import MetricsAddress
    from isthmus.programs.engine.request.request import Request


FORMATS: Final = ("text", "mermaid", "json")
PANEL: Final = "Runs"
Run: TypeAlias = Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder; runs/latest by default.")]
Cluster: TypeAlias = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE.toml", help="The run of these machines, in place of RUN."),
]

commands = typer.Typer(cls=Commands)


@commands.command(rich_help_panel=PANEL)
@takes_options(starts=True)
def train(
    requested: Options,
    resume: options.Resume = None,
    resume_or_start: options.ResumeOrStart = False,
    accept_changes: options.AcceptChanges = False,
    begins_from: options.From = None,
    detach: options.Detach = False,
    grace: options.Grace = GRACE_SECONDS,
    metrics_port: options.MetricsPort = None,
    metrics_address: options.MetricsHost = LOOPBACK,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Train a model, and watch it.

    Without arguments, four learners and a syncer, a process each, train a small language model on Python's library.

    Ctrl-C brings the run to its end, with its model; a second one ends it at once.

    SIGTERM sets it aside: exit status 75, and it goes on with --resume, or the same command and --resume-or-start.

    Without --detach the run ends with this command.
    """
    others = {"--resume": resume, "--cluster": requested.cluster, "--transport inproc": requested.transport == "inproc"}
    if begins_from is not None and (found := [name for name, given in others.items() if given]):
        doing, do = "Reading --from", "Leave one of them out."
        raise ConfigError(doing, "a new run in processes of this machine", f"{found[0]} beside it", do)
    metrics = options.metrics_at(metrics_port, metrics_address)
    if metrics is not None and detach:
        do = "Leave it out: the command, which would serve them, does not stay. A machine's daemon can, too."
        raise ConfigError("Reading --metrics-port", "a command that watches its run", "--detach beside it", do)
    if verbose:
        others |= {"--quiet": quiet, "--detach": detach}
        if found := [name for name, given in others.items() if given]:
            expected = "a run in processes of this machine, which the command watches"
            raise ConfigError("Reading --verbose", expected, f"{found[0]} beside it", "Leave one of them out.")
    if accept_changes and resume is None and not resume_or_start:
        do = "Leave it out: a new run has no changes to accept."
        raise ConfigError("Reading --accept-changes", "--resume RUN beside it, or --resume-or-start", "neither", do)
    is_apart = requested.transport != "inproc" or requested.cluster is not None
    with _metering(metrics, quiet=quiet) as meter:
        if resume is not None or resume_or_start or is_apart or detach:
            from isthmus.programs.command import start as apart

            starting = apart.Starting(detach, quiet, grace, begins_from, meter, verbose, accept_changes)
            if resume_or_start:
                apart.resume_or_start(requested, resume, starting)
            elif resume is not None and (cluster := requested.machines) is not None:
                from isthmus.programs.command.start_there import resume_there

                resume_there(resume, requested, cluster, starting)
            elif resume is not None:
                apart.resume(resume, requested, starting)
            elif (cluster := requested.machines) is not None and requested.transport != "inproc":
                from isthmus.programs.command.start_there import train_there

                train_there(requested, cluster, starting)
            else:
                apart.train(requested, starting)
            return

        from isthmus.programs.command.metered import viewing
        from isthmus.programs.engine.islands.claims import take_all
        from isthmus.programs.engine.islands.memory_room import with_memory
        from isthmus.programs.engine.islands.sizes import check_in_process
        from isthmus.programs.engine.request.snapshot_room import with_room
        from isthmus.programs.engine.run.room_for_hosts import check_compiler
        from isthmus.programs.study.terminal.live import announce
        from isthmus.programs.training import start

        check_compiler("Training in this process")
        take_all()  # Before the request is prepared: that may compute a first loss.
        request = check_in_process(requested.request().to_train().in_one_process()).with_store()
        request = with_room(with_memory(request)).with_folder()
        announce(request.chosen, request.warnings, request.data_lines, quiet=quiet)
        with viewing(meter, request, quiet=quiet) as view:
            start(request, view)


def _metering(metrics: MetricsAddress | None, *, quiet: bool) -> AbstractContextManager[Meter | None]:
    """What serves the figures of a run, if that was asked for: it is imported only then."""
    if metrics is None:
        return nullcontext()
    from isthmus.programs.command.metered import metering

    return metering(metrics, quiet=quiet)


@commands.command(rich_help_panel=PANEL)
@takes_options()
def graph(
    requested: Options,
    plans: Annotated[
        bool, typer.Option("--plans", help="Also what each host will run.", rich_help_panel=options.SHOWN)
    ] = False,
    form: Annotated[
        str, typer.Option("--format", metavar="text|mermaid|json", help="How.", rich_help_panel=options.SHOWN)
    ] = "text",
    as_json: options.AsJson = False,
) -> None:
    """Show the graph of a program, and which node can delay which.

    Its roles, nodes and edges, and what is proved of every node. Nothing is started.
    """
    if form not in FORMATS:
        raise ConfigError("Reading --format", f"one of {', '.join(FORMATS)}", repr(form), nearest(form, FORMATS))
    typer.echo(_shown(requested.request(), requested.machines, "json" if as_json else form, plans=plans))


@commands.command(rich_help_panel=PANEL)
def status(
    run: Run = None,
    cluster: Cluster = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every run on this machine, and those under ./runs that are over.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until the run is over.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the processes and the progress of a run."""
    from isthmus.programs.study.terminal import status
    from isthmus.programs.study.terminal import status as status_view

    folder, home = (None, None) if every else status.place_of(run, cluster)
    if every and not as_json:
        typer.echo(status.daemon_lines(), nl=False)
    status_view.show(folder, every=every, watch=watch, as_json=as_json, home=home)


@commands.command(rich_help_panel=PANEL)
def stop(run: Run = None, cluster: Cluster = None) -> None:
    """End a run early, with its model and its report."""
    from isthmus.programs.study.terminal import status

    folder, home = status.place_of(run, cluster)
    if status.request_stop(folder, home):
        typer.echo(f"{folder.name} is asked to stop; its model and its report are being written.")
    else:
        typer.echo(f"{folder.name} has been asked to stop before, and is coming to its end.")


@commands.command(rich_help_panel=PANEL)
def logs(
    name: Annotated[str, typer.Argument(help="learner/2, syncer/0, daemon, ...")],
    run: Run = None,
    cluster: Cluster = None,
) -> None:
    """Print the log of a host or a daemon of a run."""
    from isthmus.programs.study.terminal import status

    folder, _ = status.place_of(run, cluster)
    text = status.log_of(folder, name, cluster)
    typer.echo(printable(text), nl=False)
    if not text:
        typer.echo(f"isthmus: the log of {name} is empty: it has printed nothing so far", err=True)


def _shown(request: Request, cluster: ClusterFile | None, form: str, *, plans: bool) -> str:
    """The graph of a request as text, Mermaid or JSON; with a cluster, also its placement and prediction."""
    from isthmus.programs.engine.request import graph_view

    if cluster is not None:
        from isthmus.programs.engine.cluster.placing import needs_found
        from isthmus.programs.engine.cluster.prediction import shown

        return shown(request, cluster, form, needs_found(request), plans=plans)
    if form == "mermaid":
        return graph_view.mermaid(request.graph, request.proof)
    if form == "json":
        placement = {node.name: platform.node() for node in request.graph.nodes}
        shape = graph_view.as_json(request.graph, request.proof, request.fingerprint, placement)
        return json.dumps(shape, indent=2)
    return graph_view.text(request.graph, request.proof, request.plans if plans else None)
