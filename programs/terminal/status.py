"""`isthmus status`: the processes of a run and its figures, as a table or as JSON, once or until the run is over."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from isthmus.programs.results import numbers
from isthmus.programs.results.absences import DAEMON, daemons
from isthmus.programs.results.incident_words import reason
from isthmus.programs.results.reading import read_absences
from isthmus.programs.results.who_waits import waiting_of
from isthmus.programs.terminal import figures, find_run
from isthmus.programs.terminal import rows as live_rows
from isthmus.programs.terminal.fitted_table import fitted
from isthmus.programs.terminal.live import facts, notices_table
from isthmus.programs.terminal.notices import News, Notice, newest, notices_of
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.supervision.incidents import Delayed, incident_of

if TYPE_CHECKING:
    from isthmus.programs.machine.client import Daemon

WATCH_SECONDS: Final = 0.5
NOTICES_SHOWN: Final = 12
_DISPENSABLE: Final = ("cpu", "memory", "step time", "received", "stale", "sent", "pid", "machine", "life")
"""Columns that a narrow terminal omits, in this order."""


def show(run: Path | None, *, every: bool, watch: bool, as_json: bool, home: Daemon | None = None) -> None:
    """Print the status of one run, or of every run with a daemon that answers; `home` is asked for a run elsewhere."""
    folders = find_run.all_folders() if every else [find_run.folder_of(run) if home is None or run is None else run]
    news = {folder: News(folder) for folder in folders}
    if as_json:
        _show_json(news, home, every=every, watch=watch)
        return
    console = Console(highlight=False)
    if not watch:
        for status in _statuses(news, home, must_answer=not every):
            console.print(table(status, _notices(status, news), console.width))
        return
    with Live(console=console, auto_refresh=False) as shown:
        while True:
            statuses = _statuses(news, home, must_answer=not every)
            tables = [table(status, _notices(status, news), console.width) for status in statuses]
            shown.update(Group(*tables), refresh=True)
            if all(status["outcome"] != "running" for status in statuses):
                return
            time.sleep(WATCH_SECONDS)


def _show_json(news: Mapping[Path, News], home: Daemon | None, *, every: bool, watch: bool) -> None:
    """Print an object, or a list of all runs; while they are watched, one on a line at each look."""
    while True:
        found = [_complete(status) for status in _statuses(news, home, must_answer=not every)]
        typer.echo(json.dumps(found if every else found[0], indent=None if watch else 2))
        if not watch or all(status["outcome"] != "running" for status in found):
            return
        time.sleep(WATCH_SECONDS)


def table(status: Mapping[str, Any], notices: Sequence[Notice], width: int) -> Group:
    """One run: its figures, a row for each process, and recent notices."""
    outcome = str(status["outcome"])
    head = Text.assemble((Path(status["run"]).name, "bold"), f"  {outcome}")
    if "summary" in status:
        parts: list[RenderableType] = [head, facts(figures.ending(status["summary"], _short(status)))]
    else:
        training = status.get("training") or {}
        progress = ("progress", _progress({**training, "hosts": _hosts(status)}))
        parts = [head, facts([progress, *_figures(training), *_not_started(status)]), Text("")]
        parts.append(_processes(status, training, width))
    told = newest(notices, NOTICES_SHOWN)
    if told:
        parts += [Text(""), notices_table(told)]
    return Group(*parts, Text(""))


def with_daemon(status: Mapping[str, Any], lives: int) -> dict[str, Any]:
    """A daemon's answer with the daemon itself among its hosts, the first of them."""
    if "pid" not in status:
        return dict(status)
    itself = {
        "name": DAEMON,
        "role": DAEMON,
        "machine": status.get("daemon", ""),
        "pid": status["pid"],
        "phase": "serving",
        "incarnation": lives,
        "state": "alive",
        "reason": None,
    }
    return {**status, "hosts": [itself, *status["hosts"]]}


