"""The resumption of a run whose processes have all died, in its folder or, from a store of snapshots, in a new one.

Decides whether it can be resumed, and which settings may differ from those with which it was begun. The rest is an
ordinary takeover: the next daemon takes the lives in the ledger for ended and begins the next ones; the recorder
recalls its books, and holds the versions of the last snapshot like any other holder.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import datetime
from itertools import count, zip_longest
from operator import itemgetter
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import msgspec

from isthmus.ops.exchange.fragments import Fragment
from isthmus.ops.step_tokens import FormerStepTokens
from isthmus.programs import SHIPPED_TASKS
from isthmus.programs.engine.islands.memory_room import with_memory
from isthmus.programs.engine.islands.sizes import sizes_here
from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes, fragments_in
from isthmus.programs.engine.request import new_folder, new_spec, reference, run_settings, sources, spec
from isthmus.programs.engine.request.new_folder import AT_END, InUseError, RunLock, user_of
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import Request, task_module
from isthmus.programs.engine.request.run_settings import LEARNERS
from isthmus.programs.engine.request.slot_tasks import portable, references_of
from isthmus.programs.engine.request.snapshot_room import with_room
from isthmus.programs.engine.request.sources import Sources
from isthmus.programs.engine.request.spec import Spec
from isthmus.programs.engine.results import alterations
from isthmus.programs.engine.results.alterations import Alteration, FileChange, SettingChange
from isthmus.programs.engine.results.run_files import DATA, check_files, over_of, summary_of
from isthmus.programs.engine.run.in_processes import Resumption, Submitted, submitted
from isthmus.programs.engine.run.preparing import in_child
from isthmus.programs.engine.run.private_daemon import kill_all
from isthmus.programs.engine.run.room_for_hosts import check_compiler, check_loopback, check_room_for
from isthmus.programs.engine.run.standstill import stand_still
from isthmus.programs.engine.snapshots.keeping import FetchedSnapshot, begin_term, fetch
from isthmus.programs.engine.snapshots.moments import MomentsEntry, lay_out
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER, has_snapshot
from isthmus.programs.engine.snapshots.snapshots import Found, Manifest, Snapshots
from isthmus.programs.engine.snapshots.stored import heads, place_of
from isthmus.programs.job import Job
from isthmus.programs.settings import Schema
from isthmus.runtime.daemon.home_daemon import journal_of, renumber, reopen
from isthmus.runtime.daemon.ledger import Ledger
from isthmus.runtime.errors import ConfigError, Fault, RequestError
from isthmus.runtime.graph.template import Template
from isthmus.runtime.ids import LEARNER, Member, Replica
from isthmus.runtime.supervision.home_events import INTERRUPTED
from isthmus.runtime.system.disk import DISK, opened_at_end
from isthmus.runtime.system.files import read_text, write_bytes, write_json
from isthmus.runtime.system.locks import FileLock
from isthmus.runtime.system.refusals import is_own, reason, remedy

KEPT: Final = (FOLDER, "local")
"""The folders of a run that have what it goes on from."""
_DO: Final = "Leave it as it was, or start a new run."
_ACCEPT: Final = "--accept-changes (accept_changes=True in Python)"
_DO_ACCEPT: Final = f"Leave it as it was; or add {_ACCEPT}, and the run goes on with it from here, or start a new run."
TOKENS: Final = "the tokens of a step, such as by data of another kind"


def check_program(run_spec: Spec, wanted: str, doing: str) -> None:
    """ConfigError unless the `wanted` program is that of the run: the settings of another one mean nothing to it."""
    if run_spec.job.program != wanted:
        raise ConfigError.of([_fault("run.program", (run_spec.job.program, wanted), doing)])


def changes(run_spec: Spec, wanted: Job, doing: str, *, accepts: bool = False) -> dict[str, tuple[Any, Any]]:
    """A run's settings that a job changes: key -> (before, after); ConfigError with every key that may not change.

    A snapshot stays valid as long as fragments and slots are what they were: then every version describes the same
    tokens. Those of a step may change if the user `accepts` that, because the accounts then know of which lives they
    are (`ChangedStepTokens`). The basis of a default (the outer settings follow from the number of sweeps) does not
    change by itself.
    """
    changed = dict(_differences(run_spec.job, wanted, accepts=accepts))
    faults = [
        _fault(key, pair, doing, is_acceptable=_may_change(key, wanted, accepts=True))
        for key, pair in changed.items()
        if not _may_change(key, wanted, accepts=accepts)
    ]
    if faults:
        raise ConfigError.of(faults)
    return changed


def _fault(key: str, pair: tuple[Any, Any], doing: str, *, is_acceptable: bool = False) -> Fault:
    was, now = pair
    do = _DO_ACCEPT if is_acceptable else _DO
    return Fault(f"{doing}, which would change {key}", f"{was!r}, with which it was begun", f"{now!r}", do)


def _may_change(key: str, wanted: Job, *, accepts: bool) -> bool:
    """Whether a resumed run may have another value of a setting: as its declaration says."""
    if key == TOKENS:
        return accepts
    section, _, name = key.partition(".")
    schemas: dict[str, Callable[[], Schema]] = {
        "run": lambda: run_settings.SCHEMA,
        "program": Program(wanted.program).schema,
        "task": lambda: Schema.of("task", _shipped(wanted.task.text).task),
    }
    declared = schemas[section]().keys.get(name) if section in schemas else None
    return declared is not None and (declared.declared.resumes or (accepts and declared.declared.alters))


def _shipped(task: str) -> ModuleType:
    """The module of the shipped task that a reference names, or several of it by slot."""
    return task_module(reference.without_keywords(references_of(task)[0]))


def _differences(job: Job, wanted: Job, *, accepts: bool) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Each key that differs, once, with both values; and a difference in sizes that no key explains."""
    pairs: list[tuple[str, Any, Any]] = [
        (f"run.{field.name}", getattr(job, field.name), getattr(wanted, field.name))
        for field in fields(Job)
        if field.name == "program" or field.name in run_settings.SCHEMA.keys
    ]
    names = sorted({*job.settings, *wanted.settings})
    pairs += [(f"program.{name}", job.settings.get(name), wanted.settings.get(name)) for name in names]
    pairs += _of_tasks(job.task.text, wanted.task.text)
    differing = [(key, (was, now)) for key, was, now in pairs if _plain(was) != _plain(now)]
    yield from differing
    if job.routed_by != wanted.routed_by and "task.router" not in dict(differing):
        yield "the documents that each path has", (job.routed_by or None, wanted.routed_by or None)
    if all(_may_change(key, wanted, accepts=accepts) for key, _ in differing):
        if _tensors(job) != _tensors(wanted):
            yield "the model", _first_difference(_tensors(job), _tensors(wanted))
        if job.frozen != wanted.frozen:
            yield "the leaves that are not trained", _first_difference(_names(job.frozen), _names(wanted.frozen))
        if job.modules != wanted.modules:
            yield "the modules of each level", (list(job.modules), list(wanted.modules))
        if _tokens(job) != _tokens(wanted):
            yield TOKENS, (_tokens(job), _tokens(wanted))


