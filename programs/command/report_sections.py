"""The charts of the report with what has to be said of each; a chart without data says in a sentence why it is missing.

Charts that fit any width are drawn twice, for a desk and for a phone, and the style sheet shows one; the timeline is
drawn once and scrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from isthmus.programs.command.chart_curves import Axis, draw_curves
from isthmus.programs.command.chart_graph import draw_graph, parse_graph
from isthmus.programs.command.chart_lanes import LEARNERS_MAX
from isthmus.programs.command.chart_merges import CELLS_MAX, draw_merges, merges_by_fragment
from isthmus.programs.command.chart_overview import draw_overview
from isthmus.programs.command.chart_timeline import draw_timeline, longest_pause, visible_rounds
from isthmus.programs.command.chart_window import Window
from isthmus.programs.command.report_markup import Content, Markup, element, joined
from isthmus.programs.command.report_progress import while_stepping, without_loss
from isthmus.programs.command.report_record import RunRecord, as_number
from isthmus.programs.command.report_style import SHARE_LEVELS, share_level
from isthmus.programs.command.report_trace import slot_of
from isthmus.programs.numbers import seconds, size, whole

_WIDE: Final = 1080.0
_NARROW: Final = 420.0


def section(name: str, title: str, *parts: Content) -> Markup:
    """A part of the page with its heading."""
    heading = element("h2", title, id=f"{name}-title")
    return element("section", heading, *parts, id=name, aria_labelledby=f"{name}-title")


def note(*parts: Content) -> Markup:
    """A sentence or two beside a chart."""
    return element("p", *parts, class_="note")


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """(class or style of the swatch, what it means)."""
    items = [
        element("li", element("span", class_="swatch", style=f"background:{colour}"), meaning)
        for colour, meaning in entries
    ]
    return element("ul", *items, class_="legend")


def curves_section(record: RunRecord) -> Markup:
    """Loss over tokens and over time, one of them shown."""
    title = "Loss"
    if not record.reports and not record.evaluations:
        return section("curves", title, note("No learner has reported a loss, and the model was never evaluated."))
    axes: tuple[tuple[Axis, str], ...] = (("tokens", "over tokens"), ("time", "over time"))
    inputs = [
        element("input", type="radio", name="over", id=f"over-{axis}", class_="choice", checked=first)
        for (axis, _), first in zip(axes, ("checked", None), strict=True)
    ]
    labels = element("div", *(element("label", name, for_=f"over-{axis}") for axis, name in axes), class_="choices")
    panes = [element("div", _both(partial(_curves, record, axis)), class_=f"pane {axis}") for axis, _ in axes]
    said = "Thin: learners in training, smoothed. Bold: the global model on held-out data."
    missing = without_loss(record.reports)
    if missing:
        said += f" {whole(missing)} of {whole(len(while_stepping(record.reports)))} reports had no finite loss."
    sick = sorted({report.learner for report in record.reports if report.sick})
    if sick:
        said += f" Sick, that is with values that were not finite: learner {', '.join(map(str, sick))}."
    if not record.evaluations:
        said += " The global model was never evaluated."
    figure = element("figure", *inputs, labels, *panes, element("figcaption", said))
    return section("curves", title, figure)


def timeline_section(record: RunRecord, window: Window | None) -> Markup:
    """The window of the trace in which steps, transfers and merges can be seen one by one."""
    title = "What happened at once"
    if record.timeline is None or window is None:
        return section("timeline", title, note("There is no trace of any inner step, so there is no timeline."))
    chart = element(
        "div", draw_timeline(record, window, _WIDE), class_="scroll", tabindex="0", role="region", aria_label="timeline"
    )
    return section(
        "timeline", title, note(*_window_facts(record, window)), element("figure", chart, _timeline_legend(record))
    )


def overview_section(record: RunRecord, window: Window | None) -> Markup:
    """Every learner's pace over the whole run."""
    title = "The whole run"
    if not record.reports:
        return section("overview", title, note("No learner has reported a step."))
    chart = _both(lambda width: draw_overview(record, window, width))
    said = "Inner steps a second, from the learners' own reports, on one scale. A break is a learner that did not step."
    return section("overview", title, element("figure", chart, element("figcaption", said)))


def merges_section(record: RunRecord) -> Markup:
    """Who contributed to what, and when."""
    title = "Merges"
    rows = merges_by_fragment(record)
    if not rows:
        why = "the program has no outer steps, or the run ended before"
        return section("merges", title, note(f"No fragment was merged: {why}."))
    of = max(max((len(m.voters) for merges in rows.values() for m in merges), default=1), len(record.learners))
    # Nobody rests a pointer on a phone, and what cells tell is most of their size.
    chart = _both(
        lambda width: draw_merges(record, width, CELLS_MAX if width == _WIDE else 500, has_titles=width == _WIDE)
    )
    levels: dict[int, list[int]] = {level: [] for level in range(SHARE_LEVELS)}
    for count in range(of + 1):
        levels[share_level(count, of)].append(count)
    entries = [(f"var(--k{level})", _range(counts, of)) for level, counts in levels.items() if counts and level]
    said = (
        "A row per fragment, a cell per merge, as wide as the time that it brought together; its colour is the number "
        "of learners that contributed. Point at a cell to read who, who was left out, and why the round closed."
    )
    told, known = sum(merge.kind == "merge" for merge in record.merges), record.number("outer_steps") or 0.0
    if told < known:
        said += f" Drawn are {whole(told)} of {whole(known)}: the others came too fast to be written down one by one."
    if any(item.role == "syncer" and item.kind == "gone" for item in record.absences):
        said += " An empty frame: the syncer of that row was away."
    figure = element("figure", chart, legend(reversed(entries)), element("figcaption", said))
    return section("merges", title, figure)


