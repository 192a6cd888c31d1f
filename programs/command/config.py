"""The three sections of the configuration, from a cluster file, a TOML file, a preset and options; later ones win.

Sections are `run.`, `program.` and `task.`; file, `--set` and options use the same keys. In a file, and in --set,
`run.program` and `run.task` are the PROGRAM argument and `--task`, so that a run's own config.toml is complete. Types
and ranges are not known here: the reader of a section checks it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, final

from isthmus.programs import FOLDER, settings
from isthmus.programs.command.loop_choice import LOOP_SECTION, LoopChoice
from isthmus.programs.command.proposals import meant_by
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.request import reference
from isthmus.programs.engine.request.run_settings import SCHEMA, SLOTS_MAX_DEFAULT
from isthmus.programs.engine.request.slot_tasks import SlotTasks
from isthmus.programs.settings import Text, collecting
from isthmus.runtime.errors import ConfigError, Fault, nearest

SECTIONS: Final = ("run", "program", "task")
TASK: Final = ("run", "task")
LEAVES_OUT: Final = "leaves_out"

_ADAMW: Final = {"optimizer": "adamw"}
"""Where Muon, the default, was not compared (decision 0051)."""
_LARGE: Final = {"vocabulary": 50_304, "tied": True, "dtype": "bfloat16"} | _ADAMW
"""The vocabulary of GPT-2's tokens, rounded up to a multiple of 128; text is read as bytes all the same."""
MODELS: Final[Mapping[str, Mapping[str, Any]]] = {
    "nano": {"layers": 2, "width": 64, "heads": 4, "context": 64},
    "micro": {"layers": 4, "width": 128, "heads": 4, "context": 128} | _ADAMW,
    "mini": {"layers": 6, "width": 256, "heads": 8, "context": 256} | _ADAMW,
    "small": {"layers": 8, "width": 512, "heads": 8, "context": 512} | _ADAMW,
    "gpt-124m": {"layers": 12, "width": 768, "heads": 12, "context": 1024} | _LARGE,
    "gpt-1.2b": {"layers": 22, "width": 2048, "heads": 16, "context": 2048} | _LARGE,
    "gpt-12b": {"layers": 37, "width": 5120, "heads": 40, "context": 2048, "batch": 16}
    | {"stacked": True, "checkpoint": True}
    | _LARGE,
}
"""Sizes of the shipped task: 0.13, 0.86, 4.9, 26, 124, 1,210 and 11,900 million parameters."""


@final
@dataclass(slots=True)
class Sections:
    """The requested sections, without defaults, and the references of program and task if they were named.

    `machine_tasks`: the references of those of learners on machines, by name.
    """

    run: dict[str, Any] = field(default_factory=dict)
    program: dict[str, Any] = field(default_factory=dict)
    task: dict[str, Any] = field(default_factory=dict)
    program_reference: str | None = None
    task_reference: str | None = None
    machine_tasks: Mapping[str, str] = field(default_factory=dict)


@final
@dataclass(slots=True)
class _Layer:
    """Keys of one layer: (section, key) -> value, and the origin of each."""

    values: dict[tuple[str, str], Any] = field(default_factory=dict)
    origins: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, section: str, key: str, value: Any, origin: str) -> None:
        """Set a key; ConfigError if another option has set it to a different value."""
        where = (section, key)
        if where in self.values and self.values[where] != value:
            values_text = f"{self.values[where]} from {self.origins[where]} and {value} from {origin}"
            raise ConfigError(f"Reading {section}.{key}", "one value", values_text, "Leave one of them out.")
        self.values[where] = value
        self.origins[where] = origin


def read(
    file: Path | None,
    model: str | None,
    options: Mapping[tuple[str, str], tuple[str, Any]],
    sets: Iterable[str],
    cluster: Cluster | None = None,
    before: Path | None = None,
    beneath: Mapping[tuple[str, str], Any] = MappingProxyType({}),
) -> tuple[Sections, list[Fault]]:
    """The requested sections, and the faults of the files, the preset and the form of --set.

    `options` are (section, key) -> (name of the option, value); `sets` are those of --set. `before` is the file of a
    run that goes on: everything else counts before it. `beneath`: keys that count where nothing else has them.
    """
    faults: list[Fault] = []
    requested = _Layer()
    for (section, key), (name, value) in options.items():
        requested.add(section, key, value, name)
    for text in sets:
        with collecting(faults):
            requested.add(*assignment(text), "--set")
    merged = dict(beneath)
    if cluster is not None:
        if islands := cluster.topology.learners_max:
            slots = {"slots_max": islands} if islands > SLOTS_MAX_DEFAULT else {}
            merged |= {("run", key): count for key, count in dict(slots, learners=islands).items()}
        with collecting(faults):
            merged.update(_from_document(cluster.sections, cluster.file, is_here=False))
    for each in (before, file):
        if each is not None:
            with collecting(faults):
                do = "Name a file with --config, for example the config.toml of a run."
                document = settings.read_file(each, "the configuration", do)
                merged.update(_from_document(document, each, is_here=cluster is None))
    if model is not None:
        with collecting(faults):
            merged.update(_preset(model, has_own_task=("run", "task") in {**merged, **requested.values}))
    sections = _by_section({**merged, **absolute(requested.values, Path.cwd())}, faults)
    sections.machine_tasks = {} if cluster is None else cluster.tasks
    return sections, faults


