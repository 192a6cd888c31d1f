"""`isthmus launch`: makes up the request of a file and options, and shows launches.

The request is prepared before anything is submitted, as that of `isthmus train` is: a wrong one waits in no queue. What
follows from the number of learners is written down, since the home begins with none.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, final

import typer

from isthmus.programs import DEFAULT
from isthmus.programs.command import config
from isthmus.programs.command.loop_choice import LOOP_SECTION, table_of
from isthmus.programs.command.request_options import Options
from isthmus.programs.engine.cluster.cluster_file import Cluster
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.reference import script_of
from isthmus.programs.engine.request.request import Request, prepare
from isthmus.programs.engine.request.run_settings import LEARNERS
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.job import RunSlots
from isthmus.programs.loop_script import LoopScript
from isthmus.programs.loop_task import ModelFound, asked_by
from isthmus.programs.task import ModelLeaf
from isthmus.programs.wings.launch import launching
from isthmus.programs.wings.launch.folder import Launch
from isthmus.programs.wings.launch.launch_file import LaunchFile, LaunchRequest, modules_of
from isthmus.runtime.errors import ConfigError, Fault, RequestError, printable


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


def launch(engine: str, options: LaunchOptions) -> None:
    """Launch, or show what would be submitted; ConfigError with nothing submitted and nothing left."""
    request = request_of(options)
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
    if LEARNERS in sections.run:
        do = "Leave it out: each island is a learner."
        faults.append(Fault("Reading run.learners", "--islands in its place", str(sections.run[LEARNERS]), do))
    sections.run[LEARNERS] = islands
    program = sections.program_reference or DEFAULT
    script = None if sections.task_reference is None else script_of(sections.task_reference)

    def work() -> dict[str, Any]:
        with asked_by(_stand_in):
            request = prepare(
                Program(program, **sections.program),
                sections.task_reference,
                run=sections.run,
                task_settings=sections.task,
                known_faults=faults,
            ).to_train()
        # What follows from a script's model the home chooses, which knows it.
        chosen = [] if script is not None else [name for name in request.chosen if name not in _named(sections)]
        named = _sections(request, sections, chosen)
        return {"most": request.run.slots_max, "sections": named, "chosen": chosen}

    try:
        prepared = in_child(work)
    except RequestError as error:
        raise type(error).of(map(_of_islands, error.faults)) from None
    named = prepared["sections"]
    if script is not None:
        del named["run"]["task"]
        named[LOOP_SECTION] = table_of(script)
    request = LaunchRequest(
        file.name,
        file.table,
        named,
        islands,
        prepared["most"],
        options.grace,
        options.nodes_per_island,
        modules_of(sections.program_reference, None if script is not None else sections.task_reference),
        frozenset(prepared["chosen"]),
        names_folder=given.loop is None and "folder" in file.sections.get(LOOP_SECTION, {}),
    )
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


def _stand_in(script: LoopScript, run: RunSlots) -> ModelFound:
    """A model in place of a script's: the script and its framework need not be here, and the first island that joins is
    asked. By this one every setting is checked that does not depend on the model."""
    leaves = (ModelLeaf("leaf", (1 << 16,), "float32", "rda"),)
    return ModelFound(leaves, (("**", "rda"),), tokens=1, tokens_most=1 << 40, learner_bytes=0)


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
