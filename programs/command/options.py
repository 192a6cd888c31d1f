"""A group of commands that turns every failure into one message and an exit status.

Exit status: 0 done; 1 the run failed, or was ended by a second Ctrl-C; 2 the request was wrong, always with one message
that states what was expected, what was found and what to do, and nothing started.

The options that `isthmus train`, `graph` and `compile` share, and the request that they make up.

Options that stand for a key of the configuration are text here: `--learners 8` is `--set run.learners=8`, and the key's
own type decides which values are valid.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, TypeAlias, final, get_type_hints

import typer
from typer.core import TyperGroup

from isthmus.programs import SHIPPED
from isthmus.programs.engine.request.run_settings import SCHEMA
from isthmus.programs.engine.run.interrupts import checked_grace
from isthmus.programs.settings import Key
from isthmus.runtime.errors import (
    INTERRUPTED_STATUS,
    ConfigError,
    Fault,
    InterruptedRunError,
    RequestError,
    RunError,
    nearest,
    printable,
)
from isthmus.runtime.system.addresses import LOOPBACK

if TYPE_CHECKING:
    from isthmus.programs.engine.cluster.cluster_file import Cluster as ClusterFile
    from isthmus.programs.engine.metrics.exporter import MetricsAddress
    from isthmus.programs.engine.request.request import Request


FAILED: Final = 1
WRONG: Final = 2
_SHORT_MAX: Final = 200
"""Characters; the first sentence of a command's help is never cut."""

# typer keeps its own copy of click, or not, depending on its version; this is the usage error of the one it uses.
_UsageError: Final[Any] = typer.BadParameter.__base__


