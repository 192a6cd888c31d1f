"""The failures in a run, and their effects on the others: absences, and losses.

The reason why the run failed, if it did, stands at the top of the page.

The top of the report: the run, its end, and the figures that matter most.

Every figure is one of summary.json, shown rounded and kept exact in the page, but for three that are computed here: the
traffic of data-parallel training for the same tokens, tokens a second, and the waits of all learners.

The parts of the page: the values for the template of each, or the reason why the run folder has nothing for it.

The merges, which fit any width, are drawn twice, for a desk and for a phone, and the style sheet shows one; the
timeline is drawn once and scrolls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from isthmus.programs.engine.results import site_words
from isthmus.programs.engine.results.absences import Absence, Topic, again, cause, cost, named, others_meanwhile
from isthmus.programs.engine.results.alterations import headline, read_all
from isthmus.programs.engine.results.changes import read as read_changes
from isthmus.programs.engine.results.changes import step, why
from isthmus.programs.engine.results.crowd import EXTREMES, QUANTILES, ROWS_MAX, quantile
from isthmus.programs.engine.results.data_words import rows
from isthmus.programs.engine.results.record import RunRecord, as_number, slot_of, while_stepping, without_loss
from isthmus.programs.engine.results.run_files import DATA
from isthmus.programs.engine.results.words import (
    TIMES,
    UNKNOWN,
    book_lines,
    decimal,
    evaluated_at,
    evaluated_on,
    not_evaluated,
    not_finite,
    percent,
    say,
    scaled,
    seconds,
    size,
    times,
    untrained,
    whole,
    without_figures,
)
from isthmus.programs.reading.table import EPOCHS_MAX
from isthmus.programs.wings.report.charts_absence import draw_absence
from isthmus.programs.wings.report.charts_drawing import SHARE_LEVELS, share_level
from isthmus.programs.wings.report.charts_graph import draw_graph, parse_graph
from isthmus.programs.wings.report.charts_lines import charts, slots_shown
from isthmus.programs.wings.report.charts_merges import CELLS_MAX, draw_merges, key_of, merges_by_fragment
from isthmus.programs.wings.report.charts_timeline import (
    LEARNERS_DRAWN_MAX,
    TimeWindow,
    close_ups,
    draw_timeline,
    longest_pause,
    rate,
    steps_between,
    visible_rounds,
    windows,
)
from isthmus.programs.wings.why import why as words
from isthmus.programs.wings.why.merge_facts import MergeFacts
from isthmus.programs.wings.why.why import facts_of_many

_OUTCOMES: Final = ("done", "stopped", "failed")
_BYTES_A_VALUE: Final = 4
"""Data-parallel training is taken to send float32 gradients, as the learners send float32 fragments by default."""


@dataclass(frozen=True, slots=True)
class Header:
    """Program and outcome, a description in one line, the error (or nothing), and unreadable files."""

    title: str
    outcome: str
    outcome_class: str
    lead: str
    error: str
    problems: Sequence[str]
    altered: Sequence[str]
    """With what it went on that was not as before."""


class SummaryFigure(NamedTuple):
    """A figure of summary.json; None if unknown."""

    name: str
    value: float | None
    write: Callable[[float | None], str]


class Tile(NamedTuple):
    """A large figure under its name, and its meaning; both are texts and figures in turn."""

    name: str
    value: Sequence[str | SummaryFigure]
    rest: Sequence[str | SummaryFigure]


def header(record: RunRecord) -> Header:
    """The header above the figures; it names missing data, so that an empty chart does not pass for a result."""
    outcome = record.text("outcome")
    problems = list(record.problems)
    problems += [f"Trained: {missing}." for missing in [untrained({**record.summary})] if missing]
    problems += [f"Figures of the final model: {why}." for why in [without_figures({**record.summary})] if why]
    problems += [f"{losses}." for losses in [_not_finite(record)] if losses]
    if not record.summary:
        problems.insert(0, "There is no summary: the run is still going on, or it ended before it could write one.")
    return Header(
        record.program or "a run",
        outcome or "not finished",
        outcome if outcome in _OUTCOMES else "unknown",
        " · ".join(_what_it_was(record)),
        record.text("error"),
        problems,
        [headline(each, with_folders=False) for each in read_all({**record.summary})],
    )


def _not_finite(record: RunRecord) -> str:
    """How many losses were not finite, and whose; '' without any."""
    name = "losses_not_finite"
    rows = [{"learner": row["learner"], name: as_number(row.get(name))} for row in record.per_learner]
    return not_finite({name: record.number(name), "per_learner": rows})


def tiles(record: RunRecord) -> Iterator[Tile]:
    """The row of figures."""

    def figure(name: str, write: Callable[[float | None], str]) -> SummaryFigure:
        return SummaryFigure(name, record.number(name), write)

    losses = (figure("eval_loss_initial", decimal), " → ", figure("eval_loss_final", decimal))
    yield Tile("Evaluation loss", losses, [_evaluated(record)])
    for name, value, better in final_figures(record):
        yield Tile(name, [decimal(value)], [f"of the final model; {better} is better" if better else "final model"])
    tokens = figure("tokens_total", scaled)
    if record.number("outer_steps"):
        mean = figure("contributors_mean", partial(decimal, digits=2))
        merges = ("in a merge, mean over ", figure("outer_steps", whole), " merges")
        yield Tile("Contributors", (mean, " of ", SummaryFigure("learners", record.learners_count, whole)), merges)
        share = figure("merged_share", percent)
        yield Tile("Merged", [share], ("of ", tokens, " trained tokens are in the global model"))
    else:
        yield Tile("Trained", [tokens], ["tokens; no fragment was merged"])
        yield Tile("Waited", [seconds(record.stall_seconds)], ["all learners together, for an item or a credit"])
    if record.number("goodput") is not None:
        uptime = () if record.number("uptime") is None else ("; uptime ", figure("uptime", percent))
        kept = ("of learner time trained tokens that were kept", *uptime)
        yield Tile("Goodput", [figure("goodput", percent)], kept)
    total, wall = record.number("tokens_total"), record.number("wall_seconds")
    speed = f"{scaled(round(total / wall))} tokens/s; " if total is not None and wall else ""
    lasted = [f"; {parts}" for parts in [times({name: record.number(name) for name in TIMES})] if parts]
    cpu = figure("cpu_seconds_total", seconds)
    paused = figure("paused_seconds", seconds) if record.number("paused_seconds") else None
    stood = () if paused is None else ("; beside it the run stood still for ", paused)
    yield Tile("Wall time", [figure("wall_seconds", seconds)], (speed, cpu, " of processor time", *lasted, *stood))
    home = (". For evaluation and records: ", figure("bytes_home_total", size))
    yield Tile("Sent", [figure("bytes_sent_total", size)], [_sent_instead(record), *home])


def final_figures(record: RunRecord) -> Iterator[tuple[str, float | None, str]]:
    """What the task says of the final model: name, figure, and which way is better, '' where it does not say."""
    figures, better = (record.summary.get(f"final_figures{key}") for key in ("", "_better"))
    ways = better if isinstance(better, Mapping) else {}
    for name, value in figures.items() if isinstance(figures, Mapping) else ():
        yield str(name), as_number(value), str(ways.get(name, ""))


def _evaluated(record: RunRecord) -> str:
    """What was evaluated, and at which of the tokens."""
    at, missing = evaluated_at({**record.summary}), not_evaluated({**record.summary})
    if missing:
        last = decimal(record.number("eval_loss_last"))
        return f"{missing}; the last evaluation was {last} {at}".rstrip() if at and last != UNKNOWN else missing
    on = evaluated_on({**record.summary})
    return ", ".join(filter(None, ("global model on held-out data, first → final", on, at)))


def data_parallel_bytes(record: RunRecord) -> float | None:
    """Bytes that a ring of data-parallel learners would have sent for the same tokens; None without its factors.

    Per learner and step 2 (M-1)/M times the bytes of all parameters, for every inner step that was made: synchronous
    steps of M learners that train as many tokens make as many learner steps. 0 for one learner.
    """
    learners = record.learners_count
    steps = steps_total(record)
    if record.parameters is None or not steps or learners < 1:
        return None
    return 2 * (learners - 1) / learners * record.parameters * _BYTES_A_VALUE * steps


def steps_total(record: RunRecord) -> float:
    """The inner steps of all learners."""
    rows = [as_number(row.get("steps")) or 0.0 for row in record.per_learner]
    if rows:
        return sum(rows)
    last = {(report.learner, report.incarnation): report.step or 0.0 for report in record.reports}
    return sum(last.values())


def _what_it_was(record: RunRecord) -> Iterator[str]:
    learners = record.learners_count
    if learners:
        yield f"{whole(learners)} learner{'' if learners == 1 else 's'}"
    tokens = record.number("tokens_total")
    if tokens is not None:
        yield f"{whole(tokens)} tokens"
    yield from _task(record)
    if record.begun_at is not None:
        yield f"{record.begun_at.day} {record.begun_at:%B %Y, %H:%M}"
    seed = record.setting("run", "seed")
    if isinstance(seed, int):
        yield f"seed {seed}"


def _task(record: RunRecord) -> Iterator[str]:
    """Model and data: of the shipped task from its settings, of any other its reference."""
    parameters = f"{whole(record.parameters)} parameters" if record.parameters is not None else ""
    task, layers = record.setting("run", "task"), record.setting("task", "layers")
    if isinstance(task, str) and task:
        # A file's folder is not part of the run, and private.
        yield task.rpartition("/")[2] + (f", {parameters}" if parameters else "")
        return
    if not isinstance(layers, int):
        if parameters:
            yield parameters
        return
    yield f"transformer of {parameters or f'{layers} layers'}"
    data = record.setting("task", "data")
    paths = [str(path) for path in data] if isinstance(data, list) else []
    named = ", ".join(path.rstrip("/").rpartition("/")[2] or path for path in paths[:3])
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    yield f"text of {named}{more}" if paths else "text of Python's standard library"


def _sent_instead(record: RunRecord) -> str:
    """The comparison with data-parallel training, or the reason for its absence."""
    instead, sent = data_parallel_bytes(record), record.number("bytes_sent_total")
    if instead is None:
        return "no comparison with data-parallel: no final model or no steps"
    if instead == 0:
        return "one learner alone: data-parallel would have sent nothing"
    words_of = f"data-parallel: {size(instead)}"
    return words_of + (f", {decimal(instead / sent, 1)} times as much" if sent else "") + " (computed)"


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


class PagePart(NamedTuple):
    """A part of the page: the values of the template of its name, or the reason why it is empty."""

    name: str
    title: str
    shown: Mapping[str, Any] | None
    why: str = ""


def curves(record: RunRecord, window: TimeWindow | None) -> PagePart:
    """Everything that learners and the evaluator reported over the run."""
    title = "Over the run"
    every = charts(record, window)
    if not every:
        return PagePart("curves", title, None, "No learner has reported anything, and the model was never evaluated.")
    values = {
        "charts": every,
        "evaluations": [item for item in record.evaluations if item.eval_loss is not None],
        "without_loss": without_loss(record.reports),
        "reports": len(while_stepping(record.reports)),
        "sick": _some(sorted({report.learner for report in record.reports if report.sick})),
    }
    return PagePart("curves", title, values)


def _some(slots: Sequence[int]) -> str:
    """The first of many, and how many there are."""
    more = f" and {len(slots) - ROWS_MAX:,} more" if len(slots) > ROWS_MAX else ""
    return f"{', '.join(map(str, slots[:ROWS_MAX]))}{more}" if slots else ""


def timeline(record: RunRecord, window: TimeWindow | None) -> PagePart:
    """The window of the trace in which steps, transfers and merges can be seen one by one."""
    title = "What happened at once"
    if record.timeline is None or window is None:
        why = "There is no trace of inner steps that follow one another, so there is no timeline."
        return PagePart("timeline", title, None, why)
    values = {
        "chart": draw_timeline(record, window, WIDE),
        "facts": _window_facts(record, window),
        "has_merges": bool(merges_by_fragment(record)),
    }
    return PagePart("timeline", title, values)


def merges(record: RunRecord) -> PagePart:
    """The grid of merges by contributors, over time."""
    rows = merges_by_fragment(record)
    if not rows:
        why = "No fragment was merged: the program has no outer steps, or the run ended before."
        return PagePart("merges", "Merges", None, why)
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
        "capped": list(_capped(record)),
        "was_away": any(item.role == "syncer" and item.kind == "gone" for item in record.absences),
        "facts": {
            key_of(each.fragment, each.round): _facts_for_page(each)
            for each in facts_of_many(record.folder, FACTS_MAX, ANSWERS_MAX)
        },
    }
    return PagePart("merges", "Merges", values)


class CappedShare(NamedTuple):
    """How many of the merges in which somebody would have had more than its largest share, the largest share that it
    would have had, and what it had at most."""

    name: str
    merges: int
    share: float
    counted: float
    begin: float
    end: float


def _capped(record: RunRecord) -> Iterator[CappedShare]:
    """Whose shares were bounded, by name."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for merge in record.merges:
        for name, share, counted in merge.capped:
            rows.setdefault(name, []).append((merge.time, share, counted))
    for name, found in sorted(rows.items()):
        times, shares, capped = zip(*found, strict=True)
        yield CappedShare(name, len(found), max(shares), max(capped), min(times), max(times))


