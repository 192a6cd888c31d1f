"""Reads a run folder into a `RunRecord`, whatever state it is in.

A run may have ended early or be running still, so every file may be missing, torn or empty. Reading never fails: what
is not there is empty, and is named among the problems. Nothing is computed here but the zero of the trace's clock.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from isthmus.programs.command.absences import Absence, Fact, fact_of
from isthmus.programs.command.remarks import remark
from isthmus.programs.command.report_absences import told_absences
from isthmus.programs.command.report_alignment import aligned
from isthmus.programs.command.report_record import (
    STAMP,
    Evaluation,
    MergeRecord,
    Report,
    RunRecord,
    as_number,
)
from isthmus.programs.command.report_trace import read_timeline
from isthmus.programs.command.waiting import waiting_in

_HEADER_SIZE_MAX: Final = 100_000_000
"""Bytes; safetensors itself refuses longer headers."""

_T = TypeVar("_T")
_Line = TypeVar("_Line", Report, Evaluation, MergeRecord)


def load(run: Path) -> RunRecord:
    """The record of the run folder `run`; never an error for what is in it, or is not."""
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
    """Who was away; without a summary, which says when the first step was, returns cannot be told."""
    start = as_number(summary.get("start_seconds"))
    facts = _facts(folder, start or 0.0, problems)
    if not start:
        return told_absences(facts, [], [], [])
    return told_absences(facts, reports, evaluations, merges, max(1, int(as_number(summary.get("syncer_shards")) or 1)))


def _facts(folder: Path, start_seconds: float, problems: list[str]) -> list[Fact]:
    """What the daemon wrote of its hosts, in seconds since the first inner step."""
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
            # NaN is no JSON, but a run that diverged may have it in places where it stands for nothing.
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
