"""The options that `isthmus train`, `graph` and `compile` share, and the request that they make up.

Options that stand for a key of the configuration are text here: `--learners 8` is `--set run.learners=8`, and the key's
own type decides which values are valid.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, final

import typer

from isthmus.runtime.errors import ConfigError

if TYPE_CHECKING:
    from isthmus.programs.cluster.cluster_file import Cluster as ClusterFile
    from isthmus.programs.request.request import Request

_WHAT: Final = "What to train"
_HOW: Final = "How"
WHERE: Final = "Where"
SHOWN: Final = "What is shown"

Program: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="PROGRAM",
        help="decoupled-diloco (the default), streaming-diloco, diloco, data-parallel, elastic-data-parallel; or your "
        "own, as package.module:function or FILE.py:function.",
        show_default=False,
    ),
]
Task: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="FILE.py:NAME", help="Your own task instead of the shipped one.", rich_help_panel=_WHAT
    ),
]
Data: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="A file or folder for the shipped task to learn; may be repeated. Default: Python's library.",
        rich_help_panel=_WHAT,
        show_default=False,
    ),
]
Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The size of the shipped task: nano (the default), micro, mini, small, gpt-124m, gpt-1.2b or gpt-12b.",
        rich_help_panel=_WHAT,
    ),
]
Learners: TypeAlias = Annotated[
    str | None,
    typer.Option("--learners", metavar="N", help="How many learners. Default: 4.", rich_help_panel=_HOW),
]
Tokens: TypeAlias = Annotated[
    str | None,
    typer.Option("--tokens", metavar="N", help="Tokens in all. Default: 4100000.", rich_help_panel=_HOW),
]
Seed: TypeAlias = Annotated[
    str | None,
    typer.Option("--seed", metavar="N", help="The seed of everything random. Default: 0.", rich_help_panel=_HOW),
]
Sets: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="section.key=value",
        help="Any key of the configuration: program.interval=12; may be repeated.",
        rich_help_panel=_HOW,
        show_default=False,
    ),
]
Config: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE.toml", help="Keys from a file, such as a run's config.toml.", rich_help_panel=_HOW
    ),
]
RunDir: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--run-dir", metavar="DIR", help="The run folder. Default: runs/PROGRAM-DATE-TIME.", rich_help_panel=WHERE
    ),
]
Transport: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--transport",
        metavar="zmq|inproc",
        help="A process for each host, over ZeroMQ (the default), or everything in this one.",
        rich_help_panel=WHERE,
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
        help="Go on with a run all of whose processes have died, from its last snapshot; a URL has it in a new folder.",
        rich_help_panel=WHERE,
    ),
]
Detach: TypeAlias = Annotated[
    bool,
    typer.Option("--detach", help="Return once the run has started; it goes on by itself.", rich_help_panel=WHERE),
]
KeepPayloads: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--keep-payloads",
        help="Keep what is merged and published, so that `isthmus replay` computes every merge again.",
        rich_help_panel=WHERE,
    ),
]
Quiet: TypeAlias = Annotated[
    bool, typer.Option("--quiet", help="Only errors and the last line.", rich_help_panel=WHERE)
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="As JSON.")]
Page: TypeAlias = Annotated[
    Path | None,
    typer.Option("--page", metavar="FILE.html", help="Write a page with a drawing, too.", show_default=False),
]


def whole_numbers(text: str, option: str) -> list[int]:
    """The numbers of a list such as 1,2,4 or 150e3,1.2e6, each once, by size; ConfigError if one is not whole."""
    try:
        found = [float(part) for part in text.split(",")]
        if not all(number.is_integer() for number in found):
            raise ValueError(text)
    except ValueError as error:
        expected = "whole numbers with commas between them"
        raise ConfigError(f"Reading {option}", expected, repr(text), "As in 1,2,4 or 150e3,1.2e6.") from error
    return sorted({int(number) for number in found})


def cluster_of(file: Path | None) -> ClusterFile | None:
    """The contents of the file of --cluster; ConfigError with all its faults."""
    if file is None:
        return None
    from isthmus.programs.cluster.cluster_file import read

    return read(file)


@final
@dataclass(frozen=True, slots=True)
class Options:
    """The options of a command."""

    program: str | None
    task: str | None
    data: list[str] | None
    model: str | None
    learners: str | None
    tokens: str | None
    seed: str | None
    sets: list[str] | None
    config: Path | None
    run_dir: Path | None
    transport: str | None
    cluster: ClusterFile | None
    keep_payloads: bool | None = None

    def check_resume(self, *more: str) -> None:
        """ConfigError if an option was given that a resume may not change; it may change those in `more`, too."""
        given = [name for name in self.__slots__ if getattr(self, name) not in (None, [], ())]
        if wrong := sorted({*given} - {"tokens", "learners", "sets", *more}):
            found = ", ".join(f"--{name.replace('_', '-')}" if name != "program" else "PROGRAM" for name in wrong)
            do = "A run goes on as it was configured. Leave the others out."
            allowed = ("--tokens", "--learners", "--set", *(["--run-dir"] if "run_dir" in more else []))
            raise ConfigError("Reading --resume", f"beside it {', '.join(allowed)}, --detach, --quiet", found, do)

    def resumed(self, folder: Path) -> Options:
        """The options of the run in a folder."""
        return replace(self, config=folder / "config.toml", run_dir=None)

    def program_reference(self) -> str:
        """The program that was asked for, or the default one."""
        from isthmus.programs.arguments import config
        from isthmus.programs.request.program import DEFAULT, Program

        sections, _ = config.read(self.config, self.model, self.keys(), self.sets or (), self.cluster)
        return Program(sections.program_reference or DEFAULT).reference

    def with_sets(self, sets: list[str]) -> Options:
        """The same, with some more of --set."""
        return replace(self, sets=[*(self.sets or ()), *sets])

    def request(self) -> Request:
        """The request of the options; ConfigError or GraphError, with every fault of the step that found any."""
        from isthmus.programs.arguments import config
        from isthmus.programs.request.program import DEFAULT, Program
        from isthmus.programs.request.request import prepare
        from isthmus.programs.request.settings import collecting
        from isthmus.programs.training import check_transport

        sections, faults = config.read(self.config, self.model, self.keys(), self.sets or (), self.cluster)
        with collecting(faults):
            check_transport(self.transport)

        def prepared(run: dict[str, Any], task: dict[str, Any]) -> Request:
            return prepare(
                Program(sections.program_reference or DEFAULT, **sections.program),
                sections.task_reference,
                run=run,
                task_settings=task,
                run_dir=self.run_dir,
                found=faults,
            )

        request = prepared(sections.run, sections.task)
        if request.config["run"]["local_batch"] == "same":
            return request
        from isthmus.programs.cluster.local_batch import paced

        batch = paced(request, None if self.cluster is None else self.cluster.topology)
        return prepared({**sections.run, "local_batch": "same"}, {**sections.task, "batch": batch})

    def keys(self) -> dict[tuple[str, str], tuple[str, Any]]:
        """The options that stand for keys of the configuration: (section, key) -> (name of the option, value)."""
        from isthmus.programs.request.settings import Text

        texts = {
            "PROGRAM": ("program", self.program),
            "--task": ("task", self.task),
            "--learners": ("learners", self.learners),
            "--tokens": ("tokens", self.tokens),
            "--seed": ("seed", self.seed),
        }
        keys: dict[tuple[str, str], tuple[str, Any]] = {
            ("run", key): (name, Text(text)) for name, (key, text) in texts.items() if text is not None
        }
        if self.keep_payloads:
            keys["run", "keep_payloads"] = ("--keep-payloads", True)
        if self.data:
            keys["task", "data"] = ("--data", self.data)
        return keys