def _facts_for_page(facts: MergeFacts) -> dict[str, Any]:
    """What `isthmus why` tells of a merge, as the script of the page shows it."""
    remarks = [f"{facts.by} {answer.slot}: {remark}" for answer in facts.answers if (remark := words.remark(answer))]
    return {
        "head": words.head(facts),
        "rows": list(words.rows(facts)),
        "table": list(words.table(facts).items()),
        "remarks": remarks,
        "command": say("isthmus why --fragment {fragment}[ --version {version:version}]", facts),
    }


def changes(record: RunRecord) -> PagePart | None:
    """The settings that followed the links, and learners whose pace changed; None if there was neither."""
    records = read_changes(record.folder)
    rows = [
        {"time": change.time, "shard": change.shard, "told": step(change), "why": why(change)}
        for change in records[-CHANGES_SHOWN:]
    ]
    return (
        PagePart("changes", "What followed links and speeds", {"rows": rows, "count": len(records)}) if rows else None
    )


def accounts(record: RunRecord) -> PagePart:
    """Every trained token is exactly one of five things, in a program that merges fragments."""
    title = "Where every token went"
    if record.number("fragments") == 0:
        why = "The program merges no fragments, so there is nothing that a trained token could be merged into or miss."
        return PagePart("accounts", title, None, why)
    values = [record.number(f"tokens_{name}") for name, _ in _ACCOUNTS]
    total = sum(value for value in values if value is not None and value > 0)
    if not total:
        return PagePart("accounts", title, None, "There are no token accounts.")
    rows = [
        {"name": name, "meaning": meaning, "tokens": value, "share": (value or 0.0) / total}
        for (name, meaning), value in zip(_ACCOUNTS, values, strict=True)
    ]
    books = record.summary.get("books")
    return PagePart("accounts", title, {"rows": rows, "lines": book_lines(books if isinstance(books, dict) else {})})


