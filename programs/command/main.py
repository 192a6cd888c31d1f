"""The command `isthmus`.

Exit status: 0 done; 1 the run failed, or was ended by a second Ctrl-C; 2 the request was wrong, always with one message
that says what was expected, what was found and what to do, and nothing started. Modules that take time to import are
imported by the commands that need them, so that help and a mistyped option answer at once.
"""

from __future__ import annotations

import json
import platform
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final

import typer
from typer.core import TyperGroup

from isthmus.programs.command import options
from isthmus.programs.command.first_screen import first_screen
from isthmus.programs.interrupts import interrupt
from isthmus.runtime.errors import ConfigError, Fault, RequestError, RunError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isthmus.programs.cluster import Cluster as ClusterFile
    from isthmus.programs.request import Request

FAILED: Final = 1
WRONG: Final = 2
FORMATS: Final = ("text", "mermaid", "json")

# typer keeps its own copy of click, or not, depending on its version; this is the usage error of the one it uses.
_UsageError: Final[Any] = typer.BadParameter.__base__


@final
class _Commands(TyperGroup):
    """The commands, with one place that turns errors into messages and exit statuses."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the command itself is one screen; that of a group below it is typer's."""
        if ctx.parent is None:
            formatter.write(first_screen("isthmus", str(self.help), self.commands))
        else:
            super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that was named; ConfigError if there is none of that name."""
        if args and args[0] not in self.commands:
            raise ConfigError("Reading the command line", "a command", repr(args[0]), nearest(args[0], self.commands))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        return _guarded(lambda: super(_Commands, self).invoke(ctx))

    def main(self, args: Any = None, *more: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Parse the command line and run it; ends the process with the exit status if `standalone_mode`."""
        parent: Any = super()
        try:
            status = _guarded(lambda: parent.main(args, *more, standalone_mode=False, **extra))
        except typer.Exit as exit_:
            status = exit_.exit_code
        if standalone_mode:
            sys.exit(status or 0)
        return status


def _guarded(run: Callable[[], Any]) -> Any:
    """What `run` returns. What is wrong with request or run is told on standard error, and becomes a typer.Exit."""
    try:
        return run()
    except RequestError as error:
        _complain(error.faults)
        status = WRONG
    except _UsageError as error:
        _complain([_usage(error)])
        status = WRONG
    except RunError as error:
        _say(f"the run failed: {error}")
        status = FAILED
    except KeyboardInterrupt as error:
        _say(f"ended by {str(error) or 'Ctrl-C'}.")
        status = FAILED
    raise typer.Exit(status)


def _usage(error: Any) -> Fault:
    """What typer found wrong with the command line."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "isthmus"
    doing, do = f"Reading the command line of `{command}`", f"`{command} --help` shows what there is."
    name = getattr(error, "option_name", None)
    if name is not None and hasattr(error, "possibilities"):
        near = error.possibilities or ()
        return Fault(doing, "one of its options", name, f"Did you mean {sorted(near)[0]}?" if near else do)
    message = str(error.format_message()).rstrip(".")
    return Fault(doing, "options and arguments as its help shows them", f"{message[:1].lower()}{message[1:]}", do)


def _complain(faults: Sequence[Fault]) -> None:
    """One message with all faults."""
    if len(faults) == 1:
        _say(str(faults[0]))
    else:
        _say("\n".join([f"{len(faults)} things are wrong with this request.", *map(str, faults)]))


def _say(message: str) -> None:
    sys.stderr.write(f"isthmus: {message}\n")


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def isthmus(
    ctx: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    """Train models as dataflow graphs, which say who waits for whom."""
    if version:
        typer.echo(f"isthmus {metadata.version('isthmus')}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command(rich_help_panel="Runs")
def train(
    program: options.Program = None,
    task: options.Task = None,
    data: options.Data = None,
    model: options.Model = None,
    learners: options.Learners = None,
    tokens: options.Tokens = None,
    seed: options.Seed = None,
    sets: options.Sets = None,
    config: options.Config = None,
    run_dir: options.RunDir = None,
    transport: options.Transport = None,
    cluster: options.Cluster = None,
    detach: options.Detach = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model, and watch it.

    Without arguments, four learners and a syncer, a process each, train a small language model on Python's library.

    Ctrl-C brings the run to its end, with its model; a second one ends it at once.

    Without --detach the run ends with this command.
    """
    where = options.cluster_of(cluster)
    asked = options.Options(program, task, data, model, learners, tokens, seed, sets, config, run_dir, transport, where)
    if transport != "inproc" or cluster is not None or detach:
        from isthmus.programs.command import apart

        apart.train(asked, is_detached=detach, quiet=quiet)
        return

    from isthmus.programs.command.live import watching
    from isthmus.programs.training import start

    request = asked.request().to_train()
    with watching(request, quiet=quiet) as view:
        start(request, view)


