"""Replays the tapes of a run folder: the events of each go into a fresh core, whose commands are compared with those on
the tape.

Decides which core a tape needs, which tapes cannot be those of the run (reported before any is fed), and how a
difference is described. Plans come from the run's spec, which names the program; neither its task nor jax is imported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from isthmus.programs.engine.cluster.handover import Sites
from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.request import sources, spec
from isthmus.programs.engine.request.faults import PROCESSES_MAX
from isthmus.programs.engine.request.followers import followed, follower_plan
from isthmus.programs.engine.request.new_folder import user_of
from isthmus.programs.engine.results import alterations, tapes, words
from isthmus.programs.engine.results.alterations import Alteration
from isthmus.programs.engine.results.tapes import HOME, TapeFile
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_core import Scheduler
from isthmus.runtime.cores.scheduler_events import (
    BodyFailed,
    CreditGranted,
    FiringEnded,
    HostRecord,
    ItemArrived,
    ItemsEmitted,
    NodeOpened,
    ReplicaJoined,
    ReplicaLeft,
    RunBody,
)
from isthmus.runtime.errors import ConfigError, Fault, RequestError, shortened
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.graph.template import Quorum
from isthmus.runtime.ids import LEARNER, Member, Replica, follower, gang_number, takes_island
from isthmus.runtime.supervision.home import Home
from isthmus.runtime.supervision.home_events import BadReportCame, HomeBeat, HomeBegan, NotBegun, Places, ReportCame
from isthmus.runtime.supervision.station import Station
from isthmus.runtime.supervision.station_events import StationBegan
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import read_text
from isthmus.runtime.tape.reading import FOLDER, Reading, Segment


@dataclass(frozen=True, slots=True)
class Difference:
    """The first record of a tape after which a fresh core decides otherwise.

    Its number (`record`), from 1; its time, in nanoseconds since the submission of the run; the event, and the node or
    edge it is about (`place`, empty for others); and from the first command that differs on (`command`, from 1), the
    commands of the tape and of the core. `error` is the core's error instead, empty if there was none.
    """

    record: int
    at_ns: int
    event: Any
    place: str
    command: int
    taped: Sequence[Any]
    replayed: Sequence[Any]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Replayed:
    """One tape. Records, commands and merges are those that were replayed."""

    tape: str
    host: str
    """That of a life ('learner/2'), or 'home' or 'station'."""
    number: int
    """Of a home or a station, the process."""
    records: int
    commands: int
    merges: int
    """Rounds that closed."""
    torn_bytes: int = 0
    """Those of a last record that was never finished."""
    before: int = 0
    """How many first records of the tape were dropped."""
    missing: int = 0
    """How many records after those were lost to a disk."""
    begins_ns: int | None = None
    """When it then begins, after the submission; None: at its start."""
    difference: Difference | None = None
    stretch: int = 0
    """How many resumes had changed anything before it was written."""
    is_of_others: bool = False
    """It was made by other sources of isthmus or the program than those that replay it."""

    @property
    def is_identical(self) -> bool:
        """Whether its core decided the same, as far as it is the same core."""
        return self.difference is None or self.is_of_others

    @property
    def is_repeated(self) -> bool:
        """Whether all of it was decided once more, and the same."""
        return self.difference is None and not (self.is_of_others and not self.records)


@dataclass(frozen=True, slots=True)
class Replay:
    """The replay of a run folder; `absent` are initial hosts without a tape. From each of the `alterations` on that are
    of sources the run was made by others than before."""

    run: str
    tapes: Sequence[Replayed]
    absent: Sequence[str]
    alterations: Sequence[Alteration] = ()

    @property
    def is_identical(self) -> bool:
        """Whether no core decided otherwise, apart from those of other sources; and some are of these."""
        is_any = any(each.is_repeated for each in self.tapes) or not any(each.is_of_others for each in self.tapes)
        return is_any and all(each.is_identical for each in self.tapes)

    @property
    def commands(self) -> int:
        return sum(each.commands for each in self.tapes)

    @property
    def records(self) -> int:
        return sum(each.records for each in self.tapes)

    @property
    def merges(self) -> int:
        return sum(each.merges for each in self.tapes)


NOBODY: Final = frozenset[int]()


class ReplayedCore(Protocol):
    """A state machine: events and the time go in, commands come out."""

    def handle(self, event: Any, now: Instant) -> list[Any]:
        """The commands that follow from an event."""

    def saved(self) -> bytes:
        """The state between two events."""

    def restore(self, state: bytes) -> None:
        """Load the state of another core; ValueError for bytes that are no state of such a core."""


class ReplayedTape(NamedTuple):
    """The extent of a replay: up to the tape's end, or up to and including the record of the first difference."""

    records: int
    commands: int
    merges: int
    difference: Difference | None


