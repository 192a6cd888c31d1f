"""The run that a command is about, and its daemon's information on it.

`isthmus status`: the processes of a run and its figures, as a table or as JSON, once or until the run is over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from isthmus.programs.engine.machine.names import living
from isthmus.programs.engine.results import site_words
from isthmus.programs.engine.results import words as numbers
from isthmus.programs.engine.results.absences import DAEMON, daemons, waiting_of
from isthmus.programs.engine.results.crowd import LOST, ROWS_MAX
from isthmus.programs.engine.results.reading import read_absences
from isthmus.programs.engine.results.run_files import OVER, RunFilesError, check_files, summary_of
from isthmus.programs.engine.run import private_daemon
from isthmus.programs.engine.run.going_on import GoingOn, going_on
from isthmus.programs.study.terminal import figures, many_learners
from isthmus.programs.study.terminal.figures import Screen, fitted
from isthmus.programs.study.terminal.live import Notice, NoticeFeed, facts, newest, notices_of, notices_table
from isthmus.programs.study.terminal.many_learners import kind_of, picked, summary_rows
from isthmus.runtime.errors import ConfigError, nearest, printable
from isthmus.runtime.ids import LEARNER
from isthmus.runtime.supervision.incidents import Delayed
from isthmus.runtime.system.files import read, read_text
from isthmus.runtime.wire.control_client import ask
from isthmus.runtime.wire.control_messages import Message, without_mark
from isthmus.runtime.wire.daemon_notes import note_of

if TYPE_CHECKING:
    from isthmus.programs.engine.machine.client import DaemonClient


LATEST: Final = Path("runs", "latest")
ANSWER_SECONDS: Final = 3.0


def folder_of(run: Path | None) -> Path:
    """The folder of a run: the one given, or runs/latest; ConfigError if it is not that of a run."""
    folder = LATEST if run is None else run
    if not (folder / "config.toml").exists():
        actual = "nothing there" if not folder.exists() else "no config.toml in it"
        do = "Name the folder of a run, or start one with: isthmus train."
        raise ConfigError(f"Looking for the run {folder}", "a run folder", actual, do)
    return folder.resolve()


def whole_folder_of(run: Path | None) -> Path:
    """The folder of a run, as `folder_of`; RunFilesError unless its files are such as a run writes."""
    folder = folder_of(run)
    doing = f"Reading {folder}"
    check_files(folder, doing)
    summary_of(folder, doing)
    return folder


def place_of(run: Path | None, cluster: Path | None) -> tuple[Path, DaemonClient | None]:
    """The folder of a run, and the daemon to ask about it if the folder is not on this machine.

    The run is given by its folder, by the cluster file of its home, or not at all.
    """
    if cluster is None:
        return folder_of(run), None
    if run is not None:
        actual = f"RUN {run} and --cluster {cluster}"
        raise ConfigError("Reading the command line", "RUN or --cluster", actual, "Leave one of them out.")
    from isthmus.programs.engine.cluster.cluster_file import read
    from isthmus.programs.engine.machine import handing_over
    from isthmus.programs.engine.machine.client import DaemonClient

    home = DaemonClient.of(read(cluster))
    folder = handing_over.newest_run(home)
    return (folder_of(folder), None) if _is_here(folder) else (folder, home)


def _is_here(folder: Path) -> bool:
    """Whether a run folder is on this machine, and the run's daemon, too, if it is still running."""
    is_over = (folder / "summary.json").exists()
    return (folder / "config.toml").exists() and (is_over or _answer(folder) is not None)


def all_folders() -> list[Path]:
    """Every run folder under ./runs, and of every daemon of this user that lives on this machine; oldest first."""
    here = {path.parent.resolve() for path in Path("runs").glob("*/config.toml")}
    held = {Path(run.folder) for entry in living().values() for run in entry.runs} | private_daemon.folders()
    return sorted(here | {path for path in held if (path / "config.toml").exists()}, key=_started)


def daemon_lines() -> str:
    """A line for every machine's daemon of this user that lives here; empty without one."""
    lines = []
    for name, (note, runs) in living().items():
        count = f"{len(runs) or 'no'} run{'' if len(runs) == 1 else 's'}"
        lines.append(f"daemon {name}  at {note.endpoint}, process {note.pid}, {count}\n")
    return "".join(lines)


def _started(folder: Path) -> float:
    try:
        return (folder / "config.toml").stat().st_mtime
    except OSError:
        return 0.0


