"""Cells as a table of text, as JSON, and as a page with a drawing, beside the published figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any, Final

from isthmus.programs.charts.lines import Line, draw_lines
from isthmus.programs.goodput.cells import TERMS, Cell
from isthmus.programs.report.sheet import Part, Sheet
from isthmus.programs.results.numbers import percent, scaled

SOURCE: Final = "arXiv 2604.21428"
CALIBRATED: Final = (
    f"The terms of the model are calibrated to the cells published in {SOURCE}: agreement with those is no prediction."
)


def as_object(cells: Sequence[Cell]) -> dict[str, Any]:
    """All figures; `calibrated` are the terms of each program, `published` and `difference` are None if nothing was
    published."""
    told = [
        {
            **asdict(cell),
            "published": cell.published,
            "difference": None if cell.published is None else cell.goodput - cell.published,
        }
        for cell in cells
    ]
    return {"cells": told, "calibrated": {program: asdict(terms) for program, terms in TERMS.items()}}


def table(cells: Sequence[Cell]) -> str:
    """A line for each program and number of learners, a column for each number of chips."""
    chips = sorted({cell.chips for cell in cells})
    lines = [f"{'goodput (published), percent':<32}" + "".join(f"{scaled(many):>16}" for many in chips)]
    for name, row in _rows(cells).items():
        told = (_beside(row[many]) if many in row else "" for many in chips)
        lines.append(f"{name:<32}" + "".join(f"{each:>16}" for each in told))
    return "\n".join([*lines, "", *_summary(cells), CALIBRATED, ""])


def sheet(cells: Sequence[Cell], seeds: int) -> Sheet:
    """The page."""
    lines = [
        Line(
            name,
            [(many, cell.goodput) for many, cell in sorted(row.items())],
            [(many, cell.published) for many, cell in sorted(row.items()) if cell.published is not None],
        )
        for name, row in _rows(cells).items()
    ]
    drawing = draw_lines(lines, "Goodput by number of chips", scaled, percent, low=0.0, high=1.0)
    columns = ("program", "chips", "goodput", "deviation", "published", "difference", "uptime")
    rows = [
        (
            _name(cell),
            scaled(cell.chips),
            percent(cell.goodput),
            percent(cell.goodput_deviation),
            percent(cell.published),
            "-" if cell.published is None else f"{100 * (cell.goodput - cell.published):+.1f} points",
            percent(cell.uptime),
        )
        for cell in cells
    ]
    names = [field.name for field in fields(TERMS["decoupled-diloco"])]
    terms = [(program, *(f"{getattr(each, name):g}" for name in names)) for program, each in TERMS.items()]
    days = f"{seeds} simulated days" if seeds > 1 else "one simulated day"
    return Sheet(
        "Goodput when chips fail",
        f"Means of {days} for each cell, in which a chip fails once a year. Nothing was trained.",
        [
            Part("Goodput", drawing, notes=[f"Lines: the model. Rings: published in {SOURCE}.", *_summary(cells)]),
            Part("Cells", None, columns, rows, ["The deviation is that of one day."]),
            Part("Calibrated", None, ("program", *names), terms, [CALIBRATED]),
        ],
    )


def _summary(cells: Sequence[Cell]) -> list[str]:
    off = [abs(cell.goodput - cell.published) for cell in cells if cell.published is not None]
    if not off:
        return ["None of these cells was published."]
    mean, most = 100 * sum(off) / len(off), 100 * max(off)
    return [f"{len(off)} cells were published: mean absolute difference {mean:.1f} points, largest {most:.1f}."]


def _rows(cells: Sequence[Cell]) -> dict[str, dict[int, Cell]]:
    rows: dict[str, dict[int, Cell]] = {}
    for cell in cells:
        rows.setdefault(_name(cell), {})[cell.chips] = cell
    return rows


def _name(cell: Cell) -> str:
    return f"{cell.program}, {cell.learners}" if cell.program == "decoupled-diloco" else cell.program


def _beside(cell: Cell) -> str:
    published = "" if cell.published is None else f" ({100 * cell.published:.0f})"
    return f"{100 * cell.goodput:.1f}{published:<5}"
