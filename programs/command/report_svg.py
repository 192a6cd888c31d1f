"""A chart of the report as an SVG document of its own, for a README or a talk.

It takes the charts' style along, so it follows the colour scheme of whoever looks at it, and has a background and a
margin, because it may stand on any page.
"""

from __future__ import annotations

import re
from typing import Final

from isthmus.programs.command.report_markup import Markup, element
from isthmus.programs.command.report_style import CHART_STYLE

_MARGIN: Final = 14
_HEAD: Final = re.compile(r'<svg viewBox="0 0 (\S+) (\S+)"[^>]*aria-label="([^"]*)"[^>]*>')


def document(chart: Markup) -> str:
    """The SVG document that shows `chart`, an `svg` element as `chart_axes.drawing` makes it; ValueError for others."""
    head = _HEAD.match(chart)
    if head is None:
        raise ValueError(f"making a document of a chart: expected an svg element with a viewBox, found {chart[:60]!r}")
    width, height = (float(value) + 2 * _MARGIN for value in head.group(1, 2))
    style = element("style", Markup(CHART_STYLE))
    paper = f'<rect class="paper" x="{-_MARGIN}" y="{-_MARGIN}" width="{width:g}" height="{height:g}" rx="10"/>'
    box = f'viewBox="{-_MARGIN} {-_MARGIN} {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    label = f'role="img" aria-label="{head.group(3)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box} {label}>{style}{paper}{chart[head.end() :]}\n'