def learners(record: RunRecord) -> PagePart:
    """A row per learner, or, of many, quantiles of all, and the rows of those that are looked for."""
    losses = {report.learner: report.loss for report in record.reports if report.loss is not None}
    names = ("steps", "tokens", "stall_seconds", "away_seconds", "bytes_sent", "bytes_received", "restarts")
    rows = []
    for row in record.per_learner:
        slot = int(as_number(row.get("learner")) or 0)
        figures = {name: as_number(row.get(name)) for name in names}
        told = {"path": row.get("path"), "device": row.get("device_kind"), "loss": losses.get(slot)}
        rows.append({"slot": slot, **told, **figures})
    has_paths = any(row["path"] is not None for row in rows)
    quantiles: list[dict[str, Any]] = []
    count = len(rows)
    if count > ROWS_MAX:
        for share, title in QUANTILES:
            made = {name: quantile([row[name] for row in rows], share) for name in (*names, "loss")}
            quantiles.append({"title": title, **made})
        shown = slots_shown(record)
        rows = [row for row in rows if row["slot"] in shown]
    values = None
    if rows:
        values = {"rows": rows, "count": count, "quantiles": quantiles, "extremes": EXTREMES, "has_paths": has_paths}
        values["regions"] = list(_regions(record))
    return PagePart("learners", "Learners", values, "There is no summary of any learner.")