def _names(frozen: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name}: {digest}" for name, digest in frozen]


def _of_tasks(former: str, wanted: str) -> list[tuple[str, Any, Any]]:
    """The keywords of a shipped task, by key, of the home where slots have several; of others only that they are
    others."""
    was, now = (references_of(text) for text in (former, wanted))
    names = {reference.without_keywords(each) for each in (*was, *now)}
    if len(names) > 1 or names.isdisjoint(SHIPPED_TASKS):
        return [("run.task", former, wanted)]
    settings, others = (reference.parse(each[0], "Reading a task").keywords or {} for each in (was, now))
    pairs = [(f"task.{name}", settings.get(name), others.get(name)) for name in sorted({*settings, *others})]
    return [*pairs, ("task.framework", portable(former)[len(was) :], portable(wanted)[len(now) :])]


def _tensors(job: Job) -> list[str]:
    return [f"{tensor.name}: {tensor.dtype} {tensor.shape}, {tensor.merge}" for tensor in job.layout]


def _tokens(job: Job) -> str:
    """The tokens of a step of each slot."""
    if job.tokens_at_most:
        return f"at most {job.tokens_at_most}"
    return ", ".join(map(str, job.tokens_by_slot or (job.tokens_per_batch,)))


def _first_difference(was: list[str], now: list[str]) -> tuple[str, str]:
    """The first of two lists that differs, in each; a model has hundreds of tensors."""
    pairs = zip_longest([*was, f"{len(was)} tensors"], [*now, f"{len(now)} tensors"], fillvalue="none")
    return next((one, other) for one, other in pairs if one != other)


def _plain(value: Any) -> Any:
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


RequestOf = Callable[[Path, Mapping[str, Any], str], Request]
"""(folder, keys of section `run.`, what is being done) -> today's request of the configuration in a folder, with these
keys where nothing else was asked for."""


class MachinesFound(NamedTuple):
    """What the machines of a cluster answer of a run that is to go on there: the content of its `cluster.json`, the
    digest of its script on the machine that was asked, and warnings."""

    cluster: dict[str, Any]
    script_digest: str
    warnings: Sequence[Fault] = ()


MachinesOf = Callable[[Path, Spec, Request], MachinesFound]
"""(folder, spec of before, today's request) -> what its machines answer; ConfigError if one does not take it."""


ALIKE: Final = frozenset({"run.tokens", "run.snapshots", "run.snapshot_every_seconds", "run.keep_to_go_on"})
"""What may differ where the command that began a run is typed again."""


class DoneError(ConfigError):
    """A run is done, and no more tokens are asked for than its `total`."""

    total = 0


def resumed(
    where: str,
    run_dir: Path | None,
    request_of: RequestOf,
    may_differ: Collection[str] | None = None,
    *,
    accepts: bool = False,
) -> Submitted:
    """A run that is to go on, ready for it: in its folder, or from a store of snapshots in a new one, `run_dir` if
    given; ConfigError, with nothing changed, if it cannot. Only settings in `may_differ`, if given, may change.

    It `accepts` other sources of isthmus, program and task where the layout of the parameters is the same, and another
    batch.
    """
    if is_store(where):
        return _resumed_from_store(where, run_dir, request_of, accepts=accepts)
    if run_dir is not None:
        do = "Leave it out: a run goes on in its folder."
        expected = "run_dir= only for a run that goes on from a store"
        raise ConfigError(f"Resuming {where}", expected, repr(str(run_dir)), do)
    return _resumed_in(Path(where), request_of, may_differ, accepts=accepts)


def _resumed_in(folder: Path, request_of: RequestOf, may_differ: Collection[str] | None, *, accepts: bool) -> Submitted:
    """A run that continues in its folder: one that was cut off, set aside, stopped, that failed, or that is done.

    This process has the lock on the folder from then on, so that of two commands that resume a run one is refused.

    Hosts whose daemon was killed live on for a minute, under the former spec; they are ended, as the run goes on from a
    snapshot. The former spec stays beside the new one, for the tapes that were written under it.
    """
    doing = f"Resuming {folder}"
    _check_folder(folder, doing)
    check_compiler(doing)
    check_loopback(doing)
    run_spec, outcome = spec.load(folder), outcome_of(folder)
    check_room_for(doing, sum(run_spec.roles.values()))
    read = in_child(lambda: _read(folder, run_spec, request_of, doing, may_differ=may_differ, accepts=accepts))
    lock = _made_ready(folder, run_spec, outcome, read, doing)
    return replace(_submitted(folder, read, accepts=accepts), lock=lock)


