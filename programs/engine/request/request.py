"""Conversion of a request to a verified job: the one way to a run, for the command line, Python and tests.

`prepare` imports the modules that the request names, reads its settings, runs the task on shapes, builds the graph,
proves it sound and compiles it into plans. Nothing is started or written. Faults are found in three steps, and each
step shows all of its faults together: those of settings, references, data and the run folder; then those of the task
when it is run on shapes; then those of the graph. The first step needs no jax, unless a file of the user's imports it.
"""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib import import_module
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final, NamedTuple, TypeAlias, final

from isthmus.programs import DEFAULT, FOLDER, FOLDER_TASK, SHIPPED_TASK
from isthmus.programs.engine.recorder.roles import with_recorder
from isthmus.programs.engine.request import new_folder, reference
from isthmus.programs.engine.request.batch_checks import check_sets, tokens_mean
from isthmus.programs.engine.request.environment import prepare_environment
from isthmus.programs.engine.request.faults import (
    frozen_faults,
    item_faults,
    loop_faults,
    path_faults,
    process_faults,
)
from isthmus.programs.engine.request.fingerprint import fingerprint
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.run_settings import SLOTS_MAX_DEFAULT, RunSettings
from isthmus.programs.engine.request.slot_tasks import SLOT, SlotTasks, of_function, references_of
from isthmus.programs.engine.request.task_checks import (
    check_alike,
    check_frozen_alike,
    first_step_warnings,
    frozen_of,
    has_gradients,
    layout_of,
    leveled,
)
from isthmus.programs.engine.results.data_words import brief
from isthmus.programs.engine.results.run_files import DATA
from isthmus.programs.engine.snapshots.stored import check, place_of
from isthmus.programs.evaluations import SMALL, times_default, too_much
from isthmus.programs.job import Job, RunSlots, TensorSpec
from isthmus.programs.loop_script import OPEN_NAME
from isthmus.programs.loop_task import LoopTask
from isthmus.programs.program_graph import training_of
from isthmus.programs.reading.found import finding_once
from isthmus.programs.reading.table import DataTable
from isthmus.programs.settings import Schema, collecting
from isthmus.programs.sweeps import few_sweeps
from isthmus.programs.task import AnyTask, OwnTask, Tokens
from isthmus.programs.update_settings import derived, interval_of
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.graph.plans import Plan, lower, peers_most
from isthmus.runtime.graph.proof import Proof
from isthmus.runtime.graph.template import Reference, Template
from isthmus.runtime.graph.verify import verify
from isthmus.runtime.ids import HOSTS_MAX, LEARNER, PEERS_MAX
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import write_json

