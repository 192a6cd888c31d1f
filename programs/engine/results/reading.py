"""Reads a run folder into a `RunRecord`, in any state of the folder, with its absences and the rounds on its timeline.

Decides what stands in for what is missing: a run may have ended early or be running still, so every file may be
missing, torn or empty. Reading never fails: missing data are empty, and are named among the problems.
"""

from __future__ import annotations

import json
import math
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeVar

from isthmus.programs.engine.results.absences import (
    Absence,
    Absences,
    Fact,
    RunCut,
    Works,
    facts_in,
    hosts_of,
    remark,
    waiting_in,
    with_cuts,
)
from isthmus.programs.engine.results.lines import EvaluationLine, MergeRecord, ReportLine, read, records
from isthmus.programs.engine.results.record import (
    STAMP,
    Firing,
    RunRecord,
    Timeline,
    Transfer,
    as_number,
    read_timeline,
    slot_of,
)
from isthmus.programs.engine.results.run_files import DATA
from isthmus.programs.engine.results.words import store_line
from isthmus.runtime.supervision.incidents import Restarted
from isthmus.runtime.system.disk import open_regular
from isthmus.runtime.system.files import read_bytes
from isthmus.runtime.system.refusals import is_absent, reason

_END_SECONDS: Final = 3.5
"""A silence that begins so late, and never ends, is that of a host that closes: it is suspected after 3.3 s."""
_STALE_SECONDS: Final = 0.2
"""A record sooner after a restart is still from the life before: a process takes longer to start."""


def absences_shown(
    facts: Sequence[Fact],
    reports: Sequence[ReportLine],
    evaluations: Sequence[EvaluationLine],
    merges: Sequence[MergeRecord],
    shards: int = 1,
) -> tuple[Absence, ...]:
    """All absences, in the order in which they began; fragment p belongs to shard p modulo `shards`.

    A learner works again when it reports a step of its new life, a syncer when it merges under its new epoch, the
    evaluator when it has evaluated, the recorder when it writes. Silences at the end of a run, where hosts write their
    last files, are no absences.
    """
    works = [
        *_learners(reports),
        *_syncers(merges, shards),
        *_first_after(facts, "evaluator", [evaluation.time for evaluation in evaluations]),
        *_first_after(facts, "recorder", [report.time for report in reports]),
    ]
    times = [item.time for items in (reports, evaluations, merges) for item in items]
    last = max(times, default=math.inf) - _END_SECONDS
    every = Absences(sorted([*_since_records(facts, times), *works], key=lambda fact: fact.at)).all
    kept = [item for item in every if not (item.kind == "silent" and item.ended is None and item.begun >= last)]
    return tuple(sorted(kept, key=lambda item: item.begun))


def _since_records(facts: Sequence[Fact], times: Sequence[float]) -> Iterator[Fact]:
    """The facts, with each cut at the last of the times before it was found."""
    for fact in facts:
        before = [time for time in times if time < fact.at] if isinstance(fact.what, RunCut) else []
        yield fact._replace(at=max(before, default=fact.at))


def last_record(run: Path, before: float | None) -> float | None:
    """The time of the last line of metrics.jsonl before a time, in seconds since the first inner step; None without."""
    lines = read(run / "metrics.jsonl", ReportLine)
    return max((line.time for line in lines if before is None or line.time < before), default=None)


def _learners(reports: Sequence[ReportLine]) -> Iterator[Fact]:
    """The first step of every life of a learner."""
    seen = set()
    for report in reports:
        life = (report.learner, report.incarnation)
        if report.phase == "stepping" and life not in seen:
            seen.add(life)
            yield Fact(report.time, f"learner/{report.learner}", report.incarnation, Works())


def _syncers(merges: Sequence[MergeRecord], shards: int) -> Iterator[Fact]:
    """The first merge of a shard under every epoch: a shard serves under the number of its life."""
    seen = set()
    for merge in merges:
        if merge.kind in ("merge", "final") and merge.version:
            life = (merge.fragment % shards, merge.version[0])
            if life not in seen:
                seen.add(life)
                yield Fact(merge.time, f"syncer/{life[0]}", life[1], Works())


def _first_after(facts: Sequence[Fact], role: str, times: Sequence[float]) -> Iterator[Fact]:
    """The first of `times` after every restart of a host of `role`."""
    for fact in facts:
        if fact.role == role and isinstance(fact.what, Restarted):
            at = next((time for time in times if time >= fact.at + _STALE_SECONDS), None)
            if at is not None:
                yield Fact(at, fact.host, fact.life, Works())


_HEADER_SIZE_MAX: Final = 100_000_000
"""Bytes; safetensors itself refuses longer headers."""

_TOLERANCE_MAX: Final = 3e-3
"""Seconds between the publication inside an outer step and the end of its firing: far more than that ever takes."""