def resumed_on_machines(folder: Path, request_of: RequestOf, machines_of: MachinesOf, *, accepts: bool) -> Submitted:
    """A run of a cluster whose home is this machine, ready to go on under its daemon; ConfigError, with nothing
    changed, if it cannot.

    All of its hosts begin anew from the snapshot, so that they are of one make: those that live elsewhere end when
    their machines hear of the home again, and machines that have joined join once more.
    """
    doing = f"Resuming {folder}"
    check_run_files(folder, doing)
    _check_startable(folder, doing)
    run_spec, outcome = spec.load(folder), outcome_of(folder)
    read = in_child(lambda: _read(folder, run_spec, request_of, doing, accepts=accepts, machines_of=machines_of))
    _made_ready(folder, run_spec, outcome, read, doing).close()  # It is its daemon's from here.
    return _submitted(folder, read, accepts=accepts)


def _submitted(folder: Path, read: Mapping[str, Any], *, accepts: bool) -> Submitted:
    altered = () if read["alteration"] is None else tuple(alterations.lines(_alteration_in(read)))
    run = submitted(folder, folder.name, resumption=Resumption(**read["resumption"]))
    return replace(run, warnings=_warnings(read), altered=altered if accepts else ())


def _made_ready(folder: Path, run_spec: Spec, outcome: str | None, read: Mapping[str, Any], doing: str) -> RunLock:
    """Make the folder of a run that one that goes on, of which this process has the lock from then on."""
    files, counted = read["files"], _counted(folder, read["undone"])
    _check_total(run_spec.job.tokens, read["total"], counted, outcome, doing)
    check_not_below(run_spec.job.tokens, read["total"], _counted(folder), doing)
    lock = locked(folder, doing)
    try:
        if spec.load(folder) != run_spec or outcome_of(folder) != outcome:
            do = f"Look at it: isthmus status {folder}"
            raise ConfigError(doing, "a run that only this command resumes", "one that another has resumed", do)
        kill_all(folder)
        with _writing(folder, doing):
            # Before the files of its end are removed, which say when that was.
            stand_still(folder, was_over=outcome in ("done", "stopped", "failed"))
            books.undo(folder, DISK, read["undone"])
            # Before the spec has the new budget, with which a run that was done would look done if this is killed.
            _end_no_more(folder, read["total"], counted)
            _note_altered(folder, read)
            lay_out(folder, _moments_in(read), DISK)
            if files:
                number = spec.archive(folder)
                if "cluster" in read:
                    _archive_machines(folder, number)
                    write_json(folder / spec.CLUSTER, read["cluster"])
            _note_sources(folder, read)
            if files:
                _renumber(folder, files["graph.json"])
                _change(folder, {**files, spec.SPEC: spec.with_clock_of(folder, files[spec.SPEC])})
            if "cluster" in read:
                _reopen_on_machines(folder, [site["name"] for site in read["cluster"]["sites"]])
            else:
                _reopen(folder)
    except BaseException:
        lock.close()
        raise
    return lock


def _archive_machines(folder: Path, number: int) -> None:
    """Keep the machines of a run beside its `number`-th spec (`handover.Sites.load_former`)."""
    write_json(folder / f"cluster-{number}.json", json.loads(read_text(folder / spec.CLUSTER)))


def _reopen_on_machines(folder: Path, named: Collection[str]) -> None:
    """Have the ledger know that the run continues, and that machines have left that are not named: they are compared
    with the others as they join once more."""
    journal = journal_of(folder)
    joined = [] if journal is None else [machine for _, machine in journal.machines if machine not in named]
    reopen(folder, lambda replica: False, dict.fromkeys(joined))


def _renumber(folder: Path, graph: Mapping[str, Any]) -> None:
    """Have the ledger count by the nodes and edges of another graph, if they are others."""
    was = json.loads(read_text(folder / "graph.json"))
    edges, nodes = (
        _moves([name(each) for each in was[kind]], [name(each) for each in graph[kind]])
        for kind, name in (("edges", lambda each: (each["source"], each["target"])), ("nodes", itemgetter("name")))
    )
    if any(then != now for moves in (edges, nodes) for then, now in moves.items()):
        renumber(folder, edges, nodes)


def _moves(was: Sequence[Any], now: Sequence[Any]) -> dict[int, int]:
    """Index of then -> index of now of what is in both."""
    places = {name: index for index, name in enumerate(now)}
    return {index: places[name] for index, name in enumerate(was) if name in places}


def _moments_in(read: Mapping[str, Any]) -> list[MomentsEntry]:
    """The moments in the snapshot that a run goes on from."""
    return msgspec.convert(read["moments"], list[MomentsEntry])


def _note_sources(folder: Path, read: Mapping[str, Any]) -> None:
    if read["sources"] is not None:
        write_json(folder / sources.FILE, read["sources"])


def _note_altered(folder: Path, read: Mapping[str, Any]) -> None:
    """Have the books say what is not as before, if anything is."""
    if read["alteration"] is not None:
        alteration = _alteration_in(read)
        books.note_alteration(folder, DISK, alteration, time.monotonic_ns() - spec.load(folder).zero_ns)


def _alteration_in(read: Mapping[str, Any]) -> Alteration:
    return msgspec.convert(read["alteration"], Alteration)