FRAMEWORK: Final = "framework"
"""A setting of section `task.` that a model folder's task alone has."""
NAMELESS_TASK: Final = "a Task object that no module names"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@final
@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A run that may start: everything about it is known and verified, and nothing has been done yet."""

    program: Program
    task_reference: Reference
    task: AnyTask
    """The one that evaluates."""
    tasks: Mapping[str, AnyTask]
    """All that its slots train, by reference."""
    run: RunSettings
    job: Job
    graph: Template
    proof: Proof
    plans: Mapping[str, Plan]
    fingerprint: str
    run_dir: Path
    is_run_dir_given: bool
    """The run's folder must be `run_dir`."""
    base: Path
    """The folder in which it was made: the task may have changed the current one."""
    config: Mapping[str, Mapping[str, Any]]
    """The sections run, program and task of config.toml, defaults filled in."""
    warnings: tuple[Fault, ...] = ()
    """Oddities, wrong only if not intended."""
    chosen: Mapping[str, Any] = field(default_factory=dict)
    """Those of the settings, by section.key, that follow from the others."""
    data: DataTable | None = None
    """What is trained on, where a shipped task reads it."""

    @property
    def name(self) -> str:
        """The program's short name."""
        return self.program.name

    @property
    def data_lines(self) -> tuple[str, ...]:
        """A line or two on the data; none where they are not known."""
        return () if self.data is None else tuple(brief(self.data))

    def data_figures(self) -> dict[str, int]:
        """The size of the data, by which a run that goes on tells whether they are as they were; empty where they are
        not known."""
        return {} if self.data is None else self.data.figures()

    def write_data(self, folder: Path) -> None:
        """Write the table of the data into a run folder, where they are known."""
        if self.data is not None:
            write_json(folder / DATA, self.data.as_dict())

    def task_of(self, slot: int, machine: str = "") -> AnyTask:
        """The task of the learner in a slot, on a machine of that name."""
        tasks = SlotTasks.read(self.task_reference.text)
        return self.task if tasks is None else self.tasks[tasks.of_slot(slot, machine)]

    def with_job(self, job: Job) -> Request:
        """This request with another job of the same program, task and layout, and its graph."""
        graph = with_recorder(self.program.build(job).freeze(), job)
        own = fingerprint(graph, job, self.program.builder())
        return replace(self, job=job, graph=graph, proof=verify(graph), plans=lower(graph), fingerprint=own)

    def to_train(self) -> Request:
        """This request, if a run of it can end; ConfigError if its graph declares no reports."""
        if training_of(self.graph).reports is None:
            do = (
                "Write graph.train(reports=step['report']) of an InnerStep, or of a body of your own that emits "
                "{'tokens': trained in all} (reference/graphs.md)."
            )
            expected = "a graph that declares the port by whose reports the token budget ends a run"
            raise ConfigError(f"Training by {self.program.reference!r}", expected, "none", do)
        return self

    def in_one_process(self) -> Request:
        """This request, if one process can have all of it; ConfigError for islands of several, and several tasks."""
        if len(self.tasks) > 1:
            do = "Leave --transport out: each process imports the framework of its own task."
            found = ", ".join(self.tasks)
            raise ConfigError("Reading --transport inproc", "one task for all learners", found, do)
        if self.run.devices_min:
            do = "Leave --transport out, or run.devices_min."
            setting_text = f"run.devices_min = {self.run.devices_min}"
            raise ConfigError("Reading --transport inproc", "learners of one process each", setting_text, do)
        if max(self.run.processes, default=1) > 1:
            do = "Leave --transport out, or run.processes."
            raise ConfigError(
                "Reading --transport inproc",
                "learners of one process each",
                f"run.processes = {list(self.run.processes)}",
                do,
            )
        return self

    def with_store(self, *, run: str = "") -> Request:
        """This request, if its snapshot store is usable, which is tested from this machine.

        ConfigError for a store that cannot be written, or has snapshots of another run than `run`.
        """
        if self.run.snapshots:
            check(place_of(self.run.snapshots), DISK, run=run)
        return self

    def with_folder(self) -> Request:
        """This request, with its run folder made, under another name if the name was taken meanwhile.

        ConfigError if it cannot be made.
        """
        folder = new_folder.create(self.run_dir, self.config_text, latest=self.base, is_given=self.is_run_dir_given)
        return replace(self, run_dir=folder)

    @property
    def config_text(self) -> str:
        """The text of its config.toml."""
        return new_folder.document(self.config)


def prepare(
    program: Program | str = DEFAULT,
    task: GivenTask = None,
    *,
    machine_tasks: Mapping[str, str] = _NOTHING,
    run: Mapping[str, Any] = _NOTHING,
    task_settings: Mapping[str, Any] = _NOTHING,
    run_dir: str | Path | None = None,
    known_faults: Iterable[Fault] = (),
    computes: bool = True,
    has_cluster: bool = False,
) -> Request:
    """The request to train a task by a program. The environment of this process is made ready for the learners.

    Arguments:
        program: one that is shipped, or a reference.
        task: none: the shipped one, with `task_settings`. Of several references the first is the home's, and each that
            of a slot, the last of all beyond.
        machine_tasks: those of learners on machines, by name, or a framework for the task of a model folder.
        run: keys of section `run.`: tokens, seed, learners, slots_max, argv, which becomes `sys.argv`, as it was for
            the script that made the task.
        task_settings: the keywords of the task.
        run_dir: the run's folder; None: a new one.
        known_faults: those of the caller.
        computes: a first loss may be computed in this process.
        has_cluster: machines may join the run, which may begin with no learner.

    ConfigError with all faults of the request, GraphError for a graph that breaks a rule.
    """
    # Before anything of the user's is imported and called, which may change folder and umask of this process.
    base = Path.cwd()
    run_dir = None if run_dir is None else os.path.abspath(os.path.expanduser(run_dir))
    with reference.same_umask():
        return _prepare(
            program,
            _Given(task, task_settings, machine_tasks),
            run,
            run_dir,
            known_faults,
            base,
            computes=computes,
            has_cluster=has_cluster,
        )


class _Given(NamedTuple):
    """What was given of the task."""

    task: GivenTask
    settings: Mapping[str, Any]
    machines: Mapping[str, str]

    @property
    def is_shipped(self) -> bool:
        return self.task is None and not self.machines


