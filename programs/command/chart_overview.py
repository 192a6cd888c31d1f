"""The whole run at a glance: how fast each learner stepped, all the time.

A row per learner, its height the inner steps a second, on one scale for all. Where a learner did not step its row is
broken, and a learner that waited for the others would show the same breaks as they do.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from isthmus.programs.command.absence_words import away
from isthmus.programs.command.chart_axes import Scale, drawing, horizontal_axis, line, text
from isthmus.programs.command.chart_window import Window
from isthmus.programs.command.report_markup import Markup, element, joined, path, titled
from isthmus.programs.command.report_progress import by_learner, unbroken, while_stepping
from isthmus.programs.command.report_record import Report, RunRecord
from isthmus.programs.command.report_style import learner_class
from isthmus.programs.numbers import SPACE, decimal, seconds

_TOP: Final = 8.0
_BINS_MAX: Final = 7_000
"""Of all learners together."""


def draw_overview(record: RunRecord, window: Window | None = None, width: float = 1080) -> Markup:
    """Steps a second of each learner over the run; `window` marks what the timeline shows."""
    reports = by_learner(while_stepping(record.reports))
    height = 30.0 if len(reports) <= 8 else max(12.0, 240 / len(reports))
    left, right = 76.0, width - (96 if height >= 20 else 16)
    bottom = _TOP + height * max(len(reports), 1)
    x = Scale.over([0.0, record.wall_seconds], left, right)
    count = int(max(min((right - left) / 3, _BINS_MAX / max(len(reports), 1)), 30))
    rows = {slot: step_rates(items, record.wall_seconds, count) for slot, items in reports.items()}
    highest = max((rate for parts in rows.values() for part in parts for _, rate in part), default=1.0)
    parts = [horizontal_axis(x, _TOP, bottom, max(int(width / 130), 3), seconds)]
    for index, (slot, pieces) in enumerate(rows.items()):
        floor = _TOP + height * (index + 1) - 1
        y = Scale(0.0, highest or 1.0, floor, floor - height + 4)
        parts.append(_row(slot, pieces, x, y))
        parts.append(line(left, floor, right, floor, "grid"))
        if height >= 20 or index % 4 == 0:
            parts.append(text(left - 8, floor - min(height / 2 - 5, 10), f"learner {slot}", "end"))
        parts.extend(_deaths(record, slot, x, floor - height / 2 + 2))
        if height >= 20:
            parts.append(text(right + 8, floor - 9, f"{decimal(_mean(reports[slot]), 1)}{SPACE}steps/s"))
    if window is not None:
        span = max(x(window.end) - x(window.begin), 3)
        box = {"x": x(window.begin), "y": _TOP - 5, "width": span, "height": bottom - _TOP + 8}
        parts.append(element("rect", titled("the part that the timeline above shows"), class_="window", **box))
    label = f"Inner steps a second of {len(reports)} learners over {record.wall_seconds:.0f} s"
    return drawing(width, bottom + 24, label, *parts)


def step_rates(reports: Sequence[Report], wall_seconds: float, count: int) -> list[list[tuple[float, float]]]:
    """(time, inner steps a second) at up to `count` places, in parts between which the learner did not step."""
    found = []
    for part in unbroken(reports, wall_seconds):
        begin, end = part[0].time, part[-1].time
        if end <= begin:
            continue
        bins = max(1, min(round(count * (end - begin) / max(wall_seconds, end)), len(part) - 1))
        edges = [begin + (end - begin) * index / bins for index in range(bins + 1)]
        steps = [_steps_at(part, edge) for edge in edges]
        wide = (end - begin) / bins
        rates = [max(later - earlier, 0.0) / wide for earlier, later in pairwise(steps)]
        found.append([(begin, rates[0]), *((edge + wide / 2, rate) for edge, rate in zip(edges, rates, strict=False))])
        found[-1].append((end, rates[-1]))
    return found


def _steps_at(part: Sequence[Report], time: float) -> float:
    """The learner's step at `time`, between two reports in proportion."""
    after = min(max(bisect_right(part, time, key=lambda report: report.time), 1), len(part) - 1)
    earlier, later = part[after - 1], part[after]
    if later.time <= earlier.time:
        return later.step
    share = min(max((time - earlier.time) / (later.time - earlier.time), 0.0), 1.0)
    return earlier.step + share * (later.step - earlier.step)


def _row(slot: int, pieces: Sequence[Sequence[tuple[float, float]]], x: Scale, y: Scale) -> Markup:
    drawn = []
    for piece in pieces:
        outline = [(x(piece[0][0]), y(0.0)), *((x(time), y(rate)) for time, rate in piece), (x(piece[-1][0]), y(0.0))]
        drawn.append(path(outline) + "Z")
    if not drawn:
        return Markup()
    return joined([element("path", titled(f"learner {slot}"), d="".join(drawn), class_=f"rate {learner_class(slot)}")])


def _deaths(record: RunRecord, slot: int, x: Scale, middle: float) -> Iterator[Markup]:
    """A cross where a life of the learner ended before its time."""
    for absence in record.absences:
        if absence.host == f"learner/{slot}" and absence.kind == "gone" and 0 <= absence.begun <= x.high:
            d = f"M{x(absence.begun) - 4:.1f} {middle - 4:.1f}l8 8m0-8l-8 8"
            told = f"{away(absence, record.waiting)}, at {seconds(absence.begun)}"
            yield element("path", titled(told), d=d, class_="cross")


def _mean(reports: Sequence[Report]) -> float | None:
    """Steps a second from the first report to the last, pauses included."""
    time = reports[-1].time - reports[0].time
    # An incarnation may count its steps anew, so only what was gained is added up.
    gained = sum(max(later.step - earlier.step, 0.0) for earlier, later in pairwise(reports))
    return gained / time if time > 0 else None