def sites(record: RunRecord) -> PagePart | None:
    """The data of each site by model; None of a run without any."""
    found = site_words.rows(record.summary)
    if not found:
        return None
    rows = [{"row": row, "data": site_words.data(row)} for row in found]
    values = {
        "rows": rows,
        "not_told": site_words.NOT_TOLD,
        "same": [f"{row.site} has {site_words.same_data(row)}." for row in found if row.same_data],
        "figures": [(row.site, *figure) for row in found if row.is_told for figure in row.metrics],
        "has_bits": any(row.global_last_bits is not None for row in found),
        "signed": site_words.signed,
        "epochs": site_words.epochs,
    }
    return PagePart("sites", "Sites and their own data", values)


def _regions(record: RunRecord) -> Iterator[dict[str, Any]]:
    """A row per region, where the program has some."""
    for row in record.per_region:
        names = ("tokens", "rounds", "answers", "answer_bytes_sent")
        yield {"number": int(as_number(row.get("region")) or 0), **{name: as_number(row.get(name)) for name in names}}


def graph(record: RunRecord) -> PagePart:
    """The graph of the run: roles, nodes and edges."""
    drawn = parse_graph(record.graph)
    if drawn is None:
        return PagePart("graph", "The graph", None, "There is no graph.json that could be drawn.")
    flows = [row for row in record.summary.get("edges") or () if isinstance(row, dict)]
    moved = {(row.get("source"), row.get("target")): row for row in flows}
    edges = [(edge, moved.get((edge.source, edge.target), {})) for edge in drawn.edges]
    nodes = [row for row in record.summary.get("nodes") or () if isinstance(row, dict)]
    return PagePart("graph", "The graph", {"chart": draw_graph(drawn, WIDE), "edges": edges, "nodes": nodes})


