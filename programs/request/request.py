"""Conversion of a request to a verified job: the one way to a run, for the command line, Python and tests.

`prepare` imports the modules that the request names, reads its settings, runs the task on shapes, builds the graph,
proves it sound and compiles it into plans. Nothing is started or written. Faults are found in three steps, and each
step shows all of its faults together: those of settings, references, data and the run folder; then those of the task
when it is run on shapes; then those of the graph. The first step needs no jax, unless a file of the user's imports it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, final

from isthmus.programs import language_model
from isthmus.programs.checks.item_sizes import item_faults
from isthmus.programs.checks.processes import process_faults
from isthmus.programs.outer_settings import derived, interval_of
from isthmus.programs.recorder.roles import SNAPSHOT_SECONDS_DEFAULT, with_recorder
from isthmus.programs.request import new_folder, reference
from isthmus.programs.request.environment import prepare_environment
from isthmus.programs.request.fingerprint import fingerprint
from isthmus.programs.request.program import DEFAULT, Program
from isthmus.programs.request.settings import Schema, collecting
from isthmus.programs.snapshots.urls import check, place_of
from isthmus.programs.sweeps import few_sweeps
from isthmus.programs.task import Task
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.plans import Plan, lower
from isthmus.runtime.graph.proof import Proof
from isthmus.runtime.graph.template import Graph, Job, Reference
from isthmus.runtime.graph.verify import verify
from isthmus.runtime.supervision.station import BEAT_SECONDS, LONELY_BEATS
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.tape.reading import TAPE_BYTES, TAPE_BYTES_MIN

SHIPPED_TASK: Final = "isthmus.programs.language_model:task"
NAMELESS_TASK: Final = "a Task object that no module names"
SLOTS_MAX_DEFAULT: Final = 16
_SEED_MAX: Final = (1 << 63) - 1
_OF_REQUEST: Final = (
    "local_batch",
    "argv",
    "evaluate_on",
    "snapshot_every_seconds",
    "snapshots",
    "tape_bytes",
    "keep_payloads",
    "processes",
    "home_away_seconds",
    "devices_min",
)
"""Keys of section `run.` that are of no job."""
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@final
@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A run that may start: everything about it is known and verified, and nothing has been done yet.

    `config` has the sections run, program and task of config.toml, defaults filled in; `chosen` are those of them, by
    section.key, that follow from the others. `warnings` are oddities, wrong only if not intended. With
    `is_run_dir_given`, the run's folder must be `run_dir`.
    """

    program: Program
    task_reference: Reference
    task: Task
    job: Job
    graph: Graph
    proof: Proof
    plans: Mapping[str, Plan]
    fingerprint: str
    run_dir: Path
    is_run_dir_given: bool
    config: Mapping[str, Mapping[str, Any]]
    warnings: tuple[Fault, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The program's short name."""
        return self.program.name

    def to_train(self) -> Request:
        """This request, if a run of it can end; ConfigError if no node reports progress."""
        if not any("progress" in node.outputs for node in self.graph.nodes):
            do = (
                "Use InnerStep, or emit {'tokens': trained in all} on it from a body of your own (reference/graphs.md)."
            )
            expected = "a node that reports on a port `progress`, by which the token budget ends a run"
            raise ConfigError(f"Training by {self.program.reference!r}", expected, "none", do)
        return self

    def in_one_process(self) -> Request:
        """This request, if one process can have all of it; ConfigError for islands of several."""
        if self.devices_min:
            do = "Leave --transport out, or run.devices_min."
            found = f"run.devices_min = {self.devices_min}"
            raise ConfigError("Reading --transport inproc", "learners of one process each", found, do)
        if max(self.processes, default=1) > 1:
            do = "Leave --transport out, or run.processes."
            raise ConfigError(
                "Reading --transport inproc",
                "learners of one process each",
                f"run.processes = {list(self.processes)}",
                do,
            )
        return self

    def with_store(self, *, run: str = "") -> Request:
        """This request, if its snapshot store is usable, which is tested from this machine.

        ConfigError for a store that cannot be written, or has snapshots of another run than `run`.
        """
        if place := self.config["run"].get("snapshots", ""):
            check(place_of(place), DISK, run=run)
        return self

    @property
    def processes(self) -> tuple[int, ...]:
        """The processes of each learner's island, by slot; of a slot beyond the end, one."""
        return tuple(self.config["run"].get("processes", ()))

    @property
    def devices_min(self) -> int:
        """The least number of devices with which an island of several processes goes on; 0 if these end together."""
        return int(self.config["run"].get("devices_min", 0))

    def with_folder(self) -> Request:
        """This request, with its run folder made, under another name if the name was taken meanwhile.

        ConfigError if it cannot be made.
        """
        made = new_folder.create(self.run_dir, self.config_text, is_given=self.is_run_dir_given)
        return replace(self, run_dir=made)

    @property
    def config_text(self) -> str:
        """The text of its config.toml."""
        return new_folder.document(self.config)


def prepare(
    program: Program | str = DEFAULT,
    task: Task | str | None = None,
    *,
    run: Mapping[str, Any] = _NOTHING,
    task_settings: Mapping[str, Any] = _NOTHING,
    run_dir: str | Path | None = None,
    found: Iterable[Fault] = (),
    computes: bool = True,
) -> Request:
    """The request to train `task` (None: the shipped one, with `task_settings`) by `program`.

    `run` has keys of section `run.`: tokens, seed, learners, slots_max, argv, which becomes `sys.argv`, as it was for
    the script that made the task; `found` are faults that are known already; `computes`: a first loss may be computed
    in this process. The environment of this process is made ready for the learners. ConfigError with all faults of the
    request, GraphError for a graph that breaks a rule.
    """
    program = Program(program) if isinstance(program, str) else program
    parts = _gather(program, task, run, task_settings, run_dir, list(found))
    job = _job(program, parts)
    warnings = () if task is None else _first_step(parts, computes=computes)
    reference.bind(job.task, parts.subject.task)
    graph = program.build(job)
    if "learners" not in run and (fitting := _nearest_learners(graph, job.learners)) != job.learners:
        run = {**run, "learners": fitting}
        return prepare(
            program, task, run=run, task_settings=task_settings, run_dir=run_dir, found=found, computes=computes
        )
    chosen = derived(graph, parts.settings)
    parts = parts._replace(settings={**parts.settings, **chosen})
    job = replace(job, settings=MappingProxyType(parts.settings))
    with_recorder(graph, job)
    proof = verify(graph)
    _check_learners(graph, job)
    plans = lower(graph)
    faults = [*item_faults(graph), *process_faults(plans, parts.subject.task, parts.run["processes"], job.learners)]
    if faults:
        raise ConfigError.of(faults)
    section = {"program": program.reference, **parts.run}
    for name in ("argv", "processes", "snapshots", "devices_min"):
        if not section[name]:
            del section[name]
    if task is not None:
        section["task"] = job.task.text
    return Request(
        program=program,
        task_reference=job.task,
        task=parts.subject.task,
        job=job,
        graph=graph,
        proof=proof,
        plans=plans,
        fingerprint=fingerprint(graph, job, program.builder()),
        run_dir=parts.run_dir,
        is_run_dir_given=run_dir is not None,
        config={"run": section, "program": parts.settings, "task": parts.subject.settings},
        warnings=(*warnings, *_few_sweeps(graph, job)),
        chosen=MappingProxyType({**parts.subject.chosen, **{f"program.{key}": chosen[key] for key in chosen}}),
    )


class Subject(NamedTuple):
    """The task of a request, with the settings that it was made with, and those of them that were chosen."""

    reference: Reference
    task: Task
    settings: Mapping[str, Any]
    chosen: Mapping[str, Any] = _NOTHING


class _Parts(NamedTuple):
    """The parts of a request that passed the first step."""

    run: Mapping[str, Any]
    settings: Mapping[str, Any]
    subject: Subject
    run_dir: Path


def _gather(
    program: Program,
    task: Task | str | None,
    run: Mapping[str, Any],
    task_settings: Mapping[str, Any],
    run_dir: str | Path | None,
    faults: list[Fault],
) -> _Parts:
    """The first step: read each part by itself; one ConfigError with the faults of all."""
    budget: Mapping[str, Any] = {}
    with collecting(faults):
        budget = _run(**Schema.of("run", _run).read(run))
        if budget["argv"]:  # The user's file may read them as it is imported.
            sys.argv = list(budget["argv"])
        prepare_environment(budget["learners"])
    settings: Mapping[str, Any] = {}
    with collecting(faults):
        settings = program.schema().read(program.settings)
    subject = None
    with collecting(faults):
        subject = find_task(task, task_settings, budget)
    path = None
    with collecting(faults):
        path = new_folder.choose(run_dir, _short_name(program), datetime.now())
    if subject is None or path is None or faults:
        raise ConfigError.of(faults)
    return _Parts(budget, settings, subject, path)


def _short_name(program: Program) -> str:
    try:
        return program.name
    except ConfigError:  # `builder` has reported it.
        return "run"


def _run(
    *,
    tokens: int = 4_100_000,
    seed: int = 0,
    learners: int = 4,
    slots_max: int = SLOTS_MAX_DEFAULT,
    local_batch: Literal["same", "paced"] = "same",
    argv: tuple[str, ...] = (),
    evaluate_on: Literal["cpu", "island"] = "cpu",
    snapshot_every_seconds: float = SNAPSHOT_SECONDS_DEFAULT,
    snapshots: str = "",
    tape_bytes: int = TAPE_BYTES,
    keep_payloads: bool = False,
    processes: tuple[int, ...] = (),
    home_away_seconds: float = LONELY_BEATS * BEAT_SECONDS,
    devices_min: int = 0,
) -> Mapping[str, Any]:
    """Section `run.`; ConfigError for values out of range."""
    rules = (
        ("tokens", tokens, 1, None, "Say how many tokens to train on in all."),
        ("seed", seed, 0, _SEED_MAX, "Choose another seed."),
        ("slots_max", slots_max, 1, None, f"Leave run.slots_max out for {SLOTS_MAX_DEFAULT}."),
        ("snapshot_every_seconds", snapshot_every_seconds, 0.1, 86400, "The default is 15."),
        ("tape_bytes", tape_bytes, TAPE_BYTES_MIN, None, f"Leave run.tape_bytes out for {TAPE_BYTES}."),
        ("home_away_seconds", home_away_seconds, 5, 30 * 86400, "The default is 600."),
        ("devices_min", devices_min, 0, None, "Leave it out for islands whose processes live and end together."),
        ("learners", learners, 1, max(slots_max, 1), "Change run.learners; run.slots_max is the most there can be."),
    )
    faults: list[Fault] = []
    with collecting(faults):
        snapshots = place_of(snapshots).text if snapshots else ""
    for name, value, least, most, do in rules:
        if value < least or (most is not None and value > most):
            expected = f"at least {least}" if most is None else f"from {least} to {most}"
            faults.append(Fault(f"Reading run.{name}", expected, str(value), do))
    if faults:
        raise ConfigError.of(faults)
    return {
        "tokens": tokens,
        "seed": seed,
        "learners": learners,
        "slots_max": slots_max,
        "local_batch": local_batch,
        "argv": argv,
        "evaluate_on": evaluate_on,
        "snapshot_every_seconds": snapshot_every_seconds,
        "snapshots": snapshots,
        "tape_bytes": tape_bytes,
        "keep_payloads": keep_payloads,
        "processes": processes,
        "home_away_seconds": home_away_seconds,
        "devices_min": devices_min,
    }


def find_task(task: Task | str | None, settings: Mapping[str, Any], run: Mapping[str, Any] = _NOTHING) -> Subject:
    """The task that was given or named, or the shipped one, with the defaults for section `run.` if that is given."""
    if task is None:
        schema = Schema.of("task", language_model.task)
        known = schema.read(settings)
        known["data"] = tuple(os.path.abspath(path) for path in known["data"])
        chosen = language_model.chosen(known, tokens=run["tokens"], learners=run["learners"]) if run else {}
        known |= chosen
        named = {f"task.{key}": value for key, value in chosen.items()}
        return Subject(Reference(reference.called(SHIPPED_TASK, known)), language_model.task(**known), known, named)
    if settings:
        given = ", ".join(f"task.{name}" for name in settings)
        do = "Leave these out, or leave --task out: they belong to the shipped task."
        raise ConfigError("Reading section [task]", "no settings beside a task of your own", given, do)
    if isinstance(task, Task):
        return Subject(_name_of(task), task, {})
    text = reference.absolute(task)
    doing = f"Loading the task {text!r}"
    found = reference.load(text, doing)
    if not isinstance(found, Task):
        do = "Name a Task, made with isthmus.programs.Task(init, loss, batch, ...)."
        raise ConfigError(doing, "a Task", reference.kind(found), do)
    return Subject(Reference(text), found, {})


def _name_of(task: Task) -> Reference:
    """The reference by which other processes could find a task object: the file and the name it is bound to."""
    text = reference.name_of(task, near=(task.init, task.loss or task.step, task.batch))
    return Reference(text if text is not None else NAMELESS_TASK)


def _job(program: Program, parts: _Parts) -> Job:
    from isthmus.programs.request.layout import layout

    task = parts.subject.task
    _check_budget(task, parts.run)
    tensors = layout(task, parts.run["seed"])
    return Job(
        program=program.reference,
        task=parts.subject.reference,
        layout=tensors,
        tokens_per_batch=task.tokens_mean(parts.run["learners"]),
        settings=MappingProxyType(dict(parts.settings)),
        tokens_by_slot=task.tokens_per_batch if isinstance(task.tokens_per_batch, tuple) else (),
        has_gradients=task.loss is not None and len(tensors) == len(task.recipe().leaves()),
        **{name: value for name, value in parts.run.items() if name not in _OF_REQUEST},
    )


def _check_budget(task: Task, run: Mapping[str, Any]) -> None:
    """ConfigError for a budget that a first step exceeds."""
    step = task.tokens_mean(run["learners"])
    if run["tokens"] < step:
        do = f"Train on at least {step} tokens: what one batch counts for."
        raise ConfigError("Reading run.tokens", f"at least one step, which is {step} tokens", str(run["tokens"]), do)


def _few_sweeps(graph: Graph, job: Job) -> Iterator[Fault]:
    """The warning about a run that merges its model too seldom."""
    interval = interval_of(graph)
    warning = None if interval is None else few_sweeps(job, interval)
    if warning is not None:
        yield warning


def _first_step(parts: _Parts, *, computes: bool) -> tuple[Fault, ...]:
    """Warnings about a user's task; ConfigError if its loss is not valid. The shipped one needs no check."""
    from isthmus.programs.request import first_step

    task, seed = parts.subject.task, parts.run["seed"]
    if computes:
        first_step.check_loss(task, seed)
    return first_step.warnings(task, seed)


def _nearest_learners(graph: Graph, count: int) -> int:
    """The number of learners nearest to `count` that the graph's role of learners can have."""
    for role in graph.roles:
        low, high = role.replicas_min, role.replicas_max
        if role.name == "learner" and isinstance(low, int) and isinstance(high, int):
            return max(1, low, min(count, high))
    return count


def _check_learners(graph: Graph, job: Job) -> None:
    """ConfigError if the graph's role of learners cannot have as many replicas as there are learners."""
    for role in graph.roles:
        if role.name == "learner" and not role.replicas_min <= job.learners <= role.replicas_max:
            low, high = role.replicas_min, role.replicas_max
            number = str(low) if low == high else f"from {low} to {high}"
            expected = f"{number} learner{'' if high == 1 else 's'}, the replicas of role 'learner'"
            do = f"Change run.learners, or the role in {job.program!r}."
            raise ConfigError("Reading run.learners", expected, str(job.learners), do)