_TOLERANCE_SHARE: Final = 0.15
"""The tolerance as a share of the usual distance of outer steps: dense ones must not match by chance."""

_SAMPLES_MAX: Final = 40
_SAMPLES_MIN: Final = 10
_CANDIDATES_MAX: Final = 400
_MATCHES_MIN: Final = 0.8
"""The share of the last merges that have to fall on an outer step."""

_T = TypeVar("_T")
_Line = TypeVar("_Line", ReportLine, EvaluationLine, MergeRecord)


def load(run: Path) -> RunRecord:
    """The record of the run folder `run`; never raises for missing or damaged files."""
    folder = run.resolve()
    problems: list[str] = []
    text = _read(folder / "config.toml", problems, lambda data: data.decode("utf-8", "replace"), "")
    nothing: Mapping[str, Any] = {}
    merges = _lines(folder / "merges.jsonl", MergeRecord, problems)
    timeline = _read(folder / "trace.json", problems, read_timeline, None)
    summary = _read(folder / "summary.json", problems, _object, nothing)
    reports = _lines(folder / "metrics.jsonl", ReportLine, problems)
    evaluations = _lines(folder / "evaluations.jsonl", EvaluationLine, problems)
    if lost := summary.get("lines_lost"):
        problems.append(f"{lost} lines were not written: the disk said {summary.get('disk_error')!r}.")
    faults = summary.get("snapshot_faults", ())
    problems += [f"A snapshot could not be read: {fault}" for fault in faults if isinstance(faults, list)]
    problems += [f"At the end, {line}." for line in [store_line(summary.get("snapshot_store"))] if line]
    start = as_number(summary.get("start_seconds"))
    is_apart = (folder / "events.jsonl").exists()
    facts = _facts(folder, start or 0.0, problems) if is_apart else []
    graph = _read(folder / "graph.json", problems, _object, nothing)
    waiting, absences = waiting_in(graph), _absences(facts, summary, reports, evaluations, merges)
    return RunRecord(
        folder=folder,
        summary=summary,
        configuration_text=text,
        configuration=_read(folder / "config.toml", [], lambda data: tomllib.loads(data.decode()), nothing),
        graph=graph,
        reports=reports,
        evaluations=evaluations,
        merges=merges,
        timeline=aligned(timeline, merges) if timeline is not None else None,
        parameters=_parameters(folder / "snapshots" / "final"),
        begun_at=_begun_at(folder),
        problems=problems,
        absences=tuple(absence for absence in absences if not absence.is_in_order),
        remarks=tuple(filter(None, (remark(fact, waiting) for fact in facts))),
        is_apart=is_apart,
        is_placed=bool(start),
        data=_read(folder / DATA, problems, _object, nothing) if (folder / DATA).exists() else nothing,
    )


def _read(path: Path, problems: list[str], parse: Callable[[bytes], _T], otherwise: _T) -> _T:
    """The parsed file, or `otherwise` and a problem."""
    try:
        return parse(read_bytes(path))
    except OSError as error:
        is_there = not is_absent(error)
        problems.append(f"{path.name} cannot be read: {reason(error)}." if is_there else f"{path.name} is not there.")
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
    return otherwise


def read_absences(run: Path) -> tuple[Absence, ...]:
    """The absences of the run folder `run` alone, as `load` has them."""
    folder = run.resolve()
    nothing: Mapping[str, Any] = {}
    reports = _lines(folder / "metrics.jsonl", ReportLine, [])
    evaluations = _lines(folder / "evaluations.jsonl", EvaluationLine, [])
    merges = _lines(folder / "merges.jsonl", MergeRecord, [])
    summary = _read(folder / "summary.json", [], _object, nothing)
    facts = _facts(folder, as_number(summary.get("start_seconds")) or 0.0, [])
    return _absences(facts, summary, reports, evaluations, merges)


def _absences(
    facts: Sequence[Fact],
    summary: Mapping[str, Any],
    reports: Sequence[ReportLine],
    evaluations: Sequence[EvaluationLine],
    merges: Sequence[MergeRecord],
) -> tuple[Absence, ...]:
    """The absences; without a summary, which has the time of the first step, returns are unknown."""
    if not as_number(summary.get("start_seconds")):
        return absences_shown(facts, [], [], [])
    return absences_shown(
        facts, reports, evaluations, merges, max(1, int(as_number(summary.get("syncer_shards")) or 1))
    )


def submitted_ns(folder: Path, problems: list[str]) -> int | None:
    """The instant of the machine's clock from which the times of a run count; None if no spec can be read."""
    return _read(folder / "spec.json", problems, lambda data: int(_object(data)["zero_ns"]), None)


