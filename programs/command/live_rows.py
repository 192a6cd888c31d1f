"""The rows of a run's table: a learner or another host, in columns of text; `live` and `isthmus status` show them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich.table import Table
from rich.text import Text

from isthmus.programs import numbers
from isthmus.programs.command.live_figures import loss, scaled
from isthmus.runtime.presence import SILENT

RETIRED: Final = ("expelled", "left", "given up")
"""The states of a learner that has gone with its machine, which is no failure, or that joined and came to nothing."""
COLUMNS: Final = ("step", "tokens", "loss", "step time", "stale", "sent", "received")
"""The figures of a learner. stale: the most inner steps since it adopted a fragment."""


def state(host: Mapping[str, Any], *, is_over: bool = False) -> Text:
    """What a host does, or why it does nothing: its phase, 'slow', 'suspect' and the like, 'gone', or that it is on
    its way back.

    `is_over`: the run has come to its end, so that hosts end, too.
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
    """What a learner has reported, in COLUMNS; nothing before its first report."""
    if not learner:
        return [""] * len(COLUMNS)
    step_ms, staleness = learner.get("step_ms"), learner.get("staleness")
    return [
        numbers.ascii_only(numbers.whole(learner.get("step"))),
        scaled(learner.get("tokens")),
        loss(learner.get("loss")),
        numbers.ascii_only(numbers.seconds(step_ms / 1e3)) if step_ms else "",
        "" if staleness is None else f"{staleness}",
        numbers.ascii_only(numbers.size(learner.get("bytes_sent"))),
        numbers.ascii_only(numbers.size(learner.get("bytes_received"))),
    ]


def learners_table(status: Mapping[str, Any], width: int) -> Table:
    """A row for each learner; beside what it reported, what the daemon says of its process, if there is one."""
    hosts = {host["name"]: host for host in status.get("hosts", ())}
    reports = {int(slot): report for slot, report in status.get("learners", {}).items()}
    slots = sorted({*reports, *(int(name.rpartition("/")[2]) for name in hosts if name.startswith("learner/"))})
    table = Table(box=None, pad_edge=False, padding=(0, 2 if width >= 96 else 1, 0, 0), header_style="dim")
    table.add_column("learner", no_wrap=True)
    table.add_column("state", no_wrap=True, min_width=16 if width >= 96 else 10)
    if hosts:
        table.add_column("life", justify="right", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for slot in slots:
        host, report = hosts.get(f"learner/{slot}"), reports.get(slot, {})
        # What a former life has reported stands there until the present one reports.
        is_past = host is not None and host["incarnation"] != report.get("incarnation")
        cells = [Text(cell, style="dim" if is_past else "") for cell in figures(report)]
        table.add_row(str(slot), *_standing(host, report, is_over=status.get("phase") == "done"), *cells)
    return table


def _standing(host: Mapping[str, Any] | None, report: Mapping[str, Any], *, is_over: bool) -> Iterator[Text | str]:
    """State and life; for a learner in this process the phase that it reported."""
    if report.get("sick") and (host is None or host["incarnation"] == report.get("incarnation")):
        yield Text("sick: not finite", style="red")
    else:
        yield state(host, is_over=is_over) if host is not None else str(report.get("phase", ""))
    if host is not None:
        yield life(host)
