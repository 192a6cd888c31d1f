"""The figures of the report that are not drawn: where every token went, each learner, the configuration, the footer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from isthmus.programs.command.report_headline import data_parallel_bytes
from isthmus.programs.command.report_markup import Content, Markup, element, figure
from isthmus.programs.command.report_record import RunRecord, as_number
from isthmus.programs.command.report_sections import note, section
from isthmus.programs.command.report_style import learner_class
from isthmus.programs.numbers import decimal, percent, scaled, seconds, size, whole

_PARTS: Final = (
    ("merged", "in the global model"),
    ("overlapped", "trained between an answer and the adoption of what came of it, then overwritten"),
    ("refused", "in answers that did not count"),
    ("lost", "died with a learner"),
    ("pending", "not yet sent when the run ended"),
)


def accounts_section(record: RunRecord) -> Markup:
    """Every trained token is exactly one of five things, in a program that merges fragments."""
    title = "Where every token went"
    if record.number("fragments") == 0:
        said = "The program merges no fragments, so there is nothing that a trained token could be merged into or miss."
        return section("accounts", title, note(said))
    values = [record.number(f"tokens_{name}") for name, _ in _PARTS]
    total = sum(value for value in values if value is not None and value > 0)
    if not total:
        return section("accounts", title, note("There are no token accounts."))
    bar, rows = [], []
    for index, ((name, meaning), value) in enumerate(zip(_PARTS, values, strict=True)):
        share = (value or 0.0) / total
        if share > 0:
            style = f"--c:var(--a{index});width:{100 * share:.3f}%"
            bar.append(element("div", style=style, title=f"{name}: {percent(share)}"))
        swatch = element(
            "span", class_="swatch", style=f"background:var(--a{index});display:inline-block;margin-right:8px"
        )
        cells = (figure(f"tokens_{name}", value, whole), percent(share))
        rows.append(
            element(
                "tr",
                element("th", swatch, name, scope="row"),
                *(element("td", cell) for cell in cells),
                element("td", meaning, class_="left wrap"),
            )
        )
    names = element(
        "tr", *(element("th", name, scope="col") for name in ("tokens", "number", "share")), element("th", scope="col")
    )
    table = element("table", element("thead", names), element("tbody", *rows))
    label = "Tokens by what became of them: " + ", ".join(
        f"{name} {percent((value or 0.0) / total)}" for (name, _), value in zip(_PARTS, values, strict=True)
    )
    stack = element("div", *bar, class_="stack", role="img", aria_label=label)
    return section("accounts", title, element("figure", stack), element("div", table, class_="scroll"))


def learners_section(record: RunRecord) -> Markup:
    """A row per learner."""
    title = "Learners"
    rows = record.per_learner
    if not rows:
        return section("learners", title, note("There is no summary of any learner."))
    names = ("learner", "device", "steps", "tokens", "last loss", "stalled", "sent", "received", "restarts")
    head = element("tr", *(element("th", name, scope="col") for name in names))
    losses = {report.learner: report.loss for report in record.reports if report.loss is not None}
    body = [_learner_row(row, losses) for row in rows]
    table = element("table", element("thead", head), element("tbody", *body))
    said = "Stalled: the time in which inner steps waited longer than 1 ms for a channel, a credit or a lock."
    return section("learners", title, element("div", table, class_="scroll"), note(said))


def _learner_row(row: Mapping[str, Any], losses: Mapping[int, float]) -> Markup:
    slot = int(as_number(row.get("learner")) or 0)
    swatch = element("span", class_=f"swatch {learner_class(slot)}", style="display:inline-block;margin-right:8px")
    kind = row.get("device_kind")

    def number(name: str) -> float | None:
        return as_number(row.get(name))

    cells: list[Content] = [
        str(kind) if kind is not None else "",
        figure(f"learner-{slot}-steps", number("steps"), whole),
        figure(f"learner-{slot}-tokens", number("tokens"), whole),
        decimal(losses.get(slot)),
        figure(f"learner-{slot}-stall_seconds", number("stall_seconds"), seconds),
        figure(f"learner-{slot}-bytes_sent", number("bytes_sent"), size),
        figure(f"learner-{slot}-bytes_received", number("bytes_received"), size),
        figure(f"learner-{slot}-restarts", number("restarts"), whole),
    ]
    return element("tr", element("th", swatch, str(slot), scope="row"), *(element("td", cell) for cell in cells))


def configuration_section(record: RunRecord) -> Markup:
    """config.toml as it is, folded."""
    title = "Configuration"
    if not record.configuration_text.strip():
        return section("configuration", title, note("There is no config.toml."))
    text = element("pre", record.configuration_text)
    said = note("Complete: ", element("code", "isthmus train --config config.toml"), " starts the same run again.")
    fingerprint = record.graph.get("fingerprint")
    print_ = note(f"Fingerprint of the graph: {fingerprint}") if isinstance(fingerprint, str) else Markup()
    return section("configuration", title, said, element("details", element("summary", "config.toml"), text), print_)


def footer(record: RunRecord) -> Markup:
    """Which figures are measured, and which are not."""
    instead = data_parallel_bytes(record)
    measured = (
        "Measured in this run: losses, steps, tokens, times, bytes and contributors, as learners, shards and "
        "the recorder wrote them into the run folder; times on the clocks of the hosts. Shares and means are computed "
        "from them. Curves and rates are means over stretches of the run."
    )
    computed = (
        ""
        if instead is None
        else (
            f" Not measured: what data-parallel training would have sent, {scaled(instead, 'B')} for the same tokens: "
            "2 (M − 1) / M times the float32 parameters for each of M learners and each step, a ring all-reduce."
        )
    )
    source = element(
        "p",
        "Drawn from ",
        element("code", str(record.folder.name)),
        " by isthmus. This page holds everything it shows and loads nothing.",
    )
    return element("footer", element("p", measured + computed), source)
