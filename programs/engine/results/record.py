"""The contents of a run folder, as data: the source of the report.

Decides nothing that is read from files (`reading` fills it in), but where a learner's reports have a gap, and how
tokens are counted between two reports. Everything may be empty; `problems` lists in words what was missing or
unreadable. Numbers that are not finite are None.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import msgspec

from isthmus.programs.engine.results.absences import Absence, Remark, Waiting, waiting_in
from isthmus.programs.engine.results.lines import EvaluationLine, MergeRecord, ReportLine

MICROSECOND: Final = 1e-6


class Firing(NamedTuple):
    """One firing, in seconds since the first inner step."""

    begun: float
    ended: float


class Transfer(NamedTuple):
    """One item on its way between hosts: edge 'node.port -> node.port', in seconds and bytes."""

    begun: float
    ended: float
    source: str
    target: str
    edge: str
    size_bytes: float

    @property
    def source_node(self) -> str:
        """The node that sent it."""
        return self.edge.partition(" -> ")[0].partition(".")[0]

    @property
    def target_node(self) -> str:
        """The node that it is for."""
        return self.edge.partition(" -> ")[2].partition(".")[0]

    @property
    def target_port(self) -> str:
        """The port at which it arrives."""
        return self.edge.partition(" -> ")[2].partition(".")[2]


@dataclass(frozen=True, slots=True)
class Timeline:
    """Firings by (host, node) and all transfers, both in the order in which they began."""

    firings: dict[tuple[str, str], list[Firing]]
    transfers: list[Transfer]

    @property
    def hosts(self) -> list[str]:
        """Every host that fired, by role and number."""
        return sorted({host for host, _ in self.firings}, key=host_order)

    def between(self, host: str, node: str, begin: float, end: float) -> list[Firing]:
        """The firings of a node that touch [begin, end]."""
        spans = self.firings.get((host, node), [])
        # Firings of one node never overlap, so their ends are sorted as well.
        first = bisect_left(spans, begin, key=lambda span: span.ended)
        last = bisect_right(spans, end, key=lambda span: span.begun)
        return spans[first:last]

    def steps_between(self, begin: float, end: float) -> list[Firing]:
        """The inner steps of all hosts that touch [begin, end]."""
        return [step for host in self.hosts for step in self.between(host, "inner-step", begin, end)]

    def transfers_between(self, begin: float, end: float) -> list[Transfer]:
        """The transfers that touch [begin, end]."""
        last = bisect_right(self.transfers, end, key=lambda transfer: transfer.begun)
        return [transfer for transfer in self.transfers[:last] if transfer.ended >= begin]


def host_order(host: str) -> tuple[str, int, str]:
    """Sorts learner/2 before learner/10."""
    role, _, number = host.partition("/")
    return (role, int(number) if number.isdecimal() else 0, host)


def slot_of(host: str) -> int | None:
    """The number of a learner's host, None for any other."""
    role, _, number = host.partition("/")
    return int(number) if role == "learner" and number.isdecimal() else None


class _Arguments(msgspec.Struct, gc=False):
    name: str = ""
    to: str = ""
    bytes: float = 0.0


class _Event(msgspec.Struct, gc=False):
    ph: str = ""
    name: str = ""
    pid: int = 0
    tid: int = 0
    ts: float = 0.0
    dur: float = 0.0
    args: _Arguments | None = None


