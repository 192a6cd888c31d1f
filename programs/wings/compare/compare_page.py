"""The result of a comparison: its tables, and its page with curves and intervals, one file that loads nothing.

A curve is the mean over seeds at equal shares of the tokens: of the loss, and of the time and bytes that it took to get
there, so that it is one curve along each axis. Thin lines are single seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any, Final

from markupsafe import Markup

from isthmus.programs.engine.results.lines import LOSS
from isthmus.programs.engine.results.record import between
from isthmus.programs.engine.results.words import UNKNOWN, decimal, percent, seconds, size
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.programs.wings.compare.compare_outcome import (
    AXES,
    ComparedRun,
    Comparison,
    Figure,
    FigureDifference,
    Side,
    is_loss,
)
from isthmus.programs.wings.report.charts_drawing import (
    Scale,
    drawing,
    element,
    joined,
    learner_class,
    line,
    rectangle,
    text,
)
from isthmus.programs.wings.report.charts_lines import Chart, Curve, metric_chart
from isthmus.programs.wings.report.page import REPORT

PAGE: Final = "compare.html"
_SHARES: Final = [share / 40 for share in range(41)]
"""Twice as many as a run has evaluations."""
_CURVES_MAX: Final = 40
"""Curves of a chart; with more only means are drawn."""
_WIDTH: Final = 1080.0
_ROW: Final = 26.0
_NAMES: Final = 330.0
"""Pixels for the names of sides."""
_DISPENSABLE: Final = ("in a merge", "goodput", "merged", "sent", "time", "runs", "interval")
_INTERVALS: Final = "Squares are means of differences paired by seed, bars their 95 % intervals{}. Left is better."
_CURVES: Final = (
    "Bold curves are means over seeds at equal shares of the tokens, thin ones single seeds. Bytes are those that "
    "learners handed over, and received where there is a syncer. Learning rates fall with the tokens: on the way no "
    "model is what it would be if its run were to end there. Drag to zoom; a double click shows all again."
)
_EQUAL: Final = "Loss minus that of the reference, where the one of the two that came less far ended."


def sheet(comparison: Comparison) -> Sheet:
    """The result, all figures of which are the comparison itself."""
    sides, loss = comparison.sides, LOSS
    verdicts = ("verdict",) if comparison.margin is not None else ()
    of_sides = [
        (
            side.name,
            str(len(side.runs)),
            _figure(side.finals.get(loss)),
            "reference" if side.name == comparison.reference else _mean_words(side.differences.get(loss)),
            _ends(side.differences.get(loss)),
            *(side.verdict or "" for _ in verdicts),
        )
        for side in sides
    ]
    of_runs = [
        (
            side.name,
            _mean_words(side.gain),
            _ends(side.gain),
            seconds(side.seconds.mean),
            percent(side.goodput.mean),
            percent(side.merged_share.mean),
            decimal(side.contributors.mean, 2),
            size(side.bytes.mean),
        )
        for side in sides
    ]
    differences = "side", "runs", loss, "- reference", "interval", *verdicts
    tables = [
        table(differences, of_sides, _DISPENSABLE),
        table(
            ("side", "alone - this", "interval", "time", "goodput", "merged", "in a merge", "sent"),
            of_runs,
            _DISPENSABLE,
        ),
    ]
    if others := _by_figure(comparison):
        tables.insert(1, table(("side", "figure", "mean", "- reference", "interval", "verdict"), others, ("interval",)))
    parts = [PageSection("What came of it", tables, list(notes(comparison)))]
    drawn = list(charts(comparison))
    if (drawing := intervals(comparison)) is not None:
        title = f"Loss minus that of {comparison.reference}"
        band = "; the shaded band is the margin" if comparison.margin is not None else ""
        parts.append(PageSection(title, drawing=drawing, caption=_INTERVALS.format(band), is_detail=True))
    if drawn:
        equal = [
            (side.name, *(_difference(side.at_equal.get(axis)) for axis in AXES)) for side in sides if side.at_equal
        ]
        at_equal = table(("side", *(f"equal {axis}" for axis in AXES)), equal)
        parts += [
            PageSection("On the way", (), [_CURVES], charts=drawn, axes=AXES, is_detail=True),
            PageSection("At equal tokens, time and bytes", [at_equal], [_EQUAL], is_detail=True),
        ]
    links = [
        (f"{side.name}, seed {run.seed}", os.path.join(run.folder, REPORT), f": {decimal(run.finals.get(loss))}")
        for side in sides
        for run in side.runs
    ]
    missing = (
        f"{comparison.missing} of {len(comparison.seeds) * len(sides)} runs are missing; the same command goes on."
    )
    return Sheet(
        "Comparison",
        " \u00b7 ".join(side.name for side in sides if not side.is_control),
        [*parts, PageSection("Runs", links=links, is_detail=True)],
        comparison,
        missing if comparison.missing else "",
    )


def _by_figure(comparison: Comparison) -> list[tuple[str, ...]]:
    """A row for each side and each scalar of its final model beside the loss."""
    return [
        (
            side.name,
            name,
            _figure(side.finals.get(name)),
            "reference" if side.name == comparison.reference else _mean_words(side.differences.get(name)),
            _ends(side.differences.get(name)),
            side.verdicts.get(name, ""),
        )
        for name in comparison.metrics
        if name != LOSS
        for side in comparison.sides
        if name in side.finals
    ]


def charts(comparison: Comparison) -> Iterator[Chart]:
    """A chart of every metric that was evaluated while runs were in progress."""
    for metric in comparison.metrics:
        if curves := list(_curves(comparison, metric)):
            title = "Loss on held-out data" if metric == LOSS else f"{metric}, on held-out data"
            yield metric_chart(metric, title, curves, [])


def _curves(comparison: Comparison, metric: str) -> Iterator[Curve]:
    has_seeds = sum(len(side.runs) + 1 for side in comparison.sides) <= _CURVES_MAX
    for index, side in enumerate(comparison.sides):
        colour = _colour(index, side)
        runs = [run for run in side.runs if any(metric in place.values for place in run.places)]
        if has_seeds and len(runs) > 1:
            for run in runs:
                places = [place for place in run.places if metric in place.values]
                values = [place.values[metric] for place in places]
                along = [[place.at(axis) for place in places] for axis in AXES]
                yield _curve(f"{side.name}, seed {run.seed}", colour, along, values, is_main=False)
        if runs:
            yield _mean_curve(side, colour, runs, metric)


def _colour(index: int, side: Side) -> str:
    return "muted" if side.is_control else learner_class(index)


def _mean_curve(side: Side, colour: str, runs: Sequence[ComparedRun], metric: str) -> Curve:
    """The mean over seeds at equal shares of the tokens."""
    values, along = list[float](), [list[float]() for _ in AXES]
    places_of_runs = [[place for place in run.places if metric in place.values] for run in runs]
    for share in _SHARES:
        ats = [share * places[-1].tokens for places in places_of_runs]
        values.append(_averaged(places_of_runs, ats, lambda place: place.values[metric]))
        for index, axis in enumerate(AXES):
            along[index].append(_averaged(places_of_runs, ats, lambda place, axis=axis: place.at(axis)))
    return _curve(side.name, colour, along, values, is_main=True)


def _averaged(places_of_runs: Sequence[Sequence[Any]], ats: Sequence[float], of: Any) -> float:
    return fmean(
        between([(place.tokens, of(place)) for place in places], at)
        for places, at in zip(places_of_runs, ats, strict=True)
    )


def _curve(name: str, colour: str, along: Sequence[list[float]], values: Sequence[float], *, is_main: bool) -> Curve:
    """Five digits of a value are kept."""
    tokens, time, moved = along
    return Curve(
        name,
        colour,
        [round(at) for at in tokens],
        [round(at, 4) for at in time],
        [float(f"{value:.5g}") for value in values],
        is_main,
        [round(at) for at in moved],
    )


def intervals(comparison: Comparison) -> Markup | None:
    """The differences of losses from the reference, each with its interval, and the margin; None without any."""
    rows = [
        (side, gap, _colour(index, side))
        for index, side in enumerate(comparison.sides)
        if (gap := side.differences.get(LOSS)) is not None
    ]
    if not rows:
        return None
    margin = comparison.margin
    ends = [end for _, gap, _ in rows for end in (gap.mean, gap.low, gap.high) if end is not None]
    scale = Scale.over([0.0, *ends, *([] if margin is None else [-margin, margin])], _NAMES, _WIDTH - 30)
    height = _ROW * len(rows) + 40
    parts = []
    if margin is not None:
        box = (scale(-margin), 8.0, scale(margin) - scale(-margin), height - 40)
        parts.append(rectangle(*box, "band", f"the margin, {margin:g}"))
    for value in scale.ticks(8):
        parts.append(line(scale(value), 8, scale(value), height - 32, "grid"))
        parts.append(text(scale(value), height - 14, f"{value:+.3g}", "mid"))
    for row, (side, gap, colour) in enumerate(rows):
        parts.append(element("g", _interval(side, gap, scale, 8 + _ROW * (row + 0.5)), class_=colour))
    return drawing(_WIDTH, height, f"differences of the loss from {comparison.reference}", *parts)


def _interval(side: Side, gap: FigureDifference, scale: Scale, y: float) -> Markup:
    title = f"{side.name}: {gap.mean:+.4f}"
    parts = [text(0, y + 4, side.name, "name")]
    if gap.low is not None and gap.high is not None:
        title += f", from {gap.low:+.4f} to {gap.high:+.4f}"
        parts.append(rectangle(scale(gap.low), y - 2, scale(gap.high) - scale(gap.low), 4, "chip", title))
    parts.append(rectangle(scale(gap.mean) - 4, y - 7, 8, 14, "chip", title))
    return joined(parts)


def notes(comparison: Comparison) -> Iterator[str]:
    """The meaning of the columns, and missing runs."""
    clock = "real time" if comparison.clock == "real" else "virtual time"
    speeds = f" at speeds {', '.join(f'{speed:g}' for speed in comparison.speeds)}" if comparison.speeds else ""
    many = len(comparison.seeds)
    yield (
        f"{comparison.tokens:,} tokens, {many} seed{'s' if many > 1 else ''}, {clock}{speeds}. Means ± standard "
        "deviations over seeds; differences are paired by seed, with 95 % intervals of Student's t."
    )
    yield f"The reference is {comparison.reference}; alone is one learner on its share of the tokens."
    if evaluated := _evaluated_on(comparison):
        yield evaluated
    if comparison.devices:
        yield f"Computed on {', '.join(comparison.devices)}."
    if comparison.margin is not None:
        yield f"Verdicts are against a margin of {comparison.margin:g}, given before the first run."
    if any(not is_loss(name) for side in comparison.sides for name in side.verdicts):
        yield (
            "Figures that a task has of its final models are better or worse where the whole interval is, by what the "
            "task says is better; no margin is taken."
        )
    for side in comparison.sides:
        for run in side.runs:
            if run.remark:
                yield f"{side.name}, seed {run.seed}, is judged failed, and counts all the same: {run.remark}"


def _evaluated_on(comparison: Comparison) -> str:
    """What all final models were evaluated on, and the error that this leaves; '' if that is not known."""
    runs = [run for side in comparison.sides for run in side.runs]
    extracts = {run.windows for run in runs}
    errors = [run.error for run in runs if run.error is not None]
    windows = extracts.pop() if len(extracts) == 1 else None
    on = "" if windows is None else f" on the same {windows[0]:,} of {windows[1]:,} held-out windows"
    error = f", whose losses have a standard error of {decimal(max(errors))} at most" if errors else ""
    end = ": what differs between texts is in all sides alike" if errors else ""
    return f"Final models are evaluated{on}{error}{end}." if on or error else ""


def _mean_words(gap: FigureDifference | None) -> str:
    return "" if gap is None else f"{gap.mean:+.3f}"


def _ends(gap: FigureDifference | None) -> str:
    return "" if gap is None or gap.low is None else f"{gap.low:+.3f} to {gap.high:+.3f}"


def _figure(figure: Figure | None) -> str:
    if figure is None or figure.mean is None:
        return UNKNOWN
    return decimal(figure.mean) + (f" ± {decimal(figure.deviation)}" if figure.deviation is not None else "")


def _difference(gap: FigureDifference | None) -> str:
    return f"{_mean_words(gap)} ({_ends(gap)})" if _ends(gap) else _mean_words(gap)
