"""The curves of a run as data, which a script in the page draws: a list of charts, each a list of named curves.

A curve has a value for each of its places, and two coordinates of a place: the tokens that all learners had trained,
and seconds since the first inner step. Learners' reports are drawn as means over equal stretches of time, each smoothed
with its two neighbours, so a curve neither lags nor shows a single batch. A curve is broken (None) where the learner
did not step, or the evaluator was away. Each scalar that a task reports beside its loss has a chart.

Lines over numbers that people choose: chips, learners, speeds. Points of another source may stand beside a line.

Horizontal places are either even, in the order of their values, or to scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias, final

import msgspec
from markupsafe import Markup

from isthmus.programs.engine.results.absences import Absence, named
from isthmus.programs.engine.results.crowd import QUANTILES, ROWS_MAX, looked_for, quantile
from isthmus.programs.engine.results.lines import LOSS, ReportLine
from isthmus.programs.engine.results.record import (
    RunRecord,
    TokenProgress,
    as_number,
    by_learner,
    unbroken,
    while_stepping,
)
from isthmus.programs.wings.report.charts_drawing import (
    Scale,
    drawing,
    element,
    learner_class,
    line,
    path,
    text,
    titled,
)
from isthmus.programs.wings.report.charts_timeline import TimeWindow

Place: TypeAlias = tuple[float, float]
"""Seconds, and a value there."""

_PLACES_MAX: Final = 5_000
"""Points of all curves of a chart together, so that the page stays small for any number of learners."""
_STRETCHES_MAX: Final = 150
_PACE_STRETCHES_MAX: Final = 60
"""Reports follow whole steps, so a pace over few of them jumps."""
_BANDS_MAX: Final = 50
_LOGARITHMIC_MIN: Final = 2.0
"""Ratio of the largest value to the smallest from which a logarithmic axis shows more than a linear one."""


class Curve(msgspec.Struct, frozen=True):
    """One line: `values` at `tokens`, `time` and, if given, `bytes`, in the colour of a class; `is_main` is drawn bold,
    with dots."""

    name: str
    colour: str
    tokens: list[float]
    time: list[float]
    values: list[float | None]
    is_main: bool = False
    bytes: list[float] = []


class Band(msgspec.Struct, frozen=True):
    """A part of the run that is marked: (begin, end) in tokens and in seconds."""

    name: str
    colour: str
    tokens: tuple[float, float]
    time: tuple[float, float]


class Chart(msgspec.Struct, frozen=True):
    """Curves on one pair of axes; that of values spans what was measured, or `begins_at_zero` where that is near."""

    name: str
    title: str
    curves: list[Curve]
    bands: list[Band]
    is_logarithmic: bool = False
    begins_at_zero: bool = False


def charts(record: RunRecord, window: TimeWindow | None, metrics_max: int | None = None) -> list[Chart]:
    """Every chart of curves that has any, in the order in which they are shown; `window` is marked in the last. At most
    so many are of scalars beside the loss."""
    metrics = record.metrics[:metrics_max]
    scalars = [_scalar(record, LOSS, "Loss"), *(_scalar(record, name, name) for name in metrics)]
    every = [*scalars, _paces(record, window)]
    return [chart for chart in every if chart.curves]


def reported(
    record: RunRecord, places: Callable[[Sequence[ReportLine]], list[Place]], stretches_max: int = _STRETCHES_MAX
) -> list[Curve]:
    """A curve for each learner: `places` takes an unbroken part of its reports to times and values.

    Of many, quantiles over all at each time, and the curves of those that are looked for.
    """
    at = TokenProgress(record.reports).at
    reports = by_learner(while_stepping(record.reports))
    count = max(min(stretches_max, _PLACES_MAX // max(len(reports), 1)), 8)
    stretch = max((report.time for report in record.reports), default=0.0) / count
    curves = list[Curve]()
    if len(reports) > ROWS_MAX:
        curves += _of_all(record, reports, places, stretch)
        shown = slots_shown(record)
        reports = {slot: items for slot, items in reports.items() if slot in shown}
    for slot, items in reports.items():
        parts = (_smoothed(_means(places(part), stretch)) for part in unbroken(items, record.wall_seconds))
        pieces = [[(at(time), time, value) for time, value in part] for part in parts if part]
        if pieces:
            curves.append(_curve(f"learner {slot}", learner_class(slot), pieces))
    return curves


def slots_shown(record: RunRecord) -> list[int]:
    """The learners of a run that are shown one by one: all, or those that are looked for."""
    slow, lost = learner_figures(record)
    restarts = {int(row["learner"]): as_number(row.get("restarts")) for row in record.per_learner}
    states = {slot: "restarted" if restarts.get(slot) else "" for slot in record.learners}
    return looked_for(states, slow, lost)


def learner_figures(record: RunRecord) -> tuple[dict[int, float | None], dict[int, float | None]]:
    """By slot the seconds of a step, breaks included, and the share of its tokens that is lost; None: not known."""
    newest = {report.learner: report for report in record.reports if report.step}
    slow: dict[int, float | None] = {slot: report.time / (report.step or 1) for slot, report in newest.items()}
    lost: dict[int, float | None] = {}
    for row in record.per_learner:
        slot, steps = int(row["learner"]), as_number(row.get("steps"))
        gone, tokens = as_number(row.get("tokens_lost")), as_number(row.get("tokens"))
        slow[slot] = record.wall_seconds / steps if steps else slow.get(slot)
        lost[slot] = gone / tokens if gone is not None and tokens else None
    return slow, lost


def _of_all(
    record: RunRecord,
    reports: Mapping[int, Sequence[ReportLine]],
    places: Callable[[Sequence[ReportLine]], list[Place]],
    stretch: float,
) -> Iterator[Curve]:
    """A curve for each of the quantiles of all learners, at the middle of each stretch of time."""
    at, values = TokenProgress(record.reports).at, dict[int, list[float]]()
    for items in reports.values():
        for part in unbroken(items, record.wall_seconds):
            for time, value in _means(places(part), stretch):
                values.setdefault(int(time / stretch) if stretch > 0 else 0, []).append(value)
    for index, (share, title) in enumerate(QUANTILES):
        middles = [((number + 0.5) * stretch, quantile(each, share)) for number, each in sorted(values.items())]
        piece = [(at(time), time, value) for time, value in middles if value is not None]
        if piece:
            yield _curve(title, learner_class(index), [piece])


def step_rates(part: Sequence[ReportLine]) -> list[Place]:
    """Inner steps a second between each two reports of one life."""
    return [
        ((earlier.time + later.time) / 2, max(later.step - earlier.step, 0.0) / (later.time - earlier.time))
        for earlier, later in pairwise([report for report in part if report.step is not None])
        if later.time > earlier.time and later.step is not None and earlier.step is not None
    ]


def _scalar(record: RunRecord, name: str, title: str) -> Chart:
    """A scalar of each learner in training, and of the global model on held-out data."""

    def places(part: Sequence[ReportLine]) -> list[Place]:
        return [(report.time, value) for report in part if (value := report.of(name)) is not None]

    # The last curve is drawn above the others.
    curves = [*reported(record, places), *evaluated(record, name, "global model, held-out data", "accent")]
    bands = [_band(record, item, "evaluator away") for item in _evaluator_away(record)]
    return metric_chart(name, title, curves, bands[:_BANDS_MAX])


def metric_chart(name: str, title: str, curves: list[Curve], bands: list[Band]) -> Chart:
    """The chart of a metric; that of a loss which falls far is logarithmic."""
    values = [value for curve in curves for value in curve.values if value is not None]
    is_logarithmic = name == LOSS and bool(values) and 0 < _LOGARITHMIC_MIN * min(values) <= max(values)
    return Chart("loss" if name == LOSS else f"metric {name}", title, curves, bands, is_logarithmic)


def _paces(record: RunRecord, window: TimeWindow | None) -> Chart:
    """The pace of each learner: one that waited for the others would show their breaks."""
    gone = [item for item in record.absences if item.role == "learner" and item.kind == "gone" and item.begun >= 0]
    bands = [_band(record, item, f"{named(item.host)} away") for item in gone[:_BANDS_MAX]] if record.is_placed else []
    if window is not None:
        at = TokenProgress(record.reports).at
        bands.append(Band("drawn below", "window", (at(window.begin), at(window.end)), window))
    return Chart(
        "pace", "Inner steps a second", reported(record, step_rates, _PACE_STRETCHES_MAX), bands, begins_at_zero=True
    )


def evaluated(record: RunRecord, name: str, label: str, colour: str, *, is_main: bool = True) -> Iterator[Curve]:
    """The curve of the global model, broken where the evaluator was away; none before the first evaluation."""
    gaps = _evaluator_away(record)
    pieces: list[list[tuple[float, float, float]]] = [[]]
    for item in record.evaluations:
        value = item.of(name)
        if value is None:
            continue
        before = pieces[-1][-1][1] if pieces[-1] else item.time
        if any(gap.begun < item.time and (gap.ended is None or gap.ended > before) for gap in gaps) and pieces[-1]:
            pieces.append([])
        pieces[-1].append((item.tokens, item.time, value))
    if pieces[0]:
        yield _curve(label, colour, pieces, is_main=is_main)


def _evaluator_away(record: RunRecord) -> list[Absence]:
    return [item for item in record.absences if item.role == "evaluator" and item.kind == "gone"]


def _band(record: RunRecord, absence: Absence, name: str) -> Band:
    at = TokenProgress(record.reports).at
    end = record.wall_seconds if absence.ended is None else absence.ended
    return Band(name, "missing", (at(absence.begun), at(end)), (absence.begun, end))


def _curve(
    name: str, colour: str, pieces: Sequence[list[tuple[float, float, float]]], *, is_main: bool = False
) -> Curve:
    """The curve of pieces of (tokens, time, value), with None between each two; five digits of a value are kept."""
    curve = Curve(name, colour, [], [], [], is_main)
    for piece in pieces:
        if curve.values:
            curve.tokens.append(round((curve.tokens[-1] + piece[0][0]) / 2))
            curve.time.append(round((curve.time[-1] + piece[0][1]) / 2, 4))
            curve.values.append(None)
        curve.tokens.extend(round(tokens) for tokens, _, _ in piece)
        curve.time.extend(round(time, 4) for _, time, _ in piece)
        curve.values.extend(float(f"{value:.5g}") for _, _, value in piece)
    return curve


def _means(places: Sequence[Place], stretch: float) -> list[Place]:
    """The mean place of every stretch that has any."""
    stretches: dict[int, list[Place]] = {}
    for time, value in places:
        stretches.setdefault(int(time / stretch) if stretch > 0 else 0, []).append((time, value))
    return [
        (sum(time for time, _ in members) / len(members), sum(value for _, value in members) / len(members))
        for _, members in sorted(stretches.items())
    ]


def _smoothed(places: Sequence[Place]) -> list[Place]:
    """Each place with half the weight of its neighbours: reports are means over few batches, and noisy."""
    if len(places) < 3:
        return list(places)
    inner = [
        (time, (before + 2 * value + after) / 4)
        for (_, before), (time, value), (_, after) in zip(places, places[1:], places[2:], strict=False)
    ]
    return [places[0], *inner, places[-1]]


_WIDTH: Final = 1080
_HEIGHT: Final = 420
_LEFT: Final = 56
_RIGHT: Final = 210
_TOP: Final = 18
_BOTTOM: Final = 44
_LABEL: Final = 14
"""Minimum distance of two names at the right."""


@final
@dataclass(frozen=True, slots=True)
class ChartLine:
    """A named line through (place, value); `beside` are the points of another source, drawn as rings."""

    name: str
    points: Sequence[tuple[float, float]]
    beside: Sequence[tuple[float, float]] = ()


def draw_lines(
    lines: Sequence[ChartLine],
    label: str,
    places: Callable[[float], str],
    values: Callable[[float], str],
    *,
    low: float | None = None,
    high: float | None = None,
) -> Markup:
    """The chart, called `label`; `places` and `values` write the numbers of the axes. Places lie evenly."""
    all_places = sorted({place for each in lines for place, _ in (*each.points, *each.beside)})
    along = Scale(0, max(len(all_places) - 1, 1), _LEFT, _WIDTH - _RIGHT)
    across = {place: along(at) for at, place in enumerate(all_places)}
    ends = [end for end in (low, high) if end is not None]
    every = [value for each in lines for _, value in (*each.points, *each.beside)]
    up = Scale.over([*every, *ends], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        line(_LEFT, up(tick), along.stop, up(tick), "grid") + text(_LEFT - 8, up(tick) + 4, values(tick), "end")
        for tick in up.ticks(8)
    ]
    parts += [text(x, _HEIGHT - _BOTTOM + 22, places(place), "mid") for place, x in across.items()]
    free = 0.0
    for height, index in sorted((up(each.points[-1][1]), index) for index, each in enumerate(lines) if each.points):
        free = max(free, height)  # From the top, so that no names overlap.
        parts.append(text(along.stop + 14, free + 4, lines[index].name, "name", "chip", learner_class(index)))
        free += _LABEL
    for index, each in enumerate(lines):
        at = [(across[place], up(value)) for place, value in each.points]
        if len(at) > 1:
            parts.append(element("path", d=path(at), class_=f"{learner_class(index)} series"))
        for points, name, radius, class_ in (
            (each.points, each.name, 2.6, "step"),
            (each.beside, f"{each.name}, published", 5.5, "ring"),
        ):
            parts += [
                element(
                    "circle",
                    titled(f"{name}: {values(value)}"),
                    cx=across[place],
                    cy=up(value),
                    r=radius,
                    class_=f"{learner_class(index)} {class_}",
                )
                for place, value in points
            ]
    return drawing(_WIDTH, _HEIGHT, label, *parts)