@contextmanager
def alone(folder: Path, doing: str) -> Iterator[None]:
    """While no other command starts the run in a folder, which may not exist yet; ConfigError if one does."""
    path = folder.absolute().with_name(f".{folder.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = opened_at_end(path)
    except OSError as error:
        do = "Name another folder with --run-dir."
        raise ConfigError(doing, "a folder that can be written to", reason(error), remedy(error, do)) from None
    with file:
        lock = FileLock(file.fileno(), path)
        try:
            is_alone = lock.take()
        except OSError as error:
            do = "Name a folder on another disk with --run-dir."
            raise ConfigError(doing, f"to lock {path}", reason(error), remedy(error, do)) from None
        if not is_alone:
            do = f"Look at it: isthmus status {folder}"
            raise ConfigError(doing, "a run that only this command starts", "another that does", do)
        try:
            yield
        finally:
            lock.release()


def is_there(folder: Path, say: Callable[[str], None]) -> bool:
    """Whether there is a run in a folder that can go on, or is over.

    One that was cut off before its first snapshot has nothing to go on from: it is renamed, and begins again.
    """
    if not new_folder.has_run(folder) or user_of(folder):
        return bool(user_of(folder))
    if (folder / spec.SPEC).exists() and (has_snapshot(folder) or outcome_of(folder) in ("done", "stopped")):
        return True
    kill_all(folder)
    former = next(path for n in count(1) if not (path := folder.with_name(f"{folder.name}.cut-off-{n}")).exists())
    folder.rename(former)
    say(f"{folder} was cut off before its first snapshot, and begins again; what it had is in {former}")
    return False


def outcome_of(folder: Path) -> str | None:
    """How a run ended, or was set aside; None for one that was cut off, or goes on. RunFilesError if the files that say
    so are not such as a run writes."""
    if (summary := summary_of(folder)) is not None:
        return str(summary["outcome"])
    over = over_of(folder)
    return None if over is None else over.outcome


def _check_total(former: int, total: int, trained: int, outcome: str | None, doing: str) -> None:
    """ConfigError for a budget that leaves nothing to train: of a run that is over, or one that is asked for anew."""
    is_done = outcome == "done" and total == former
    if not is_done and (total > trained or (total == former and outcome != "stopped")):
        return
    kind = DoneError if is_done else ConfigError
    do = f"Name a new total: --tokens TOTAL, above {trained:,}."
    found = f"{total:,}" + (f", and a run that is {outcome}" if outcome in ("done", "stopped") else "")
    error = kind(doing, f"a budget above the {trained:,} tokens that are trained", found, do)
    if isinstance(error, DoneError):
        error.total = total
    raise error


def check_not_below(former: int, total: int, trained: int, doing: str) -> None:
    """ConfigError for a new budget that is below what was trained, whatever of that is undone now."""
    if total != former and total < trained:
        do = f"Name a new total: --tokens TOTAL, above {trained:,}; or leave it out."
        raise ConfigError(doing, f"a budget of at least the {trained:,} tokens that were trained", f"{total:,}", do)


def _set_final_aside(folder: Path) -> None:
    """Keep the final model of a run that goes on beside the one that it will have: as snapshots/final-1, and so on."""
    final = folder / FOLDER / "final"
    if final.is_dir():
        number = next(n for n in count(1) if not final.with_name(f"final-{n}").exists())
        final.rename(final.with_name(f"final-{number}"))


def again(folder: Path, doing: str, elsewhere_ns: int) -> None:
    """Have a run of a cluster that was cut off, set aside, stopped, or that failed go on under its next daemon, as it
    was; ConfigError, with nothing changed, if it cannot. `elsewhere_ns` as in `stand_still`."""
    check_run_files(folder, doing)
    _check_startable(folder, doing)
    sources.check_unaltered(folder, doing)
    outcome, counted = outcome_of(folder), _counted(folder)
    total = spec.load(folder).job.tokens
    _check_total(total, total, counted, outcome, doing)
    kill_all(folder)
    with locked(folder, doing), _writing(folder, doing):
        stand_still(folder, elsewhere_ns=elsewhere_ns)
        reopen(folder, lambda replica: False)
        _end_no_more(folder, total, counted)


@contextmanager
def _writing(folder: Path, doing: str) -> Iterator[None]:
    """While the files of a run are made ready to go on: ConfigError if the disk refuses; the next try starts over."""
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        found = getattr(error, "strerror", None) or str(error)
        do = "Make room there, and type it again."
        raise ConfigError(doing, f"a disk that takes what is written into {folder}", found, remedy(error, do)) from None


def _end_no_more(folder: Path, total: int, counted: int) -> None:
    """Have the files of a run that goes on tell of no end; where all tokens are trained it comes to its end again."""
    if total > counted:
        books.go_on(folder, DISK, counted)
        Snapshots(folder / FOLDER, None, DISK).go_on()
        _set_final_aside(folder)
    for name in AT_END:
        (folder / name).unlink(missing_ok=True)


def is_store(text: str) -> bool:
    """Whether a text names a store of snapshots, and no run folder."""
    folder = Path(text)
    return "://" in text or (not (folder / spec.SPEC).exists() and folder.is_dir() and bool(heads(os.listdir(folder))))


def _resumed_from_store(text: str, run_dir: Path | None, request_of: RequestOf, *, accepts: bool) -> Submitted:
    """A run whose snapshots are in the store `text`; ConfigError, with nothing left, if it cannot continue."""
    place = place_of(text)
    doing = f"Resuming {place.text}"
    base = new_folder.RUNS.absolute() if run_dir is None else run_dir.absolute().parent
    with aside(base, doing) as fresh:
        snapshot = fetch(place, fresh, DISK, doing)
        run_spec = spec_of(fresh, snapshot, doing)
        (fresh / spec.CLUSTER).unlink(missing_ok=True)  # It continues here alone.
        read = in_child(lambda: _read(fresh, run_spec, request_of, doing, place.text, accepts=accepts))
        files = read["files"]
        chosen = new_folder.choose(run_dir, Program(run_spec.job.program).name, datetime.now())
        begin_term(place, snapshot, fresh, chosen, DISK, doing)
        folder = new_folder.make(chosen, files[new_folder.CONFIG], is_given=run_dir is not None)
        with locked(folder, doing), new_folder.prepared(folder):
            for path in sorted(fresh.iterdir()):
                path.replace(folder / path.name)
            _note_sources(folder, read)
            _change(folder, files)
            _settle(folder, snapshot)
            _note_altered(folder, read)
            lay_out(folder, _moments_in(read), DISK)
            _end_no_more(folder, read["total"], _counted(folder))
    new_folder.point_latest_to(folder)
    taken_ns = run_spec.here.wall_ns + snapshot.head.at
    age = (time.time_ns() - taken_ns) / 1e9 if run_spec.here.wall_ns else None
    run, aged = _submitted(folder, read, accepts=accepts), age if age is None or age >= 0 else None
    return replace(run, resumption=replace(Resumption(**read["resumption"]), age_seconds=aged))


def _warnings(read: Mapping[str, Any]) -> tuple[Fault, ...]:
    return tuple(Fault(*warning) for warning in read["warnings"])


def _reopen(folder: Path) -> None:
    """Have the ledger know that the run continues, without the learners that it is to do without."""
    learners = spec.load(folder).roles.get(LEARNER, 0)
    reopen(folder, lambda replica: replica.role == LEARNER and replica.slot >= learners)


def _settle(folder: Path, snapshot: FetchedSnapshot) -> None:
    """Set a run's count of lives and its time to continue from the snapshot."""
    head = snapshot.head
    spec.rebase_clock(folder, head.at)
    stand_still(folder, least_ns=head.at)
    with closing(Ledger(folder)) as ledger:
        ledger.give(Member(Replica(role, slot), life) for role, slot, life in head.lives)
    _reopen(folder)
    tell_faults(folder, snapshot.faults)


def tell_faults(folder: Path, faults: list[str]) -> None:
    """Add faults of snapshots to the run's recorder memory, which reports them."""
    memory = books.load(folder, DISK)
    if faults and memory is not None:
        memory.snapshot_faults = [*memory.snapshot_faults, *faults]
        write_bytes(folder / books.FILE, msgspec.msgpack.encode(memory))


def spec_of(folder: Path, snapshot: FetchedSnapshot, doing: str) -> spec.Spec:
    """The spec of a fetched run; ConfigError if the run is alive here, or its spec cannot be read."""
    if why := _why_no_spec(folder):
        raise ConfigError(doing, "the spec of a run in processes", *why)
    for text in snapshot.homes:
        machine, _, home = text.partition(":")
        if machine == platform.node() and (user := user_of(Path(home))) and _has_run(Path(home), snapshot.head.run):
            do = f"Look at it: isthmus status {home}"
            raise ConfigError(doing, "a run that was cut off", f"one that goes on in {home}, of process {user}", do)
    return spec.load(folder)


def _has_run(folder: Path, run: str) -> bool:
    """Whether a folder is that of the run, or may be about to be."""
    try:
        return spec.load(folder).run == run
    except (OSError, ValueError, KeyError, TypeError) as error:
        if is_own(error):
            raise
        return not (folder / spec.SPEC).exists()


@contextmanager
def aside(base: Path, doing: str) -> Iterator[Path]:
    """A new temporary folder in `base`, removed at the end with whatever was not moved out of it."""
    had = base.exists()
    try:
        base.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".resume-", dir=base))
    except OSError as error:
        actual = error.strerror or str(error)
        raise ConfigError(
            doing, f"a folder that can be written, {base}", actual, "Name another by --run-dir."
        ) from None
    try:
        yield aside
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if not had:
            with suppress(OSError):
                base.rmdir()