def data(record: RunRecord) -> PagePart:
    """What the run is trained on."""
    title = "The data"
    if not record.data:
        why = "Only a shipped task whose data no router gives to shards says what it reads."
        return PagePart("data", title, None, why)
    try:
        return PagePart("data", title, {"rows": rows(record.data), "most": EPOCHS_MAX})
    except ValueError as error:
        return PagePart("data", title, None, f"{DATA} cannot be read: {error}")


def configuration(record: RunRecord) -> PagePart:
    """config.toml as it is."""
    fingerprint = record.graph.get("fingerprint")
    values = {"fingerprint": fingerprint if isinstance(fingerprint, str) else ""}
    is_there = bool(record.configuration_text.strip())
    return PagePart("configuration", "Configuration", values if is_there else None, "There is no config.toml.")


def _range(counts: list[int], of: int) -> str:
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"{span} of {of}"


_WINDOW_FACTS: Final = (
    "{steps:whole} inner steps of {learners learner}, while {moved:size} travelled between hosts"
    "[ and {rounds} opened, answered and merged][. The longest time without a step of a learner was {pause:seconds}]"
    "[; in the whole run all learners together waited {stalls:seconds} for an item or a credit. What gaps are left are "
    "threads that were due, and waited for a core]."
    f"[{{hidden}} The first {LEARNERS_DRAWN_MAX} of {{learners}} learners are drawn.]"
)


