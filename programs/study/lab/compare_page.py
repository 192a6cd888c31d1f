"""The page of a comparison: the terminal's figures, with curves and intervals, in one file that loads nothing.

A curve is the mean over seeds at equal shares of the tokens: of the loss, and of the time and bytes that it took to get
there, so that it is one curve along each axis. Thin lines are single seeds.

A comparison on the terminal: a line while its runs are in progress, and a table of its sides.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, final

import msgspec
from markupsafe import Markup
from rich.text import Text

from isthmus.programs.engine.islands.environment import ProcessPlaces
from isthmus.programs.engine.report.charts_drawing import (
    Scale,
    drawing,
    element,
    joined,
    learner_class,
    line,
    rectangle,
    text,
)
from isthmus.programs.engine.report.charts_lines import Chart, Curve
from isthmus.programs.engine.report.page import rendered
from isthmus.programs.engine.results.lines import LOSS
from isthmus.programs.engine.results.record import between
from isthmus.programs.engine.results.words import UNKNOWN, decimal, percent, seconds, size
from isthmus.programs.study.lab.compare_outcome import (
    AXES,
    ComparedRun,
    Comparison,
    Figure,
    FigureDifference,
    Side,
)
from isthmus.programs.study.lab.compare_runs import RunEvent
from isthmus.programs.study.terminal.figures import Column, Screen, fitted
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
    """A chart of every metric that was evaluated while runs were in progress."""
    for metric in comparison.metrics:
        curves = list(_curves(comparison, metric))
        values = [value for curve in curves for value in curve.values if value is not None]
        is_logarithmic = metric == LOSS and bool(values) and 0 < _LOGARITHMIC_MIN * min(values) <= max(values)
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


_WIDE: Final = 160
"""Characters a line if the output is no terminal."""
_DISPENSABLE: Final = ("in a merge", "goodput", "merged", "sent", "time", "runs", "interval")


@final
class RunsProgress:
    """Shows the runs in progress on standard error: on a terminal in one line that changes, else in a line a run."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._begun = time.monotonic()
        self._finished = 0
        self._done = "no"

    def on_event(self, event: RunEvent | ProcessPlaces) -> None:
        """Show it."""
        if isinstance(event, ProcessPlaces):
            self._line(placed(event))
            return
        self._done = f"{event.done} of {event.many}"
        if event.failure:
            self._line(f"{event.name} failed: {event.failure}")
        elif event.summary is not None:
            self._finished += 1
            took = seconds(event.summary.get("wall_seconds"))
            loss = decimal(event.summary.get("eval_loss_final"))
            self._line(f"{event.done} of {event.many}  {event.name}: {loss}, {took}{self._left(event)}")
        elif self._is_terminal:
            share = "" if event.share is None else f" {100 * event.share:.0f} %"
            sys.stderr.write(f"\r\x1b[2K{event.done} of {event.many} runs; {event.name}{share}")
            sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def broken_off(self) -> None:
        """Print that the comparison was interrupted, and how to continue it."""
        self._line(f"{self._done} runs are done; the same command goes on with the others.")

    def _left(self, news: RunEvent) -> str:
        left = (time.monotonic() - self._begun) / self._finished * (news.many - news.done)
        return f"; about {seconds(left)} left" if left else ""

    def _line(self, text: str) -> None:
        self.clear()
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


def placed(where: ProcessPlaces) -> str:
    """The devices of runs in virtual time, in words."""
    count = len(where.environments)
    runs = "one run at a time" if count == 1 else f"{count} runs at once"
    if not where.devices:
        platform = "what JAX_PLATFORMS names" if where.platform is None else "the CPU"
        return f"Computing on {platform}, {runs}."
    kind = "GPU" if where.platform == "cuda" else "TPU chip"
    many = f"{where.devices} {kind}{'s' if where.devices > 1 else ''}"
    share = "" if where.share is None else f", each with {where.share:g} of the memory of one"
    return f"Computing on {many}, {runs}{share}. JAX_PLATFORMS=cpu has them on the CPU."


def show(comparison: Comparison, *, as_json: bool) -> None:
    """Print it."""
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(comparison), indent=2).decode() + "\n")
        return
    console = Screen()
    if not console.is_terminal:
        console.width = _WIDE
    for columns in _tables(comparison):
        console.print(fitted(columns, console.width, _DISPENSABLE))
        console.print()
    for note in notes(comparison):
        console.print(Text(note), soft_wrap=True)
    console.print(Text(f"Runs and page: {comparison.folder}"), soft_wrap=True)


def _tables(comparison: Comparison) -> Iterator[list[Column]]:
    """Two tables: the compared metrics, and the figures of the runs."""
    sides = comparison.sides
    names = Column("", [side.name for side in sides], is_text=True)
    yield [
        names,
        Column("runs", [str(len(side.runs)) for side in sides]),
        *(Column(name, [_figure(side.finals.get(name)) for side in sides]) for name in comparison.metrics),
        Column("- reference", [_mean_words(side.differences.get(LOSS)) for side in sides]),
        Column("interval", [_ends(side.differences.get(LOSS)) for side in sides]),
        *([Column("", [side.verdict or "" for side in sides])] if comparison.margin is not None else []),
    ]
    yield [
        names,
        Column("alone - this", [_mean_words(side.gain) for side in sides]),
        Column("interval", [_ends(side.gain) for side in sides]),
        Column("time", [seconds(side.seconds.mean) for side in sides]),
        Column("goodput", [_percent(side.goodput) for side in sides]),
        Column("merged", [_percent(side.merged_share) for side in sides]),
        Column("in a merge", ["" if (mean := side.contributors.mean) is None else decimal(mean, 2) for side in sides]),
        Column("sent", [size(side.bytes.mean) for side in sides]),
    ]


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
    if comparison.devices:
        yield f"Computed on {', '.join(comparison.devices)}."
    if comparison.margin is not None:
        yield f"Verdicts are against a margin of {comparison.margin:g}, given before the first run."
    if comparison.missing:
        yield f"{comparison.missing} of {many * len(comparison.sides)} runs are missing; the same command goes on."
    for side in comparison.sides:
        for run in side.runs:
            if run.remark:
                yield f"{side.name}, seed {run.seed}, is judged failed, and counts all the same: {run.remark}"


def _mean_words(gap: FigureDifference | None) -> str:
    return "" if gap is None else f"{gap.mean:+.3f}"


def _ends(gap: FigureDifference | None) -> str:
    return "" if gap is None or gap.low is None else f"{gap.low:+.3f} to {gap.high:+.3f}"


def _figure(figure: Figure | None) -> str:
    if figure is None or figure.mean is None:
        return UNKNOWN
    return decimal(figure.mean) + (f" ± {decimal(figure.deviation)}" if figure.deviation is not None else "")


def _percent(figure: Figure) -> str:
    return "" if figure.mean is None else percent(figure.mean)