def again(
    make: Callable[[], ReplayedCore], segments: Iterable[Segment], plan: Plan | None = None, zero_ns: int = 0
) -> ReplayedTape:
    """Feed a core with the events of a tape, and compare its commands.

    Arguments:
        make: makes a fresh core.
        segments: the available ones of the tape.
        plan: that of a host; None for a core of a daemon.
        zero_ns: the instant of the tape's clock when the run was submitted.

    ValueError if a segment does not begin with a state of such a core.

    The core begins in the state with which the first segment begins. Where the next segment follows on it, the core
    continues, and must have come to that state by itself; where records are missing before it, it starts from that
    state. A core that raises has decided otherwise, too: an event at which it raises is never on a tape.
    """
    done, core, end, at = ReplayedTape(0, 0, 0, None), make(), -1, Instant(zero_ns)
    for segment in segments:
        opening = segment.opening
        if opening.before != end or not opening.before:
            core = make()
            core.restore(opening.state)
        elif core.saved() != opening.state:
            error = f"came to another state than that with which segment {opening.segment} begins"
            return done._replace(difference=Difference(end, at - zero_ns, StateTaken(), "", 1, [], [], error))
        done = _segment_again(done, core, segment, plan, zero_ns)
        if done.difference is not None:
            break
        end, at = segment.end, segment.records[-1].at if segment.records else at
    return done


def _segment_again(
    done: ReplayedTape, core: ReplayedCore, segment: Segment, plan: Plan | None, zero_ns: int
) -> ReplayedTape:
    """Feed a core with the events of a segment; `done` is the extent replayed before."""
    count, commands, merges, _ = done
    mergers = NOBODY if plan is None else _mergers(plan)
    for number, record in enumerate(segment.records, segment.opening.before + 1):
        count += 1
        commands += len(record.commands)
        merges += sum(
            isinstance(command, RunBody) and command.node in mergers and "closed_at" in (command.decision or {})
            for command in record.commands
        )
        try:
            commands_now = core.handle(record.event, record.at)
        except Exception as error:  # The core that wrote the tape did not raise any error.
            difference = _difference(number, record, [], zero_ns, plan, f"raised {type(error).__name__}: {error}")
            return ReplayedTape(count, commands, merges, difference)
        if commands_now != record.commands:
            return ReplayedTape(count, commands, merges, _difference(number, record, commands_now, zero_ns, plan))
    return ReplayedTape(count, commands, merges, None)