def _window_facts(record: RunRecord, window: TimeWindow) -> str:
    """The contents of the window, in words and numbers."""
    timeline = record.timeline
    assert timeline is not None, "a window is chosen from a trace"
    hosts = [host for host in timeline.hosts if (host, "inner-step") in timeline.firings and slot_of(host) is not None]
    steps = sum(len(timeline.between(host, "inner-step", *window)) for host in hosts)
    pauses = [pause for pause in (longest_pause(timeline, host, window) for host in hosts) if pause is not None]
    moved = sum(transfer.size_bytes for transfer in timeline.transfers_between(*window))
    rounds = len(visible_rounds(record, window))
    places = ".2f" if window.end - window.begin > 0.3 else ".4f"
    facts = {
        "steps": steps,
        "moved": moved,
        "rounds": None if not rounds else "one round was" if rounds == 1 else f"{whole(rounds)} rounds were",
        "pause": max(pauses, default=None),
        "stalls": record.stall_seconds,
        "hidden": len(hosts) > LEARNERS_DRAWN_MAX,
    }
    span = f"From {window.begin:{places}} to {window.end:{places}} s of the run, "
    return span + say(_WINDOW_FACTS, facts, learners=len(hosts))


PICTURES_MAX: Final = 3
_ROWS_MAX: Final = 200
_AGAIN_MIN: Final = 3
"""From this number on, absences of a host for the same reason are one row."""
_HALF: Final = 530.0
_HEADINGS: Final[dict[Topic, str]] = {
    "items": "Items were refused, and went no further:",
    "machines": "Machines came or went, which is no failure:",
    "pause": "The run stood still, which is no failure:",
    "pace": "Learners were slow, which is no failure:",
    "data": "Data were slower than the steps that they are for, which is no failure:",
    "left": "Learners left in order, which is no failure:",
    "given up": "Hosts were given up, and the run went on without them:",
    "ledger": "The daemon lost its ledger, which is no failure:",
    "island": "Islands lost processes, and went on with the rest:",
    "script": "What the scripts of learners did:",
}


class Picture(NamedTuple):
    """The activity around absences: a chart, close-ups, and sentences."""

    begin: float
    chart: Markup
    close: list[tuple[str, Markup]]
    facts: list[str]


class FailureRow(NamedTuple):
    """A failure of a host, once or repeatedly."""

    begun: float
    host: str
    happened: str
    then: str
    away: str
    lost: str


def failures(record: RunRecord) -> PagePart:
    """Pictures of the first absences, and a row for each host and kind of failure."""
    parts = windows(record)
    groups = _groups(record.absences)
    values = {
        "remarks": [(heading, remarks) for topic, heading in _HEADINGS.items() if (remarks := _remarks(record, topic))],
        "pictures": [_picture(record, window, absences) for window, absences in parts[:PICTURES_MAX]],
        "pictures_in_all": len(parts),
        "has_legend": any(item.kind == "gone" for item in record.absences) and bool(parts),
        "has_merges": bool(merges_by_fragment(record)),
        "rows": [_row(record, group) for group in groups[:_ROWS_MAX]],
        "rows_in_all": len(groups),
    }
    return PagePart("failures", "Failures", values)


def _remarks(record: RunRecord, topic: Topic) -> list[str]:
    remarks = [f"at {seconds(item.at)} {item.text}" for item in record.remarks if item.topic == topic]
    return [*remarks[:_ROWS_MAX], *([f"and {len(remarks) - _ROWS_MAX} more"] if len(remarks) > _ROWS_MAX else [])]


def _picture(record: RunRecord, window: TimeWindow, absences: Sequence[Absence]) -> Picture:
    close = [
        (caption, draw_absence(record, moment, absences, _HALF))
        for moment, caption in close_ups(record, absences)
        if any(steps.traced for steps in steps_between(record, moment))
    ]
    facts = [fact for fact in (_meanwhile(record, absence) for absence in absences) if fact]
    return Picture(window.begin, draw_absence(record, window, absences, WIDE), close, facts)


def _row(record: RunRecord, group: Sequence[Absence]) -> FailureRow:
    first, absence = group[0], group[-1]
    gone = "the daemon died" if absence.kind == "replaced" else cause(absence)
    meanwhile = "" if absence.kind == "replaced" else others_meanwhile(absence, record.waiting)
    lives = sum(item.lives_lost for item in group)
    if len(group) > 1:
        gone += f"; {max(len(group), lives)} times, the last at {seconds(absence.begun)}"
    elif lives > 1:
        gone += f"; {lives} lives in a row"
    took = [item.seconds for item in group if item.seconds is not None]
    away = "" if absence.kind == "replaced" else seconds(sum(took) if took else None)
    return FailureRow(
        first.begun, named(absence.host), gone + meanwhile, _then(record, absence), away, _lost(record, absence)
    )


