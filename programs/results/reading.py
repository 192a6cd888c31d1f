"""Reads a run folder into a `RunRecord`, in any state of the folder.

A run may have ended early or be running still, so every file may be missing, torn or empty. Reading never fails:
missing data are empty, and are named among the problems. Nothing is computed here but the zero of the trace's clock.
"""

from __future__ import annotations

import json
import math
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

import msgspec

from isthmus.programs.results.absences import Absence, Fact, fact_of
from isthmus.programs.results.absences_in_files import told_absences
from isthmus.programs.results.record import (
    STAMP,
    Evaluation,
    MergeRecord,
    Report,
    RunRecord,
    as_number,
)
from isthmus.programs.results.remarks import remark
from isthmus.programs.results.store_words import store_line
from isthmus.programs.results.timeline import Firing, Timeline, read_timeline
from isthmus.programs.results.who_waits import waiting_in

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
_Line = TypeVar("_Line", Report, Evaluation, MergeRecord)


def load(run: Path) -> RunRecord:
    """The record of the run folder `run`; never raises for missing or damaged files."""
    folder = run.resolve()
    problems: list[str] = []
    text = _read(folder / "config.toml", problems, lambda data: data.decode("utf-8", "replace"), "")
    nothing: Mapping[str, Any] = {}
    merges = _lines(folder / "merges.jsonl", MergeRecord, problems)
    timeline = _read(folder / "trace.json", problems, read_timeline, None)
    summary = _read(folder / "summary.json", problems, _object, nothing)
    reports = _lines(folder / "metrics.jsonl", Report, problems)
    evaluations = _lines(folder / "evaluations.jsonl", Evaluation, problems)
    if lost := summary.get("lines_lost"):
        problems.append(f"{lost} lines were not written: the disk said {summary.get('disk_error')!r}.")
    faults = summary.get("snapshot_faults", ())
    problems += [f"A snapshot could not be read: {fault}" for fault in faults if isinstance(faults, list)]
    problems += [f"At the end, {line}." for line in [store_line(summary.get("snapshot_store"))] if line]
    start = as_number(summary.get("start_seconds"))
    is_apart = (folder / "events.jsonl").exists()
    facts = _facts(folder, start or 0.0, []) if is_apart else []
    graph = _read(folder / "graph.json", problems, _object, nothing)
    waiting = waiting_in(graph)
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
        absences=_absences(folder, summary, reports, evaluations, merges, problems) if is_apart else (),
        remarks=tuple(filter(None, (remark(fact, waiting) for fact in facts))),
        is_apart=is_apart,
        is_placed=bool(start),
    )


def _read(path: Path, problems: list[str], parse: Callable[[bytes], _T], otherwise: _T) -> _T:
    """The parsed file, or `otherwise` and a problem."""
    try:
        return parse(path.read_bytes())
    except OSError:
        problems.append(f"{path.name} is not there.")
    except (ValueError, RecursionError, KeyError, TypeError, OverflowError) as error:
        problems.append(f"{path.name} cannot be read: {error}")
    return otherwise


def read_absences(run: Path) -> tuple[Absence, ...]:
    """The absences of the run folder `run` alone, as `load` has them."""
    folder = run.resolve()
    nothing: Mapping[str, Any] = {}
    reports = _lines(folder / "metrics.jsonl", Report, [])
    evaluations = _lines(folder / "evaluations.jsonl", Evaluation, [])
    merges = _lines(folder / "merges.jsonl", MergeRecord, [])
    return _absences(folder, _read(folder / "summary.json", [], _object, nothing), reports, evaluations, merges, [])


def _absences(
    folder: Path,
    summary: Mapping[str, Any],
    reports: Sequence[Report],
    evaluations: Sequence[Evaluation],
    merges: Sequence[MergeRecord],
    problems: list[str],
) -> tuple[Absence, ...]:
    """The absences; without a summary, which has the time of the first step, returns are unknown."""
    start = as_number(summary.get("start_seconds"))
    facts = _facts(folder, start or 0.0, problems)
    if not start:
        return told_absences(facts, [], [], [])
    return told_absences(facts, reports, evaluations, merges, max(1, int(as_number(summary.get("syncer_shards")) or 1)))


def _facts(folder: Path, start_seconds: float, problems: list[str]) -> list[Fact]:
    """The daemon's records of its hosts, in seconds since the first inner step."""
    submitted = _read(folder / "spec.json", problems, lambda data: int(_object(data)["zero_ns"]), None)
    if submitted is None:
        return []
    zero = submitted + round(start_seconds * 1e9)
    found = []
    nothing: list[bytes] = []
    lines = _read(folder / "events.jsonl", problems, lambda data: data.splitlines(), nothing)
    for line in lines:
        with suppress(ValueError, RecursionError, OverflowError):
            found.append(fact_of(_object(line), zero))
    if bad := len(lines) - len(found):
        problems.append(f"events.jsonl: {bad} of {len(lines)} lines cannot be read and are left out.")
    return found


def _object(data: bytes) -> Mapping[str, Any]:
    # The json module and not msgspec: it also reads NaN, which a diverged run may have written.
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("an object was expected")
    return value


def _lines(path: Path, kind: type[_Line], problems: list[str]) -> list[_Line]:
    """One record a line, in order of time; unreadable lines are counted."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        problems.append(f"{path.name} is not there.")
        return []
    if path.with_name(path.name + ".1").exists():
        problems.append(f"{path.name} has outgrown one file: what is in {path.name}.1 is not shown.")
    decode = msgspec.json.Decoder(kind).decode
    records: list[_Line] = []
    bad = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            records.append(decode(line))
        except ValueError:
            # NaN is no JSON, but a run that diverged may have it in places where it means a missing value.
            try:
                records.append(msgspec.convert(_finite(json.loads(line)), kind))
            except (ValueError, RecursionError):
                bad += 1
    if bad:
        problems.append(f"{path.name}: {bad} of {len(lines)} lines cannot be read and are left out.")
    return sorted(records, key=lambda record: record.time)


def _finite(values: Any) -> Any:
    """The same fields without numbers that are not finite, so that defaults (None, 0) stand in for them."""
    if not isinstance(values, dict):
        raise ValueError("an object was expected")
    return {
        name: [as_number(part) if isinstance(part, float) else part for part in value]
        if isinstance(value, list)
        else value
        for name, value in values.items()
        if not (isinstance(value, float) and not math.isfinite(value))
    }


def _parameters(folder: Path) -> int | None:
    """The numbers in the safetensors files of `folder`, by their headers alone."""
    total = 0
    try:
        for path in sorted(folder.glob("*.safetensors")):
            with path.open("rb") as file:
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
    found = [_nearest(ends, sample) - sample for sample in samples]
    near = [distance for distance in found if abs(distance) <= tolerance]
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