def status_of(folder: Path, home: DaemonClient | None = None) -> dict[str, Any]:
    """The status of a run: its daemon's answer, or, once it is over, its summary.

    ConfigError if the run is not over and no daemon of it answers, RunFilesError if its files are not those of a run.
    """
    if home is not None:
        answer_of_home = home.say({"type": "watch", "run": str(folder), "renews": False})
        if answer_of_home["type"] == "status":
            return without_mark(answer_of_home)
        return _over(folder, answer_of_home["summary"] or {"outcome": "failed"})
    if (summary := summary_of(folder)) is not None:
        return _over(folder, summary)
    answer = _answer(folder)
    if answer is not None:
        return {**without_mark(answer), "run": str(folder)}
    if (summary := summary_of(folder)) is not None:  # It ended meanwhile.
        return _over(folder, summary)
    raise _silent(folder)


def _over(folder: Path, summary: dict[str, Any]) -> dict[str, Any]:
    way = going_on(folder, summary["outcome"])
    over = {"run": str(folder), "outcome": summary["outcome"], "hosts": [], "training": {}, "summary": summary}
    return {**over, "go_on": None if way is None else asdict(way)}


def request_stop(folder: Path, home: DaemonClient | None = None) -> bool:
    """Ask a run to stop; returns whether this is the first request. ConfigError if it is over, or no daemon answers."""
    if home is not None:
        return bool(home.say({"type": "stop", "run": str(folder)})["is_first"])
    if (folder / "summary.json").exists():
        raise ConfigError(
            f"Stopping the run {folder}", "a run that goes on", "one that is over", "There is nothing to do."
        )
    answer = None if _answer(folder) is None else _asked(folder, "stop")
    if answer is None:
        raise _silent(folder)
    return bool(answer["is_first"])


def log_of(folder: Path, name: str, cluster: Path | None = None) -> str:
    """The log of a host ('learner/2') or of the daemon ('daemon'); of one that grows on another machine, its end.

    The daemon of the run's home has the latter: on this machine without keys, or else the one that `cluster` names.
    ConfigError, with the nearest name, without one.
    """
    from isthmus.programs.engine.cluster.cluster_file import read as read_cluster
    from isthmus.programs.engine.machine.client import DaemonClient
    from isthmus.programs.engine.request.spec import CLUSTER

    logs = {path.stem.replace("-", "/"): path for path in sorted((folder / "logs").glob("*.log"))}
    if name in logs:
        try:
            return read(logs[name])
        except OSError as error:
            found, do = error.strerror or str(error), "Look for a copy of it."
            raise ConfigError(f"Reading {logs[name]}", "a log that can be read", found, do) from None
    home = None if cluster is None else DaemonClient.of(read_cluster(cluster))
    if home is None and (folder / CLUSTER).exists() and not (folder / "over.json").exists():
        home = DaemonClient.here(json.loads(read_text(folder / CLUSTER))["home"])
    if home is not None:
        return str(home.say({"type": "log", "run": str(folder), "name": name})["text"])
    hosts = {host["name"]: host.get("machine", "") for host in (_answer(folder) or {"hosts": ()})["hosts"]}
    doing = f"Looking for the log of {name!r}"
    if name in hosts:
        do = f"Name the cluster file of the run's home: isthmus logs {name} --cluster FILE."
        raise ConfigError(doing, "a host of this machine", f"one of {hosts[name]!r}", do)
    raise ConfigError(doing, "a host of this run", repr(name), nearest(name, {*logs, *hosts}))


def _answer(folder: Path) -> Message | None:
    """The status of a run from its daemon; None without one, or if that is the daemon of another run."""
    answer = _asked(folder, "status")
    return answer if answer is not None and Path(str(answer.get("run"))).resolve() == folder.resolve() else None


def _asked(folder: Path, kind: str) -> Message | None:
    """The answer of a run's daemon; None where none lives, or none answers in time."""
    note = note_of(folder)
    return None if note is None or not note.is_living else ask(note.endpoint, {"type": kind}, ANSWER_SECONDS)


def _silent(folder: Path) -> ConfigError:
    from isthmus.programs.engine.request.spec import CLUSTER

    note = note_of(folder)
    actual = "none: the run was in one process" if _is_in_one(folder) else "none yet, or one that did not start"
    # The folder of a cluster's run may be shared, and looked at from a machine that is not the home.
    is_of_cluster = (folder / CLUSTER).exists()
    if note is not None:
        gone = ", which is gone, or of another machine" if is_of_cluster else ", which is gone"
        actual = f"no answer from {note.endpoint}, process {note.pid}{'' if note.is_living else gone}"
    do = "Without its daemon a run ends by itself within a minute; its folder holds what it left."
    on = f"isthmus train --resume {folder}"
    if note is not None and note.is_living:
        do = "It may be busy, or suspended: ask again."
    elif is_of_cluster:
        away = "" if note is None else "If its home is another machine, name the run's cluster file: --cluster FILE. "
        do = f"{away}{do} To go on, start the daemon of its home; or type there {on} --cluster FILE"
    elif not ((folder / OVER).exists() or _is_in_one(folder)):
        do = f"{do} To go on from its last snapshot: {on}"
    return ConfigError(f"Asking for the run {folder}", "a daemon that answers", actual, do)