def _read(
    folder: Path,
    run_spec: spec.Spec,
    request_of: RequestOf,
    doing: str,
    store: str | None = None,
    may_differ: Collection[str] | None = None,
    accepts: bool = False,
    machines_of: MachinesOf | None = None,
) -> dict[str, Any]:
    """The `files` to replace, the `total` of tokens, what is `undone` by life, the `resumption`, without age and what
    is undone if the snapshot is from a `store`, `warnings`, and the `alteration`, None if all is as it was;
    of a run of a cluster its `cluster`, too, as `machines_of` has it.

    ConfigError as `_files`, or if no snapshot in the folder is whole.
    """
    noted = sources.load(folder)
    files_changed = [] if noted is None else sources.differences(noted, _sources_now(run_spec.job))
    graph = _graph_as_begun(run_spec, files_changed, doing, accepts=accepts)
    sizes = None if graph is None else fragment_sizes(graph)
    examined, manifest = check_whole(folder, doing, sizes)
    recorded = books.Books(sizes=()) if store else _recorded(folder)
    more = {} if store is None else {"snapshots": store}
    today = request_of(folder, more, doing).to_train().with_store(run=run_spec.run)
    kept = sum(path.stat().st_size for name in KEPT for path in (folder / name).rglob("*") if path.is_file())
    today_there = replace(today, run_dir=folder)
    with_room(with_memory(today_there) if machines_of is None else today_there, has=kept)
    changed = changes(run_spec, today.job, doing, accepts=accepts)
    acceptable = {key for key in changed if accepts and not _may_change(key, today.job, accepts=False)}
    if wrong := [key for key in changed if may_differ is not None and key not in {*may_differ, *acceptable}]:
        raise ConfigError.of([_fault(wrong[0], changed[wrong[0]], doing)])
    if machines_of is not None and (pair := changed.get(f"run.{LEARNERS}")) is not None:
        do = "Leave it as it was: machines bring learners as they join, and take them away as they leave."
        raise ConfigError(doing, f"{pair[0]} learners, as its machines have", f"{pair[1]} learners", do)
    now = _sources_now(today.job, fragments_in(today.graph))
    if sizes is None:
        _check_alike(run_spec, noted, today, now, doing)
        sizes = fragment_sizes(today.graph)
        examined, manifest = check_whole(folder, doing, sizes)
    resumption = resumption_of(manifest, sizes, _lives(recorded.counted_rows()))
    if store is None:
        age = time.time() - (folder / FOLDER / examined.name).stat().st_mtime
        resumption = replace(resumption, age_seconds=age if age >= 0 else None)
    today = _with_former_steps(run_spec, today, manifest, folder)
    alteration = Alteration(
        tokens=resumption.tokens,
        outer_steps=resumption.outer_steps,
        versions=[(entry.fragment, *entry.version) for entry in manifest.fragments],
        isthmus=("" if noted is None else noted.isthmus, now.isthmus),
        files=files_changed,
        are_files_known=graph is not None or bool(files_changed),
        settings=[
            SettingChange(key.partition(",")[0], _plain(was), _plain(now)) for key, (was, now) in changed.items()
        ],
    )
    found = None if machines_of is None else machines_of(folder, run_spec, today)
    if found is None:
        files = _files(run_spec, today, store, is_altered=alteration.is_of_sources)
    else:
        files = _files_on_machines(folder, run_spec, today, found)
    undone = undone_by(manifest, _lives(recorded.totals.rows()))
    return {
        "files": files,
        "total": today.job.tokens,
        "undone": undone,
        "resumption": asdict(resumption),
        "moments": msgspec.to_builtins(manifest.moments),
        "warnings": [*_other_data(run_spec, today, doing), *(() if found is None else found.warnings)],
        **({} if found is None else {"cluster": found.cluster}),
        "sources": msgspec.to_builtins(now) if noted is None or alteration.is_of_sources else None,
        "alteration": msgspec.to_builtins(alteration) if alteration.is_of_sources or changed else None,
    }