def _prepare(
    program: Program | str,
    given: _Given,
    run: Mapping[str, Any],
    run_dir: str | None,
    known_faults: Iterable[Fault],
    base: Path,
    *,
    computes: bool,
    has_cluster: bool,
) -> Request:
    program = Program(program) if isinstance(program, str) else program
    parts = _gather(program, given, run, run_dir, base, list(known_faults), has_cluster=has_cluster)
    job = _job(program, parts, computes=computes)
    warnings = () if given.is_shipped else _first_step(parts, computes=computes)
    for text, task in parts.subject.tasks.items():
        reference.bind(Reference(text), task)
    graph = program.build(job).freeze()
    if "learners" not in run and (fitting := _nearest_learners(graph, job.learners)) != job.learners:
        run = dict(run, learners=fitting)
        return _prepare(program, given, run, run_dir, known_faults, base, computes=computes, has_cluster=has_cluster)
    chosen = derived(graph, parts.settings)
    parts = parts._replace(settings={**parts.settings, **chosen})
    job = replace(job, settings=MappingProxyType(parts.settings))
    graph = with_recorder(graph, job)
    proof = verify(graph)
    _check_learners(graph, job, parts.run)
    plans = lower(graph)
    _check_hosts(graph, plans, parts.run)
    tasks = parts.subject.tasks
    faults = [
        *item_faults(graph),
        *process_faults(plans, tasks.values(), parts.run.processes, job.learners),
        *loop_faults(plans, parts.subject.task, tasks.values()),
        *frozen_faults(job.frozen, parts.run.processes),
        *path_faults(graph, job, tasks.values()),
    ]
    if faults:
        raise ConfigError.of(faults)
    section = {"program": program.reference, **parts.run.section()}
    if not given.is_shipped:
        section["task"] = job.task.text
    return Request(
        program=program,
        task_reference=job.task,
        task=parts.subject.task,
        tasks=tasks,
        run=parts.run,
        job=job,
        graph=graph,
        proof=proof,
        plans=plans,
        fingerprint=fingerprint(graph, job, program.builder()),
        run_dir=parts.run_dir,
        is_run_dir_given=run_dir is not None,
        base=base,
        config={
            "run": section,
            "program": parts.settings,
            "task": parts.subject.settings if given.is_shipped else {},
        },
        warnings=(*warnings, *_few_sweeps(graph, job), *_much_evaluated(parts, job), *_data_warnings(parts)),
        chosen=MappingProxyType({**parts.subject.chosen, **{f"program.{key}": chosen[key] for key in chosen}}),
        data=parts.subject.data,
    )


def _data_warnings(parts: _Parts) -> Iterator[Fault]:
    if parts.subject.data is not None:
        yield from parts.subject.data.warnings()


class Subject(NamedTuple):
    """The task of a request, with the settings that it was made with, and those of them that were chosen.

    `others`: (reference, task) of those that other slots train. `data`: those of a shipped task, as far as known.
    """

    reference: Reference
    task: AnyTask
    settings: Mapping[str, Any]
    chosen: Mapping[str, Any] = _NOTHING
    others: tuple[tuple[str, AnyTask], ...] = ()
    data: DataTable | None = None

    @property
    def tasks(self) -> Mapping[str, AnyTask]:
        """All tasks, by reference; that of the run first."""
        return {references_of(self.reference.text)[0]: self.task, **dict(self.others)}


class _Parts(NamedTuple):
    """The parts of a request that passed the first step."""

    run: RunSettings
    settings: Mapping[str, Any]
    subject: Subject
    run_dir: Path


def _gather(
    program: Program,
    given: _Given,
    run: Mapping[str, Any],
    run_dir: str | None,
    base: Path,
    faults: list[Fault],
    *,
    has_cluster: bool,
) -> _Parts:
    """The first step: read each part by itself; one ConfigError with the faults of all."""
    budget = None
    with collecting(faults):
        budget = RunSettings.read(run)
        if budget.argv:  # The user's file may read them as it is imported.
            sys.argv = list(budget.argv)
        if not budget.learners and not has_cluster:
            do = "Change run.learners; 0 is for a run with --cluster, whose learners all join."
            raise ConfigError("Reading run.learners", f"from 1 to {budget.slots_max}", "0", do)
        prepare_environment(budget.learners)
    settings: Mapping[str, Any] = {}
    with collecting(faults):
        settings = program.schema().read(program.settings)
    subject = None
    with collecting(faults):
        subject = find_task(given.task, given.settings, budget, given.machines)
        if isinstance(subject.task, OwnTask):
            slots = RunSlots() if budget is None else _slots_of(budget)
            subject = subject._replace(task=subject.task.completed(slots))
    path = None
    with collecting(faults):
        path = new_folder.choose(run_dir, _short_name(program), datetime.now(), base)
    if budget is None or subject is None or path is None or faults:
        raise ConfigError.of(faults)
    return _Parts(budget, settings, subject, path)


