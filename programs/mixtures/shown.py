"""What mixtures of learners come to: a table, JSON, and a page beside what was published."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from isthmus.programs.charts.lines import Line, draw_lines
from isthmus.programs.mixtures.speeds import Mixed
from isthmus.programs.report.sheet import Part, Sheet
from isthmus.programs.results.numbers import percent, seconds

_COLUMNS: Final = ("case", "goodput", "published", "of merged work", "learners a merge", "virtual time")
_NOTE: Final = (
    "Goodput is the share of the learners' time in steps, as it was published; of merged work is that of summary.json, "
    "where work that was refused is not good. How much slower the slower half is was not published."
)


def as_object(found: Sequence[Mixed], slower: float) -> dict[str, Any]:
    """All figures."""
    return {"slower": slower, "cases": [asdict(each) for each in found]}


def table(found: Sequence[Mixed]) -> str:
    """A line for each case."""
    rows = [_COLUMNS, *map(_row, found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([*lines, "", _NOTE, ""])


def sheet(found: Sequence[Mixed], slower: float) -> Sheet:
    """The page."""
    lines = [Line(each.case, [(at, each.goodput)], [(at, each.published)]) for at, each in enumerate(found)]
    names = [each.case for each in found]
    drawing = draw_lines(lines, "Goodput", lambda at: names[int(at)], percent, low=0.5, high=1.0)
    lead = f"Half of the learners step at {slower:g} times the speed of the others. Virtual time; nothing was fitted."
    notes = ["Dots: whole runs of the real cores in virtual time. Rings: published in arXiv 2604.21428.", _NOTE]
    return Sheet("Mixed speeds", lead, [Part("Goodput", drawing, _COLUMNS, list(map(_row, found)), notes)])


def _row(of: Mixed) -> tuple[str, ...]:
    shares = percent(of.goodput), percent(of.published), percent(of.goodput_merged)
    return of.case, *shares, f"{of.contributors:.2f}", seconds(of.seconds)
