"""The report of a run: one self-contained page, and the pictures of it that can stand alone.

Everything is drawn from what is in the run folder, by functions from a `RunRecord` to markup: `report_reading` reads,
`report_page` arranges, each `chart_` module draws one picture. There is no script in the page and nothing is loaded, so
it opens anywhere, also in ten years. A folder that lacks files gives a page that says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from isthmus.programs.command.chart_absence import draw_absence
from isthmus.programs.command.chart_curves import Axis, draw_curves
from isthmus.programs.command.chart_timeline import draw_timeline
from isthmus.programs.command.chart_window import choose_window
from isthmus.programs.command.report_lives import close_ups, windows
from isthmus.programs.command.report_page import page
from isthmus.programs.command.report_reading import load
from isthmus.programs.command.report_record import RunRecord
from isthmus.programs.command.report_svg import document
from isthmus.runtime.store import write_bytes

__all__ = ["REPORT", "RunRecord", "absence_svg", "curves_svg", "load", "timeline_svg", "write_report"]

REPORT: Final = "report.html"


def write_report(run: Path) -> Path:
    """Write the report of the run folder `run` into it, whole or not at all, and return its path."""
    path = run / REPORT
    write_bytes(path, page(load(run)).encode("utf-8"))
    return path


def curves_svg(run: Path, width: float = 1080, axis: Axis = "tokens") -> str:
    """The loss curves of a run as an SVG document with its own style."""
    return document(draw_curves(load(run), axis, width))


def timeline_svg(run: Path, width: float = 1080) -> str:
    """The timeline of a part of a run as an SVG document with its own style; ValueError if the run has no trace."""
    record = load(run)
    window = choose_window(record)
    if window is None:
        raise ValueError(f"drawing the timeline of {run}: expected a trace.json with inner steps, found none")
    return document(draw_timeline(record, window, width))


def absence_svg(run: Path, width: float = 1080, *, close_up: bool = False) -> str:
    """The steps around the first absence of a host, or the moment at which it went, as an SVG document.

    ValueError if nobody was away, or, of the moment, if nobody died.
    """
    record = load(run)
    found = windows(record)
    if not found:
        raise ValueError(f"drawing who was away in {run}: expected an absence in events.jsonl, found none")
    window, absences = found[0]
    moments = close_ups(record, absences) if close_up else [(window, "")]
    if not moments:
        raise ValueError(f"drawing a death in {run}: expected one of a learner or a syncer, found none")
    return document(draw_absence(record, moments[0][0], absences, width))
