"""The parts of the page: the values for the template of each, or the reason why the run folder has nothing for it.

The merges, which fit any width, are drawn twice, for a desk and for a phone, and the style sheet shows one; the
timeline is drawn once and scrolls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from isthmus.programs.adapted.words import read as read_changes
from isthmus.programs.adapted.words import told, why
from isthmus.programs.books.words import book_lines
from isthmus.programs.charts.curves import charts
from isthmus.programs.charts.graph import draw_graph, parse_graph
from isthmus.programs.charts.lanes import LEARNERS_MAX
from isthmus.programs.charts.merges import CELLS_MAX, draw_merges, key_of, merges_by_fragment
from isthmus.programs.charts.style import SHARE_LEVELS, share_level
from isthmus.programs.charts.timeline import draw_timeline, longest_pause, visible_rounds
from isthmus.programs.charts.window import Window
from isthmus.programs.results.numbers import seconds, size, whole
from isthmus.programs.results.progress import while_stepping, without_loss
from isthmus.programs.results.record import RunRecord, as_number
from isthmus.programs.results.timeline import slot_of
from isthmus.programs.why import words
from isthmus.programs.why.facts import MergeFacts
from isthmus.programs.why.folder import told as told_of_merges

WIDE: Final = 1080.0
CHANGES_SHOWN: Final = 100
FACTS_MAX, ANSWERS_MAX = 600, 4_000
"""Merges that can be clicked, and answers in all of them: 0.2 kB an answer, half a megabyte of the page."""
_NARROW: Final = 420.0
_NARROW_CELLS_MAX: Final = 500
_ACCOUNTS: Final = (
    ("merged", "in the global model"),
    ("overlapped", "trained between an answer and the adoption of what came of it, then overwritten"),
    ("refused", "in answers that did not count"),
    ("lost", "died with a learner"),
    ("pending", "not yet sent when the run ended"),
)


class Part(NamedTuple):
    """A part of the page: the values of the template of its name, or the reason why it is empty."""

    name: str
    title: str
    shown: Mapping[str, Any] | None
    why: str = ""


def curves(record: RunRecord, window: Window | None) -> Part:
    """Everything that learners and the evaluator reported over the run."""
    title = "Over the run"
    found = charts(record, window)
    if not found:
        return Part("curves", title, None, "No learner has reported anything, and the model was never evaluated.")
    values = {
        "charts": found,
        "evaluations": [item for item in record.evaluations if item.eval_loss is not None],
        "without_loss": without_loss(record.reports),
        "reports": len(while_stepping(record.reports)),
        "sick": sorted({report.learner for report in record.reports if report.sick}),
    }
    return Part("curves", title, values)


def timeline(record: RunRecord, window: Window | None) -> Part:
    """The window of the trace in which steps, transfers and merges can be seen one by one."""
    title = "What happened at once"
    if record.timeline is None or window is None:
        why = "There is no trace of inner steps that follow one another, so there is no timeline."
        return Part("timeline", title, None, why)
    values = {
        "chart": draw_timeline(record, window, WIDE),
        "facts": _window_facts(record, window),
        "has_merges": bool(merges_by_fragment(record)),
    }
    return Part("timeline", title, values)


def merges(record: RunRecord) -> Part:
    """The grid of merges by contributors, over time."""
    rows = merges_by_fragment(record)
    if not rows:
        why = "No fragment was merged: the program has no outer steps, or the run ended before."
        return Part("merges", "Merges", None, why)
    of = max(max((len(m.voters) for merges in rows.values() for m in merges), default=1), len(record.learners))
    levels: dict[int, list[int]] = {level: [] for level in range(SHARE_LEVELS)}
    for count in range(of + 1):
        levels[share_level(count, of)].append(count)
    values = {
        "wide": draw_merges(record, WIDE, CELLS_MAX),
        # Phones show no tooltips, and these are most of the size of cells.
        "narrow": draw_merges(record, _NARROW, _NARROW_CELLS_MAX, has_titles=False),
        "levels": [(level, _range(counts, of)) for level, counts in reversed(levels.items()) if counts and level],
        "told": sum(merge.kind == "merge" for merge in record.merges),
        "known": record.number("outer_steps") or 0.0,
        "was_away": any(item.role == "syncer" and item.kind == "gone" for item in record.absences),
        "facts": {
            key_of(each.fragment, each.round): _told(each)
            for each in told_of_merges(record.folder, FACTS_MAX, ANSWERS_MAX)
        },
    }
    return Part("merges", "Merges", values)


def _told(facts: MergeFacts) -> dict[str, Any]:
    """What `isthmus why` tells of a merge, as the script of the page shows it."""
    remarks = [f"learner {answer.slot}: {said}" for answer in facts.answers if (said := words.remark(answer))]
    version = None if facts.version is None else words.dotted(facts.version)
    return {
        "head": words.head(facts),
        "rows": list(words.rows(facts)),
        "table": list(words.table(facts.answers).items()),
        "remarks": remarks,
        "command": f"isthmus why --fragment {facts.fragment}" + (f" --version {version}" if version else ""),
    }


def changes(record: RunRecord) -> Part | None:
    """The settings that followed the links; None if none did."""
    found = read_changes(record.folder)
    rows = [
        {"time": change.time, "shard": change.shard, "told": told(change), "why": why(change)}
        for change in found[-CHANGES_SHOWN:]
    ]
    return Part("changes", "What followed the links", {"rows": rows, "count": len(found)}) if rows else None


def accounts(record: RunRecord) -> Part:
    """Every trained token is exactly one of five things, in a program that merges fragments."""
    title = "Where every token went"
    if record.number("fragments") == 0:
        why = "The program merges no fragments, so there is nothing that a trained token could be merged into or miss."
        return Part("accounts", title, None, why)
    values = [record.number(f"tokens_{name}") for name, _ in _ACCOUNTS]
    total = sum(value for value in values if value is not None and value > 0)
    if not total:
        return Part("accounts", title, None, "There are no token accounts.")
    rows = [
        {"name": name, "meaning": meaning, "tokens": value, "share": (value or 0.0) / total}
        for (name, meaning), value in zip(_ACCOUNTS, values, strict=True)
    ]
    books = record.summary.get("books")
    return Part("accounts", title, {"rows": rows, "lines": book_lines(books if isinstance(books, dict) else {})})


def learners(record: RunRecord) -> Part:
    """A row per learner."""
    losses = {report.learner: report.loss for report in record.reports if report.loss is not None}
    names = ("steps", "tokens", "stall_seconds", "bytes_sent", "bytes_received", "restarts")
    rows = []
    for row in record.per_learner:
        slot = int(as_number(row.get("learner")) or 0)
        figures = {name: as_number(row.get(name)) for name in names}
        rows.append({"slot": slot, "device": row.get("device_kind"), "loss": losses.get(slot), **figures})
    return Part("learners", "Learners", {"rows": rows} if rows else None, "There is no summary of any learner.")


def graph(record: RunRecord) -> Part:
    """The graph of the run: roles, nodes and edges."""
    found = parse_graph(record.graph)
    if found is None:
        return Part("graph", "The graph", None, "There is no graph.json that could be drawn.")
    return Part("graph", "The graph", {"chart": draw_graph(found, WIDE), "edges": found.edges})


def configuration(record: RunRecord) -> Part:
    """config.toml as it is."""
    fingerprint = record.graph.get("fingerprint")
    values = {"fingerprint": fingerprint if isinstance(fingerprint, str) else ""}
    is_there = bool(record.configuration_text.strip())
    return Part("configuration", "Configuration", values if is_there else None, "There is no config.toml.")


def _range(counts: list[int], of: int) -> str:
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{span} of {of}"


def _window_facts(record: RunRecord, window: Window) -> str:
    """The contents of the window, in words and numbers."""
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
    told = [f"From {window.begin:.{digits}f} to {window.end:.{digits}f} s of the run, "]
    told.append(f"{whole(steps)} inner steps of {len(hosts)} learner{'s' if len(hosts) > 1 else ''}")
    told.append(f", while {size(moved)} travelled between hosts")
    told.append(f" and {_rounds(rounds)} opened, answered and merged" if rounds else "")
    if pauses:
        told += [". The longest pause between two steps of a learner was ", seconds(max(pauses))]
    stalls = [as_number(row.get("stall_seconds")) for row in record.per_learner]
    if stalls and None not in stalls:
        waited = sum(stall for stall in stalls if stall is not None)
        told += ["; in the whole run all learners together waited ", seconds(waited)]
        told.append(" for an item or a credit. What gaps are left are threads that were due, and waited for a core")
    told.append(".")
    if len(hosts) > LEARNERS_MAX:
        told.append(f" The first {LEARNERS_MAX} of {len(hosts)} learners are drawn.")
    return "".join(told)


def _rounds(count: int) -> str:
    return "one round was" if count == 1 else f"{whole(count)} rounds were"