def _slots_of(run: RunSettings) -> RunSlots:
    return RunSlots(run.learners, run.slots_max, run.seed, run.rank_seconds)


def _short_name(program: Program) -> str:
    try:
        return program.name
    except ConfigError:  # `builder` has reported it.
        return "run"


GivenTask: TypeAlias = AnyTask | str | Sequence[str] | None
"""A task, its reference, those of the slots, or None for the shipped one."""


def find_task(
    task: GivenTask,
    settings: Mapping[str, Any],
    run: RunSettings | None = None,
    machines: Mapping[str, str] = _NOTHING,
) -> Subject:
    """The task that was given or named, or the shipped one, with the defaults for section `run.` if that is given.

    Several references are those of the slots, `machines` those of learners on machines, or their frameworks where the
    task is of a model folder.
    """
    if isinstance(task, Sequence) and not isinstance(task, str):
        named = [reference.absolute(each) for each in task]
        return _of_slots(SlotTasks.by_slot(named), _one(named[0], settings, run), machines)
    if isinstance(task, str) and (tasks := SlotTasks.read(task)) is not None:
        return _of_slots(tasks, _one(tasks.home, settings, run))
    subject = _one(task, settings, run)
    if isinstance(subject, SlotTasks):
        return _of_slots(subject, _one(subject.home, settings, run), machines)
    in_frameworks = {name: each for name, each in machines.items() if ":" not in each}
    of_machines = {name: _in_framework(subject, name, each) for name, each in in_frameworks.items()}
    slots = [reference.called(FOLDER_TASK, each) for each in _by_slot(subject.settings)] if FOLDER in settings else []
    tasks = SlotTasks.by_slot(slots) if len(slots) > 1 else SlotTasks(subject.reference.text)
    return _of_slots(tasks, subject, {**machines, **of_machines}) if slots[1:] or machines else subject