def _sources_now(job: Job, fragments: Sequence[Fragment] = ()) -> Sources:
    return sources.of_now(job.program, job.task.text, fragments)


def _graph_as_begun(
    run_spec: spec.Spec, changed: Sequence[FileChange], doing: str, *, accepts: bool
) -> Template | None:
    """The graph that a run was begun with; None where present sources make another one of it, and that is accepted.
    ConfigError where other sources are not accepted."""
    users = [change for change in changed if change.part != "isthmus"]
    try:
        graph = run_spec.graph()
    except (RequestError, TypeError) as error:  # The latter where its builder does not take its settings any more.
        if accepts:
            return None
        reasons = error.faults if isinstance(error, RequestError) else []
        expected = f"the graph that it was begun with, {run_spec.fingerprint}"
        do = f"The program or isthmus itself was changed since. Undo that, or add {_ACCEPT}, or start a new run."
        found = f"another one now, {reasons[0].found if reasons else error}{alterations.named(changed)}"
        raise ConfigError(doing, expected, found, do) from None
    if users and not accepts:
        do = f"Undo that; or add {_ACCEPT}: the run goes on with them from here, and its books say so."
        expected, found = "the files that it was begun with", f"others now{alterations.named(users)}"
        raise ConfigError(doing, expected, found, do)
    return graph


def _check_alike(run_spec: spec.Spec, noted: Sources | None, today: Request, now: Sources, doing: str) -> None:
    """ConfigError unless what other sources make of a run can go on from its snapshots: with what travels together as
    it was, and with the same roles."""
    faults = []
    if noted is not None and noted.fragments != now.fragments:
        pair = noted.fragments or "none", now.fragments or "none"
        faults.append(_fault("which parts of the model are in which fragment", pair, doing))
    was, roles = sorted(run_spec.roles), sorted(role.name for role in today.graph.roles)
    if was != roles:
        faults.append(_fault("the roles of its graph", (", ".join(was), ", ".join(roles)), doing))
    if faults:
        raise ConfigError.of(faults)


def _with_former_steps(run_spec: spec.Spec, today: Request, manifest: Manifest, folder: Path) -> Request:
    """A request that knows the tokens of a step of all lives that the run has had."""
    before = run_spec.job.step_tokens_before
    if today.job.step_tokens != run_spec.job.step_tokens:
        lives: dict[int, int] = {}
        for slot, life, _ in _rows_ever(manifest, folder):
            lives[slot] = max(life, lives.get(slot, 0))
        before = (*before, FormerStepTokens(tuple(sorted(lives.items())), run_spec.job.step_tokens))
    return today.with_job(replace(today.job, step_tokens_before=before)) if before else today


def _rows_ever(manifest: Manifest, folder: Path) -> Iterator[Sequence[int]]:
    """[slot, life, tokens] of all lives of learners that anything knows."""
    memory = books.load(folder, DISK)
    yield from () if memory is None else memory.trained
    yield from _recorded(folder).totals.rows()
    yield from (row for entry in manifest.fragments for row in entry.totals)
    yield from (row for entry in manifest.states for row in entry.totals)
    yield from (row for entry in manifest.fragments for row in entry.clock)


def _other_data(run_spec: spec.Spec, today: Request, doing: str) -> Iterator[Fault]:
    """The warning that the data of a run are no longer those that it was trained on."""
    was, now = run_spec.data, today.data_figures()
    if was and now and was != now:
        do = (
            "It goes on with those of now: batches are others, and what was trained on may be held out. To go on as it "
            "was, end it, bring the data back, and resume it."
        )
        yield Fault(doing, f"the data that it has read before: {_counts(was)}", _counts(now), do)


