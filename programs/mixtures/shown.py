"""The results of mixtures of learners: a table, JSON, and a page beside the published figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from isthmus.programs.charts.lines import Line, draw_lines
from isthmus.programs.mixtures.borrowed import Borrowed
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
    return _lines(_COLUMNS, list(map(_row, found)), _NOTE)


def sheet(found: Sequence[Mixed], slower: float) -> Sheet:
    """The page."""
    lines = [Line(each.case, [(at, each.goodput)], [(at, each.published)]) for at, each in enumerate(found)]
    drawing = draw_lines(lines, "Goodput", lambda at: str(int(at) + 1), percent, low=0.5, high=1.0)
    lead = f"Half of the learners step at {slower:g} times the speed of the others. Virtual time."
    notes = ["Dots: whole runs of the real cores in virtual time. Rings: published in arXiv 2604.21428.", _NOTE]
    return Sheet("Mixed speeds", lead, [Part("Goodput", drawing, _COLUMNS, list(map(_row, found)), notes)])


def _row(of: Mixed) -> tuple[str, ...]:
    shares = percent(of.goodput), percent(of.published), percent(of.goodput_merged)
    return of.case, *shares, f"{of.contributors:.2f}", seconds(of.seconds)


_BORROWED: Final = ("more learners", "time to finish", "if joining cost nothing", "published", "their tokens")
_HALF: Final = (
    "Time to finish the same tokens, against the run without them. The borrowed learners join when half of that time "
    "has passed, and stay. When they were borrowed was not published."
)


def borrowed_object(found: Sequence[Borrowed]) -> dict[str, Any]:
    """All figures."""
    return {"cases": [asdict(each) for each in found]}


def borrowed_table(found: Sequence[Borrowed]) -> str:
    """A line for each case."""
    return _lines(_BORROWED, list(map(_borrowed_row, found)), _HALF)


def borrowed_sheet(found: Sequence[Borrowed]) -> Sheet:
    """The page."""
    ours, theirs = [(each.more, each.time) for each in found], [(each.more, each.published) for each in found]
    ring = [(each.more, each.published_data_parallel) for each in found]
    lines = [Line("decoupled-diloco", ours, theirs), Line("data-parallel (published)", ring)]
    drawing = draw_lines(lines, "Time to finish", lambda more: f"+{percent(more)}", lambda time: f"{time:.2f}", low=0.5)
    notes = ["Dots: whole runs of the real cores in virtual time. Rings: published in arXiv 2604.21428.", _HALF]
    part = Part("Time to finish", drawing, _BORROWED, list(map(_borrowed_row, found)), notes)
    return Sheet("Borrowed compute", "Learners that join half-way. Virtual time.", [part])


def _borrowed_row(of: Borrowed) -> tuple[str, ...]:
    return f"+{percent(of.more)}", f"{of.time:.3f}", f"{of.limit:.3f}", f"{of.published:.2f}", percent(of.share)


def _lines(columns: Sequence[str], rows: Sequence[Sequence[str]], note: str) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in (columns, *rows)]
    return "\n".join([*lines, "", note, ""])