class _File(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 (the format's own name)


def read_timeline(data: bytes) -> Timeline:
    """The timeline in a trace file; ValueError if it is none.

    It reads the Trace Event Format that `isthmus.runtime.host.contract` writes (complete events, process and thread
    names) once, with typed decoding: 200,000 events take about a second and no dictionaries.
    """
    try:
        events = msgspec.json.decode(data, type=_File).traceEvents
    except ValueError as error:
        raise ValueError(str(error)) from None
    hosts = {event.pid: event.args.name for event in events if event.name == "process_name" and event.args}
    firings: dict[tuple[str, str], list[Firing]] = {}
    transfers: list[Transfer] = []
    for event in events:
        if event.ph != "X":
            continue
        host = hosts.get(event.pid, f"process {event.pid}")
        begun = event.ts * MICROSECOND
        ended = begun + event.dur * MICROSECOND
        if event.args is not None and event.args.to:
            transfers.append(Transfer(begun, ended, host, event.args.to, event.name, event.args.bytes))
        else:
            firings.setdefault((host, event.name), []).append(Firing(begun, ended))
    for spans in firings.values():
        spans.sort()
    transfers.sort()
    return Timeline(firings, transfers)


STAMP: Final = re.compile(r"-(\d{8}-\d{6})(?:-\d+)?$")
"""End of a run folder's default name: the start of the run, and a number if that was taken."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A run folder in memory. `parameters` counts the numbers of the final model, None if there is no snapshot.

    `absences` are those of hosts that were processes (`is_apart`), in the order in which they began; their times count
    from the submission of the run unless `is_placed`. `remarks` are other notable facts, on the same clock.
    """

    folder: Path
    summary: Mapping[str, Any]
    configuration_text: str
    configuration: Mapping[str, Any]
    graph: Mapping[str, Any]
    reports: list[ReportLine]
    evaluations: list[EvaluationLine]
    merges: list[MergeRecord]
    timeline: Timeline | None
    parameters: int | None
    begun_at: datetime | None
    problems: list[str] = field(default_factory=list)
    absences: tuple[Absence, ...] = ()
    remarks: tuple[Remark, ...] = ()
    is_apart: bool = False
    is_placed: bool = True
    data: Mapping[str, Any] = field(default_factory=dict)
    """That of data.json; empty without."""

    @property
    def shards(self) -> int:
        """The number of syncer shards, 1 without any; fragment p belongs to shard p modulo this number."""
        return max(1, int(self.number("syncer_shards") or 1))

    def number(self, name: str) -> float | None:
        """A figure of summary.json; None if it is missing or no finite number."""
        return as_number(self.summary.get(name))

    def text(self, name: str) -> str:
        """A text of summary.json; empty if it is missing."""
        value = self.summary.get(name)
        return value if isinstance(value, str) else ""

    def setting(self, section: str, name: str) -> Any:
        """A key of config.toml; None if it is missing."""
        values = self.configuration.get(section)
        return values.get(name) if isinstance(values, Mapping) else None

    @property
    def waiting(self) -> Waiting | None:
        """The effect of absent hosts on learners, by the graph; None if there is no graph."""
        return waiting_in(self.graph)

    @property
    def program(self) -> str:
        """The name of the program, from the first place that has it."""
        graph = self.graph.get("program")
        return self.text("program") or (graph if isinstance(graph, str) else "") or STAMP.sub("", self.folder.name)

    @property
    def learners_count(self) -> int:
        """The number of learners: requested and joined ones."""
        return max(int(self.number("learners") or 0), len(self.learners))

    @property
    def learners(self) -> list[int]:
        """The slots that were used, in order."""
        slots = {report.learner for report in self.reports}
        slots |= {int(row["learner"]) for row in self.per_learner}
        return sorted(slots)

    @property
    def metrics(self) -> list[str]:
        """The names of the scalars beside the loss, in order of appearance."""
        items: list[EvaluationLine | ReportLine] = [*self.evaluations, *self.reports]
        return list(dict.fromkeys(name for item in items for name in item.metrics))

    @property
    def per_learner(self) -> list[Mapping[str, Any]]:
        """The rows of summary.json about one learner each."""
        rows = self.summary.get("per_learner")
        listed = rows if isinstance(rows, list) else []
        return [row for row in listed if isinstance(row, dict) and as_number(row.get("learner")) is not None]

    @property
    def per_region(self) -> list[Mapping[str, Any]]:
        """The rows of summary.json about one region each."""
        rows = self.summary.get("per_region")
        listed = rows if isinstance(rows, list) else []
        return [row for row in listed if isinstance(row, dict) and as_number(row.get("region")) is not None]

    @property
    def stall_seconds(self) -> float | None:
        """The time for which all learners together waited; None if one does not report it, or there are none."""
        stalls = [as_number(row.get("stall_seconds")) for row in self.per_learner]
        known = [stall for stall in stalls if stall is not None]
        return sum(known) if stalls and len(known) == len(stalls) else None

    @property
    def wall_seconds(self) -> float:
        """The duration of the run, to its last line, so far if it is not over."""
        whole = self.number("wall_seconds")
        last = [items[-1].time for items in (self.reports, self.evaluations, self.merges) if items]
        return max([*last, *([] if whole is None else [whole])], default=0.0)


def as_number(value: object) -> float | None:
    """`value` if it is a finite number, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None


_USUAL_DISTANCES: Final = 10
_RUN_SHARE: Final = 0.01
"""A gap is longer than this share of the run too: shorter ones are too small for a chart."""


class TokenProgress:
    """The tokens that all learners together had trained at an instant, or another `figure` of a life that only grows.

    Reports come every few steps: between two of them progress is taken as even, across a gap it is not. A gap is longer
    than any usual distance between reports, or a new incarnation.
    """

    def __init__(
        self, reports: Sequence[ReportLine], figure: Callable[[ReportLine], float] = attrgetter("tokens")
    ) -> None:
        newest: dict[tuple[int, int], float] = {}
        self._points, total = [(0.0, 0.0)], 0.0
        for report in reports:
            life, value = (report.learner, report.incarnation), figure(report)
            total += max(0.0, value - newest.get(life, 0.0))
            newest[life] = max(value, newest.get(life, 0.0))
            self._points.append((max(report.time, self._points[-1][0]), total))

    def at(self, time: float) -> float:
        """The figure of all learners together at `time` (seconds)."""
        return between(self._points, time)


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """The value at a place of a line through points, which are in order; that of the nearest end beyond them."""
    after = bisect_right(points, at, key=lambda point: point[0])
    if after == 0:
        return points[0][1]
    if after == len(points):
        return points[-1][1]
    (begin, first), (end, second) = points[after - 1], points[after]
    return first + (at - begin) / (end - begin) * (second - first)


def unbroken(reports: Sequence[ReportLine], wall_seconds: float) -> list[list[ReportLine]]:
    """One learner's reports, in parts between which it did not step."""
    if not reports:
        return []
    distances = [later.time - earlier.time for earlier, later in pairwise(reports)]
    gap = max(_USUAL_DISTANCES * median(distances), _RUN_SHARE * wall_seconds) if distances else 0.0
    parts = [[reports[0]]]
    for earlier, later in pairwise(reports):
        is_gap = later.time - earlier.time > gap or later.incarnation != earlier.incarnation
        if is_gap:
            parts.append([])
        parts[-1].append(later)
    return parts


def while_stepping(reports: Sequence[ReportLine]) -> list[ReportLine]:
    """The reports of the time in which learners stepped: not while they got ready, and not after the last step."""
    return [report for report in reports if report.phase not in ("ready", "final")]


def without_loss(reports: Sequence[ReportLine]) -> int:
    """The number of reports with steps but no finite loss; that of the newest step may come with the next report."""
    steps: dict[tuple[int, int], float] = {}
    count = 0
    for report in while_stepping(reports):
        life = (report.learner, report.incarnation)
        if report.step is not None:
            count += report.loss is None and report.step > steps.get(life, 0.0) + 1
            steps[life] = report.step
    return count


def by_learner(reports: Sequence[ReportLine]) -> dict[int, list[ReportLine]]:
    """The reports of each slot, slots in order."""
    reports_of: dict[int, list[ReportLine]] = {}
    for report in reports:
        reports_of.setdefault(report.learner, []).append(report)
    return dict(sorted(reports_of.items()))
