"""`isthmus launch`: makes up the request of a file and options, and shows launches.

The request is prepared before anything is submitted, as that of `isthmus train` is: a wrong one waits in no queue. What
follows from the number of learners is written down, since the home begins with none. Of a request that names what only
the machines of the run have, the home's script does that by `settle`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, final

import typer

from isthmus.programs import DEFAULT, FOLDER, SHIPPED
from isthmus.programs.command import config
from isthmus.programs.command.loop_choice import LOOP_SECTION, table_of
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.reference import script_of
from isthmus.programs.engine.request.request import Request, prepare, shipped_task
from isthmus.programs.engine.request.run_settings import LEARNERS, RunSettings
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.loop_script import LoopScript
from isthmus.programs.settings import Schema, Text, collecting
from isthmus.programs.wings.launch import launching
from isthmus.programs.wings.launch.folder import Launch
from isthmus.programs.wings.launch.launch_file import LaunchFile, LaunchRequest, modules_of
from isthmus.runtime.errors import ConfigError, Fault, RequestError, printable
from isthmus.runtime.system.files import put_bytes, read_text


@final
@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What `isthmus launch ENGINE` was asked for."""

    train: Options
    file: Path
    islands: int | None
    nodes_per_island: int
    grace: float
    is_printed: bool
    to: Path | None
    invite_by: str | None = None
    accepts_changes: bool = False


def launch(engine: str, options: LaunchOptions) -> None:
    """Launch, or show what would be submitted; ConfigError with nothing submitted and nothing left."""
    request = replace(request_of(options), accepts_changes=options.accepts_changes)
    if options.is_printed:
        typer.echo(launching.show(engine, request, options.to))
    else:
        typer.echo(launching.launch(engine, request, options.to))


def request_of(options: LaunchOptions) -> LaunchRequest:
    """The request of a file and options; ConfigError with all its faults."""
    file = LaunchFile.read(options.file, **({"invite_by": options.invite_by} if options.invite_by else {}))
    islands = options.islands if options.islands is not None else file.islands or 1
    given = replace(options.train, is_elsewhere=True)
    known = Cluster(file.path, (), file.sections)
    sections, faults = config.read(given.config, given.model, given.keys(), given.sets or (), known)
    if sections.run.get(LEARNERS):  # 0 is what is printed for a home, where `settle` reads it.
        do = "Leave it out: each island is a learner."
        faults.append(Fault("Reading run.learners", "--islands in its place", str(sections.run[LEARNERS]), do))
    sections.run[LEARNERS] = islands
    program = sections.program_reference or DEFAULT
    script = None if sections.task_reference is None else script_of(sections.task_reference)
    if script is not None or file.table.on_machines:
        names_folder = given.loop is None and "folder" in file.sections.get(LOOP_SECTION, {})
        request = _for_home(options, file, sections, faults, islands, script)
        return _with_its_numbers(replace(request, names_folder=names_folder))

    def work() -> dict[str, Any]:
        request = prepare(
            Program(program, **sections.program),
            sections.task_reference,
            run=sections.run,
            task_settings=sections.task,
            known_faults=faults,
        ).to_train()
        chosen = [name for name in request.chosen if name not in _named(sections)]
        named = _sections(request, sections, chosen)
        return {"most": request.run.slots_max, "sections": named, "chosen": chosen}

    try:
        prepared = in_child(work)
    except RequestError as error:
        raise type(error).of(map(_of_islands, error.faults)) from None
    request = LaunchRequest(
        file.name,
        file.table,
        prepared["sections"],
        islands,
        prepared["most"],
        options.grace,
        options.nodes_per_island,
        modules_of(sections.program_reference, sections.task_reference),
        frozenset(prepared["chosen"]),
    )
    return _with_its_numbers(request)


def settle(file: Path, islands: int) -> None:
    """Prepare the request of a home's cluster file for so many islands, where the home is, and write down what follows
    from their number; ConfigError with its faults, and the file as it was."""
    text = read_text(file)
    request = request_of(LaunchOptions(Options(), file, islands, 1, GRACE_SECONDS, is_printed=True, to=None))
    put_bytes(file, f"{_without_sections(text)}{request.run_text}".encode(), mode=file.stat().st_mode & 0o777)


def _without_sections(text: str) -> str:
    """A cluster file without its sections of the run."""
    kept, is_kept = list[str](), True
    for line in text.splitlines(keepends=True):
        if header := _HEADER.match(line):
            is_kept = header[1] not in config.SECTIONS
        kept += [line] if is_kept else []
    return "".join(kept)


_HEADER: Final = re.compile(r"\[+\s*([\w-]+)")