def _statuses(news: Mapping[Path, News], home: Daemon | None, *, must_answer: bool) -> list[dict[str, Any]]:
    statuses = []
    for folder, follower in news.items():
        with suppress(*(() if must_answer else (ConfigError,))):
            status = find_run.status(folder) if home is None else find_run.status(folder, home)
            training = {**(status.get("training") or {}), "hosts": status["hosts"]}
            if "summary" not in status:
                follower.update(training)
            statuses.append(with_daemon(status, daemons(follower.absences.all)))
    return statuses


def _notices(status: Mapping[str, Any], news: Mapping[Path, News]) -> Sequence[Notice]:
    """The notices of a run: those of its statuses so far, or, once it is over, from its files."""
    folder = Path(status["run"])
    if "summary" not in status:
        return news[folder].notices
    return notices_of(read_absences(folder), waiting_of(folder))


def _complete(status: Mapping[str, Any]) -> dict[str, Any]:
    """A status with JSON's idea of numbers: NaN, which a learner's loss may be, becomes null."""
    cleaned: dict[str, Any] = json.loads(json.dumps(status), parse_constant=lambda _: None)
    return cleaned


def _progress(training: Mapping[str, Any]) -> str:
    if not training.get("tokens"):
        return figures.starting(_hosts(training))
    budget = training["tokens_budget"]
    words = f"{numbers.scaled(training['tokens'])} of {numbers.scaled(budget)} tokens"
    return f"{numbers.progress(training['tokens'] / budget)}, {words}"


def _figures(training: Mapping[str, Any]) -> list[tuple[str, str]]:
    losses = figures.eval_losses(training)
    shown = [("eval loss", losses)] if losses else []
    return [
        *shown,
        *figures.eval_metrics(training),
        *figures.merge_figures(training, len(training.get("learners", {}))),
    ]


def _not_started(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The hosts that cannot be started at the moment, and why."""
    newest = [(str(host["name"]), incident_of(host["reason"])) for host in status["hosts"] if host.get("reason")]
    return [(name, reason(incident)) for name, incident in newest if isinstance(incident, Delayed)]


def _hosts(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The hosts but for the daemon."""
    return [host for host in status.get("hosts", ()) if host["role"] != DAEMON]


def _processes(status: Mapping[str, Any], training: Mapping[str, Any], width: int) -> Table:
    """A row for each process; learners also with their reports."""
    reports = {int(slot): report for slot, report in training.get("learners", {}).items()}
    machines = {host.get("machine", "") for host in status["hosts"]} - {""}
    columns = (*(("machine",) if len(machines) > 1 else ()), "life", "pid", "cpu", "memory", *live_rows.COLUMNS)
    rows: list[dict[str, str | Text]] = []
    for host in status["hosts"]:
        report = reports.get(int(host["name"].rpartition("/")[2])) if host["role"] == "learner" else None
        told = {} if report is None else dict(zip(live_rows.COLUMNS, live_rows.figures(report), strict=True))
        state = live_rows.state(host, is_over=training.get("phase") == "done")
        rows.append({"host": host["name"], "state": state, **_process(host), **told, **live_rows.metrics(report or {})})
    scalars = live_rows.metric_columns(reports.values())
    names = ("host", "state", *columns, *scalars)
    return fitted(live_rows.columns_of(rows, names), width, (*_DISPENSABLE, *reversed(scalars)))


def _process(host: Mapping[str, Any]) -> dict[str, str]:
    return {
        "machine": str(host.get("machine", "")),
        "life": live_rows.life(host),
        "pid": str(host["pid"] or "-"),
        "cpu": numbers.seconds(host["cpu_seconds"]) if "cpu_seconds" in host else "",
        "memory": _size(host, "memory_bytes"),
        "sent": _size(host, "bytes_sent"),
        "received": _size(host, "bytes_received"),
    }


def _size(host: Mapping[str, Any], name: str) -> str:
    return numbers.size(host[name]) if name in host else ""


def _short(status: Mapping[str, Any]) -> str:
    return figures.short(Path(status["run"]))