def graph_section(record: RunRecord) -> Markup:
    """What ran: roles, nodes and edges."""
    title = "The graph"
    graph = parse_graph(record.graph)
    if graph is None:
        return section("graph", title, note("There is no graph.json that could be drawn."))
    rows = [
        element(
            "tr",
            element("td", edge.source),
            element("td", edge.target, class_="left"),
            element("td", _policy(edge.policy, edge.capacity, edge.key), class_="left"),
        )
        for edge in graph.edges
    ]
    head = element("tr", *(element("th", name, scope="col", class_="left") for name in ("from", "to", "policy")))
    table = element("table", element("thead", head), element("tbody", *rows))
    edges = element(
        "details", element("summary", f"All {len(graph.edges)} edges"), element("div", table, class_="scroll")
    )
    said = (
        "Solid: a Queue, whose producer can be made to wait. Dashed: a Latest mailbox, whose producer never waits. "
        "A heavy frame: a node that is proved to wait for no other host. The recorder is left out."
    )
    figure = element(
        "figure", element("div", draw_graph(graph, _WIDE), class_="graph scroll"), element("figcaption", said)
    )
    return section("graph", title, figure, edges)


def _policy(policy: str, capacity: int | None, key: str | None) -> str:
    return policy + (f", capacity {capacity}" if capacity else "") + (f", newest per {key}" if key else "")


def _curves(record: RunRecord, axis: Axis, width: float) -> Markup:
    return draw_curves(record, axis, width, 400 if width == _WIDE else 300)


def _both(draw: Callable[[float], Markup]) -> Markup:
    """A chart for wide screens and paper, and the same for narrow screens."""
    wide = element("div", draw(_WIDE), class_="wide")
    return joined([wide, element("div", draw(_NARROW), class_="narrow")])


def _range(counts: list[int], of: int) -> str:
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{span} of {of}"


def _window_facts(record: RunRecord, window: Window) -> list[Content]:
    """What the window shows, in words and numbers."""
    timeline = record.timeline
    assert timeline is not None, "a window is chosen from a trace"
    hosts = [
        host for host in timeline.hosts if slot_of(host) is not None and timeline.between(host, "inner-step", *window)
    ]
    steps = sum(len(timeline.between(host, "inner-step", *window)) for host in hosts)
    pauses = [pause for pause in (longest_pause(timeline, host, window) for host in hosts) if pause is not None]
    moved = sum(transfer.size_bytes for transfer in timeline.transfers_between(*window))
    rounds = len(visible_rounds(record, window))
    digits = 2 if window.end - window.begin > 0.3 else 4
    told: list[Content] = [f"From {window.begin:.{digits}f} to {window.end:.{digits}f} s of the run, "]
    told.append(f"{whole(steps)} inner steps of {len(hosts)} learner{'s' if len(hosts) > 1 else ''}")
    told.append(f", while {size(moved)} travelled between hosts")
    told.append(f" and {_rounds(rounds)} opened, answered and merged" if rounds else "")
    if pauses:
        told += [". The longest pause between two steps of a learner was ", element("strong", seconds(max(pauses)))]
    stalls = [as_number(row.get("stall_seconds")) for row in record.per_learner]
    if stalls and None not in stalls:
        waited = sum(stall for stall in stalls if stall is not None)
        told += ["; in the whole run all learners together waited ", element("strong", seconds(waited))]
        told.append(
            " for a channel, a credit or a lock. What gaps are left are threads that were due, and waited for a core"
        )
    told.append(".")
    if len(hosts) > LEARNERS_MAX:
        told.append(f" The first {LEARNERS_MAX} of {len(hosts)} learners are drawn.")
    return told


def _rounds(count: int) -> str:
    return "one round was" if count == 1 else f"{whole(count)} rounds were"


def _timeline_legend(record: RunRecord) -> Markup:
    entries = [("var(--c0)", "inner step (shades alternate)")]
    if merges_by_fragment(record):
        entries += [
            ("color-mix(in srgb,var(--c0) 20%,var(--panel))", "fragment under way, until its merged value is back"),
            ("color-mix(in srgb,var(--ink) 12%,var(--panel))", "round waits for its quorum"),
            ("color-mix(in srgb,var(--k1) 55%,var(--panel))", "grace window"),
            ("var(--ink)", "merge and outer step"),
        ]
    caption = (
        "Coloured lines are answers, grey ones updates, dotted ones pulls. A dot is an answer that arrived; a hollow "
        "one came too late."
    )
    return joined(
        [
            legend(entries),
            element("figcaption", caption if merges_by_fragment(record) else "Lines are transfers between hosts."),
        ]
    )
