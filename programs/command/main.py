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
from isthmus.programs.interrupts import interrupt
from isthmus.runtime.errors import ConfigError, Fault, RequestError, RunError, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from isthmus.programs.request import Request

FAILED: Final = 1
WRONG: Final = 2
FORMATS: Final = ("text", "mermaid", "json")

# typer keeps its own copy of click, or not, depending on its version; this is the usage error of the one it uses.
_UsageError: Final[Any] = typer.BadParameter.__base__


@final
class _Commands(TyperGroup):
    """The commands, with one place that turns errors into messages and exit statuses."""

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
    """Train models as dataflow graphs, in which nobody waits for anybody."""
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

    Ctrl-C merges what there is and ends the run; a second one ends it at once. Without --detach the run ends with this
    command.
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
    """Show the graph of a program: roles, nodes, edges, and who can hold up whom. Nothing is started."""
    if form not in FORMATS:
        raise ConfigError("Reading --format", f"one of {', '.join(FORMATS)}", repr(form), nearest(form, FORMATS))
    where = options.cluster_of(cluster)
    asked = options.Options(program, task, data, model, learners, tokens, seed, sets, config, run_dir, transport, where)
    machine = platform.node() if where is None else where.machine.name
    typer.echo(_shown(asked.request(), machine, form, plans=plans))


Run = Annotated[Path | None, typer.Argument(metavar="RUN", help="A run folder; runs/latest by default.")]
Cluster = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE.toml", help="The run of the daemon that this file names, in place of RUN."),
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

    folder = None if every else runs.folder_by(run, cluster)
    if every and not as_json:
        typer.echo(runs.daemons(), nl=False)
    status_view.show(folder, every=every, watch=watch, as_json=as_json)


@app.command(rich_help_panel="Runs")
def stop(run: Run = None, cluster: Cluster = None) -> None:
    """Bring a run to its end: the last fragments are merged, and the model is written."""
    from isthmus.programs.command import runs

    folder = runs.folder_by(run, cluster)
    runs.request_stop(folder)
    typer.echo(f"{folder.name} is asked to stop; its last fragments are being merged.")


@app.command(rich_help_panel="Runs")
def logs(
    name: Annotated[str, typer.Argument(help="learner/2, syncer/0, daemon, ...")],
    run: Run = None,
    cluster: Cluster = None,
) -> None:
    """Print what a host of a run, or its daemon, wrote to its log."""
    from isthmus.programs.command import runs

    typer.echo(runs.log_of(runs.folder_by(run, cluster), name).read_text(errors="replace"), nl=False)


@app.command(rich_help_panel="Machines")
def daemon(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What cluster files call this machine.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="tcp://ADDRESS:PORT", help="Where it listens: on loopback for now.")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", metavar="machine.toml", help="Which modules it may load.")
    ] = None,
) -> None:
    """Be the daemon of this machine: take runs that `isthmus train --cluster` hands over, and supervise them.

    Ctrl-C asks its runs to stop and waits for them; a second one ends them at once.
    """
    from isthmus.programs.machine_process import serve

    raise typer.Exit(serve(name, listen, config))


def _shown(request: Request, machine: str, form: str, *, plans: bool) -> str:
    """The graph of a request as text, Mermaid or JSON."""
    from isthmus.programs.command import graph_view

    if form == "mermaid":
        return graph_view.mermaid(request.graph, request.proof)
    if form == "json":
        placement = {node.name: machine for node in request.graph.nodes}
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