def _for_home(
    options: LaunchOptions,
    file: LaunchFile,
    sections: config.Sections,
    faults: list[Fault],
    islands: int,
    script: LoopScript | None,
) -> LaunchRequest:
    """The request that the home prepares, because what it names is there alone, or the first island knows the model of
    its script: here names, types and ranges of keys are checked, and what is to be here. ConfigError with all faults.
    """
    sections.run[LEARNERS] = islands
    run, program, tables = RunSettings(), sections.program_reference, dict[str, dict[str, Any]]()
    task = None if script is not None else sections.task_reference
    with collecting(faults):
        run = RunSettings.read(sections.run)
        tables["run"] = {name: getattr(run, name) for name in sections.run}
    with collecting(faults):
        if program is None or program in SHIPPED:
            values = Program(program or DEFAULT, **sections.program).schema().read(sections.program)
            tables["program"] = {name: values[name] for name in sections.program}
        else:
            tables["program"] = dict(sections.program)
            yet_text = [name for name, value in sections.program.items() if isinstance(value, Text)]
            faults += [_untyped(f"program.{name}", sections.program[name]) for name in yet_text]
    with collecting(faults):
        if sections.task_reference is None:
            schema = Schema.of("task", shipped_task(sections.task)[1].task)
            values = schema.read(sections.task)
            tables["task"] = {name: values[name] for name in sections.task}
            faults += schema.out_of_range(values)
    faults += _not_here(file, sections, modules_of(program, task))
    if script is not None:
        tables[LOOP_SECTION] = table_of(script)
        do = "Leave it out: a script has its own settings, behind `--`."
        faults += [Fault(f"Reading task.{key}", "none beside a script", "one", do) for key in sections.task]
    if faults:
        raise ConfigError.of(list(map(_of_islands, faults)))
    references = {"program": program, "task": task}
    tables["run"] |= {LEARNERS: 0, **{key: each for key, each in references.items() if each is not None}}
    numbers = islands, run.slots_max, options.grace, options.nodes_per_island
    modules = modules_of(program, task)
    return LaunchRequest(file.name, file.table, tables, *numbers, modules, is_for_home=script is None)


def _untyped(key: str, value: str) -> Fault:
    do = "Write it into the file, in its section."
    return Fault(f"Reading --set {key}", "a key of a shipped program, whose type is known here", repr(value), do)


def _not_here(file: LaunchFile, sections: config.Sections, modules: Sequence[str]) -> Iterator[Fault]:
    """Paths of the request that lead nowhere here, and are in no folder that only machines have."""
    task = sections.task
    named = [("task.data", path) for path in task.get("data") or ()]
    named += [("task.sets", path) for path in (task.get("sets") or {}).values()]
    named += [(f"task.{key}", task[key]) for key in (FOLDER, "router") if task.get(key)]
    named += [("the code of the run", path) for path in modules if Path(path).is_absolute()]
    for key, path in named:
        if isinstance(path, str) and not file.table.is_there_only(path) and not Path(path).exists():
            do = "Correct the path, or add its folder to launch.on_machines."
            expected = f"a path of this machine, or below {', '.join(file.table.on_machines)}"
            yield Fault(f"Reading {key}", expected, f"nothing at {path}", do)


def _with_its_numbers(request: LaunchRequest) -> LaunchRequest:
    if numbers := list(request.faults()):
        raise ConfigError.of(numbers)
    return request


def shown(note: Launch, *, as_json: bool) -> str:
    """What the engine has of a launch, and how its run ended, as far as its folder knows."""
    state = launching.state_of(note)
    members, outcome = state.machines, state.phase or None
    if as_json:
        fields = {"launch": note.name, "engine": note.engine, "folder": str(note.folder), "outcome": outcome}
        return json.dumps({**fields, "members": [asdict(member) for member in members]}, indent=2)
    lines = [f"{note.name} on {note.engine}: {outcome or 'not running'}, in {note.folder}"]
    width = max((len(member.name) for member in members), default=0)
    lines += [f"  {each.name:{width}}  {each.state:12}  {each.id}  {each.node}".rstrip() for each in members]
    lines += filter(None, [state.keeps])
    return printable("\n".join(lines))


def _named(sections: config.Sections) -> set[str]:
    """The keys that were requested, as section.key."""
    return {f"{section}.{key}" for section in config.SECTIONS for key in getattr(sections, section)}


def _sections(request: Request, requested: config.Sections, chosen_names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The keys that were requested, as a cluster file has them, and those that were chosen: they follow from the number
    of learners."""
    result: dict[str, dict[str, Any]] = {"run": {"program": request.config["run"]["program"], LEARNERS: 0}}
    if "task" in request.config["run"]:
        result["run"]["task"] = request.config["run"]["task"]
    chosen = [key.partition(".")[::2] for key in chosen_names]
    for section in config.SECTIONS:
        names = [*getattr(requested, section), *(name for of, name in chosen if of == section)]
        values = {name: request.config[section][name] for name in names if name in request.config[section]}
        result[section] = {**values, **result.get(section, {})}
    return result


def _of_islands(fault: Fault) -> Fault:
    """The same fault in terms of the options of this command: here each island is a learner."""
    if fault.action != "Reading run.learners":
        return fault
    return fault._replace(
        action="Reading --islands", remedy="Change it; --set run.slots_max=N is the most there can be."
    )