def _meanwhile(record: RunRecord, absence: Absence) -> str:
    """Figures of the learners that were present all the time."""
    end = record.wall_seconds if absence.ended is None else absence.ended
    window = TimeWindow(max(absence.begun, 0.0), end)
    there = [
        steps
        for steps in steps_between(record, window)
        if not any(item.kind != "replaced" for item in steps.absences) and len(steps.traced) > 1
    ]
    if not there or end <= window.begin:
        return ""
    slots = [steps.slot for steps in there]
    now = rate(record, slots, *window)
    before = None if _was_anybody_away(record, window) else rate(record, slots, *_before(window))
    count = sum(len(steps.traced) for steps in there)
    pauses = [steps.pause_max for steps in there if steps.pause_max is not None]
    text = f"While {named(absence.host)} was away, {seconds(end - window.begin)}, {_listed(slots)} made "
    text += f"{whole(count)} inner steps"
    if now is not None:
        text += f", {decimal(now, 1)} a second" + (" each" if len(slots) > 1 else "")
        text += f" ({decimal(before, 1)} in as long before)" if before is not None else ""
    merges = [merge for merge in record.merges if merge.kind == "merge" and window.begin <= merge.time < window.end]
    if merges and (absence.role != "syncer" or record.shards > 1):
        mean = sum(len(merge.voters) for merge in merges) / len(merges)
        text += f"; {whole(len(merges))} merges went on, with {decimal(mean, 1)} contributors on average"
    return text + f". The longest pause between two of their steps was {seconds(max(pauses))}."


def _before(window: TimeWindow) -> TimeWindow:
    return TimeWindow(max(0.0, 2 * window.begin - window.end), window.begin)


def _was_anybody_away(record: RunRecord, window: TimeWindow) -> bool:
    """Whether a comparison with the time before `window` would be with another accident."""
    begin, end = _before(window)
    return any(
        item.begun < end and (item.ended is None or item.ended > begin) and item.kind != "replaced"
        for item in record.absences
    )


def _groups(absences: Sequence[Absence]) -> list[list[Absence]]:
    """The absences that share a row: all of a host that went again and again for the same reason; else one."""
    by_cause: dict[tuple[str, str, str], list[Absence]] = {}
    for absence in absences:
        by_cause.setdefault((absence.host, absence.kind, cause(absence)), []).append(absence)
    rows: list[list[Absence]] = []
    for group in by_cause.values():
        rows += [group] if len(group) >= _AGAIN_MIN else [[absence] for absence in group]
    return sorted(rows, key=lambda row: row[0].begun)


def _then(record: RunRecord, absence: Absence) -> str:
    if absence.kind == "replaced":
        return "a new one took over; the hosts went on meanwhile"
    if absence.ended is None:
        return "it did not come back" if record.is_placed else ""
    at = f"at {seconds(absence.ended)}"
    return f"heard again {at}" if absence.kind == "silent" else again(absence, at)


def _lost(record: RunRecord, absence: Absence) -> str:
    """The loss; of a learner in tokens, which the summary has for all lives of a slot together."""
    if absence.role != "learner" or absence.kind != "gone":
        return cost(absence)
    slot = absence.host.rpartition("/")[2]
    row = next((row for row in record.per_learner if str(row.get("learner")) == slot), {})
    tokens = as_number(row.get("tokens_lost"))
    if tokens is None:
        return cost(absence)
    lives = sum(item.host == absence.host and item.kind == "gone" for item in record.absences)
    of = f" (with all of its {lives} deaths)" if lives > 1 else ""
    # In programs that average gradients, a learner that comes back takes the moments of another.
    moments = "; its optimizer's moments" if record.number("outer_steps") else ""
    return f"{whole(tokens)} tokens{of}{moments}"


def _listed(slots: Sequence[int]) -> str:
    if len(slots) == 1:
        return f"learner {slots[0]}"
    return f"learners {', '.join(map(str, slots[:-1]))} and {slots[-1]}"
