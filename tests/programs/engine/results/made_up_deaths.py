"""Turns a made-up run folder into that of a run in processes in which hosts died: what their daemon wrote, and gaps."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from isthmus.runtime.supervision.incidents import Incident
from tests.programs.engine.results import event_lines, whole_files
from tests.programs.engine.results.made_up_run import write_json, write_lines

SUBMITTED = 77_000_000_000
START_SECONDS = 6.5


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The values of a file of lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def apart(run: Path, *events: tuple[float, str, int, Incident]) -> None:
    """Let the run have been processes: `events` are (seconds since the first step, host, incarnation, incident)."""
    write_json(run / "spec.json", whole_files.spec(zero_ns=SUBMITTED))
    rows = [
        event_lines.line(SUBMITTED + round((at + START_SECONDS) * 1e9), host, life, incident)
        for at, host, life, incident in events
    ]
    write_lines(run / "events.jsonl", rows)
    summary = json.loads((run / "summary.json").read_text())
    for row in summary["per_learner"]:
        row["tokens_lost"] = 1234.0 if row["restarts"] else 0.0
    write_json(run / "summary.json", {**summary, "start_seconds": START_SECONDS, "error": None})


def kill_learner(run: Path, slot: int) -> tuple[float, float]:
    """Let the gap in a learner's reports be a death, and its first life leave no trace; when it went and was back."""
    rows = read_lines(run / "metrics.jsonl")
    mine = [row for row in rows if row["learner"] == slot]
    gaps = [(after["time"] - before["time"], index) for index, (before, after) in enumerate(pairwise(mine))]
    index = max(gaps)[1]
    gone, back = mine[index]["time"], mine[index + 1]["time"]
    for row in mine[index + 1 :]:
        row["incarnation"] = 2
    write_lines(run / "metrics.jsonl", rows)
    _cut_trace(run, f"learner/{slot}", 0.0, gone + 0.1)
    return gone, back


def kill_evaluator(run: Path, begun: float, ended: float) -> None:
    """Let nothing have been evaluated in between."""
    rows = read_lines(run / "evaluations.jsonl")
    write_lines(run / "evaluations.jsonl", [row for row in rows if not begun <= row["time"] < ended])
    _cut_trace(run, "evaluator/0", 0.0, ended)


def kill_syncer(run: Path, begun: float, ended: float) -> None:
    """Let nothing have been merged in between, and everything after it under epoch 2."""
    rows = [row for row in read_lines(run / "merges.jsonl") if not begun <= row["time"] < ended]
    first = next(row for row in rows if row["time"] >= ended)
    for row in rows:
        if row["time"] >= ended:
            row["version"][0] = 2
    rows.append(
        {**first, "time": ended - 0.01, "kind": "recover", "version": [1, 9], "reason": "the only member voted"}
    )
    write_lines(run / "merges.jsonl", sorted(rows, key=lambda row: row["time"]))
    _cut_trace(run, "syncer/0", 0.0, ended)


def _cut_trace(run: Path, host: str, begin: float, end: float) -> None:
    """Take what a host has traced in [begin, end] out of the trace."""
    events = json.loads((run / "trace.json").read_text())["traceEvents"]
    (pid,) = {event["pid"] for event in events if event.get("args", {}).get("name") == host and event["ph"] == "M"}
    kept = [
        event for event in events if event["ph"] != "X" or event["pid"] != pid or not begin <= event["ts"] / 1e6 <= end
    ]
    write_json(run / "trace.json", {"traceEvents": kept})
