"""A learner's activity during an absence: its single steps where its trace is there, else its reports.

A host leaves its trace when it ends in good order. The tape of one that was killed tells nearly as much; without it its
reports give the number of its steps, not the time of each. This module also selects the parts of the run that are worth
a look.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from isthmus.programs.charts.window import Window
from isthmus.programs.results.absences import Absence
from isthmus.programs.results.progress import by_learner, unbroken
from isthmus.programs.results.record import Report, RunRecord
from isthmus.programs.results.timeline import Firing

DRAWN_ROLES: Final = ("learner", "syncer", "evaluator")
_MARGIN_SECONDS: Final = 1.5
_MARGIN_SHARE: Final = 0.4
_END_SECONDS: Final = 0.3
"""Room to the right of the last record."""
_CLOSE_STEPS: Final = 45
"""Steps of the usual length that are still distinguishable on half the width of the page."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A learner in a window: single steps that were traced, stretches known from reports only, absences."""

    slot: int
    traced: list[Firing]
    told: list[Window]
    absences: list[Absence]

    @property
    def pause_max(self) -> float | None:
        """The longest time between two traced steps, in seconds; None if there are fewer than two."""
        return max((max(later.begun - earlier.ended, 0.0) for earlier, later in pairwise(self.traced)), default=None)


def windows(record: RunRecord) -> list[tuple[Window, list[Absence]]]:
    """The parts of the run in which hosts were away, with some time before and after; those that meet are one."""
    last = _training_end(record)
    found: list[tuple[Window, list[Absence]]] = []
    for absence in record.absences:
        if absence.role not in DRAWN_ROLES or not record.is_placed or absence.begun > last:
            continue
        end = min(last if absence.ended is None else absence.ended, last)
        if end <= 0:
            continue
        margin = max(_MARGIN_SECONDS, _MARGIN_SHARE * (end - absence.begun))
        window = Window(max(0.0, absence.begun - margin), min(last, end + margin))
        if found and window.begin <= found[-1][0].end:
            before, absences = found.pop()
            window = Window(before.begin, max(before.end, window.end))
            found.append((window, [*absences, absence]))
        else:
            found.append((window, [absence]))
    return found


def close_ups(record: RunRecord, absences: Sequence[Absence]) -> list[tuple[Window, str]]:
    """The moments at which the first of `absences` of a learner or a syncer began and ended, some steps long."""
    first = next((item for item in absences if item.kind == "gone" and item.role in ("learner", "syncer")), None)
    step = _step_seconds(record)
    if first is None or step is None:
        return []
    length = _CLOSE_STEPS * step
    moments = [(first.begun, "goes")]
    if first.ended is not None and first.ended - first.begun > length:
        moments.append((first.ended, "is back"))
    name = first.host.replace("/", " ")
    return [
        (Window(max(0.0, at - length / 2), max(0.0, at - length / 2) + length), f"{name} {what}")
        for at, what in moments
    ]


def _step_seconds(record: RunRecord) -> float | None:
    """The usual duration of an inner step."""
    if record.timeline is None:
        return None
    took = [
        firing.ended - firing.begun
        for (host, node), firings in record.timeline.firings.items()
        if node == "inner-step" and host.startswith("learner/")
        for firing in firings
    ]
    return median(took) if took else None


def _training_end(record: RunRecord) -> float:
    """The time of the last record, with room: only the closing of hosts follows."""
    times = [item.time for items in (record.reports, record.merges, record.evaluations) for item in items]
    return min(record.wall_seconds, max(times, default=record.wall_seconds) + _END_SECONDS)


def steps_between(record: RunRecord, window: Window) -> list[Steps]:
    """The steps of each learner in `window`, slots in order."""
    reports = by_learner(record.reports)
    return [_steps(record, slot, reports.get(slot, []), window) for slot in record.learners]


def rate(record: RunRecord, slots: Sequence[int], begin: float, end: float) -> float | None:
    """The mean inner steps a second of one of the learners `slots` in [begin, end], traced; None without any trace."""
    if record.timeline is None or end <= begin or not slots:
        return None
    counts = [len(record.timeline.between(f"learner/{slot}", "inner-step", begin, end)) for slot in slots]
    return sum(counts) / len(slots) / (end - begin) if all(counts) else None


def _steps(record: RunRecord, slot: int, reports: Sequence[Report], window: Window) -> Steps:
    host = f"learner/{slot}"
    traced = [] if record.timeline is None else record.timeline.between(host, "inner-step", *window)
    absences = [item for item in record.absences if item.host == host and _meets(item, window)]
    stepping = [report for report in reports if report.phase == "stepping"]
    told = []
    for part in unbroken(stepping, record.wall_seconds):
        life = Window(part[0].time, _end_of(record, host, part[-1]))
        begin, end = max(life.begin, window.begin), min(life.end, window.end)
        if end > begin and not _is_traced(record, host, life):
            told.append(Window(begin, end))
    return Steps(slot, traced, told, absences)


def _end_of(record: RunRecord, host: str, last: Report) -> float:
    """The end of a stretch of reports: a killed life lived on after its last report."""
    begins = [item.begun for item in record.absences if item.host == host and item.life == last.incarnation]
    return next((begun for begun in begins if begun >= last.time), last.time)


def _is_traced(record: RunRecord, host: str, life: Window) -> bool:
    return record.timeline is not None and bool(record.timeline.between(host, "inner-step", *life))


def _meets(absence: Absence, window: Window) -> bool:
    return absence.begun <= window.end and (absence.ended is None or absence.ended >= window.begin)
