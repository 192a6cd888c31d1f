"""The top of the report: the run, its end, and the figures that matter most.

Every figure is one of summary.json, shown rounded and kept exact in the page, but for three that are computed here: the
traffic of data-parallel training for the same tokens, tokens a second, and the waits of all learners.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from isthmus.programs.results.numbers import decimal, percent, scaled, seconds, size, whole
from isthmus.programs.results.record import RunRecord, as_number

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


class Figure(NamedTuple):
    """A figure of summary.json; None if unknown."""

    name: str
    value: float | None
    write: Callable[[float | None], str]


class Tile(NamedTuple):
    """A large figure under its name, and its meaning; both are texts and figures in turn."""

    name: str
    value: Sequence[str | Figure]
    rest: Sequence[str | Figure]


def header(record: RunRecord) -> Header:
    """The header above the figures; it names missing data, so that an empty chart does not pass for a result."""
    outcome = record.text("outcome")
    problems = list(record.problems)
    if not record.summary:
        problems.insert(0, "There is no summary: the run is still going on, or it ended before it could write one.")
    return Header(
        record.program or "a run",
        outcome or "not finished",
        outcome if outcome in _OUTCOMES else "unknown",
        " · ".join(_what_it_was(record)),
        record.text("error"),
        problems,
    )


def tiles(record: RunRecord) -> Iterator[Tile]:
    """The row of figures."""

    def figure(name: str, write: Callable[[float | None], str]) -> Figure:
        return Figure(name, record.number(name), write)

    losses = (figure("eval_loss_initial", decimal), " → ", figure("eval_loss_final", decimal))
    yield Tile("Evaluation loss", losses, ["global model on held-out data, first → final"])
    tokens = figure("tokens_total", scaled)
    if record.number("outer_steps"):
        mean = figure("contributors_mean", partial(decimal, digits=2))
        merges = ("in a merge, mean over ", figure("outer_steps", whole), " merges")
        yield Tile("Contributors", (mean, " of ", Figure("learners", record.learners_count, whole)), merges)
        share = figure("merged_share", percent)
        yield Tile("Merged", [share], ("of ", tokens, " trained tokens are in the global model"))
    else:
        yield Tile("Trained", [tokens], ["tokens; no fragment was merged"])
        stalls = [as_number(row.get("stall_seconds")) or 0.0 for row in record.per_learner]
        yield Tile("Waited", [seconds(sum(stalls))], ["all learners together, for an item or a credit"])
    kept = ("of learner time trained tokens that were kept; uptime ", figure("uptime", percent))
    yield Tile("Goodput", [figure("goodput", percent)], kept)
    total, wall = record.number("tokens_total"), record.number("wall_seconds")
    speed = f"{scaled(round(total / wall))} tokens/s; " if total is not None and wall else ""
    cpu = figure("cpu_seconds_total", seconds)
    yield Tile("Wall time", [figure("wall_seconds", seconds)], (speed, cpu, " of processor time"))
    yield Tile("Sent", [figure("bytes_sent_total", size)], [_sent_instead(record)])


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
    last = {(report.learner, report.incarnation): report.step for report in record.reports}
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
    told = f"data-parallel: {size(instead)}"
    return told + (f", {decimal(instead / sent, 1)} times as much" if sent else "") + " (computed)"
