"""The page: the contents of a `RunRecord`, through templates, in one file that needs nothing else; other pages alike.

Each part of the page has a template and a function here or in `sections`, `failures` and `headline` that returns the
template's values; a part for which the run folder has nothing is listed at the end with the reason. The scripts in the
page draw curves, and show the facts of a merge that is clicked. A content security policy names them by their hashes,
so a browser runs no other script and loads nothing, for any texts in a run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final

import msgspec
from markupsafe import Markup

from isthmus.programs.charts.style import learner_class
from isthmus.programs.charts.window import choose_window
from isthmus.programs.report import headline, sections
from isthmus.programs.report.failures import failures
from isthmus.programs.results import numbers
from isthmus.programs.results.record import RunRecord

if TYPE_CHECKING:
    from jinja2 import Environment

_PACKAGE: Final = "isthmus.programs.report"
_SCRIPTS: Final = ("uplot/uPlot.iife.min.js", "charts.js", "merges.js")
_FORBIDDEN: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
"""Control characters and halves of surrogate pairs: no document may hold them, but a JSON file may name them."""


def page(record: RunRecord) -> str:
    """The report of a run as an HTML document."""
    window = choose_window(record)
    parts = [
        sections.curves(record, window),
        sections.timeline(record, window),
        failures(record),
        sections.merges(record),
        sections.changes(record),
        sections.accounts(record),
        sections.learners(record),
        sections.graph(record),
        sections.configuration(record),
    ]
    return rendered(
        "page.html",
        record=record,
        header=headline.header(record),
        tiles=headline.tiles(record) if record.summary else [],
        parts=[part for part in parts if part is not None],
        data_parallel_bytes=headline.data_parallel_bytes(record),
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
    writers = (numbers.whole, numbers.scaled, numbers.size, numbers.seconds, numbers.percent, numbers.decimal)
    environment.globals |= {write.__name__: write for write in writers}
    environment.filters |= {write.__name__: write for write in writers}
    environment.filters |= {"builtins": msgspec.to_builtins, "learner_class": learner_class}
    return environment


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
