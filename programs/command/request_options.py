"""The options about what to train that `isthmus train`, `graph` and others share, and the request that they make up.

Options that stand for a key of the configuration are text here: `--learners 8` is `--set run.learners=8`, and the key's
own type decides which values are valid.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final, get_type_hints

import typer

from isthmus.programs import SHIPPED
from isthmus.programs.command.commands import LOOP, LOOP_ARGUMENT
from isthmus.programs.command.options import WHERE, Cluster, RunDir, cluster_of
from isthmus.programs.engine.request.run_settings import SCHEMA
from isthmus.programs.settings import Key
from isthmus.runtime.errors import ConfigError, Fault

if TYPE_CHECKING:
    from isthmus.programs.command.config import Sections
    from isthmus.programs.engine.cluster.cluster_file import Cluster as ClusterFile
    from isthmus.programs.engine.request.request import Request

_WHAT: Final = "What to train"
_HOW: Final = "How"


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
        str | None,
        typer.Option(
            LOOP,
            metavar="FILE.py|-m MODULE|PROGRAM",
            help="Your own script, whose loop is each learner's (isthmus.island); what follows -- is the script's.",
            rich_help_panel=_WHAT,
        ),
    ] = None
    python: Annotated[
        str | None,
        typer.Option(
            "--python",
            metavar="PATH",
            help="What runs the script of --loop: the interpreter of another environment, which has isthmus, too.",
            rich_help_panel=_WHAT,
            show_default=False,
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
    is_elsewhere: bool = field(default=False, metadata={"is_option": False})
    """The run has its learners on other machines."""
    goes_on_from: Path | None = field(default=None, metadata={"is_option": False})
    """The run, or folder, whose model it begins from (`beginning`)."""

    def check_resume(self, *more: str) -> None:
        """ConfigError if an option was given that a resume may not change; it may change those in `more`, too."""
        resumable = [key for key in RUN_OPTIONS.values() if key.declared.resumes]
        own = [item.name for item in fields(self) if item.name != "run" and item.metadata.get("is_option", True)]
        present = [name for name in own if getattr(self, name) not in (None, [])]
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
        """The contents of the cluster file, if one was named, without the machines that the run is to go without;
        ConfigError with all its faults."""
        cluster = cluster_of(self.cluster)
        if cluster is None:
            return None
        from isthmus.programs.command import config

        return cluster.without(config.left_out(self.config, self.sets or (), cluster))

    def resumed(self, folder: Path) -> Options:
        """The options of the run in a folder."""
        return replace(self, config=None, before=folder / "config.toml", run_dir=None)

    def again(self) -> Options:
        """The options typed again for the run in their run folder."""
        assert self.run_dir is not None
        return replace(self, before=self.run_dir / "config.toml", run_dir=None)

    def program_reference(self) -> str:
        """The program that was asked for, or the default one."""
        from isthmus.programs import DEFAULT
        from isthmus.programs.engine.request.program import Program

        sections, _ = self.sections()
        return Program(sections.program_reference or DEFAULT).reference

    def sections(self) -> tuple[Sections, list[Fault]]:
        """The sections that these options stand for, and the faults of their form."""
        from isthmus.programs.command import beginning, config

        is_given = bool(self.model or self.task or self.loop)
        beneath = {} if self.goes_on_from is None or is_given else beginning.of_model(self.goes_on_from)
        sections, faults = config.read(
            self.config, self.model, self.keys(), self.sets or (), self.machines, self.before, beneath
        )
        if self.goes_on_from is not None and not faults and beginning.is_alone(sections):
            beginning.go_alone(sections)
        return sections, faults

    def with_sets(self, sets: list[str]) -> Options:
        """The same, with some more of --set."""
        return replace(self, sets=[*(self.sets or ()), *sets])

    def request(self) -> Request:
        """The request of the options; ConfigError or GraphError, with every fault of the step that found any."""
        from isthmus.programs import DEFAULT
        from isthmus.programs.engine.request.program import Program
        from isthmus.programs.engine.request.request import as_begun, prepare
        from isthmus.programs.settings import collecting
        from isthmus.programs.training import check_transport

        machines = self.machines
        sections, faults = self.sections()
        with collecting(faults):
            check_transport(self.transport)

        def prepared(run: dict[str, Any], task: dict[str, Any]) -> Request:
            task = as_begun(task) if self.before is not None and sections.task_reference is None else task
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

        run, task = sections.run, sections.task
        request = prepared(run, task)
        if machines is not None and self.before is None:
            from isthmus.programs.engine.machine.default_batch import with_batch

            request = with_batch(request, machines.topology.machines, lambda more: prepared(run, {**task, **more}))
        elif self.before is None and self.transport != "inproc":
            from isthmus.programs.engine.machine.default_islands import with_islands

            request = with_islands(request, run, lambda run, more: prepared(run, {**task, **more}))
        if request.run.local_batch == "same":
            return request
        from isthmus.programs.engine.cluster.prediction import paced

        batch = paced(request, None if machines is None else machines.topology)
        return prepared({**run, "local_batch": "same"}, {**task, "batch": batch})

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
        elif self.python is not None:
            do = "Write `isthmus train --loop train.py --python PATH`."
            raise ConfigError("Reading --python", "--loop FILE.py, which it runs", "none", do)
        if self.data:
            keys["task", "data"] = ("--data", self.data)
        return keys

    def _loop_task(self, named: str) -> str:
        """The reference to the task of a script. ConfigError if there is none, or another task is named."""
        from isthmus.programs.command.loop_choice import of_options

        doing = "Reading --loop"
        others = {
            "--task": bool(self.task),
            "--transport inproc": self.transport == "inproc",
        }
        if beside := [name for name, given in others.items() if given]:
            expected = "processes of your script as learners"
            raise ConfigError(doing, expected, f"{beside[0]} beside it", "Leave it out.")
        is_here = self.cluster is None and not self.is_elsewhere
        return of_options(named, self.loop_arguments or (), self.ranks or 1, self.python, is_here=is_here).reference


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


def parameters(command: Callable[..., None], without: Collection[str], *, starts: bool) -> list[Parameter]:
    """The parameters of a command that `request_command.takes_options` has made of another one."""
    hints = get_type_hints(Options, include_extras=True)
    shared: list[Parameter] = []
    for item in fields(Options):
        if item.name == "run":
            shared += [_parameter(key) for key in RUN_OPTIONS.values() if starts or key.type is not bool]
        elif item.name not in without and item.metadata.get("is_option", True):
            shared.append(Parameter(item.name, Parameter.KEYWORD_ONLY, default=None, annotation=hints[item.name]))
    own = list(signature(command, eval_str=True, locals={"Options": Options}).parameters.values())[1:]
    return [*shared, *(item.replace(kind=Parameter.KEYWORD_ONLY) for item in own)]


def taken(values: dict[str, Any]) -> Options:
    """Take the options that make up a request out of the arguments of a command."""
    run = {name: value for name in RUN_OPTIONS if (value := values.pop(name, None))}
    return Options(run=run, **{item.name: values.pop(item.name) for item in fields(Options) if item.name in values})