def _facts(folder: Path, start_seconds: float, problems: list[str]) -> list[Fact]:
    """The daemon's records of its hosts, in seconds since the first inner step."""
    submitted = submitted_ns(folder, problems)
    if submitted is None:
        return []
    start = round(start_seconds * 1e9)
    facts = _sound(folder / "events.jsonl", lambda data: facts_in(data, submitted, start), problems)
    return with_cuts(facts, hosts_of(folder))


def _object(data: bytes) -> Mapping[str, Any]:
    # The json module and not msgspec: it also reads NaN, which a diverged run may have written.
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("an object was expected")
    return value


def _lines(path: Path, kind: type[_Line], problems: list[str]) -> list[_Line]:
    """One record a line, in order of time; unreadable lines are counted."""
    found = _sound(path, lambda data: records(data, kind), problems)
    if path.with_name(path.name + ".1").exists():
        problems.append(f"{path.name} has outgrown one file: what is in {path.name}.1 is not shown.")
    return sorted(found, key=lambda record: record.time)


def _sound(path: Path, parse: Callable[[bytes], Iterable[_T | None]], problems: list[str]) -> list[_T]:
    """What there is of the lines of a file; those that cannot be read are counted."""
    nothing: list[_T | None] = []
    every = _read(path, problems, lambda data: list(parse(data)), nothing)
    found = [each for each in every if each is not None]
    if bad := len(every) - len(found):
        problems.append(f"{path.name}: {bad} of {len(every)} lines cannot be read and are left out.")
    return found


def _parameters(folder: Path) -> int | None:
    """The numbers in the safetensors files of `folder`, by their headers alone."""
    total = 0
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with open_regular(path) as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, _HEADER_SIZE_MAX)))
            total += sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return total or None


def _begun_at(folder: Path) -> datetime | None:
    """When the run was started, local time: from the folder's name, else from the configuration's file."""
    stamp = STAMP.search(folder.name)
    try:
        if stamp:
            return datetime.strptime(stamp.group(1), "%Y%m%d-%H%M%S")
        return datetime.fromtimestamp(int((folder / "config.toml").stat().st_mtime))
    except (OSError, ValueError):
        return None


def aligned(timeline: Timeline, merges: Sequence[MergeRecord]) -> Timeline:
    """The same timeline, in seconds since the first inner step of the run, as everything else in the run folder.

    A trace is written on the clock of its process. Both contain the outer steps: merges.jsonl the time at which each
    was published, the trace that at which its firing ended, on the same clock but for the zero. So the shift is the one
    under which merges were published where outer steps end. A run without merges is shifted so that its first inner
    step begins at 0. A trace without any of the outer steps of merges.jsonl lacks whole hosts, which were killed, and
    with them perhaps the first inner step: it stays as it is, because it was written on the time of the run.
    """
    ends = sorted(
        firing.ended for (_, node), spans in timeline.firings.items() if node == "outer-step" for firing in spans
    )
    times = [merge.time for merge in merges]
    first = min((spans[0].begun for (_, node), spans in timeline.firings.items() if node == "inner-step"), default=0.0)
    guesses = [0.0, first]
    if times and not ends:
        return timeline
    if ends:
        guesses += [ends[-1] - time for time in reversed(times[-_CANDIDATES_MAX:])]
    for guess in guesses:
        near = _distances(ends, times, guess)
        if near is not None:
            # A guess may come from two merges that were close together, so it is moved to where most of them agree.
            return _shifted(timeline, guess + median(near))
    return _shifted(timeline, first)


def _distances(ends: Sequence[float], times: Sequence[float], shift: float) -> list[float] | None:
    """The distance from each of `times`, moved by `shift`, to the nearest of `ends`; None if too few are near.

    Either side may lack some: the trace its oldest firings, merges.jsonl those that came too fast to be written. So
    only the newest merges within the trace are matched with their outer steps.
    """
    if len(ends) < 2 or not times:
        return None
    tolerance = min(_TOLERANCE_MAX, _TOLERANCE_SHARE * median(later - earlier for earlier, later in pairwise(ends)))
    within = [time + shift for time in times if ends[0] - tolerance <= time + shift <= ends[-1] + tolerance]
    samples = within[-_SAMPLES_MAX:]
    if len(samples) < min(_SAMPLES_MIN, len(times), len(ends)):
        return None
    distances = [_nearest(ends, sample) - sample for sample in samples]
    near = [distance for distance in distances if abs(distance) <= tolerance]
    return near if len(near) >= _MATCHES_MIN * len(samples) else None


def _nearest(ends: Sequence[float], time: float) -> float:
    index = bisect_left(ends, time)
    return min(ends[max(index - 1, 0) : index + 1], key=lambda end: abs(end - time))


def _shifted(timeline: Timeline, shift: float) -> Timeline:
    return Timeline(
        {
            place: [Firing(begun - shift, ended - shift) for begun, ended in spans]
            for place, spans in timeline.firings.items()
        },
        [item._replace(begun=item.begun - shift, ended=item.ended - shift) for item in timeline.transfers],
    )


