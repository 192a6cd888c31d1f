"""The top of the report: what was run, how it ended, and the figures that matter most.

Every figure is one of summary.json, shown rounded and kept exact in the page, but for three that are computed here:
what data-parallel training would have sent for the same tokens, tokens a second, and how long all learners waited.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.programs.command.report_markup import Content, Markup, element, figure, joined
from isthmus.programs.command.report_record import RunRecord, as_number
from isthmus.programs.numbers import decimal, percent, scaled, seconds, size, whole

_OUTCOMES: Final = ("done", "stopped", "failed")
_BYTES_A_VALUE: Final = 4
"""Data-parallel training is taken to send float32 gradients, as the learners send float32 fragments by default."""


def header(record: RunRecord) -> Markup:
    """Program, outcome, and in one line what it was."""
    outcome = record.text("outcome")
    known = outcome if outcome in _OUTCOMES else "unknown"
    badge = element("span", outcome or "not finished", class_=f"outcome {known}")
    return element(
        "header",
        element("h1", record.program or "a run", " ", badge),
        element("p", " · ".join(_what_it_was(record)), class_="lead"),
        _problems(record),
    )


def data_parallel_bytes(record: RunRecord) -> float | None:
    """What a ring of data-parallel learners would have sent for the same tokens; None without its factors.

    Per learner and step 2 (M-1)/M times the bytes of all parameters, for every inner step that was made: synchronous
    steps of M learners that train as many tokens make as many learner steps. 0 for one learner.
    """
    learners = record.number("learners") or float(len(record.learners))
    steps = steps_total(record)
    if record.parameters is None or not steps or learners < 1:
        return None
    return 2 * (learners - 1) / learners * record.parameters * _BYTES_A_VALUE * steps


def steps_total(record: RunRecord) -> float:
    """The inner steps of all learners."""
    rows = [as_number(row.get("steps")) or 0.0 for row in record.per_learner]
    if rows:
        return sum(rows)
    last = {(report.learner, report.incarnation): report.step for report in record.reports}
    return sum(last.values())


def headline(record: RunRecord) -> Markup:
    """The row of figures."""
    return element("dl", *(_tile(*tile) for tile in _tiles(record)), class_="figures")


def _what_it_was(record: RunRecord) -> Iterator[str]:
    learners = record.number("learners") or float(len(record.learners))
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
        # A file's folder says nothing about the run, and is nobody's business.
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


def _problems(record: RunRecord) -> Markup:
    """What of the folder could not be read, so that nobody takes an empty chart for a result."""
    told = list(record.problems)
    if not record.summary:
        told.insert(0, "There is no summary: the run is still going on, or it ended before it could write one.")
    if not told:
        return Markup()
    items = element("ul", *(element("li", problem) for problem in told))
    return element("div", element("strong", "Not everything is there."), items, class_="problems", role="note")


def _tile(name: str, value: Content, rest: Content) -> Markup:
    return element(
        "div",
        element("dt", name),
        element("dd", value, class_="big"),
        element("dd", rest, class_="rest"),
    )


def _tiles(record: RunRecord) -> Iterator[tuple[str, Content, Content]]:
    def number(name: str) -> float | None:
        return record.number(name)

    loss = ("eval_loss_initial", "eval_loss_final")
    values = [figure(name, number(name), decimal) for name in loss]
    yield "Evaluation loss", joined([values[0], " → ", values[1]]), "global model on held-out data, first → final"
    tokens = figure("tokens_total", number("tokens_total"), scaled)
    if number("outer_steps"):
        learners = figure("learners", number("learners"), whole)
        merges = figure("outer_steps", number("outer_steps"), whole)
        mean = figure("contributors_mean", number("contributors_mean"), lambda value: decimal(value, 2))
        yield "Contributors", joined([mean, " of ", learners]), joined(["in a merge, mean over ", merges, " merges"])
        share = figure("merged_share", number("merged_share"), percent)
        yield "Merged", share, joined(["of ", tokens, " trained tokens are in the global model"])
    else:
        yield "Trained", tokens, "tokens; no fragment was merged"
        stalls = [as_number(row.get("stall_seconds")) or 0.0 for row in record.per_learner]
        yield "Waited", seconds(sum(stalls)), "all learners together, for a channel, a credit or a lock (computed)"
    uptime = figure("uptime", number("uptime"), percent)
    goodput = figure("goodput", number("goodput"), percent)
    yield "Goodput", goodput, joined(["of learner time trained tokens that were kept; uptime ", uptime])
    wall = figure("wall_seconds", number("wall_seconds"), seconds)
    yield "Wall time", wall, _speed(record)
    yield "Sent", figure("bytes_sent_total", number("bytes_sent_total"), size), _sent_instead(record)


def _speed(record: RunRecord) -> Markup:
    tokens, wall = record.number("tokens_total"), record.number("wall_seconds")
    parts: list[Content] = []
    if tokens is not None and wall:
        parts.append(f"{scaled(round(tokens / wall))} tokens/s; ")
    cpu = figure("cpu_seconds_total", record.number("cpu_seconds_total"), seconds)
    return joined([*parts, cpu, " of processor time"])


def _sent_instead(record: RunRecord) -> Markup:
    """The comparison with data-parallel training, or why there is none."""
    instead, sent = data_parallel_bytes(record), record.number("bytes_sent_total")
    if instead is None:
        return joined(["no comparison with data-parallel: no final model or no steps"])
    if instead == 0:
        return joined(["one learner alone: data-parallel would have sent nothing"])
    told = f"data-parallel: {size(instead)}"
    return joined([told + (f", {decimal(instead / sent, 1)} times as much" if sent else "") + " (computed)"])