def _is_in_one(folder: Path) -> bool:
    """Whether all hosts of a run were in one process, which has no daemon."""
    from isthmus.programs.engine.request.spec import INPROC, SPEC

    try:
        return str(json.loads(read_text(folder / SPEC))["transport"]) == INPROC
    except (OSError, ValueError, KeyError, TypeError):
        return False


WATCH_SECONDS: Final = 0.5
NOTICES_SHOWN: Final = 12
_DISPENSABLE: Final = ("cpu", "memory", "step time", "received", "stale", "sent", "pid", "machine", "life", "path")
"""Columns that a narrow terminal omits, in this order."""


def show(run: Path | None, *, every: bool, watch: bool, as_json: bool, home: DaemonClient | None = None) -> None:
    """Print the status of one run, or of every run with a daemon that answers; `home` is asked for a run elsewhere."""
    folders = all_folders() if every else [folder_of(run) if home is None or run is None else run]
    news = {folder: NoticeFeed(folder, tells_disks=False) for folder in folders}
    if as_json:
        _show_json(news, home, every=every, watch=watch)
        return
    console = Screen()
    if not watch:
        for status in _statuses(news, home, must_answer=not every):
            console.print(table(status, _notices(status, news), console.width))
            if line := way_on(status):  # Whole, however long it is: it is to be copied.
                console.print(Text(printable(line)), soft_wrap=True)
        return
    with Live(console=console, auto_refresh=False) as shown:
        while True:
            statuses = _statuses(news, home, must_answer=not every)
            tables = [table(status, _notices(status, news), console.width) for status in statuses]
            shown.update(Group(*tables), refresh=True)
            if not any(map(_goes_on, statuses)):
                break
            time.sleep(WATCH_SECONDS)
    for line in filter(None, map(way_on, statuses)):
        console.print(Text(printable(line)), soft_wrap=True)


def way_on(status: Mapping[str, Any]) -> str:
    """How a run that was interrupted goes on; '' for any other."""
    way = status.get("go_on")
    return f"to go on: {GoingOn(**way).words()}" if way else ""


def _show_json(news: Mapping[Path, NoticeFeed], home: DaemonClient | None, *, every: bool, watch: bool) -> None:
    """Print an object, or a list of all runs; while they are watched, one on a line at each look."""
    while True:
        objects = [_complete(status) for status in _statuses(news, home, must_answer=not every)]
        typer.echo(json.dumps(objects if every else objects[0], indent=None if watch else 2))
        if not watch or not any(map(_goes_on, objects)):
            return
        time.sleep(WATCH_SECONDS)


def _goes_on(status: Mapping[str, Any]) -> bool:
    """Whether a run is not over, or waits for scripts."""
    return status["outcome"] == "running" or bool(status.get("awaited"))


def table(status: Mapping[str, Any], notices: Sequence[Notice], width: int) -> Group:
    """One run: its figures, a row for each process, and recent notices."""
    outcome = str(status["outcome"])
    head = Text.assemble((Path(status["run"]).name, "bold"), f"  {outcome}")
    if "summary" in status:
        parts: list[RenderableType] = [head, facts(figures.ending(status["summary"], _short(status)))]
    else:
        training = status.get("training") or {}
        training = {**training, **_own(status), "hosts": _hosts(status)}
        shown = figures.shown(training, len(training.get("learners", {})))
        progress = ("progress", _progress(training))
        waits = [("waiting", figures.awaiting(status))] if status.get("awaited") else []
        if ending := training.get("ending"):
            waits.append(("waiting", numbers.awaited_at_end(ending, "`isthmus stop`")))
        more = [*waits, *site_words.lines(training), *_in_scripts(status), *_not_started(status)]
        parts = [head, facts([progress, *shown, *more]), Text("")]
        parts.append(_processes(status, training, width))
    recent = newest(notices, NOTICES_SHOWN)
    if recent:
        parts += [Text(""), notices_table(recent)]
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


