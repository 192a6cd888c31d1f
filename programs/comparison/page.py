"""The page of a comparison: the terminal's figures, with curves and intervals, in one file that loads nothing.

A curve is the mean over seeds at equal shares of the tokens: of the loss, and of the time and bytes that it took to get
there, so that it is one curve along each axis. Thin lines are single seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from markupsafe import Markup

from isthmus.programs.charts.axes import Scale, drawing, line, rectangle, text
from isthmus.programs.charts.curves import Chart, Curve
from isthmus.programs.charts.markup import element, joined
from isthmus.programs.charts.style import learner_class
from isthmus.programs.comparison.measured import AXES, Run, between
from isthmus.programs.comparison.outcome import Comparison, Side
from isthmus.programs.comparison.statistics import Difference
from isthmus.programs.report.page import rendered
from isthmus.programs.results.record import LOSS
from isthmus.runtime.system.files import write_bytes

PAGE: Final = "compare.html"
_SHARES: Final = [share / 40 for share in range(41)]
"""Twice as many as a run has evaluations."""
_CURVES_MAX: Final = 40
"""Curves of a chart; with more only means are drawn."""
_LOGARITHMIC_MIN: Final = 2.0
_WIDTH: Final = 1080.0
_ROW: Final = 26.0
_NAMES: Final = 330.0
"""Pixels for the names of sides."""


def write_page(folder: Path, comparison: Comparison, notes: Sequence[str]) -> Path:
    """Write the page into the folder of a comparison, whole or not at all, and return its path."""
    path = folder / PAGE
    values: dict[str, Any] = {
        "comparison": comparison,
        "notes": notes,
        "charts": list(charts(comparison)),
        "intervals": intervals(comparison),
        "axes": AXES,
        "loss": LOSS,
        "reports": [
            (side.name, run, os.path.join(run.folder, "report.html")) for side in comparison.sides for run in side.runs
        ],
    }
    write_bytes(path, rendered("comparison.html", **values).encode("utf-8"))
    return path


def charts(comparison: Comparison) -> Iterator[Chart]:
    """A chart of every metric that was evaluated while runs went on."""
    for metric in comparison.metrics:
        curves = list(_curves(comparison, metric))
        known = [value for curve in curves for value in curve.values if value is not None]
        is_logarithmic = metric == LOSS and bool(known) and 0 < _LOGARITHMIC_MIN * min(known) <= max(known)
        if curves:
            title = "Loss on held-out data" if metric == LOSS else f"{metric}, on held-out data"
            yield Chart(f"metric {metric}", title, curves, [], is_logarithmic)


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
            yield _mean(side, colour, runs, metric)


def _colour(index: int, side: Side) -> str:
    return "muted" if side.is_control else learner_class(index)


def _mean(side: Side, colour: str, runs: Sequence[Run], metric: str) -> Curve:
    """The mean over seeds at equal shares of the tokens."""
    values, along = list[float](), [list[float]() for _ in AXES]
    known = [[place for place in run.places if metric in place.values] for run in runs]
    for share in _SHARES:
        ats = [share * places[-1].tokens for places in known]
        values.append(_averaged(known, ats, lambda place: place.values[metric]))
        for index, axis in enumerate(AXES):
            along[index].append(_averaged(known, ats, lambda place, axis=axis: place.at(axis)))
    return _curve(side.name, colour, along, values, is_main=True)


def _averaged(known: Sequence[Sequence[Any]], ats: Sequence[float], of: Any) -> float:
    return fmean(
        between([(place.tokens, of(place)) for place in places], at) for places, at in zip(known, ats, strict=True)
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
        (side, found, _colour(index, side))
        for index, side in enumerate(comparison.sides)
        if (found := side.differences.get(LOSS)) is not None
    ]
    if not rows:
        return None
    margin = comparison.margin
    ends = [end for _, found, _ in rows for end in (found.mean, found.low, found.high) if end is not None]
    scale = Scale.over([0.0, *ends, *([] if margin is None else [-margin, margin])], _NAMES, _WIDTH - 30)
    height = _ROW * len(rows) + 40
    parts = []
    if margin is not None:
        box = (scale(-margin), 8.0, scale(margin) - scale(-margin), height - 40)
        parts.append(rectangle(*box, "band", f"the margin, {margin:g}"))
    for value in scale.ticks(8):
        parts.append(line(scale(value), 8, scale(value), height - 32, "grid"))
        parts.append(text(scale(value), height - 14, f"{value:+.3g}", "mid"))
    for row, (side, found, colour) in enumerate(rows):
        parts.append(element("g", _interval(side, found, scale, 8 + _ROW * (row + 0.5)), class_=colour))
    return drawing(_WIDTH, height, f"differences of the loss from {comparison.reference}", *parts)


def _interval(side: Side, found: Difference, scale: Scale, y: float) -> Markup:
    told = f"{side.name}: {found.mean:+.4f}"
    parts = [text(0, y + 4, side.name, "name")]
    if found.low is not None and found.high is not None:
        told += f", from {found.low:+.4f} to {found.high:+.4f}"
        parts.append(rectangle(scale(found.low), y - 2, scale(found.high) - scale(found.low), 4, "chip", told))
    parts.append(rectangle(scale(found.mean) - 4, y - 7, 8, 14, "chip", told))
    return joined(parts)
