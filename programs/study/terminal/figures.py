"""Statuses and summaries of one run as words and numbers, for every view.

A status is published by the recorder, beside it `hosts` (the daemon's information on each process) and `pacing`; any
key may be missing at first. Nothing is decided here, and unknown figures are left out.

Tables that fit a terminal: where it is narrow whole columns are left out, and never a part of a figure.

`1234…` may be read as a number, so no cell is ever cut. The choice of columns does not depend on the length of the
figures at the moment, as long as they keep to the usual width: columns must not come and go before the reader's eyes.

The rows of a run's table: a learner or another host, in columns of text; `live` and `isthmus status` show them.
"""

from __future__ import annotations

import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, final

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from isthmus.programs.engine.results import alterations, site_words, words
from isthmus.programs.engine.results.crowd import LOST, ROWS_MAX
from isthmus.programs.engine.results.words import book_lines, counted, snapshot_lines, store_line
from isthmus.programs.study.terminal import many_learners
from isthmus.programs.study.terminal.sheet import Column, Sheet
from isthmus.runtime.cores.membership_messages import SILENT
from isthmus.runtime.errors import printable
from isthmus.runtime.supervision.incidents import Departed

if TYPE_CHECKING:
    from isthmus.programs.engine.request.request import Request
    from isthmus.programs.engine.run.in_processes import Resumption, Submitted


@final
class ProgressLine:
    """A line on standard error that changes while something goes on, if that is a terminal."""

    def __init__(self) -> None:
        self.is_terminal = sys.stderr.isatty()

    def show(self, text: str) -> None:
        """Show `text` in place of the one before, on a terminal alone."""
        if self.is_terminal:
            sys.stderr.write(f"\r\x1b[2K{text}")
            sys.stderr.flush()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self.show("")
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


