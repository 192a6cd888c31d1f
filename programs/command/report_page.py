"""The page: every part of the report in its order, with its style, in one file that needs nothing else."""

from __future__ import annotations

from isthmus.programs.command.chart_window import choose_window
from isthmus.programs.command.report_failures import failures_section
from isthmus.programs.command.report_headline import header, headline
from isthmus.programs.command.report_markup import Markup, element
from isthmus.programs.command.report_record import RunRecord
from isthmus.programs.command.report_sections import (
    curves_section,
    graph_section,
    merges_section,
    overview_section,
    timeline_section,
)
from isthmus.programs.command.report_style import CHART_STYLE, PAGE_STYLE
from isthmus.programs.command.report_tables import (
    accounts_section,
    configuration_section,
    footer,
    learners_section,
)


def page(record: RunRecord) -> str:
    """The report of a run as an HTML document."""
    window = choose_window(record)
    title = " – ".join(part for part in (record.program, record.text("outcome"), "isthmus") if part)
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Markup(CHART_STYLE + PAGE_STYLE)),
    )
    main = element(
        "main",
        element("section", headline(record), id="headline", aria_label="headline figures"),
        curves_section(record),
        timeline_section(record, window),
        overview_section(record, window),
        failures_section(record),
        merges_section(record),
        accounts_section(record),
        learners_section(record),
        graph_section(record),
        configuration_section(record),
    )
    body = element("body", header(record), main, footer(record))
    return "<!doctype html>\n" + element("html", head, body, lang="en") + "\n"