_CLOCKS_MAX: Final = 0.005
"""Seconds by which the time of a merge may miss the firing that published it."""

_DISTANCE_MAX: Final = 0.05
"""Seconds from a merge to its outer step, and from that to the first of its updates, at most."""


class Journey(NamedTuple):
    """A fragment's way from a learner and back: left, arrived at the shard, and returned (None: not seen)."""

    slot: int
    left: float
    arrived: float
    returned: float | None


class RoundSpan(NamedTuple):
    """One round of one fragment, in seconds, on the host of its shard."""

    merge: MergeRecord
    host: str
    opened: float
    quorum_at: float
    closed: float
    published: float
    journeys: tuple[Journey, ...] = ()


def rounds_between(record: RunRecord, begin: float, end: float) -> list[RoundSpan]:
    """The rounds that were under way in [begin, end], in the order in which they opened, without journeys.

    merges.jsonl has the decisions, trace.json the measurements. A round's outer step is the firing that holds the
    round's own time, its merge the last firing before that. Where the trace has nothing (it is bounded), the times of
    merges.jsonl stand alone.
    """
    timeline = record.timeline
    first = bisect_left(record.merges, begin - _DISTANCE_MAX, key=lambda merge: merge.time)
    spans = []
    for merge in record.merges[first:]:
        if merge.time - merge.duration > end + 10 * _DISTANCE_MAX:
            break
        item = _placed(merge, f"syncer/{merge.fragment % record.shards}", timeline)
        if item.opened <= end and item.published >= begin:
            spans.append(item)
    return sorted(spans, key=lambda item: item.opened)


def with_journeys(rounds: Sequence[RoundSpan], timeline: Timeline, begin: float, end: float) -> list[RoundSpan]:
    """The same rounds with the journeys of the fragments of all learners that answered."""
    answers: dict[tuple[str, str], list[Transfer]] = {}
    updates: dict[tuple[str, str], list[Transfer]] = {}
    for transfer in timeline.transfers_between(begin, end):
        if transfer.source_node == "fragment-send" and transfer.target_port == "answer":
            answers.setdefault((transfer.source, transfer.target), []).append(transfer)
        elif transfer.source_node == "outer-step" and slot_of(transfer.target) is not None:
            updates.setdefault((transfer.source, transfer.target), []).append(transfer)
    used: set[Transfer] = set()
    complete = []
    for item in rounds:
        journeys = []
        for slot in sorted({*item.merge.voters, *_refused(item.merge)}):
            learner = f"learner/{slot}"
            sent = _first(answers.get((learner, item.host), []), item.opened, item.closed, used)
            if sent is None:
                continue
            used.add(sent)
            back = _first(updates.get((item.host, learner), []), item.closed, item.published + _DISTANCE_MAX, set())
            left = timeline.between(learner, "fragment-send", item.opened, sent.begun)
            journeys.append(
                Journey(slot, left[-1].begun if left else sent.begun, sent.ended, back.ended if back else None)
            )
        complete.append(item._replace(journeys=tuple(journeys)))
    return complete


def _placed(merge: MergeRecord, host: str, timeline: Timeline | None) -> RoundSpan:
    closed = published = merge.time
    if timeline is not None:
        outer = _publishing(timeline.firings.get((host, "outer-step"), []), merge.time)
        if outer is not None:
            closed, published = outer.begun, outer.ended
            merging = timeline.between(host, "merge", outer.begun - _DISTANCE_MAX, outer.begun)
            closed = merging[-1].begun if merging else closed
    opened = closed - merge.duration
    return RoundSpan(merge, host, opened, min(opened + (merge.quorum_ms or 0.0) / 1e3, closed), closed, published)


def _publishing(firings: Sequence[Firing], time: float) -> Firing | None:
    """The firing during which something was published at `time`, or the nearest if the clocks are off by a little."""
    index = bisect_left(firings, time, key=lambda firing: firing.ended)
    if index < len(firings) and firings[index].begun <= time:
        return firings[index]
    near = min(firings[max(index - 1, 0) : index + 1], key=lambda firing: abs(firing.ended - time), default=None)
    return near if near is not None and abs(near.ended - time) <= _CLOCKS_MAX else None


def _first(transfers: Sequence[Transfer], begin: float, end: float, used: set[Transfer]) -> Transfer | None:
    """The first transfer that began in [begin, end] and was not taken."""
    return next((item for item in transfers if begin <= item.begun <= end and item not in used), None)


def _refused(merge: MergeRecord) -> list[int]:
    """The slots whose answers were refused."""
    return [entry[0] for entry in merge.refused if entry and isinstance(entry[0], int)]