def _counts(figures: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in figures.items())


def _recorded(folder: Path) -> books.Books:
    """What the recorder's memory and its lines say."""
    recorded = books.Books(sizes=())
    books.read_into(recorded, folder, DISK, 0)
    return recorded


def _lives(rows: Iterable[Sequence[int]]) -> list[tuple[int, int, int]]:
    """(slot, incarnation, tokens) of every life of a learner."""
    return [(slot, life, tokens) for slot, life, tokens in rows]


def _counted(folder: Path, undone: Iterable[Sequence[int]] = ()) -> int:
    """The tokens that count for the budget, where these (slot, incarnation, tokens) are undone now."""
    recorded = _recorded(folder)
    recorded.undo(undone)
    return recorded.counted


def undone_by(manifest: Manifest, trained: Sequence[tuple[int, int, int]]) -> list[list[int]]:
    """[slot, incarnation, tokens] of what every life has trained after a snapshot: it is trained again.

    That is what a life has trained beyond the newest of its answers that is in a fragment, and beyond what any fragment
    was told of its progress: all hosts hear of that with the fragments, and count it. What it had under way at the
    snapshot is lost, as with any life that ends.
    """
    if manifest.states:
        reached = [_states_reached(manifest)]
    else:
        clocks = [{slot: (life, tokens) for slot, life, tokens in entry.clock} for entry in manifest.fragments]
        if not clocks or any(entry.version[1] and not entry.clock for entry in manifest.fragments):
            return []
        reached = [_reached(clock, trained) for clock in clocks]
        reached += [{(slot, life): tokens for slot, life, tokens in entry.totals} for entry in manifest.fragments]
    beyond = [(slot, life, tokens - max(has.get((slot, life), 0) for has in reached)) for slot, life, tokens in trained]
    return [[slot, life, tokens] for slot, life, tokens in beyond if tokens > 0]


def resumption_of(manifest: Manifest, sizes: Sequence[int], trained: Sequence[tuple[int, int, int]]) -> Resumption:
    """What a run goes on from with a snapshot, where its learners have `trained` (slot, incarnation, tokens); without
    any it is unknown what is undone.

    Where learners go on from whole states, these have all their work up to their tokens; elsewhere a fragment's clock
    says up to where the newest life of each slot is in it, and so are the lives before that one, as far as they were
    merged. A fragment that was merged and has no clock does not say.
    """
    merged = [entry.version[1] for entry in manifest.fragments]
    clocks = [{slot: (life, tokens) for slot, life, tokens in entry.clock} for entry in manifest.fragments]
    reached, weights = [_reached(clock, trained) for clock in clocks], list(sizes)
    if manifest.states:
        reached, weights = [_states_reached(manifest)], [1]
    elif not weights or any(count and not clock for count, clock in zip(merged, clocks, strict=True)):
        return Resumption(manifest.number, sum(merged) if merged else None)

    def mean(tokens: Sequence[int]) -> int:
        return round(sum(a * b for a, b in zip(tokens, weights, strict=True)) / sum(weights))

    undone = [sum(max(0, tokens - has.get((slot, life), 0)) for slot, life, tokens in trained) for has in reached]
    return Resumption(
        manifest.number,
        sum(merged) if merged else None,
        mean([sum(has.values()) for has in reached]),
        mean(undone) if trained else None,
    )


def _states_reached(manifest: Manifest) -> dict[tuple[int, int], int]:
    """Up to which token each life of (slot, life) is in whole states of learners."""
    rows = sorted((slot, life, tokens) for state in manifest.states for slot, life, tokens in state.totals)
    return {(slot, life): tokens for slot, life, tokens in rows}


def _reached(
    clock: Mapping[int, tuple[int, int]], trained: Sequence[tuple[int, int, int]]
) -> dict[tuple[int, int], int]:
    """Up to which token each life of (slot, life) is in a version with this clock."""
    former = {(slot, life): tokens for slot, life, tokens in trained if slot in clock and life < clock[slot][0]}
    return former | {(slot, life): tokens for slot, (life, tokens) in clock.items()}


def _files(run_spec: spec.Spec, today: Request, store: str | None, *, is_altered: bool = False) -> dict[str, Any]:
    """Replacements of the run's files, by name; empty if nothing changes, never empty with a `store`, or where what
    follows is made by other sources: the spec before is kept for what was made by those."""
    from isthmus.programs.engine.request.graph_view import as_json

    spec_fields = new_spec.of(
        today, zero_ns=run_spec.zero_ns, cpu_seconds=run_spec.cpu_seconds, elastic=sizes_here(today)
    )
    here = {**asdict(run_spec.here), "learners": spec_fields["here"]["learners"]}
    if store is not None:
        here = {**spec_fields["here"], "wall_ns": run_spec.here.wall_ns}
    run = {**spec_fields["settings"], "argv": list(run_spec.settings.argv)}
    wanted = {**spec_fields, "run": run_spec.run, "settings": run, "here": here, "paused_ns": run_spec.paused_ns}
    if spec.read(json.loads(json.dumps(wanted))) == run_spec and store is None and not is_altered:
        return {}
    placement = {node.name: platform.node() for node in today.graph.nodes}
    shape = as_json(today.graph, today.proof, today.fingerprint, placement)
    files = {spec.SPEC: wanted, "graph.json": shape, new_folder.CONFIG: today.config_text}
    return files if today.data is None else {**files, DATA: today.data.as_dict()}


