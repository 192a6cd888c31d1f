"""The report of a run, and other pages: one self-contained file, and pictures that can stand alone.

Decides which parts a page has: each has a template and a function here or in `sections` that returns the template's
values; a part for which the run folder has nothing is listed at the end with the reason. A page loads nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from markupsafe import Markup

from isthmus.programs.engine.results import words
from isthmus.programs.engine.results.reading import load
from isthmus.programs.engine.results.record import RunRecord
from isthmus.programs.study.terminal.figures import show
from isthmus.programs.study.terminal.sheet import Sheet
from isthmus.programs.wings.report import sections
from isthmus.programs.wings.report.charts_absence import draw_absence
from isthmus.programs.wings.report.charts_drawing import learner_class
from isthmus.programs.wings.report.charts_timeline import choose_window, close_ups, draw_timeline, windows
from isthmus.programs.wings.report.sections import failures
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.files import write_bytes

if TYPE_CHECKING:
    from jinja2 import Environment


_PACKAGE: Final = "isthmus.programs.wings.report"
_SCRIPTS: Final = ("uplot/uPlot.iife.min.js", "plots.js", "charts.js", "merges.js")
_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters and halves of surrogate pairs: no document may hold them, but a JSON file may name them."""


def page(record: RunRecord) -> str:
    """The report of a run as an HTML document.

    A content security policy names the scripts (they draw curves, and show the facts of a merge that is clicked) by
    their hashes, so a browser runs no other script, for any texts in a run.
    """
    window = choose_window(record)
    parts = [
        sections.curves(record, window),
        sections.timeline(record, window),
        failures(record),
        sections.merges(record),
        sections.changes(record),
        sections.accounts(record),
        sections.learners(record),
        sections.sites(record),
        sections.data(record),
        sections.graph(record),
        sections.configuration(record),
    ]
    return rendered(
        "page.html",
        record=record,
        header=sections.header(record),
        tiles=sections.tiles(record) if record.summary else [],
        parts=[part for part in parts if part is not None],
        data_parallel_bytes=sections.data_parallel_bytes(record),
    )


def rendered(template: str, **values: object) -> str:
    """The document of a template, with the style sheets and scripts of every page, and its own values."""
    scripts = [resource(name) for name in _SCRIPTS]
    html = (
        _templates()
        .get_template(template)
        .render(
            styles=[resource("style.css"), resource("uplot/uPlot.min.css")],
            scripts=scripts,
            hashes=" ".join(f"'sha256-{_sha256(script)}'" for script in scripts),
            licence=resource("uplot/LICENSE"),
            **values,
        )
    )
    return without_forbidden(html)


def without_forbidden(document: str) -> str:
    """The document, with a replacement character for each one that HTML and XML forbid."""
    return _FORBIDDEN.sub("\ufffd", document)


@cache
def resource(name: str) -> Markup:
    """A file of this package, as it is."""
    return Markup(files(_PACKAGE).joinpath(name).read_text(encoding="utf-8"))


@cache
def _templates() -> Environment:
    # Not above: this module is imported before training starts, the templates are needed after its end.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(_PACKAGE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    writers = (words.whole, words.scaled, words.size, words.seconds, words.percent, words.decimal)
    environment.globals |= {write.__name__: write for write in writers}
    environment.filters |= {write.__name__: write for write in writers}
    environment.filters |= {"builtins": msgspec.to_builtins, "learner_class": learner_class}
    return environment


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


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
    parts = windows(record)
    if not parts:
        raise ValueError(f"drawing who was away in {run}: expected an absence in events.jsonl, found none")
    window, absences = parts[0]
    moments = close_ups(record, absences) if close_up else [(window, "")]
    if not moments:
        raise ValueError(f"drawing a death in {run}: expected one of a learner or a syncer, found none")
    return document(draw_absence(record, moments[0][0], absences, width))


def document(chart: Markup) -> str:
    """The SVG document that shows `chart`, an element as `axes.drawing` makes it.

    It takes the style sheet along, so it follows the colour scheme of its reader, and has a background and a margin,
    because it may stand on any page.
    """
    head = _HEAD.match(chart)
    assert head is not None, "every chart begins with its size and its name"
    width, height = (float(value) + 2 * _MARGIN for value in head.group(1, 2))
    paper = f'<rect class="paper" x="{-_MARGIN}" y="{-_MARGIN}" width="{width:g}" height="{height:g}" rx="10"/>'
    box = f'viewBox="{-_MARGIN} {-_MARGIN} {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    label = f'role="img" aria-label="{head.group(3)}"'
    style = f"<style>{resource('style.css')}</style>"
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {label}>{style}{paper}{chart[head.end() :]}\n'
    return without_forbidden(svg)


def write_sheet(path: Path, sheet: Sheet) -> None:
    """Write the page, whole or not at all; ConfigError if the folder is missing, or takes no file."""
    try:
        write_bytes(path, rendered("sheet.html", sheet=sheet).encode("utf-8"))
    except OSError as error:
        actual = error.strerror or str(error)
        raise ConfigError(
            f"Writing {path}", "a folder that takes files", actual, "Name another with --page."
        ) from error


def show_sheet(sheet: Sheet, page: Path | None, *, as_json: bool) -> None:
    """Print a result, and write its page where one is wanted."""
    if page is not None:
        write_sheet(page, sheet)
    show(sheet, as_json=as_json)