def _by_slot(section: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The settings of the shipped task of each slot, the last of all beyond: frameworks may differ."""
    frameworks = section.get(FRAMEWORK)
    for each in frameworks if frameworks and isinstance(frameworks, tuple) else [frameworks]:
        yield {**section, FRAMEWORK: each} if FRAMEWORK in section else section


def _in_framework(subject: Subject, machine: str, framework: str) -> str:
    """The reference of the run's task in the framework of a machine; ConfigError for a task that has only one."""
    if FRAMEWORK not in subject.settings:
        do = "Train a model folder, or name the task of that machine: task = FILE.py:NAME."
        raise ConfigError(f"Reading framework of machine {machine!r}", "--model FOLDER", subject.reference.text, do)
    return reference.called(FOLDER_TASK, {**subject.settings, FRAMEWORK: framework})


def _of_slots(tasks: SlotTasks, home: Subject | SlotTasks, machines: Mapping[str, str] = _NOTHING) -> Subject:
    """The subject of several tasks; ConfigError, with every fault, for references of no task."""
    faults: list[Fault] = []
    if isinstance(home, SlotTasks):
        do = "Name the tasks themselves, or the function alone."
        raise ConfigError(f"Loading the task {tasks.home!r}", "a Task", "a function of the slot", do)
    tasks = SlotTasks(home.reference.text, tasks.slots, {**dict(tasks.machines), **machines})
    others = []
    for text in tasks.references[1:]:
        with collecting(faults):
            others.append((text, _loaded(text)))
    if faults:
        raise ConfigError.of(faults)
    if not others:
        return home
    return home._replace(reference=Reference(tasks.text), others=tuple(others))


def _one(task: AnyTask | str | None, settings: Mapping[str, Any], run: RunSettings | None) -> Subject | SlotTasks:
    """One task; where a function is named, the tasks that it names by slot."""
    if task is None:
        text, shipped = shipped_task(settings)
        schema = Schema.of("task", shipped.task)
        section = schema.read(settings)
        section["data"] = tuple(os.path.abspath(path) for path in section["data"])
        sets = (section["sets"] or {}).items()
        section["sets"] = {name: os.path.abspath(os.path.expanduser(path)) for name, path in sets} or None
        for path in (FOLDER, "router"):
            if section.get(path) is not None:
                section[path] = os.path.abspath(section[path])
        is_in_range = not any(schema.out_of_range(section))  # Else the task refuses them, before it is made.
        chosen = shipped.chosen(section, run.size) if run is not None and is_in_range else {}
        chosen = {key: value for key, value in chosen.items() if not (key in settings and settings[key] is None)}
        section |= chosen
        named = {f"task.{key}": value for key, value in chosen.items()}
        home = next(_by_slot(section))
        # Shards of a router are of documents, and of several passes each.
        is_routed = home.get("router") is not None
        with finding_once():
            made = shipped.task(**home)
            data = None if run is None or is_routed else shipped.data_table(home).for_budget(run.tokens)
        if data is not None and (faults := list(data.faults())):
            raise ConfigError.of(faults)
        if run is not None:
            check_sets(made, run.seed)
        return Subject(Reference(reference.called(text, home)), made, section, named, data=data)
    if settings:
        keys_text = ", ".join(f"task.{name}" for name in settings)
        do = "Leave these out, or leave --task out: they belong to the shipped task."
        raise ConfigError("Reading section [task]", "no settings beside a task of your own", keys_text, do)
    if isinstance(task, AnyTask):
        return Subject(_name_of(task), task, {})
    text = reference.absolute(task)
    if text == OPEN_NAME:
        do = "Begin it with: isthmus daemon --name NAME --listen tcp://ADDRESS:PORT --run FILE.toml."
        expected = f"a run that its home's daemon begins, once the first loop has joined, for {OPEN_NAME!r}"
        raise ConfigError("Reading run.task", expected, "another command", do)
    loaded = reference.load(text, f"Loading the task {text!r}")
    if inspect.isfunction(loaded) and list(inspect.signature(loaded).parameters) == [SLOT]:
        return of_function(loaded, text, SLOTS_MAX_DEFAULT if run is None else run.slots_max)
    return Subject(Reference(text), _checked(loaded, text), {})


def as_begun(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the shipped task in the config.toml of a run, for the request to go on with it.

    That file has every setting that the run was begun with. One that it lacks was None, or there was none of its name
    in the version that began the run: it is None here, by name, and then nothing is chosen in its stead.
    """
    keys = Schema.of("task", shipped_task(settings)[1].task).keys
    return {**{name: None for name, key in keys.items() if key.default is None}, **settings}


def shipped_task(settings: Mapping[str, Any]) -> tuple[str, ModuleType]:
    """The shipped task to which settings belong, by its reference, and its module: of a model folder, or the other."""
    text = FOLDER_TASK if FOLDER in settings else SHIPPED_TASK
    return text, task_module(text)


def task_module(text: str) -> ModuleType:
    """The module of one of `SHIPPED_TASKS`."""
    return import_module(text.partition(":")[0])


def _loaded(text: str) -> AnyTask:
    """The task of a reference; ConfigError if it is none."""
    return _checked(reference.load(text, f"Loading the task {text!r}"), text)


def _checked(loaded: Any, text: str) -> AnyTask:
    """What a reference means, if it is a task; ConfigError otherwise."""
    if not isinstance(loaded, AnyTask):
        do = "Name a Task, made with isthmus.Task(init, loss, batch, ...), or with isthmus.torch.Task."
        raise ConfigError(f"Loading the task {text!r}", "a Task", reference.kind(loaded), do)
    return loaded


def _name_of(task: AnyTask) -> Reference:
    """The reference by which other processes could find a task object: the file and the name it is bound to."""
    text = reference.name_of(task, near=task.functions)
    reference.check_text(text or "")
    return Reference(text if text is not None else NAMELESS_TASK)


def _job(program: Program, parts: _Parts, *, computes: bool) -> Job:
    task = parts.subject.task
    is_shipped = reference.without_keywords(parts.subject.reference.text) == SHIPPED_TASK
    tensors = layout_of(task, parts.run.seed, is_shipped=is_shipped)
    frozen = frozen_of(task, parts.run.seed, computes=computes)
    for text, other in parts.subject.others:
        check_alike(task, tensors, text, other, layout_of(other, parts.run.seed))
        check_frozen_alike(text, frozen, frozen_of(other, parts.run.seed, computes=computes))
    mean = tokens_mean(task, parts.run.learners_expected, parts.run.seed)
    _check_budget(mean, parts.run)
    return Job(
        program=program.reference,
        task=parts.subject.reference,
        layout=leveled(task, tensors),
        modules=task.paths,
        routed_by=task.routed_by,
        tokens_per_batch=mean,
        frozen=frozen,
        settings=MappingProxyType(dict(parts.settings)),
        tokens_by_slot=task.tokens_per_batch if isinstance(task.tokens_per_batch, tuple) else (),
        tokens_at_most=task.tokens_per_batch.at_most if isinstance(task.tokens_per_batch, Tokens) else 0,
        evaluations=times_default(parts.run.size, _evaluated_tokens(task, tensors)),
        has_gradients=all(has_gradients(each, tensors) for each in parts.subject.tasks.values()),
        **parts.run.of_job(),
    )


def _evaluated_tokens(task: AnyTask, layout: Sequence[TensorSpec]) -> int | None:
    """The tokens that an evaluation predicts; None where that is not known, or the model is a small one."""
    is_small = task.extract is None and sum(math.prod(each.shape) for each in layout) < SMALL
    return None if is_small or isinstance(task, LoopTask) else task.evaluated_tokens


def _check_budget(step: int, run: RunSettings) -> None:
    """ConfigError for a budget that a first step, of so many tokens, exceeds."""
    if run.tokens < step:
        do = f"Train on at least {step} tokens: what one batch counts for."
        raise ConfigError("Reading run.tokens", f"at least one step, which is {step} tokens", str(run.tokens), do)


def _few_sweeps(graph: Template, job: Job) -> Iterator[Fault]:
    """The warning about a run that merges its model too seldom."""
    interval = interval_of(graph)
    warning = None if interval is None else few_sweeps(job, interval)
    if warning is not None:
        yield warning


def _much_evaluated(parts: _Parts, job: Job) -> Iterator[Fault]:
    """The warning about evaluations that cost more than their share."""
    evaluated = _evaluated_tokens(parts.subject.task, job.layout)
    warning = too_much(parts.run.size, evaluated, job.evaluations)
    if warning is not None:
        yield warning


def _first_step(parts: _Parts, *, computes: bool) -> tuple[Fault, ...]:
    """Warnings about a user's tasks; ConfigError if a loss is not valid. The shipped one needs no check."""
    tasks = parts.subject.tasks.values()
    return tuple(each for task in tasks for each in first_step_warnings(task, parts.run.seed, computes=computes))


def _nearest_learners(graph: Template, count: int) -> int:
    """The number of learners nearest to `count` that the graph's role of learners can have."""
    for role in graph.roles:
        low, high = role.replicas_min, role.replicas_max
        if role.name == "learner" and isinstance(low, int) and isinstance(high, int):
            return max(1, low, min(count, high))
    return count


def _check_hosts(graph: Template, plans: Mapping[str, Plan], run: RunSettings) -> None:
    """ConfigError if there may be more hosts than a run may have, or one of them may meet more than a channel knows."""
    counts = {role.name: role.replicas_max for role in graph.roles}
    if LEARNER in counts:
        counts[LEARNER] = max(run.learners, min(run.slots_max, counts[LEARNER]))
    total, do = sum(counts.values()), "Lower run.slots_max, or the replicas of another role."
    if total > HOSTS_MAX:
        expected = f"at most {HOSTS_MAX} hosts, HOSTS_MAX"
        raise ConfigError("Counting the hosts of the run", expected, f"up to {total}", do)
    for role, plan in plans.items():
        if (count := peers_most(plan, counts)) > PEERS_MAX:
            doing = f"Counting the hosts that one of role {role!r} meets"
            raise ConfigError(doing, f"at most {PEERS_MAX} peers, PEERS_MAX", f"up to {count}", do)


def _check_learners(graph: Template, job: Job, run: RunSettings) -> None:
    """ConfigError if the graph's role of learners cannot have as many replicas as there are learners."""
    for role in graph.roles:
        if role.name == "learner" and not role.replicas_min <= job.learners <= role.replicas_max:
            low, high = role.replicas_min, role.replicas_max
            number = str(low) if low == high else f"from {low} to {high}"
            expected = f"{number} learner{'' if high == 1 else 's'}, the replicas of role 'learner'"
            do = f"Change run.learners, or the role in {job.program!r}."
            raise ConfigError("Reading run.learners", expected, str(job.learners), do)
        if role.name == "learner" and not run.learners and role.replicas_min == role.replicas_max:
            do = "Take a program that learners may join, as decoupled-diloco, or give their number."
            expected = f"{role.replicas_min} or more, because none may join {job.program!r}"
            raise ConfigError("Reading run.learners", expected, "0", do)