@app.command(rich_help_panel="Runs")
def graph(
    program: options.Program = None,
    task: options.Task = None,
    data: options.Data = None,
    model: options.Model = None,
    learners: options.Learners = None,
    tokens: options.Tokens = None,
    seed: options.Seed = None,
    sets: options.Sets = None,
    config: options.Config = None,
    run_dir: options.RunDir = None,
    transport: options.Transport = None,
    cluster: options.Cluster = None,
    plans: Annotated[
        bool, typer.Option("--plans", help="Also what each host will run.", rich_help_panel=options.SHOWN)
    ] = False,
    form: Annotated[
        str, typer.Option("--format", metavar="text|mermaid|json", help="How.", rich_help_panel=options.SHOWN)
    ] = "text",
) -> None:
    """Show the graph of a program, and who can hold up whom.

    Its roles, nodes and edges, and what is proved of every node. Nothing is started.
    """
    if form not in FORMATS:
        raise ConfigError("Reading --format", f"one of {', '.join(FORMATS)}", repr(form), nearest(form, FORMATS))
    where = options.cluster_of(cluster)
    asked = options.Options(program, task, data, model, learners, tokens, seed, sets, config, run_dir, transport, where)
    typer.echo(_shown(asked.request(), where, form, plans=plans))


Run = Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder; runs/latest by default.")]
Cluster = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE.toml", help="The run of these machines, in place of RUN."),
]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