class StateTaken(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The begin of a segment, in place of an event."""


def _mergers(plan: Plan) -> frozenset[int]:
    """The nodes of a host that fire by Quorum: each firing that a quorum has closed is a merge round."""
    return frozenset(node.index for node in plan.nodes if isinstance(node.fires, Quorum))


def strange(tape: Reading, plan: Plan, member: Member, *, is_alone: bool) -> str:
    """Why a tape cannot be that of this life in this graph, in words; empty if it can.

    `is_alone`: the host had a process of its own, and so heard of itself first; in one process all hear of all at once.
    """
    records = tape.records
    if records and not tape.begins and (reason := _another(records, member, is_alone=is_alone)):
        return reason
    nodes = {node.index for node in plan.nodes}
    for number, record in enumerate(records, tape.begins + 1):
        reason = _unknown(record.event, nodes, plan)
        if reason:
            return f"{reason} in record {number}"
    return ""


def _another(records: Sequence[HostRecord], member: Member, *, is_alone: bool) -> str:
    """The other life to which a tape with these first records belongs; empty if it is this one's."""
    at_first = []
    for record in records:
        if not isinstance(record.event, ReplicaJoined):
            break
        at_first.append(record.event.member)
    if member not in at_first[: 1 if is_alone else None]:
        return f"one that begins with {_first(records[0], at_first)}"
    return ""


def _first(record: HostRecord, at_first: Sequence[Member]) -> str:
    return f"the life {at_first[0]}" if at_first else f"{type(record.event).__name__}"


def _unknown(event: Any, nodes: set[int], plan: Plan) -> str:
    """The node, edge or role of an event that the graph lacks; empty if it lacks none."""
    match event:
        case NodeOpened() | ItemsEmitted() | FiringEnded() | BodyFailed() if event.node not in nodes:
            return f"node {event.node}, which {plan.role} does not have,"
        case ItemArrived() | CreditGranted() if event.edge not in plan.edges:
            return f"edge {event.edge}, which {plan.role} does not have,"
        case ReplicaJoined() | ReplicaLeft() if event.member.replica.role not in plan.replicas:
            return f"a role {event.member.replica.role!r}, which the graph does not have,"
    return ""


def _difference(
    number: int, record: Any, replayed: Sequence[Any], zero_ns: int, plan: Plan | None, error: str = ""
) -> Difference:
    taped = record.commands
    same = next((i for i, (one, other) in enumerate(zip(taped, replayed, strict=False)) if one != other), None)
    same = min(len(taped), len(replayed)) if same is None else same
    place = "" if plan is None else _place(record.event, plan)
    return Difference(number, record.at - zero_ns, record.event, place, same + 1, taped[same:], replayed[same:], error)


def _place(event: Any, plan: Plan) -> str:
    """The name of the node or edge that an event is about."""
    match event:
        case NodeOpened() | ItemsEmitted() | FiringEnded() | BodyFailed():
            return next(node.name for node in plan.nodes if node.index == event.node)
        case ItemArrived() | CreditGranted():
            return plan.edges[event.edge].name
    return ""


_WHOLE: Final = "Fetch the folder again; without its tapes as they were written a run cannot be replayed."
_SAME: Final = "Replay with the isthmus with which it was trained."
_DAEMON_NS: Final = 1_000_000_000
"""The cores of one daemon begin within that; the next daemon needs longer to start."""


@dataclass(frozen=True, slots=True)
class _TapeSetting:
    """The material of this run's cores; `formers` are those from before a resume with changes, with the names of their
    tapes."""

    run_spec: spec.Spec
    plans: Mapping[str, Plan] | None
    """None where present sources make no graph of its job."""
    places: Places
    stretch: int = 0
    """Its number, from 0: the resumes before it that have changed anything."""
    is_of_others: bool = False
    """Other sources of isthmus or the program made it than those of now."""
    formers: tuple[tuple[_TapeSetting, frozenset[str]], ...] = ()

    def of(self, file: TapeFile) -> _TapeSetting:
        """The setting in which a tape was written: this one, or one from before a resume."""
        return next((former for former, names in self.formers if file.name in names), self)


def replay(folder: Path) -> Replay:
    """Replay the run in `folder`. ConfigError, with all that is wrong, for one in progress, and for tapes that cannot
    be those of its graph."""
    doing = f"Replaying the run {folder}"
    if user := user_of(folder):
        do = "Wait for its end, or stop it with: isthmus stop."
        raise ConfigError(doing, "a run that is over", f"one that goes on, of process {user}", do)
    setting = _setting(folder, doing)
    files, others = tapes.of_folder(folder)
    faults = [Fault(f"Reading {name}", "a tape of a host or a daemon", "another name", _WHOLE) for name in others]
    if not files:
        faults.append(Fault(doing, f"tapes in {folder / FOLDER}", "none", _WHOLE))
    read: list[tuple[TapeFile, Reading]] = []
    for file in files:
        try:
            read.append((file, tapes.read(file)))
        except (OSError, ValueError) as error:
            faults.append(Fault(f"Reading {file.name}", "a tape", str(error), _WHOLE))
    faults += _faults(folder, setting, read)
    if faults:
        raise ConfigError.of(faults)
    done = []
    for file, tape in read:
        try:
            done.append(_replayed(file, tape, setting.of(file)))
        except ValueError as error:
            if setting.of(file).is_of_others:  # Its states are of another form.
                done.append(_unreadable(file, setting.of(file)))
                continue
            faults.append(Fault(f"Reading {file.name}", "segments that begin with the core's state", str(error), _SAME))
    if faults:
        raise ConfigError.of(faults)
    altered = [each for each in _alterations(folder) if each.is_of_sources]
    return Replay(str(folder), done, _absent(setting, files), altered)


def _alterations(folder: Path) -> Sequence[Alteration]:
    """What was not as before at the resumes of a run, by its books."""
    with suppress(OSError):
        memory = books.load(folder, DISK)
        return [] if memory is None else memory.alterations
    return []


def _setting(folder: Path, doing: str) -> _TapeSetting:
    try:
        run_spec, formers = spec.load(folder), list(spec.formers(folder))
        is_cluster = (folder / spec.CLUSTER).exists()
        places = Sites.load(folder).places() if is_cluster else Places(home="local")
        of_formers = [
            Sites.load_former(folder, number).places() if is_cluster else places for number, _ in enumerate(formers, 1)
        ]
    except FileNotFoundError:
        do = "Only a folder that a run of this version of isthmus has made can be replayed."
        raise ConfigError(doing, f"a {spec.SPEC}", "none", do) from None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(doing, f"a run's {spec.SPEC}", f"{type(error).__name__}: {error}", _WHOLE) from None
    most = _processes(folder)
    try:
        if not formers:
            return _TapeSetting(run_spec, _plans(run_spec, most), places)
        own = [*(each.sources for each in formers), _sources_of(folder)]
        *before, last = [
            _stretch(number, each, most, there, noted)
            for number, (each, there, noted) in enumerate(
                zip([*(each.spec for each in formers), run_spec], [*of_formers, places], own, strict=True)
            )
        ]
        names = [each.tapes for each in formers]
        return replace(last, formers=tuple(zip(before, names, strict=True)))
    except RequestError as error:
        do = "Replay with the sources with which it was trained: those of isthmus, and the file of its program."
        fault = error.faults[0]
        raise ConfigError(doing, f"the graph that was trained, {fault.expected}", fault.found, do) from None


def _sources_of(folder: Path) -> Mapping[str, Any] | None:
    """The sources with which a run went on last, as data."""
    try:
        noted: Mapping[str, Any] = json.loads(read_text(folder / spec.SOURCES))
    except FileNotFoundError:
        return None
    return noted


def _processes(folder: Path) -> int:
    """The most processes of an island, by the tapes: of those that have joined the spec says nothing."""
    members = [file.member for file in tapes.of_folder(folder)[0] if file.member is not None]
    numbers = [gang_number(member.replica) for member in members if takes_island(member.replica)]
    return min(1 + max(numbers, default=0), PROCESSES_MAX)


def _plans(run_spec: spec.Spec, most: int, *, is_checked: bool = True) -> dict[str, Plan]:
    """The plans of a run, whose islands may have that many processes."""
    plans = run_spec.plans(is_checked=is_checked)
    lead = plans.get(LEARNER)
    if lead is not None and followed(lead) is not None:
        for role in (follower(Replica(LEARNER, 0), number).role for number in range(1, most)):
            plans.setdefault(role, follower_plan(lead, role, run_spec.job.learners, run_spec.job.slots_max))
    return plans


def _stretch(
    number: int, run_spec: spec.Spec, most: int, places: Places, noted: Mapping[str, Any] | None
) -> _TapeSetting:
    """What one stretch of a run, from one resume to the next, was made with; `noted` are its sources, `most` as in
    `_plans`."""
    then = sources.of_former(noted)
    now = sources.of_now(run_spec.job.program)
    if then is None or then.without_task() == now.without_task():
        with suppress(RequestError):
            return _TapeSetting(run_spec, _plans(run_spec, most), places, number)
    with suppress(Exception):  # Whatever present sources say of a job that others have made.
        plans = _plans(run_spec, most, is_checked=False)
        return _TapeSetting(run_spec, plans, places, number, is_of_others=True)
    return _TapeSetting(run_spec, None, places, number, is_of_others=True)


def _faults(folder: Path, setting: _TapeSetting, read: Sequence[tuple[TapeFile, Reading]]) -> list[Fault]:
    """The faults of tapes whose records can be read."""
    faults = []
    broken_off, is_over = tapes.broken_off(folder), (folder / "summary.json").exists()
    newest = max((tape.records[0].at for file, tape in read if file.kind != "host" and tape.records), default=0)
    for file, tape in read:
        doing = f"Reading {file.name}"
        if (wrong := _wrong(file, tape, setting.of(file))) and not setting.of(file).is_of_others:
            faults.append(Fault(doing, "the tape of such a host in this run", wrong, _WHOLE))
        elif tape.rest and not tape.is_unfinished:
            faults.append(Fault(doing, "whole records", tape.rest, _WHOLE))
        elif (torn := _torn(tape)) and is_over and not _may_be_torn(file, tape, broken_off, newest):
            faults.append(Fault(doing, "whole records", f"{torn}, of a host that was not killed", _WHOLE))
    return faults


def _wrong(file: TapeFile, tape: Reading, setting: _TapeSetting) -> str:
    """Why a tape contradicts its name, in words; empty if it does not."""
    if file.member is not None:
        role = file.member.replica.role
        if setting.plans is None or role not in setting.plans:
            return f"one of a role {role!r}, which the graph does not have"
        return strange(tape, setting.plans[role], file.member, is_alone=setting.run_spec.transport != spec.INPROC)
    # Machines that are linked report to the next daemon of a home before it knows what there is.
    events = (record.event for record in tape.records)
    first = next((event for event in events if not isinstance(event, ReportCame | BadReportCame | HomeBeat)), None)
    if first is not None and not tape.begins and not isinstance(first, HomeBegan | NotBegun | StationBegan):
        return f"one that begins with {type(first).__name__}"
    return ""


def _torn(tape: Reading) -> str:
    """What the end of a process or a power failure may have left of a tape, in words; empty if that is whole."""
    return tape.rest or ("" if tape.records else "none, for it is empty")


def _may_be_torn(file: TapeFile, tape: Reading, broken_off: frozenset[tuple[str, int]], newest: int) -> bool:
    """Whether the writer of a tape may have been killed: a host by events.jsonl, a daemon by the next daemon's tape."""
    if file.member is not None:
        return (str(file.member.replica), file.member.incarnation) in broken_off
    return not tape.records or tape.records[0].at < newest - _DAEMON_NS


def _unreadable(file: TapeFile, setting: _TapeSetting) -> Replayed:
    """A tape of other sources, with which these can do nothing."""
    member = file.member
    host = file.kind if member is None else str(member.replica)
    number = file.pid if member is None else member.incarnation
    return Replayed(file.name, host, number, 0, 0, 0, stretch=setting.stretch, is_of_others=True)


def _replayed(file: TapeFile, tape: Reading, setting: _TapeSetting) -> Replayed:
    if setting.is_of_others and _wrong(file, tape, setting):
        return _unreadable(file, setting)
    member, zero_ns = file.member, 0 if file.member is not None else setting.run_spec.zero_ns
    host = file.kind if member is None else str(member.replica)
    number = file.pid if member is None else member.incarnation
    plan = None if member is None or setting.plans is None else setting.plans[member.replica.role]
    done = again(lambda: _core(file, plan, setting), tape.segments, plan, zero_ns)
    begins = tape.records[0].at - zero_ns if tape.begins and tape.records else None
    return Replayed(
        file.name,
        host,
        number,
        done.records,
        done.commands,
        done.merges,
        torn_bytes=tape.rest_bytes,
        before=tape.begins,
        missing=tape.missing - tape.begins,
        begins_ns=begins,
        difference=done.difference,
        stretch=setting.stretch,
        is_of_others=setting.is_of_others,
    )


def _core(file: TapeFile, plan: Plan | None, setting: _TapeSetting) -> ReplayedCore:
    """A fresh core for a tape."""
    if plan is not None and file.member is not None:
        return Scheduler(plan, file.member)
    return Home(setting.run_spec.cast, setting.places) if file.kind == HOME else Station(is_at_home=True)


def _absent(setting: _TapeSetting, files: Sequence[TapeFile]) -> list[str]:
    """The initial hosts of the run whose tapes are not in the folder."""
    there: set[Any] = {str(file.member.replica) for file in files if file.member is not None}
    began = [f"{role}/{slot}" for role, count in setting.run_spec.roles.items() for slot in range(count)]
    return [host for host in began if host not in there]


_SHOWN_MAX: Final = 400
"""Letters of an event or a command; one that has more names many hosts."""


def sheet(replay: Replay, took_seconds: float) -> Sheet:
    """The result: a row for each tape, cells of which do not apply are empty, and the first difference of each."""
    rows = [
        (
            name(tape),
            words.whole(tape.records),
            words.whole(tape.commands),
            words.whole(tape.merges) if tape.merges else "",
            result(tape),
        )
        for tape in replay.tapes
    ]
    tapes_table = table(("tape", "records", "commands", "merges", ""), rows, ("merges", "records"), ("",))
    differences = [
        PageSection(name(tape), [table(("", ""), list(story(tape, tape.difference)))])
        for tape in replay.tapes
        if tape.difference is not None and not tape.is_of_others
    ]
    data = {
        "run": replay.run,
        "identical": replay.is_identical,
        "records": replay.records,
        "commands": replay.commands,
        "merges": replay.merges,
        "seconds": round(took_seconds, 3),
        "hosts": replay.tapes,
        "absent": replay.absent,
        "alterations": alterations.as_data(replay.alterations),
    }
    first = PageSection("Tapes", [tapes_table], list(remarks(replay)))
    return Sheet("Replay", replay.run, [first, *differences], data)


def result(tape: Replayed) -> str:
    """The result of one tape, in a word."""
    if not tape.is_repeated:
        return "other sources" if tape.is_of_others else "different"
    return "identical" if tape.records else "empty"


def remarks(replay: Replay) -> Iterator[str]:
    """Remarks on incomplete or absent tapes."""
    for tape in replay.tapes:
        if tape.begins_ns is not None:
            begins = f"replayed from {_since(tape.begins_ns)} after the submission on, from the core's state then"
            yield f"{name(tape)}: {begins}; {_count(tape.before, 'record')} before are not kept (run.tape_bytes)."
        if tape.missing:
            missing = _count(tape.missing, "record")
            yield f"{name(tape)}: {missing} in the middle were lost to a full disk; replayed before and behind them."
        if tape.torn_bytes:
            torn = words.size(tape.torn_bytes)
            yield f"{name(tape)}: its last record was never finished ({torn}), and is left out."
    for each in replay.alterations:
        yield f"Made by other sources {alterations.headline(each)}."
    if others := [tape for tape in replay.tapes if not tape.is_repeated and tape.is_of_others]:
        whose = "isthmus or its program as they are now decide otherwise, which says nothing of the run"
        yield f"By other sources are {', '.join(map(name, others))}: {whose}."
    if replay.absent:
        absent = ", ".join(replay.absent)
        yield f"No tape here of {absent}: it was not fetched from its machine, or was lost with it."


def name(tape: Replayed) -> str:
    """The owner of a tape: 'learner/2, life 3', 'home of daemon 4711'."""
    is_daemon = tape.host in ("home", "station")
    return f"{tape.host} of daemon {tape.number}" if is_daemon else f"{tape.host}, life {tape.number}"


def story(tape: Replayed, difference: Difference) -> Iterator[tuple[str, str]]:
    """The first difference of a tape: keywords and texts."""
    yield "host", name(tape)
    yield "tape", tape.tape
    yield "record", f"{words.whole(difference.record)}, {_since(difference.at_ns)} after the submission"
    if difference.place:
        yield "at", difference.place
    yield "event", _shown(difference.event)
    if difference.error:
        yield "taped", _listed(difference.taped)
        yield "replayed", difference.error
        return
    yield "command", f"{difference.command} of this record is the first that differs"
    yield "taped", _listed(difference.taped)
    yield "replayed", _listed(difference.replayed)


def ending(replay: Replay, took_seconds: float) -> str:
    """The last line: how much was replayed, and whether it was the same."""
    merges = f", {words.whole(replay.merges)} merge rounds" if replay.merges else ""
    counts = f"{_count(len(replay.tapes), 'tape')}, {_count(replay.commands, 'command')}{merges}"
    return f"{_verdict(replay)}: {counts}, in {words.seconds(took_seconds)}"


def _verdict(replay: Replay) -> str:
    if not all(tape.is_identical for tape in replay.tapes):
        return "different"
    if not replay.is_identical:
        return "all by other sources"
    if not replay.alterations:
        return "identical"
    up_to = f"identical up to {alterations.since(replay.alterations[0]).removesuffix(' on')}"
    if all(tape.is_repeated for tape in replay.tapes):
        return f"{up_to}, and so is what other sources made behind it"
    if all(tape.is_repeated for tape in replay.tapes if not tape.stretch):
        return f"{up_to}; what follows was made by other sources"
    return "identical where the sources are those of now; the rest was made by others"


def _listed(commands: Sequence[Any]) -> str:
    """The first of some commands, and how many follow."""
    if not commands:
        return "no command"
    more = f", and {_count(len(commands) - 1, 'more')}" if len(commands) > 1 else ""
    return f"{_shown(commands[0])}{more}"


def _shown(thing: Any) -> str:
    return shortened(str(thing), _SHOWN_MAX, "the tape has all of it")


def _since(at_ns: int) -> str:
    return f"{at_ns / 1e9:.6f} s"


def _count(count: int, what: str) -> str:
    plural = "" if count == 1 or what == "more" else "s"
    return f"{words.whole(count)} {what}{plural}"