@final
class Commands(TyperGroup):
    """The commands, with one place that turns errors into messages and exit statuses."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The help of the command itself is one screen; that of a group below it is typer's."""
        if ctx.parent is None:
            formatter.write(_first_screen(str(self.help), self.commands))
        else:
            super().format_help(ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The named command; ConfigError if there is none of that name."""
        if args and args[0] not in self.commands:
            raise ConfigError("Reading the command line", "a command", repr(args[0]), nearest(args[0], self.commands))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was named."""
        return _guarded(lambda: super(Commands, self).invoke(ctx))

    def main(self, args: Any = None, *more: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Parse the command line and run it; ends the process with the exit status if `standalone_mode`."""
        parent: Any = super()
        args = _with_loop_arguments(sys.argv[1:] if args is None else list(args))
        try:
            status = _guarded(lambda: parent.main(args, *more, standalone_mode=False, **extra))
        except typer.Exit as exit_:
            status = exit_.exit_code
        if standalone_mode:
            sys.exit(status or 0)
        return status


def _with_loop_arguments(arguments: list[str]) -> list[str]:
    """A command line in which what follows `--` is written as options: it belongs to a script, and not to PROGRAM."""
    if "--" not in arguments:
        return arguments
    at = arguments.index("--")
    return [*arguments[:at], *(f"{LOOP_ARGUMENT}={each}" for each in arguments[at + 1 :])]


def _first_screen(about: str, commands: Mapping[str, Any]) -> str:
    """All commands in their groups, a line each, those about runs first: the frames that typer draws take more lines
    than commands do."""
    groups: dict[str, list[str]] = {}
    width = max(map(len, commands), default=0)
    for command_name, command in commands.items():
        does = command.get_short_help_str(_SHORT_MAX)
        groups.setdefault(str(command.rich_help_panel), []).append(f"  {command_name.ljust(width)}  {does}")
    lines = [f"{about} Usage: isthmus COMMAND [--help] | --version"]
    for group, rows in groups.items():
        lines += [group, *rows]
    return "\n".join([*lines, ""])


def _guarded(run: Callable[[], Any]) -> Any:
    """The result of `run`. Errors of request or run are printed on standard error, and become a typer.Exit."""
    try:
        return run()
    except RequestError as error:
        _complain(error.faults)
        status = WRONG
    except _UsageError as error:
        _complain([_usage(error)])
        status = WRONG
    except InterruptedRunError as error:
        _say(f"{error}")
        status = INTERRUPTED_STATUS
    except RunError as error:
        _say(f"the run failed: {error}")
        status = FAILED
    except KeyboardInterrupt as error:
        _say(f"ended by {str(error) or 'Ctrl-C'}.")
        status = INTERRUPTED_STATUS if str(error) else FAILED  # A notice to leave: it is to be started again.
    raise typer.Exit(status)


def _usage(error: Any) -> Fault:
    """A fault that typer found in the command line."""
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
    if len(faults) == 1:
        _say(str(faults[0]))
    else:
        _say("\n".join([f"{len(faults)} things are wrong with this request.", *map(str, faults)]))


def _say(message: str) -> None:
    sys.stderr.write(f"isthmus: {printable(message)}\n")


LOOP_ARGUMENT: Final = "--loop-argument"
"""The option that stands for each argument behind `--`."""
_WHAT: Final = "What to train"
_HOW: Final = "How"
WHERE: Final = "Where"
SHOWN: Final = "What is shown"

RunDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--run-dir", metavar="DIR", help="The run folder. Default: runs/PROGRAM-DATE-TIME.", rich_help_panel=WHERE
    ),
]
Cluster: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--cluster",
        metavar="FILE.toml",
        help="Hand the run to the machines that this file names.",
        rich_help_panel=WHERE,
    ),
]
Resume: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN|URL",
        help="Go on with a run that was cut off, set aside or stopped, or is done; a URL has it in a new folder.",
        rich_help_panel=WHERE,
    ),
]
ResumeOrStart: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--resume-or-start",
        help="Begin the run in --run-dir, or go on with it: for a command that is typed again.",
        rich_help_panel=WHERE,
    ),
]
From: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN|FOLDER",
        help="Begin with the weights of a run that is over, or of a folder of safetensors.",
        rich_help_panel=WHERE,
    ),
]
Detach: TypeAlias = Annotated[
    bool,
    typer.Option("--detach", help="Return once the run has started; it goes on by itself.", rich_help_panel=WHERE),
]
Grace: TypeAlias = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        help="The time from SIGTERM until all is set aside.",
        rich_help_panel=WHERE,
        callback=lambda value: checked_grace(value),
    ),
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", help="Only errors and the last line.", rich_help_panel=WHERE)
]
Verbose: TypeAlias = Annotated[
    bool,
    typer.Option("--verbose", help="Also when each process reached the phases of the start.", rich_help_panel=WHERE),
]
MetricsPort: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        metavar="N",
        help="Serve figures for Prometheus at http://127.0.0.1:N/metrics; 0: any port that is free.",
        rich_help_panel=WHERE,
        show_default=False,
    ),
]
MetricsHost: TypeAlias = Annotated[
    str,
    typer.Option(
        "--metrics-address",
        metavar="ADDRESS",
        help="Of this machine, for --metrics-port; others that reach it can read the figures.",
        rich_help_panel=WHERE,
    ),
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="As JSON.")]
Page: TypeAlias = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE.html", help="Write a page with a drawing, too.", show_default=False),
]


def metrics_at(port: int | None, address: str) -> MetricsAddress | None:
    """Where metrics are to be; None without --metrics-port. ConfigError if that is no port, or is missing."""
    if port is None:
        if address != LOOPBACK:
            raise ConfigError("Reading --metrics-address", "--metrics-port beside it", "none", "Give a port, too.")
        return None
    if not 0 <= port < 1 << 16:
        do = "As in --metrics-port 9400, or 0 for any that is free."
        raise ConfigError("Reading --metrics-port", "a port", str(port), do)
    from isthmus.programs.engine.metrics.exporter import MetricsAddress

    return MetricsAddress(port, address)


def whole_numbers(text: str, option: str) -> list[int]:
    """The numbers of a list such as 1,2,4 or 150e3,1.2e6, each once, by size; ConfigError if one is not whole."""
    try:
        numbers = [float(part) for part in text.split(",")]
        if not all(number.is_integer() for number in numbers):
            raise ValueError(text)
    except ValueError as error:
        expected = "whole numbers with commas between them"
        raise ConfigError(f"Reading {option}", expected, repr(text), "As in 1,2,4 or 150e3,1.2e6.") from error
    return sorted({int(number) for number in numbers})


def cluster_of(file: Path | None) -> ClusterFile | None:
    """The contents of the file of --cluster; ConfigError with all its faults."""
    if file is None:
        return None
    from isthmus.programs.engine.cluster.cluster_file import read

    return read(file)


@final
@dataclass(frozen=True, slots=True)
class Options:
    """What to train, and how and where: the options that commands about runs share.

    `run` are the keys of section `run.` that have options of their own, as they were typed.
    """

    program: Annotated[
        str | None,
        typer.Argument(
            metavar="PROGRAM",
            help=f"{', '.join(SHIPPED).replace(',', ' (the default),', 1)}; or your own, as package.module:function or "
            "FILE.py:function.",
            show_default=False,
        ),
    ] = None
    task: Annotated[
        list[str] | None,
        typer.Option(
            "--task",
            metavar="FILE.py:NAME",
            help="Your own task instead of the shipped one; given several times, that of slot 0, 1 and so on.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None
    loop: Annotated[
        Path | None,
        typer.Option(
            "--loop",
            metavar="FILE.py",
            help="Your own script, whose loop is each learner's (isthmus.island); what follows -- is the script's.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            metavar="N",
            min=1,
            help="Processes of each learner's script, with --loop: the ranks of torch.distributed, for DDP and FSDP2.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None
    loop_arguments: Annotated[list[str] | None, typer.Option(LOOP_ARGUMENT, hidden=True)] = None
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            metavar="PATH",
            help="A file or folder for the shipped task to learn; may be repeated. Default: Python's library.",
            rich_help_panel=_WHAT,
            show_default=False,
        ),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME|FOLDER",
            help="The size of the shipped task: nano (the default), micro, mini, small, gpt-124m, gpt-1.2b or gpt-12b; "
            "or a model folder, to train it further.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    run: Mapping[str, str | bool] = field(default_factory=dict)
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="section.key=value",
            help="Any key of the configuration: program.interval=12; may be repeated.",
            rich_help_panel=_HOW,
            show_default=False,
        ),
    ] = None
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE.toml", help="Keys from a file, such as a run's config.toml.", rich_help_panel=_HOW
        ),
    ] = None
    run_dir: RunDir = None
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport",
            metavar="zmq|inproc",
            help="A process for each host, over ZeroMQ (the default), or everything in this one.",
            rich_help_panel=WHERE,
        ),
    ] = None
    cluster: Cluster = None
    before: Path | None = field(default=None, metadata={"is_option": False})
    """The config.toml of the run that goes on, whose keys count after all others."""

    def check_resume(self, *more: str) -> None:
        """ConfigError if an option was given that a resume may not change; it may change those in `more`, too."""
        resumable = [key for key in RUN_OPTIONS.values() if key.declared.resumes]
        present = [
            item.name for item in fields(self) if item.name != "run" and getattr(self, item.name) not in (None, [])
        ]
        if wrong := sorted({*present, *self.run} - {"sets", *more, *(key.name for key in resumable)}):
            options_text = ", ".join(
                f"--{name.replace('_', '-')}" if name != "program" else "PROGRAM" for name in wrong
            )
            remedy = "A run goes on as it was configured. Leave the others out."
            allowed = (*map(_option, resumable), "--set", *(["--run-dir"] if "run_dir" in more else []))
            raise ConfigError(
                "Reading --resume", f"beside it {', '.join(allowed)}, --detach, --quiet", options_text, remedy
            )

    @property
    def machines(self) -> ClusterFile | None:
        """The contents of the cluster file, if one was named; ConfigError with all its faults."""
        return cluster_of(self.cluster)

    def resumed(self, folder: Path) -> Options:
        """The options of the run in a folder."""
        return replace(self, config=folder / "config.toml", run_dir=None)

    def again(self) -> Options:
        """The options typed again for the run in their run folder."""
        assert self.run_dir is not None
        return replace(self, before=self.run_dir / "config.toml", run_dir=None)

    def program_reference(self) -> str:
        """The program that was asked for, or the default one."""
        from isthmus.programs import DEFAULT
        from isthmus.programs.command import config
        from isthmus.programs.engine.request.request import Program

        sections, _ = config.read(self.config, self.model, self.keys(), self.sets or (), self.machines, self.before)
        return Program(sections.program_reference or DEFAULT).reference

    def with_sets(self, sets: list[str]) -> Options:
        """The same, with some more of --set."""
        return replace(self, sets=[*(self.sets or ()), *sets])

    def request(self) -> Request:
        """The request of the options; ConfigError or GraphError, with every fault of the step that found any."""
        from isthmus.programs import DEFAULT
        from isthmus.programs.command import config
        from isthmus.programs.engine.request.request import Program, prepare
        from isthmus.programs.settings import collecting
        from isthmus.programs.training import check_transport

        machines = self.machines
        sections, faults = config.read(self.config, self.model, self.keys(), self.sets or (), machines, self.before)
        with collecting(faults):
            check_transport(self.transport)

        def prepared(run: dict[str, Any], task: dict[str, Any]) -> Request:
            return prepare(
                Program(sections.program_reference or DEFAULT, **sections.program),
                sections.task_reference,
                machine_tasks=sections.machine_tasks,
                run=run,
                task_settings=task,
                run_dir=self.run_dir,
                known_faults=faults,
                has_cluster=machines is not None,
            )

        request = prepared(sections.run, sections.task)
        if request.run.local_batch == "same":
            return request
        from isthmus.programs.engine.cluster.prediction import paced

        batch = paced(request, None if machines is None else machines.topology)
        return prepared({**sections.run, "local_batch": "same"}, {**sections.task, "batch": batch})

    def keys(self) -> dict[tuple[str, str], tuple[str, Any]]:
        """The options that stand for keys of the configuration: (section, key) -> (name of the option, value)."""
        from isthmus.programs.settings import Text

        keys: dict[tuple[str, str], tuple[str, Any]] = {
            ("run", name): (_option(RUN_OPTIONS[name]), Text(value) if isinstance(value, str) else value)
            for name, value in self.run.items()
        }
        if self.program is not None:
            keys["run", "program"] = ("PROGRAM", Text(self.program))
        if self.task:
            keys["run", "task"] = ("--task", self.task[0] if len(self.task) == 1 else self.task)
        if self.loop is not None:
            keys["run", "task"] = ("--loop", Text(self._loop_task(self.loop)))
        elif self.loop_arguments:
            do = "Write `isthmus train --loop train.py -- ARGS`."
            raise ConfigError("Reading what follows --", "--loop FILE.py, whose script gets it", "none", do)
        elif self.ranks is not None:
            do = "Write `isthmus train --loop train.py --ranks 2`."
            raise ConfigError("Reading --ranks", "--loop FILE.py, whose processes they are", "none", do)
        if self.data:
            keys["task", "data"] = ("--data", self.data)
        return keys

    def _loop_task(self, file: Path) -> str:
        """The reference to the task of a script. ConfigError if there is no such file, or another task is named."""
        from isthmus.programs.engine.request.reference import called
        from isthmus.programs.loop_task import LOOP

        doing = "Reading --loop"
        others = {
            "--task": bool(self.task),
            "--transport inproc": self.transport == "inproc",
            "--cluster": self.cluster is not None,
        }
        if beside := [name for name, given in others.items() if given]:
            expected = "processes of your script as learners, on this machine"
            raise ConfigError(doing, expected, f"{beside[0]} beside it", "Leave it out.")
        path = file.expanduser().absolute()
        if not path.is_file():
            found = "a folder" if path.is_dir() else "nothing there"
            do = "Name your script; paths start in the current folder."
            raise ConfigError(doing, f"a Python file {path}", found, do)
        settings = {"script": str(path), "arguments": self.loop_arguments or [], "folder": str(Path.cwd())}
        return called(LOOP, settings if self.ranks in (None, 1) else {**settings, "ranks": self.ranks})


RUN_OPTIONS: Final[Mapping[str, Key]] = {name: key for name, key in SCHEMA.keys.items() if key.declared.option}
"""The keys of section `run.` that have an option of their own."""


def _option(key: Key) -> str:
    return key.declared.option.partition(" ")[0]


def _parameter(key: Key) -> Parameter:
    """The parameter of a command that stands for a key of section `run.`: a text, or a flag."""
    option, _, metavar = key.declared.option.partition(" ")
    is_flag = key.type is bool
    default = "" if is_flag else f" Default: {key.default}."
    info = typer.Option(
        option,
        metavar=metavar or None,
        help=f"{key.declared.help}{default}",
        rich_help_panel=WHERE if is_flag else _HOW,
        show_default=False,
    )
    kind: Any = bool if is_flag else str | None
    return Parameter(
        key.name, Parameter.KEYWORD_ONLY, default=False if is_flag else None, annotation=Annotated[kind, info]
    )


def takes_options(
    *without: str, starts: bool = False
) -> Callable[[Callable[Concatenate[Options, ...], None]], Callable[..., None]]:
    """A command whose first parameter is made from the options that all commands about runs have.

    `without`: fields of Options that it does not have. `starts`: it starts a run, and has flags of section `run.`, too.
    """

    def decorate(command: Callable[Concatenate[Options, ...], None]) -> Callable[..., None]:
        of_run = [_parameter(key) for key in RUN_OPTIONS.values() if starts or key.type is not bool]
        hints = get_type_hints(Options, include_extras=True)
        shared: list[Parameter] = []
        for item in fields(Options):
            if item.name == "run":
                shared += of_run
            elif item.name not in without and item.metadata.get("is_option", True):
                shared.append(Parameter(item.name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[item.name]))
        own = list(signature(command, eval_str=True).parameters.values())[1:]
        own = [item.replace(kind=Parameter.KEYWORD_ONLY) for item in own]

        @wraps(command)
        def call(**values: Any) -> None:
            run = {item.name: value for item in of_run if (value := values.pop(item.name))}
            fields_given = {item.name: values.pop(item.name) for item in shared if item not in of_run}
            command(Options(run=run, **fields_given), **values)

        parameters = [*shared, *own]
        call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {item.name: item.annotation for item in parameters}
        return call

    return decorate