def _files_on_machines(folder: Path, run_spec: spec.Spec, today: Request, found: MachinesFound) -> dict[str, Any]:
    """Replacements of the files of a run whose machines are what they were, and begin all of their hosts anew."""
    from isthmus.programs.engine.request.graph_view import as_json

    of_now = new_spec.of(today, zero_ns=run_spec.zero_ns, cpu_seconds=run_spec.cpu_seconds, elastic=run_spec.elastic)
    keys = run_settings.SCHEMA.keys
    changeable = {name for name in of_now["settings"] if name in keys and keys[name].declared.resumes}
    asked = {name: value for name, value in of_now["settings"].items() if name in changeable}
    wanted = {
        **of_now,
        "run": run_spec.run,
        "settings": {**msgspec.to_builtins(run_spec.settings), **asked},
        "here": asdict(run_spec.here),
        "paused_ns": run_spec.paused_ns,
        "script_digest": found.script_digest,
        "resumed": run_spec.resumed + 1,
    }
    was, home = json.loads(read_text(folder / "graph.json"))["placement"], str(found.cluster["home"])
    placement = {node.name: was.get(node.name, home) for node in today.graph.nodes}
    shape = as_json(today.graph, today.proof, today.fingerprint, placement)
    return {spec.SPEC: wanted, "graph.json": shape, new_folder.CONFIG: today.config_text} | (
        {} if today.data is None else {DATA: today.data.as_dict()}
    )


def _change(folder: Path, files: Mapping[str, Any]) -> None:
    """Write the changed files of a run; the spec last, so that after an interruption the next resume starts over."""
    write_bytes(folder / new_folder.CONFIG, files[new_folder.CONFIG].encode())
    for name in ("graph.json", *([DATA] if DATA in files else []), spec.SPEC):
        write_json(folder / name, files[name])


def _why_no_spec(folder: Path) -> tuple[str, str] | None:
    """Why there is no run in processes in a folder, and what to do; None if there is one."""
    do = "Name the folder of a run, as it is in runs/."
    try:
        if spec.load(folder).transport != spec.INPROC:
            return None
        return "one in one process", "Runs with --transport inproc cannot be resumed: they have no daemon."
    except FileNotFoundError:
        return (f"no {spec.SPEC}" if folder.is_dir() else "no such folder"), do
    except NotADirectoryError:
        return "a file", do
    except OSError as error:
        return f"a {spec.SPEC} that cannot be read: {reason(error)}", remedy(error, do)
    except (ValueError, KeyError, TypeError) as error:
        do = "Resume it with the version of isthmus that began it; if that file is damaged, look for a copy of it."
        return f"a {spec.SPEC} that cannot be read: {error}", do


def locked(folder: Path, doing: str) -> RunLock:
    """The lock on a run folder; ConfigError if another command or daemon has it."""
    try:
        return RunLock(folder)
    except InUseError as error:
        do = f"Look at it: isthmus status {folder}"
        raise ConfigError(doing, "a run that was cut off", f"{error}", do) from None


def check_run_files(folder: Path, doing: str) -> None:
    """ConfigError unless a folder has a run in processes, whose files are such as this version of isthmus writes."""
    check_files(folder, doing)
    _check_spec(folder, doing)
    books.check(folder, DISK, doing)


def _check_folder(folder: Path, doing: str) -> None:
    check_run_files(folder, doing)
    if (folder / spec.CLUSTER).exists():
        do = (
            "Start the daemon of its home again, which goes on with it; with changes "
            f"{sources.on_machines(folder)}; "
            f"or let another machine be its home: isthmus resume {folder} --cluster FILE."
        )
        raise ConfigError(doing, "a run of this machine alone", "one of a cluster", do)
    _check_startable(folder, doing)


def check_cut_off(folder: Path, doing: str) -> None:
    """ConfigError unless a folder has a run in processes that was cut off, and can continue from its snapshot. Nothing
    in it is written."""
    check_run_files(folder, doing)
    outcome, memory = outcome_of(folder), books.load(folder, DISK)
    if outcome not in (None, INTERRUPTED) and (outcome != "failed" or memory is None or memory.final):
        raise ConfigError(doing, "a run that was cut off", f"one that is over: {outcome}", "Start a new run.")
    _check_startable(folder, doing)


def _check_startable(folder: Path, doing: str) -> None:
    """ConfigError unless nothing of the run is active, and there is a snapshot, none of another format."""
    if user := user_of(folder):
        do = f"Look at it: isthmus status {folder}"
        raise ConfigError(doing, "a run that was cut off", f"one that goes on there, of process {user}", do)
    if not has_snapshot(folder):
        do = "It was cut off before the first one, its program gives no model to keep, or run.keep_to_go_on = false. "
        do += f"Begin a new run: isthmus train --from {folder}, if it is done."
        raise ConfigError(doing, f"a snapshot in {folder / FOLDER}", "none", do)
    Snapshots(folder / FOLDER, None, DISK).numbers()


def check_whole(folder: Path, doing: str, sizes: Sequence[int] | None = None) -> tuple[Found, Manifest]:
    """The newest whole snapshot in a folder, and its manifest; ConfigError if none is, of a model with fragments of
    these sizes."""
    try:
        examined = Snapshots(folder / FOLDER, sizes, DISK).examine()
    except OSError as error:
        examined = Found(None, {}, [f"{error.strerror}: {error.filename}"], {})
    if examined.manifest is None:
        do = "Look for a copy of it, or for what run.snapshots had stored; or start the run again."
        found = "; ".join(examined.faults)
        raise ConfigError(doing, f"a snapshot in {folder / FOLDER} that is whole, of this model", found, do)
    return examined, examined.manifest


def _check_spec(folder: Path, doing: str) -> None:
    if why := _why_no_spec(folder):
        raise ConfigError(doing, "the folder of a run in processes", *why)
