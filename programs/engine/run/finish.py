"""The files that come at the end of every run: summary, trace and report, from its daemon's knowledge and the hosts'
files.

`finish` builds the graph again, and so imports the run's program. `python -m isthmus.programs.engine.run.finish RUN`
does that with the ending on standard input (`run_end`).

A run without a summary has failed, whatever was trained; its writing is retried for a while. The others are for people,
and made of the data that are there anyway.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import msgspec

from isthmus.programs import wing_table
from isthmus.programs.engine.recorder import summary as recorded
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes, fragments_of
from isthmus.programs.engine.recorder.summary import summarise
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.request.weights import origin_of
from isthmus.programs.engine.results import tapes
from isthmus.programs.engine.results.tapes import firings_of
from isthmus.programs.engine.run.run_end import RunEnd
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER as SNAPSHOTS
from isthmus.programs.update_settings import step_tokens_of
from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import RequestError, RunError
from isthmus.runtime.graph.plans import lower
from isthmus.runtime.graph.template import Template
from isthmus.runtime.host.contract import Span, as_perfetto, spans_file
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.flows import RunFlows
from isthmus.runtime.system.files import insist, read_bytes, write_bytes, write_json
from isthmus.runtime.system.processes import unblock

SUMMARY_SECONDS_MAX: Final = 60.0
"""Time for which a disk may refuse the summary of a run."""


def leave_behind(folder: Path, summary: dict[str, Any], spans: Sequence[Span], zero: Instant) -> None:
    """Write summary, with what other files say of the run, trace and report.

    RunError if the disk does not take the summary in time; trace or report are left out with a line on standard error
    if they cannot be written.
    """
    summary["agreement"] = recorded.agreement(folder, summary["fragments"])
    summary["begins_from"] = origin_of(folder)
    path, seconds_max = folder / "summary.json", SUMMARY_SECONDS_MAX
    try:
        insist(lambda: write_json(path, summary), seconds_max)
    except OSError as error:
        model = folder / "snapshots" / "final"
        where = f"The model is in {model}." if model.is_dir() else "No model was written."
        raise RunError(
            f"training is over ({summary['outcome']}), but {path} could not be written for {seconds_max:.0f} s: "
            f"{error.strerror or error}. {where}"
        ) from None
    try:
        events = {"traceEvents": list(as_perfetto(list(spans), zero)), "displayTimeUnit": "ms"}
        write_bytes(folder / "trace.json", json.dumps(events, separators=(",", ":")).encode())
        wing_table.write_last(folder)
    except OSError as error:
        sys.stderr.write(f"isthmus: trace.json or report.html could not be written: {error}\n")


TAPES_BYTES_MAX: Final = 32 << 20
"""Limit for tapes of killed lives: three quarters of an hour of a learner that makes thirty steps a second, and some
seconds to read."""


def finish(folder: Path, ending: RunEnd) -> None:
    """Write the files at the end of a run: summary, trace and report.

    RunError if the disk does not take the summary in time; trace or report are left out with a line on standard error
    if they cannot be written.
    """
    run_spec = spec.load(folder)
    graph = _graph(run_spec)
    spans = spans_in(folder) + ([] if graph is None else spans_of_killed(folder, graph))
    sizes = [] if graph is None else fragment_sizes(graph)
    record = recorded.figures(folder, ending.record, sizes=sizes, learners=run_spec.job.learners)
    recorded.note_ends(record, folder)
    for slot in ending.retired:
        if slot in record.get("learners", {}):
            record["learners"][slot]["is_gone"] = True
    summary = summarise(
        record,
        sorted(spans, key=lambda span: span.begun),
        program=run_spec.job.program if graph is None or ":" not in run_spec.job.program else graph.name,
        outcome=ending.outcome,
        learners=run_spec.job.learners,
        shards=run_spec.roles.get("syncer", 0),
        fragment_sizes=sizes,
        ended=ending.ended_ns - run_spec.zero_ns,
        cpu_seconds=run_spec.cpu_seconds + ending.cpu_seconds,
        graph=graph,
        flows=RunFlows.of_used(ending.used),
        merges_recorded=recorded.merges(folder),
        step_tokens=step_tokens_of(run_spec.job),
        evaluations=run_spec.job.evaluations,
        paused_ns=run_spec.paused_ns,
    )
    gone = "" if graph is None or ending.lost is None else fragments_of(graph, Replica.parse(ending.lost))
    summary["error"] = f"{ending.error} Lost with it: {gone}." if gone else ending.error
    if ending.outcome == "done" and not run_spec.settings.keep_to_go_on:
        drop_kept(folder)
    summary["scripts_unfinished"] = list(ending.unfinished)
    summary["scripts_unfinished_why"] = ending.unfinished
    summary["scripts_dismissed"] = ending.dismissed
    summary["kept_bytes"] = sum(path.stat().st_size for path in kept(folder))
    leave_behind(folder, summary, spans, Instant(record.get("zero") or 0))


def kept(folder: Path) -> list[Path]:
    """The files that a run goes on from: its snapshots, and what its learners have left for their next lives here."""
    local = [path for path in (folder / "local").rglob("*") if path.is_file()]
    return [path for path in (folder / SNAPSHOTS).glob("*") if path.is_file()] + local


def drop_kept(folder: Path) -> None:
    """Remove them; what the disk does not give up stays. The manifests go first: no snapshot is half there."""
    for path in sorted(kept(folder), key=lambda path: path.suffix != ".json"):
        with suppress(OSError):
            path.unlink()


def spans_in(folder: Path) -> list[Span]:
    """The spans of a run's hosts, some from other machines; skips unreadable files with a line on standard error."""
    spans: list[Span] = []
    for path in sorted((folder / "spans").glob("*.json")):
        try:
            spans += msgspec.json.decode(read_bytes(path), type=list[Span])
        except (OSError, msgspec.DecodeError) as error:
            sys.stderr.write(f"isthmus: {path} is left out of the trace: {error}\n")
    return spans


def spans_of_killed(folder: Path, graph: Template) -> list[Span]:
    """The spans of lives that left none, from their tapes; the newest ones, up to TAPES_BYTES_MAX.

    An unreadable tape is left out.
    """
    plans, left, spans = lower(graph), TAPES_BYTES_MAX, list[Span]()
    for tape in reversed(tapes.of_folder(folder)[0]):
        if tape.member is None or spans_file(folder, tape.member).exists():
            continue
        plan = plans.get(tape.member.replica.role)
        with suppress(OSError, ValueError):
            left -= sum(path.stat().st_size for path in tape.paths)
            if plan is not None and left >= 0:
                spans += firings_of(plan, str(tape.member.replica), tapes.read(tape).records)
    return spans


def _graph(run_spec: spec.Spec) -> Template | None:
    """The run's graph; None where the program's files have changed, which ends a run, too."""
    try:
        return run_spec.graph()
    except RequestError:
        return None


if __name__ == "__main__":
    unblock()
    finish(Path(sys.argv[1]), RunEnd(**msgpack.unpackb(sys.stdin.buffer.read(), strict_map_key=False)))
