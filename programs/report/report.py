"""The report of a run: one self-contained page, and its pictures that can stand alone.

Everything is drawn from the contents of the run folder: `results.reading` reads it into a `RunRecord`, `page` renders
that. A folder that lacks files gives a page that states so. A picture is an SVG document that takes the style sheet
along, so it follows the colour scheme of its reader, and has a background and a margin, because it may stand on any
page.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from markupsafe import Markup

from isthmus.programs.charts.absence import draw_absence
from isthmus.programs.charts.close_ups import close_ups, windows
from isthmus.programs.charts.timeline import draw_timeline
from isthmus.programs.charts.window import choose_window
from isthmus.programs.report.page import page, resource, without_forbidden
from isthmus.programs.results.reading import load
from isthmus.programs.results.record import RunRecord
from isthmus.runtime.system.files import write_bytes

__all__ = ["REPORT", "RunRecord", "absence_svg", "document", "load", "timeline_svg", "write_report"]

REPORT: Final = "report.html"
_MARGIN: Final = 14
_HEAD: Final = re.compile(r'<svg viewBox="0 0 (\S+) (\S+)"[^>]*aria-label="([^"]*)"[^>]*>')


def write_report(run: Path) -> Path:
    """Write the report of the run folder `run` into it, whole or not at all, and return its path."""
    path = run / REPORT
    write_bytes(path, page(load(run)).encode("utf-8"))
    return path


def timeline_svg(run: Path, width: float = 1080) -> str:
    """The timeline of a part of a run as an SVG document; ValueError if the run has no trace."""
    record = load(run)
    window = choose_window(record)
    if window is None:
        raise ValueError(f"drawing the timeline of {run}: expected a trace.json with inner steps, found none")
    return document(draw_timeline(record, window, width))


def absence_svg(run: Path, width: float = 1080, *, close_up: bool = False) -> str:
    """The steps around the first absence of a host, or a close-up of its death, as an SVG document.

    ValueError if no host was away, or, for the close-up, if none died.
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


def document(chart: Markup) -> str:
    """The SVG document that shows `chart`, an element as `axes.drawing` makes it."""
    head = _HEAD.match(chart)
    assert head is not None, "every chart begins with its size and its name"
    width, height = (float(value) + 2 * _MARGIN for value in head.group(1, 2))
    paper = f'<rect class="paper" x="{-_MARGIN}" y="{-_MARGIN}" width="{width:g}" height="{height:g}" rx="10"/>'
    box = f'viewBox="{-_MARGIN} {-_MARGIN} {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    label = f'role="img" aria-label="{head.group(3)}"'
    style = f"<style>{resource('style.css')}</style>"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {label}>{style}{paper}{chart[head.end() :]}\n'
    return without_forbidden(svg)