@final
class Screen(Console):
    """Standard output: BrokenPipeError where its reader is gone, and not the end of the process."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> None:
        """Called while the error is handled."""
        raise


SPEED_SECONDS: Final = 20.0
"""Window of the speed, and so of the time left: a death shows in it, a single merge does not."""
_EPOCHS_SHOWN: Final = 4
METRICS_SHOWN: Final = 3
"""Scalars of a task that a terminal shows; all are in the files."""
WORKING: Final = frozenset({"stepping", "away", "serving", "final"})
"""The phases of a host that does its work."""
_PHASES: Final = {
    "starting": "starting: compiling the first step",
    "training": "training",
    "final": "merging the last fragments",
    "done": "ended, writing summary and report",
}


@final
class TokenSpeed:
    """The speed of one run, from the statuses of the last SPEED_SECONDS."""

    def __init__(self) -> None:
        self._heard: deque[tuple[float, int]] = deque()

    def of(self, status: Mapping[str, Any], budget: int) -> tuple[str, str]:
        """Tokens a second of late, and the time that is left at that speed; both may be empty."""
        at, tokens = status.get("time", 0.0), status.get("tokens", 0)
        heard = self._heard
        if is_starting(status):
            heard.clear()
            return "", ""
        if tokens and (not heard or at > heard[-1][0]):
            heard.append((at, tokens))
        while len(heard) > 2 and heard[1][0] <= at - SPEED_SECONDS:
            heard.popleft()
        if len(heard) < 2:
            return "", ""
        passed, trained = heard[-1][0] - heard[0][0], heard[-1][1] - heard[0][1]
        if trained <= 0:
            return "", ""
        is_ending = status.get("phase") in ("final", "done")  # It may have been stopped: nothing is left to train.
        left = 0.0 if is_ending else max(0, budget - tokens) * passed / trained
        return f"{words.scaled(trained / passed)} tokens/s", f"{words.seconds(left)} left" if left else ""


@final
class FigureWords:
    """Turns statuses and summaries of one request's run into words; keeps past statuses for the speed."""

    def __init__(self, request: Request | Submitted) -> None:
        self.program = request.name
        self.learners = request.job.learners
        self.budget = request.job.tokens
        self.run_dir = request.run_dir
        self.folder = short(request.run_dir)
        self._settings = request.job.settings
        self._speed = TokenSpeed()

    def phase(self, status: Mapping[str, Any]) -> str:
        """The phase in words; before the first token is reported, the progress of the start."""
        phase = status.get("phase", "starting")
        if status.get("awaited"):
            return awaiting(status)
        if is_starting(status):
            return starting(status.get("hosts", ()))
        if phase == "starting":  # The time of the first step is not known yet, and it was made.
            phase = "training"
        if phase == "final" and not status.get("outer_steps") and not _is_evaluating(status):
            return "coming to the end"
        if phase == "final" and status.get("ending"):
            return words.awaited_at_end(status["ending"])
        return str(_PHASES.get(phase, phase))

    def stage(self, status: Mapping[str, Any]) -> str:
        """The phase without its figures: while it stays the same nothing new has begun."""
        if status.get("awaited"):
            return "awaiting"
        if status.get("phase") == "final" and status.get("ending"):
            return str(status["ending"]["awaits"])
        return re.sub(r"\d+", "", self.phase(status))

    def share(self, status: Mapping[str, Any]) -> float:
        """The share of the token budget that has been trained, in [0, 1]."""
        return min(1.0, float(status.get("tokens", 0)) / self.budget)

    def tokens(self, status: Mapping[str, Any]) -> str:
        """'1.40 M of 4.10 M tokens'."""
        return f"{words.scaled(status.get('tokens', 0))} of {words.scaled(self.budget)} tokens"

    def speed(self, status: Mapping[str, Any]) -> tuple[str, str]:
        """Tokens a second of late, and the time that is left at that speed; both may be empty."""
        return self._speed.of(status, self.budget)

    def evaluation(self, status: Mapping[str, Any]) -> str:
        """'eval loss 5.545 -> 1.812 at 96.1 % of the tokens trained so far', or '' before the first evaluation."""
        losses = evaluated(status)
        return f"eval loss {losses}" if losses else ""

    def merging(self, status: Mapping[str, Any]) -> str:
        """'120 outer steps by 3.9 of 4 learners', merged share, goodput, and settings that pacers have changed. That a
        disk is full is a notice of its own, once a minute."""
        shown = dict(self.shown(status))
        if "contributors" not in shown:
            return ""
        learners = "" if status.get("has_regions") else " learners"
        parts = [f"{shown['outer steps']} outer steps by {shown['contributors']}{learners}"]
        parts += [f"{name} {shown[name]}" for name in ("merged", "goodput") if name in shown]
        return ", ".join([*parts, *self.pacing(status)])

    def pacing(self, status: Mapping[str, Any]) -> Iterator[str]:
        """Settings that the pacers have changed: 'interval raised to 31 steps'."""
        for name in ("interval", "overlap"):
            values = [pacer.get(name) for pacer in status.get("pacing", {}).values()]
            now = {each for each in values if isinstance(each, int)} - {self._settings.get(name)}
            if now:
                yield f"{name} raised to {max(now)} steps"

    def shown(self, status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """The figures of the run: name and value."""
        return shown(status, max(self.learners, len(status.get("learners", ()))))

    def ending(self, summary: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The notable facts at the end: keyword and text."""
        return ending(summary, self.folder)


def _is_evaluating(status: Mapping[str, Any]) -> bool:
    """Whether a run awaits nothing but the evaluation of its final model."""
    return (status.get("ending") or {}).get("awaits") in ("evaluation", "figures")


def awaiting(status: Mapping[str, Any]) -> str:
    """The scripts that a run which is over waits for: 'the run is over, and waits for the scripts of learner/0'."""
    lasted = {host["name"]: host.get("user_code_ns") for host in status.get("hosts", ())}
    since = {
        name: f" ({words.seconds(each / 1e9)})" if (each := lasted.get(name)) else "" for name in status["awaited"]
    }
    names = ", ".join(f"{name}{since[name]}" for name in status["awaited"])
    what = "script" if len(status["awaited"]) == 1 else "scripts"
    return f"the run is over, and waits for the {what} of {names}; Ctrl-C, or `isthmus stop`, ends them"


def starting(hosts: Any) -> str:
    """The progress of the start: 'starting: learners compile, 1 of 4 are ready', and what they compile, and await."""
    learners = [host for host in hosts if host["role"] == "learner"]
    if not learners:
        return "starting: no learner is there so far" if hosts else _PHASES["starting"]
    begun = sum(host["phase"] not in ("gone", "starting") for host in learners)
    ready = sum(host["phase"] not in ("gone", "starting", "compiling") for host in learners)
    if ready == len(learners):
        return "starting: all learners are ready, and begin with the same model"
    if begun == 0:
        up = sum(host["state"] == "alive" for host in hosts)
        return f"starting: {up} of {len(hosts)} processes are there"
    return f"starting: learners compile, {ready} of {len(learners)} are ready{_compiled(learners)}"


COMPILED_MAX: Final = 2
"""Of those that the line of the start names."""
COMPILED_SECONDS_MIN: Final = 1.0
"""What takes less is over before it is read."""


def _compiled(learners: Sequence[Mapping[str, Any]]) -> str:
    """': learner/0 compiles step, 8.00 s; learner/1 waits for it', of the learners that tell."""
    compiling = dict[tuple[str, str], str]()
    awaiting = dict[tuple[str, str], list[str]]()
    for host in learners:
        told = next((each for each in host.get("published", {}).values() if "compiles" in each), None)
        if host["phase"] != "compiling" or told is None:
            continue
        name, function, by = str(host["name"]), str(told["compiles"]), str(told["awaits"])
        if by:
            awaiting.setdefault((by, function), []).append(name)
            continue
        lasted = max(int(host.get("now_ns", 0)) - int(told["compiles_since"]), 0) / 1e9
        if lasted >= COMPILED_SECONDS_MIN:
            compiling[name, function] = f"{name} compiles {function}, {words.seconds(lasted)}"
    parts = []
    for key, text in list(compiling.items())[:COMPILED_MAX]:
        others = awaiting.pop(key, [])
        parts.append(f"{text}; {_waits(others)} for it" if others else text)
    parts += [f"{_waits(others)} for {function} of {by}" for (by, function), others in list(awaiting.items())[:1]]
    return f": {'; '.join(parts)}" if parts else ""


def _waits(names: Sequence[str]) -> str:
    return f"{names[0]} waits" if len(names) == 1 else f"{len(names)} learners wait"


def is_starting(status: Mapping[str, Any]) -> bool:
    """Whether no learner works: before the first token, and after the whole run was cut off.

    A learner works in a working phase, and where its present life has reported tokens: a daemon that has just taken
    over has not heard of phases yet.
    """
    if status.get("phase", "starting") not in ("starting", "training"):
        return False
    if not status.get("tokens"):
        return True
    learners = [host for host in status.get("hosts", ()) if host["role"] == "learner"]
    reports = {int(slot): report for slot, report in status.get("learners", {}).items()}
    return bool(learners) and not any(_works(host, reports) for host in learners)


def _works(host: Mapping[str, Any], reports: Mapping[int, Mapping[str, Any]]) -> bool:
    report = reports.get(int(host["name"].rpartition("/")[2]), {})
    has_stepped = bool(report.get("tokens")) and report.get("incarnation") == host["incarnation"]
    return host["phase"] in WORKING or has_stepped


def resumption_words(resumption: Resumption) -> str:
    """'goes on from snapshot 7, 12.3 s old: 240 outer steps, the work of 1.20 M tokens; 34.5 k tokens that were trained
    after it are undone', as far as these are known."""
    has = ["[{outer_steps:whole} outer steps]", "[the work of {tokens:scaled} tokens]"]
    text = (
        "goes on from snapshot {snapshot}[, {age_seconds:seconds} old][: {has}]"
        "[; {tokens_undone:scaled} tokens that were trained after it are undone]"
    )
    return words.say(text, resumption, has=", ".join(filter(None, (words.say(each, resumption) for each in has))))


def eval_losses(status: Mapping[str, Any]) -> str:
    """'5.545 -> 1.812', or '' before the first evaluation."""
    first, newest = status.get("eval_loss_initial"), status.get("eval_loss")
    if newest is None:
        return ""
    begun = f"{words.decimal(first)} -> " if first not in (None, newest) else ""
    return begun + words.decimal(newest)


def evaluated(figures: Mapping[str, Any]) -> str:
    """'5.545 -> 1.812 ± 0.01 at 96.1 % of the tokens trained so far', of a status or a summary; '' without an
    evaluation."""
    names = ("eval_loss_final", "eval_loss_last") if "tokens_total" in figures else ("eval_loss",)
    newest = next((figures[name] for name in names if figures.get(name) is not None), None)
    losses = eval_losses({**figures, "eval_loss": newest})
    found = " ".join(filter(None, (losses, words.evaluated_on(figures), words.evaluated_at(figures))))
    return found if losses else ""


def eval_metrics(training: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The first few other scalars of the newest evaluation: name and number."""
    for name, value in list(training.get("eval_metrics", {}).items())[:METRICS_SHOWN]:
        yield f"eval {name}", words.decimal(value)


def final_figures(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The figures of the final model: name and number."""
    for name, value in summary.get("final_figures", {}).items():
        yield name, words.decimal(value)


def shown(status: Mapping[str, Any], learners: int) -> Iterator[tuple[str, str]]:
    """The figures of a run of so many learners: name and value."""
    if losses := evaluated(status):
        yield "eval loss", losses
    yield from eval_metrics(status)
    yield from merge_figures(status, learners)
    if pairs := relayed(status.get("hosts", ())):
        yield "relayed", pairs


def merge_figures(status: Mapping[str, Any], learners: int) -> Iterator[tuple[str, str]]:
    """Contributors, outer steps, merged share, goodput, epochs of shards: name and value; only those that are known."""
    if status.get("outer_steps"):
        mean = words.decimal(status.get("contributors_mean"), 1)
        yield "contributors", f"{mean} regions" if status.get("has_regions") else f"{mean} of {learners}"
        yield "outer steps", words.whole(status["outer_steps"])
        if "merged_share" in status:
            yield "merged", words.percent(status["merged_share"])
    if status.get("losses_not_finite"):
        yield "not finite", counted(status["losses_not_finite"], "loss")
    if status.get("goodput"):
        yield "goodput", words.percent(status["goodput"])
    store = status.get("snapshots", {}).get("store")
    if store and store["number"] and not store["error"]:
        yield "snapshots", f"{words.whole(store['number'])} at {store['url']}"
    if line := store_line(store):
        yield "snapshots", line
    epochs = [epoch for _, epoch in sorted(status.get("epochs", {}).items())]
    if max(epochs, default=1) > 1:
        few = len(epochs) <= _EPOCHS_SHOWN
        yield "epoch" if len(epochs) == 1 else "epochs", ", ".join(map(str, epochs if few else [max(epochs)]))
    if refused := disk(status):
        yield "disk", refused


def relayed(hosts: Iterable[Mapping[str, Any]]) -> str:
    """'learner/1, learner/2 to evaluator/0, syncer/0': the pairs between which a porter passes on what they say."""
    by_peers: dict[tuple[str, ...], list[str]] = {}
    for host in hosts:
        if peers := host.get("relayed"):
            by_peers.setdefault(tuple(peers), []).append(str(host["name"]))
    return "; ".join(f"{', '.join(names)} to {', '.join(peers)}" for peers, names in by_peers.items())


class FullDisk(NamedTuple):
    """A full disk, by where it is mounted; `machine` is '' for that of the daemon which answers."""

    place: str
    machine: str = ""

    def __str__(self) -> str:
        return self.place + (f" of {self.machine}" if self.machine else "")


def full_disks(status: Mapping[str, Any]) -> list[FullDisk]:
    """The full disks of a status: those that its daemon has found, and of each other machine what its hosts say."""
    found = {FullDisk(str(place)) for place in status.get("full", ())}
    here = status.get("daemon", "")
    for host in status.get("hosts", ()):
        if host.get("full") and host.get("machine", "") not in ("", here):
            found |= {FullDisk(str(place), str(host["machine"])) for place in host["full"]}
    return sorted(found)


def disk(status: Mapping[str, Any]) -> str:
    """'the disk at /data is full: 12 lines wait, 3 are lost, the final model waits', or '' if nothing is missing.

    Of an error of another kind its words stand in place of the disk.
    """
    missing = _missing(status)
    if full := full_disks(status):
        return no_room(", ".join(map(str, full)), status)
    return f"{missing.error}: {missing.text}" if missing.text and missing.error else ""


def no_room(where: object, status: Mapping[str, Any]) -> str:
    """That a disk is full, and what the recorder waits with."""
    missing = _missing(status).text
    return f"the disk at {where} is full{f': {missing}' if missing else ''}"


class _Missing(NamedTuple):
    """What the recorder's disk has not taken, and its error."""

    text: str
    error: str | None


def _missing(status: Mapping[str, Any]) -> _Missing:
    files = status.get("files", {}).values()
    waiting, lost = (sum(count[name] for count in files) for name in ("waiting", "lost"))
    unsaved, snapshot = status.get("unsaved") or {}, status.get("snapshots", {}).get("error")
    unsaved_error = unsaved.get("error") if unsaved.get("fragments") else None
    parts = [
        waiting and f"{counted(waiting, 'line')} wait{'' if waiting > 1 else 's'}",
        lost and f"{counted(lost, 'line')} {'are' if lost > 1 else 'is'} lost",
        unsaved_error and "the final model waits",
        snapshot and "the next snapshot waits",
    ]
    error = next(filter(None, [*(count["error"] for count in files), unsaved_error, snapshot]), None)
    return _Missing(", ".join(map(str, filter(None, parts))), error)


_OUTCOME: Final = "{tokens_total:scaled} tokens in {wall_seconds:seconds} by {people learner}"
_PAUSED: Final = "{paused_seconds:seconds} between an end and what went on with it: no time of the run"
_MERGES: Final = "{outer_steps} outer steps by {contributors_mean:decimal2} {by} each"
_MERGED: Final = f"{{merged_share:percent}} of the tokens, in {_MERGES}"
_AWAY: Final = "{away:seconds} in all the learners were in their scripts between two steps; no figure above counts it"
_RESTARTS: Final = "{restarts}; {died:scaled} tokens died with learners"
_DISK: Final = "{lines_lost line} of metrics, merges or evaluations lost in {folder}: {disk_error}"
_KEPT: Final = "{kept_bytes:size} to go on from; run.keep_to_go_on = false drops them"
_SENT: Final = "{bytes_sent_total:size}; for evaluation and records {bytes_home_total:size}"


def ending(summary: Mapping[str, Any], folder: str) -> list[tuple[str, str]]:
    """The notable facts of a summary: keyword and text."""
    learners = summary["per_learner"]
    restarts = sum(each.get("restarts", 0) for each in learners)
    lost = [each.get("tokens_lost", 0.0) for each in learners]
    losses = evaluated(summary)
    why_none = words.not_evaluated(summary)

    def text_of(template: str, when: object = True, **parts: object) -> str:
        return words.say(template, summary, **parts) if when else ""

    rows = [
        ("error", text_of("[{error}]")),
        (summary["outcome"], text_of(_OUTCOME, people=max(summary["learners"], len(learners)))),
        ("time", words.times(summary)),
        ("paused", text_of(_PAUSED, summary.get("paused_seconds"))),
        *(("changed", alterations.headline(each)) for each in alterations.read_all(summary)),
        ("began", words.begun_from(summary)),
        ("eval loss", "; ".join(filter(None, [losses, why_none]))),
        ("trained", words.untrained(summary)),
        ("batches", words.not_finite(summary)),
        *eval_metrics(summary),
        *final_figures(summary),
        ("figures", words.without_figures(summary)),
        ("merged", text_of(_MERGED, summary["outer_steps"], by="regions" if summary.get("regions") else "learners")),
    ]
    if summary["goodput"] is None:
        rows.append(("waits", longest_waits(summary)))
    else:
        stalls = sum(each["stall_seconds"] for each in learners)
        rows.append(
            ("goodput", text_of("{goodput:percent}; the learners waited {stalls:seconds} in all", stalls=stalls))
        )
    rows += site_words.lines(summary)
    away = sum(each.get("away_seconds") or 0.0 for each in learners)
    died = None if None in lost else round(sum(lost))
    rows += [
        ("away", text_of(_AWAY, away, away=away)),
        ("restarts", text_of(_RESTARTS, restarts, restarts=restarts, died=died)),
        *(("books", line) for line in book_lines(summary.get("books", {}))),
        ("disk", text_of(_DISK, summary.get("lines_lost"), folder=folder)),
        *(("snapshot", line) for line in snapshot_lines(summary.get("snapshot_faults", ()))),
        ("snapshot", store_line(summary.get("snapshot_store"))),
        ("kept", text_of(_KEPT, summary.get("kept_bytes"))),
        ("sent", text_of(_SENT, summary.get("bytes_sent_total") is not None)),
        *(("scripts", line) for line in scripts(summary, folder)),
        ("report", str(Path(folder, "report.html"))),
    ]
    return [(keyword, text) for keyword, text in rows if text]


def scripts(summary: Mapping[str, Any], folder: str) -> list[str]:
    """The scripts that did not come to their end, by themselves or by request, and what to do about it."""
    lines = [
        f"{name} did not come to its end: {why}; see `isthmus logs {name}`"
        for name, why in summary.get("scripts_unfinished_why", {}).items()
    ]
    if dismissed := summary.get("scripts_dismissed"):
        lines.append(f"{', '.join(dismissed)}: ended by request, before their end")
    if not lines or (summary["outcome"] != "done" and not summary.get("scripts_unfinished")):
        return lines
    return [*lines, words.scripts_again(Path(folder))]


WAITS_NAMED_MAX: Final = 3
"""Nodes whose waits are named after a run; summary.json and the report have all."""


def longest_waits(summary: Mapping[str, Any]) -> str:
    """The nodes that waited for a tenth of the run and more, the longest wait first; '' without any."""
    wall = summary["wall_seconds"]
    nodes = [node for node in summary.get("nodes") or () if node["wait_seconds"]]
    waiting = sorted((node for node in nodes if node["wait_seconds"] > 0.1 * wall), key=lambda n: -n["wait_seconds"])
    named = [f"{node['replica']} {node['name']} {words.seconds(node['wait_seconds'])}" for node in waiting]
    more = f" and {len(named) - WAITS_NAMED_MAX} more" if len(named) > WAITS_NAMED_MAX else ""
    return ", ".join(named[:WAITS_NAMED_MAX]) + more


def short(path: Path) -> str:
    """A path, relative to the current folder if it is inside it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


_GAPS: Final = (2, 1)
"""Spaces between columns: as many as there is room for."""


def fitted(columns: Iterable[Column], width: int, dispensable: Iterable[str] = ()) -> Table:
    """A table at most `width` letters wide: of `dispensable` the first are left out first, until the others fit."""
    shown, spare = list(columns), list(dispensable)
    while not _fits(shown, width, _GAPS[-1]) and spare:
        name = spare.pop(0)
        shown = [column for column in shown if column.name != name]
    gap = next((gap for gap in _GAPS if _fits(shown, width, gap)), _GAPS[0])
    return _drawn(shown, gap)


def in_lines(columns: Iterable[Column], width: int, gap: int) -> Iterator[Table]:
    """All columns, in tables below one another, each at most `width` characters wide."""
    line: list[Column] = []
    for column in columns:
        if line and not _fits([*line, column], width, gap):
            yield _drawn(line, gap)
            line = []
        line.append(column)
    if line:
        yield _drawn(line, gap)


def _fits(columns: Sequence[Column], width: int, gap: int) -> bool:
    return sum(map(_width, columns)) + gap * (len(columns) - 1) <= width


def _width(column: Column) -> int:
    cells = (cell.plain if isinstance(cell, Text) else cell for cell in column.cells)
    return max(column.usual, cell_len(column.name), *map(cell_len, cells), 0)


def _drawn(columns: Sequence[Column], gap: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    for column in columns:
        least = column.usual if column.is_text else None
        table.add_column(
            Text(printable(column.name)),
            justify="left" if column.is_text else "right",
            no_wrap=not column.is_text,
            overflow="fold",
            min_width=least,
        )
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(_cell, row))
    return table


def _cell(cell: str | Text) -> Text:
    """A cell as it stands, without the markup or control characters of whoever wrote it."""
    return Text(printable(cell)) if isinstance(cell, str) else Text(printable(cell.plain), style=cell.style)


_WIDE: Final = 160
"""Characters of a line where the output is no terminal."""


def show(sheet: Sheet, *, as_json: bool, last: str = "") -> None:
    """Print a result as JSON, or its tables and sentences with a `last` line; the command names the first section."""
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(sheet.data), indent=2).decode() + "\n")
        return
    console = Screen()
    console.width = console.width if console.is_terminal else _WIDE
    for part in (part for part in sheet.parts if not part.is_detail):
        if part is not sheet.parts[0]:
            console.print(Text(f"\n{printable(part.title)}", "bold"))
        for table in part.tables:
            console.print(fitted(table.columns, console.width, table.dispensable), Text(""), sep="\n")
        for note in part.notes:
            console.print(Text(printable(note)), soft_wrap=True)
    for line in filter(None, (sheet.missing, last)):
        console.print(Text(printable(line)), soft_wrap=True)


RETIRED: Final = ("expelled", "left", "left out", "given up")
"""The states of a learner that left with its machine, which is no failure, or that joined without success."""
COLUMNS: Final = ("step", "tokens", "loss", "step time", "stale", "sent", "received")
"""The figures of a learner. stale: the most inner steps since it adopted a fragment."""
DISPENSABLE: Final = ("received", "sent", "stale", "step time", "life", "path")
"""Columns that a narrow terminal omits, in this order."""
MEANINGS: Final = {
    "goodput": "time whose tokens were kept",
    "merged": "tokens in the global model",
    "stale": "most steps since an adoption",
    "contributors": "learners in a merge",
}
"""A legend of the names that say least by themselves, the most asked for first; docs/reference/glossary.md has all."""
_USUAL: Final = {"state": 10, "pid": 7, "cpu": 6, "memory": 7, "step": 6, "tokens": 6, "loss": 7, "sent": 7}
"""Letters that figures take, as a rule; names that are longer are not listed."""


def state(host: Mapping[str, Any], *, is_over: bool = False) -> Text:
    """The state of a host: its phase, 'slow', 'suspect' and the like, 'gone', that it is restarting, or for how long
    its script has kept it.

    `is_over`: the run has ended, so that hosts end, too.
    """
    phase = str(host["phase"])
    if host["state"] in ("away", "awaited") and (lasted := host.get("user_code_ns")) is not None:
        return Text(f"{'away' if host['state'] == 'away' else 'in its script'} {words.seconds(lasted / 1e9)}", "yellow")
    if is_over and (phase in ("gone", "starting") or host["state"] in SILENT):
        return Text("ended")
    if host["state"] in RETIRED:
        return Text(host["state"], style="red" if host["state"] == "given up" else "dim")
    if phase == "gone":
        return Text("left", style="dim") if _has_departed(host) else Text(phase, style="red")
    if host["state"] in SILENT or host["state"] == "slow":
        return Text(host["state"], style="yellow")
    if host["incarnation"] > 1 and phase in ("starting", "compiling", "recovering"):
        return Text("restarting" if phase == "starting" else phase, style="yellow")
    return Text(phase)


def _has_departed(host: Mapping[str, Any]) -> bool:
    """Whether the last life of a host left in order, because its machine was told to leave."""
    end = (host.get("reason") or {}).get("end") or {}
    return end.get("kind") == Departed.__struct_config__.tag


def life(host: Mapping[str, Any]) -> str:
    """Which life of the host this is; '-' between two."""
    return str(host["incarnation"] or "-")


def figures(learner: Mapping[str, Any]) -> list[str]:
    """The figures of a learner's report, in COLUMNS; empty before its first report."""
    if not learner:
        return [""] * len(COLUMNS)
    step_ms, staleness = learner.get("step_ms"), learner.get("staleness")
    return [
        words.whole(learner.get("step")),
        words.scaled(learner.get("tokens")),
        words.decimal(learner.get("loss")),
        words.seconds(step_ms / 1e3) if step_ms else "",
        "" if staleness is None else f"{staleness}",
        words.size(learner.get("bytes_sent")),
        words.size(learner.get("bytes_received")),
    ]


def metric_columns(reports: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns of the first few scalars that learners report beside their loss."""
    names = dict.fromkeys(name for report in reports for name in report.get("metrics", {}))
    return tuple(map(_column, names))[:METRICS_SHOWN]


def metrics(learner: Mapping[str, Any]) -> dict[str, str | Text]:
    """The scalars of a learner's last report, by column."""
    return {_column(name): words.decimal(value) for name, value in learner.get("metrics", {}).items()}


def _column(name: str) -> str:
    """The title of a scalar's column, which is no other's."""
    return f"its {name}" if name in (*COLUMNS, "learner", "host", "state", "life") else name


def learners_table(status: Mapping[str, Any], width: int) -> Table:
    """A row for each learner, or, of many, as `many_learners` says: its report, and the daemon's state of its process,
    if there is one."""
    hosts = {host["name"]: host for host in status.get("hosts", ())}
    reports = {int(slot): report for slot, report in status.get("learners", {}).items()}
    slots = sorted({*reports, *(int(name.rpartition("/")[2]) for name in hosts if name.startswith("learner/"))})
    is_over = status.get("phase") == "done"
    standings = {
        slot: _standing(hosts.get(f"learner/{slot}"), reports.get(slot, {}), is_over=is_over) for slot in slots
    }
    states = {slot: many_learners.kind_of(standing["state"]) for slot, standing in standings.items()}
    rows = many_learners.summary_rows(states, reports, "learner", figures, COLUMNS)
    for slot in many_learners.picked(states, reports):
        host, report = hosts.get(f"learner/{slot}"), reports.get(slot, {})
        # The report of a former life is shown until the present one reports.
        is_past = host is not None and host["incarnation"] != report.get("incarnation")
        cells = [Text(cell, style="dim" if is_past else "") for cell in figures(report)]
        named = {"learner": str(slot), **path_of(slot, status)}
        figures_of_it = dict(zip(COLUMNS, cells, strict=True))
        rows.append({**named, **standings[slot], **figures_of_it, **metrics(report), "away": away_for(host, report)})
        rows[-1] |= many_learners.lost_cell(report)
    scalars = metric_columns(reports.values())
    paths = ("path",) if "paths" in status else ()
    away = ("away",) if any(row.get("away") for row in rows) else ()
    lost = (LOST,) if len(slots) > ROWS_MAX else ()
    columns = (*COLUMNS[:3], *scalars, *COLUMNS[3:5], *lost, *COLUMNS[5:], *away)
    names = ("learner", *paths, "state", *(("life",) if hosts else ()), *columns)
    return fitted(columns_of(rows, names), width, (*DISPENSABLE, *reversed(scalars)))


def legend(names: Iterable[str], width: int) -> Text:
    """One line of what names on the screen mean: of as many as there is room for, each whole; empty without any."""
    shown, line = frozenset(names), ""
    for name in (name for name in MEANINGS if name in shown):
        longer = f"{line}; {name}: {MEANINGS[name]}" if line else f"{name}: {MEANINGS[name]}"
        line = longer if cell_len(longer) <= width else line
    return Text(line, style="dim")


def away_for(host: Mapping[str, Any] | None, report: Mapping[str, Any]) -> str:
    """For how long a learner has been away in all, in its user's code, as far as it is known; '' where it never was."""
    is_away = host is not None and host["state"] == "away"
    now = (host.get("user_code_ns") or 0) if host is not None and is_away else 0
    away = (report.get("away") or 0) + now
    return words.seconds(away / 1e9) if away else ""


def path_of(slot: int, training: Mapping[str, Any]) -> dict[str, str]:
    """The cell of the path that a slot trains, of a model made of modules."""
    return {"path": str(slot % training["paths"])} if "paths" in training else {}


def columns_of(rows: Sequence[Mapping[str, str | Text]], names: Iterable[str]) -> Iterator[Column]:
    """The columns `names` of a table of hosts; missing cells are empty."""
    for name in names:
        is_text = name in ("learner", "host", "state", "machine")
        yield Column(name, [row.get(name, "") for row in rows], _USUAL.get(name, 0), is_text)


def _standing(host: Mapping[str, Any] | None, report: Mapping[str, Any], *, is_over: bool) -> dict[str, str | Text]:
    """State and life; for a learner in this process the phase that it reported."""
    if report.get("sick") and (host is None or host["incarnation"] == report.get("incarnation")):
        standing: str | Text = Text("sick: not finite", style="red")
    else:
        standing = state(host, is_over=is_over) if host is not None else str(report.get("phase", ""))
    return {"state": standing} if host is None else {"state": standing, "life": life(host)}