@app.command(rich_help_panel="Runs")
def status(
    run: Run = None,
    cluster: Cluster = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every run on this machine, and those under ./runs that are over.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until the run is over.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the processes of a run, and how it goes."""
    from isthmus.programs.command import runs, status_view

    folder, home = (None, None) if every else runs.place_of(run, cluster)
    if every and not as_json:
        typer.echo(runs.daemons(), nl=False)
    status_view.show(folder, every=every, watch=watch, as_json=as_json, home=home)


@app.command(rich_help_panel="Runs")
def stop(run: Run = None, cluster: Cluster = None) -> None:
    """Bring a run to its end: the model is written, and the report."""
    from isthmus.programs.command import runs

    folder, home = runs.place_of(run, cluster)
    runs.request_stop(folder, home)
    typer.echo(f"{folder.name} is asked to stop; its model and its report are being written.")


@app.command(rich_help_panel="Runs")
def logs(
    name: Annotated[str, typer.Argument(help="learner/2, syncer/0, daemon, ...")],
    run: Run = None,
    cluster: Cluster = None,
) -> None:
    """Print what a host of a run, or its daemon, wrote to its log."""
    from isthmus.programs.command import runs

    folder, home = runs.place_of(run, cluster)
    typer.echo(runs.log_of(folder, name, home), nl=False)


@app.command(rich_help_panel="Machines")
def daemon(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What cluster files call this machine.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="tcp://ADDRESS:PORT", help="Where it listens: with keys anywhere.")
    ],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="machine.toml", help="Which modules it may load, its key, whom it admits."),
    ] = None,
) -> None:
    """Be the daemon of this machine, and supervise its runs.

    It takes runs that `isthmus train --cluster` hands over, and does its part in those of other machines.

    Ctrl-C asks its runs to stop and waits for them; a second one ends them at once.
    """
    from isthmus.programs.machine_process import serve

    raise typer.Exit(serve(name, listen, config))


@app.command(rich_help_panel="Machines")
def keygen(name: Annotated[str, typer.Argument(metavar="NAME", help="The machine's name.")]) -> None:
    """Make a key for a machine: NAME.key, which stays there, and NAME.pub."""
    from isthmus.programs.command import keys

    typer.echo(keys.keygen(name))


@app.command(rich_help_panel="Machines")
def admit(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The machine that may connect from now on.")],
    key: Annotated[str, typer.Argument(metavar="KEY|FILE", help="Its public key, or its NAME.pub.")],
    machine: Annotated[
        str | None, typer.Option("--machine", metavar="NAME", help="Whose daemon: needed where there are several.")
    ] = None,
) -> None:
    """Let another machine connect to the daemon of this one."""
    from isthmus.programs.command import keys

    typer.echo(keys.admit(name, key, machine))


@app.command(rich_help_panel="Machines")
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
) -> None:
    """Offer this machine's islands to the runs of another machine.

    It only dials out. Ctrl-C takes it away again.
    """
    from isthmus.programs.machine_join import join

    raise typer.Exit(join(home, name, islands, server_key, config))


@app.command(rich_help_panel="Machines")
def expel(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The machine that is to go.")],
    machine: Annotated[
        str | None,
        typer.Option("--machine", metavar="NAME", help="Whose runs it leaves, where several daemons are here."),
    ] = None,
) -> None:
    """Take a machine away from the runs that have their home here.

    Its hosts end, and its key is admitted no longer.
    """
    from isthmus.programs.command import machines

    typer.echo(machines.expel(name, machine))


simulate = typer.Typer(cls=_Commands)
app.add_typer(simulate, name="simulate", rich_help_panel="Runs", help="Try runs that never happened.")


@simulate.callback(invoke_without_command=True)
def simulations(ctx: typer.Context) -> None:
    """Try runs that never happened: nothing is trained, nothing is left behind."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@simulate.command()
def world(
    seed: Annotated[int, typer.Option("--seed", metavar="S", help="The first seed.")] = 0,
    seeds: Annotated[int, typer.Option("--seeds", metavar="N", help="How many seeds: S to S + N - 1.")] = 1,
    program: Annotated[str, typer.Option("--program", metavar="PROGRAM", help="Which program.")] = "decoupled-diloco",
    as_json: AsJson = False,
) -> None:
    """Run whole clusters in virtual time, with faults from the seed, and check that nothing is broken.

    Exit status 1 if something is; the same seed shows it again.
    """
    from isthmus.programs.command import simulate as simulating

    if not simulating.world(seed, seeds, program, as_json=as_json):
        raise typer.Exit(FAILED)


def _shown(request: Request, cluster: ClusterFile | None, form: str, *, plans: bool) -> str:
    """The graph of a request as text, Mermaid or JSON; with a cluster, where it goes there and what is predicted."""
    from isthmus.programs.command import graph_view

    if cluster is not None:
        from isthmus.programs.command.placement_view import shown

        return shown(request, cluster, form, plans=plans)
    if form == "mermaid":
        return graph_view.mermaid(request.graph, request.proof)
    if form == "json":
        placement = {node.name: platform.node() for node in request.graph.nodes}
        shape = graph_view.as_json(request.graph, request.proof, request.fingerprint, placement)
        return json.dumps(shape, indent=2)
    return graph_view.text(request.graph, request.proof, request.plans if plans else None)


def main() -> None:
    """The console script."""
    signal.signal(signal.SIGTERM, interrupt)
    try:
        app(prog_name="isthmus")
    finally:
        # A Ctrl-C that comes while Python shuts down has nothing left to stop, and would end in a traceback.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