def left_out(file: Path | None, sets: Iterable[str], cluster: Cluster) -> tuple[str, ...]:
    """The machines that `run.leaves_out` names: in --set, the file of --config or the cluster file, of which the first
    counts. What has another form is told where the sections are read."""
    with suppress(ConfigError, ValueError):
        for text in sets:
            section, key, value = assignment(text)
            if (section, key) == ("run", LEAVES_OUT):
                return _names(settings.parse(value))
        document = {} if file is None else settings.read_file(file, "the configuration", "Name a file with --config.")
        for each in (document, cluster.sections):
            if LEAVES_OUT in (table := each.get("run", {})):
                return _names(table[LEAVES_OUT])
    return ()


def _names(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list | tuple) and _are_texts(value) else ()


def _preset(model: str, *, has_own_task: bool) -> dict[tuple[str, str], Any]:
    """The keys that --model stands for."""
    doing = "Reading --model"
    if has_own_task:
        do = "Leave --model out, or --task: sizes and folders are of the shipped tasks."
        raise ConfigError(doing, "no model beside a task of your own", repr(model), do)
    if os.sep in model or (model not in MODELS and os.path.isdir(model)):
        return {("task", FOLDER): os.path.abspath(os.path.expanduser(model))}
    if model not in MODELS:
        raise ConfigError(doing, "a size of the shipped task, or a folder", repr(model), nearest(model, MODELS))
    return {("task", key): value for key, value in MODELS[model].items()}


def assignment(text: str, option: str = "--set") -> tuple[str, str, Text]:
    """section, key and value of one --set, or of another option of its form."""
    name, equals, value = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot and key):
        do = (
            meant_by(name, value=value) if equals and not dot else ""
        ) or f"Write for example {option} program.interval=12."
        raise ConfigError(f"Reading {option}", "section.key=value", repr(text), do)
    _check_section(section, f"{option} {text}")
    return section, key, Text(value.strip())


def _check_section(section: str, where: str, sections: Sequence[str] = SECTIONS) -> None:
    if section not in sections:
        expected = f"one of the sections {', '.join(sections)}"
        raise ConfigError(f"Reading {where}", expected, repr(section), nearest(section, sections))


def _from_document(document: Mapping[str, Any], file: Path, *, is_here: bool) -> dict[tuple[str, str], Any]:
    """The keys of a TOML file's sections; its relative paths start in the file's own folder. A script of its table
    [loop] is the task; one that `is_here` has to be on this machine."""
    doing = f"Reading the configuration {file}"
    faults: list[Fault] = []
    for section, table in document.items():
        with collecting(faults):
            _check_section(section, str(file), (*SECTIONS, LOOP_SECTION))
        if not isinstance(table, dict):
            faults.append(Fault(doing, f"a table [{section}]", repr(table), f"Write the header [{section}] above it."))
    if faults:
        raise ConfigError.of(faults)
    tables = {section: table for section, table in document.items() if section != LOOP_SECTION}
    values = {(section, key): value for section, table in tables.items() for key, value in table.items()}
    if LOOP_SECTION in document:
        if TASK in values:
            do = "Leave one of them out: the script's loop is the learners'."
            raise ConfigError(doing, "run.task or [loop]", "both", do)
        values[TASK] = LoopChoice.of_table(document[LOOP_SECTION], file, is_here=is_here).reference
    return absolute(values, file.absolute().parent)


def absolute(values: Mapping[tuple[str, str], Any], folder: Path) -> dict[tuple[str, str], Any]:
    """The same with paths made absolute from `folder`: of data and sets, of the router and of files in references."""
    result = dict(values)
    for where in (("run", "program"), ("run", "task")):
        named = result.get(where)
        if isinstance(named, str):
            result[where] = reference.absolute(named, folder)
        elif isinstance(named, list | tuple) and _are_texts(named):
            result[where] = [reference.absolute(each, folder) for each in named]
    for where in (("run", name) for name, key in SCHEMA.keys.items() if key.declared.is_place):
        place = result.get(where)
        if isinstance(place, str) and place and "://" not in place:
            result[where] = type(place)(os.path.abspath(folder / os.path.expanduser(place)))
    if isinstance(model := result.get(("task", FOLDER)), str):
        result["task", FOLDER] = type(model)(os.path.abspath(folder / os.path.expanduser(model)))
    if type(router := result.get(("task", "router"))) is str:
        result["task", "router"] = os.path.abspath(folder / os.path.expanduser(router))
    data = result.get(("task", "data"))
    if isinstance(data, list | tuple) and all(isinstance(path, str) for path in data):
        result["task", "data"] = [os.path.abspath(folder / os.path.expanduser(path)) for path in data]
    sets = result.get(("task", "sets"))
    if isinstance(sets, Mapping) and all(isinstance(path, str) for path in sets.values()):
        result["task", "sets"] = {
            name: os.path.abspath(folder / os.path.expanduser(path)) for name, path in sets.items()
        }
    return result


def _are_texts(values: Sequence[Any]) -> bool:
    """Whether there are values, and all of them are texts."""
    return bool(values) and all(isinstance(each, str) for each in values)


def _by_section(values: Mapping[tuple[str, str], Any], faults: list[Fault]) -> Sections:
    """Keys by section, and the references by themselves; adds a fault if one of these is no text.

    Several tasks are those of the slots, and have one reference.
    """
    sections = Sections()
    for (section, key), value in values.items():
        if section != "run" or key not in ("program", "task"):
            getattr(sections, section)[key] = value
        elif isinstance(value, str):
            setattr(sections, f"{key}_reference", str(value))
        elif key == "task" and isinstance(value, list | tuple) and _are_texts(value):
            sections.task_reference = value[0] if len(value) == 1 else SlotTasks.by_slot(value).text
        else:
            do = 'Write for example program = "decoupled-diloco" or task = "mine.py:task".'
            faults.append(Fault(f"Reading run.{key}", "a reference as text", repr(value), do))
    return sections
