"""The rows of a run's table: a learner or another host, in columns of text; `live` and `isthmus status` show them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from isthmus.programs.results import numbers
from isthmus.programs.terminal.figures import METRICS_SHOWN
from isthmus.programs.terminal.fitted_table import Column, fitted
from isthmus.runtime.cores.membership_messages import SILENT

RETIRED: Final = ("expelled", "left", "left out", "given up")
"""The states of a learner that left with its machine, which is no failure, or that joined without success."""
COLUMNS: Final = ("step", "tokens", "loss", "step time", "stale", "sent", "received")
"""The figures of a learner. stale: the most inner steps since it adopted a fragment."""
DISPENSABLE: Final = ("received", "sent", "stale", "step time", "life")
"""Columns that a narrow terminal omits, in this order."""
_USUAL: Final = {"state": 10, "pid": 7, "cpu": 6, "memory": 7, "step": 6, "tokens": 6, "loss": 7, "sent": 7}
"""Letters that figures take, as a rule; names that are longer are not listed."""


def state(host: Mapping[str, Any], *, is_over: bool = False) -> Text:
    """The state of a host: its phase, 'slow', 'suspect' and the like, 'gone', or that it is restarting.

    `is_over`: the run has ended, so that hosts end, too.
    """
    phase = str(host["phase"])
    if is_over and (phase == "gone" or host["state"] in SILENT):
        return Text("ended")
    if host["state"] in RETIRED:
        return Text(host["state"], style="red" if host["state"] == "given up" else "dim")
    if phase == "gone":
        return Text(phase, style="red")
    if host["state"] in SILENT or host["state"] == "slow":
        return Text(host["state"], style="yellow")
    if host["incarnation"] > 1 and phase in ("starting", "compiling", "recovering"):
        return Text("restarting" if phase == "starting" else phase, style="yellow")
    return Text(phase)


def life(host: Mapping[str, Any]) -> str:
    """Which life of the host this is; '-' between two."""
    return str(host["incarnation"] or "-")


def figures(learner: Mapping[str, Any]) -> list[str]:
    """The figures of a learner's report, in COLUMNS; empty before its first report."""
    if not learner:
        return [""] * len(COLUMNS)
    step_ms, staleness = learner.get("step_ms"), learner.get("staleness")
    return [
        numbers.whole(learner.get("step")),
        numbers.scaled(learner.get("tokens")),
        numbers.decimal(learner.get("loss")),
        numbers.seconds(step_ms / 1e3) if step_ms else "",
        "" if staleness is None else f"{staleness}",
        numbers.size(learner.get("bytes_sent")),
        numbers.size(learner.get("bytes_received")),
    ]


def metric_columns(reports: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The columns of the first few scalars that learners report beside their loss."""
    names = dict.fromkeys(name for report in reports for name in report.get("metrics", {}))
    return tuple(map(_column, names))[:METRICS_SHOWN]


def metrics(learner: Mapping[str, Any]) -> dict[str, str | Text]:
    """The scalars of a learner's last report, by column."""
    return {_column(name): numbers.decimal(value) for name, value in learner.get("metrics", {}).items()}


def _column(name: str) -> str:
    """The title of a scalar's column, which is no other's."""
    return f"its {name}" if name in (*COLUMNS, "learner", "host", "state", "life") else name


def learners_table(status: Mapping[str, Any], width: int) -> Table:
    """A row for each learner: its report, and the daemon's state of its process, if there is one."""
    hosts = {host["name"]: host for host in status.get("hosts", ())}
    reports = {int(slot): report for slot, report in status.get("learners", {}).items()}
    slots = sorted({*reports, *(int(name.rpartition("/")[2]) for name in hosts if name.startswith("learner/"))})
    rows: list[dict[str, str | Text]] = []
    for slot in slots:
        host, report = hosts.get(f"learner/{slot}"), reports.get(slot, {})
        # The report of a former life is shown until the present one reports.
        is_past = host is not None and host["incarnation"] != report.get("incarnation")
        cells = [Text(cell, style="dim" if is_past else "") for cell in figures(report)]
        standing = _standing(host, report, is_over=status.get("phase") == "done")
        rows.append({"learner": str(slot), **standing, **dict(zip(COLUMNS, cells, strict=True)), **metrics(report)})
    scalars = metric_columns(reports.values())
    names = ("learner", "state", *(("life",) if hosts else ()), *COLUMNS[:3], *scalars, *COLUMNS[3:])
    return fitted(columns_of(rows, names), width, (*DISPENSABLE, *reversed(scalars)))


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