def _statuses(news: Mapping[Path, NoticeFeed], home: DaemonClient | None, *, must_answer: bool) -> list[dict[str, Any]]:
    statuses = []
    for folder, follower in news.items():
        try:
            if home is None:
                check_files(folder, f"Reading {folder}")
            status = status_of(folder) if home is None else status_of(folder, home)
            training = {**(status.get("training") or {}), **_own(status), "hosts": status["hosts"]}
            if "summary" not in status:
                follower.update(training)
            statuses.append(with_daemon(status, daemons(follower.absences.all)))
        except RunFilesError as error:
            if must_answer:
                raise
            typer.echo(f"isthmus: {printable(' '.join(str(error.faults[0]).split()))}", err=True)
        except ConfigError:
            if must_answer:
                raise
    return statuses


def _notices(status: Mapping[str, Any], news: Mapping[Path, NoticeFeed]) -> Sequence[Notice]:
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
    if figures.is_starting(training):
        return figures.starting(_hosts(training))
    budget = training["tokens_budget"]
    words = f"{numbers.scaled(training['tokens'])} of {numbers.scaled(budget)} tokens"
    return f"{numbers.progress(training['tokens'] / budget)}, {words}"


def _not_started(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The hosts that cannot be started at the moment, and why."""
    newest = [(str(host["name"]), host["reason"]) for host in status["hosts"] if host.get("reason")]
    return [(name, numbers.reason_of(told)) for name, told in newest if told["kind"] == Delayed.__struct_config__.tag]


def _in_scripts(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The hosts that are away in their scripts, for how long, and where that is."""
    rows = []
    for host in status["hosts"]:
        if host["state"] == "away" and (lasted := host.get("user_code_ns")) is not None:
            places = ", ".join(f"{file}:{line} ({function})" for file, line, function in host.get("places") or ())
            rows.append(
                (str(host["name"]), f"away for {numbers.seconds(lasted / 1e9)}{f', at {places}' if places else ''}")
            )
    return rows


def _own(status: Mapping[str, Any]) -> dict[str, Any]:
    """What a daemon says of itself, for views."""
    return {"daemon": status.get("daemon", ""), "full": status.get("full", [])}


def _hosts(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The hosts but for the daemon."""
    return [host for host in status.get("hosts", ()) if host["role"] != DAEMON]


def _processes(status: Mapping[str, Any], training: Mapping[str, Any], width: int) -> Table:
    """A row for each process, or, of many learners, as `many_learners` says; learners also with their reports."""
    reports = {int(slot): report for slot, report in training.get("learners", {}).items()}
    machines = {host.get("machine", "") for host in status["hosts"]} - {""}
    paths = ("path",) if "paths" in training else ()
    lost = (LOST,) if sum(host["role"] == LEARNER for host in status["hosts"]) > ROWS_MAX else ()
    usual = (*paths, *(("machine",) if len(machines) > 1 else ()), "life", "pid", "cpu", "memory")
    columns = (*usual, *figures.COLUMNS[:5], *lost, *figures.COLUMNS[5:])
    is_over = training.get("phase") == "done"
    learners = {_slot(host): host for host in status["hosts"] if host["role"] == LEARNER}
    states = {slot: kind_of(figures.state(host, is_over=is_over)) for slot, host in learners.items()}
    shown = set(picked(states, reports))
    rows: list[dict[str, str | Text]] = []
    summary = summary_rows(states, reports, "host", figures.figures, figures.COLUMNS)
    for host in status["hosts"]:
        if host["role"].partition(".")[0] == LEARNER:
            rows += summary
            summary = []
            if _slot(host) not in shown:
                continue
        slot = _slot(host) if host["role"] == LEARNER else None
        report = None if slot is None else reports.get(slot)
        reported: dict[str, str | Text] = {}
        if slot is not None and report is not None:
            reported |= dict(zip(figures.COLUMNS, figures.figures(report), strict=True))
            reported |= {**figures.path_of(slot, training), **figures.metrics(report)}
            reported |= {"away": figures.away_for(host, report), **many_learners.lost_cell(report)}
        state = figures.state(host, is_over=is_over)
        rows.append({"host": host["name"], "state": state, **_process(host), **reported})
    scalars = figures.metric_columns(reports.values())
    away = ("away",) if any(row.get("away") for row in rows) else ()
    names = ("host", "state", *columns, *scalars, *away)
    return fitted(figures.columns_of(rows, names), width, (*_DISPENSABLE, *reversed(scalars)))


def _slot(host: Mapping[str, Any]) -> int:
    return int(host["name"].rpartition("/")[2])


def _process(host: Mapping[str, Any]) -> dict[str, str]:
    return {
        "machine": str(host.get("machine", "")),
        "life": figures.life(host),
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
