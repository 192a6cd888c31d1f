"""Carries out a verified request in this process, and leaves behind what a run leaves behind.

The loop has its thread; this one watches, takes Ctrl-C (once: the last fragments are merged; twice: the end, at once),
and writes the files of the run that are not the recorder's.
"""

from __future__ import annotations

import platform
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from isthmus.programs import run_folder
from isthmus.programs.command.graph_view import as_json
from isthmus.programs.interrupts import Interrupts, interrupts
from isthmus.programs.last_files import leave_behind
from isthmus.programs.recording import RUN_FOLDER
from isthmus.programs.reference import resolve
from isthmus.programs.request import Request
from isthmus.programs.summary import fragment_sizes, roster_counts, summarise
from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import RunError
from isthmus.runtime.graph import Reference
from isthmus.runtime.growing import Growing
from isthmus.runtime.ids import Replica
from isthmus.runtime.local import LocalRun
from isthmus.runtime.store import write_json
from isthmus.runtime.trace import Trace

STATUS_SECONDS: Final = 0.25
RECORD: Final = "recorder/0/record"


class Watch(Protocol):
    """Somebody who watches a run."""

    def update(self, status: dict[str, Any]) -> None:
        """The newest status; keys may be missing early."""

    def close(self, summary: dict[str, Any]) -> None:
        """The run is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: its figures, and the folder that holds the rest."""

    summary: dict[str, Any]
    folder: Path


def run_inproc(request: Request, *, watch: Watch | None) -> Outcome:
    """Train in this process. RunError if a body failed, or if Ctrl-C came twice; what there is by then is written."""
    folder = request.run_dir
    run_folder.create(folder, request.config)
    shape = as_json(request.graph, request.proof, request.fingerprint, _placement(request))
    with run_folder.prepared(folder):
        write_json(folder / "graph.json", shape)
    trace = Trace()

    def resolved(reference: Reference) -> Any:
        return folder if reference == RUN_FOLDER else resolve(reference)

    def keep_tape(replica: Replica, data: bytes) -> None:
        if replica not in tapes:
            tapes[replica] = Growing(folder / "tape" / f"{replica.role}-{replica.slot}.tape")
        tapes[replica].append(data)

    tapes: dict[Replica, Growing] = {}
    counts = roster_counts(request.graph, request.job.learners)
    run = LocalRun(
        request.plans,
        counts,
        ends_with="record",
        seed=request.job.seed,
        resolve=resolved,
        keep_tape=keep_tape,
        trace=trace,
    )
    cpu_before = _cpu_seconds()
    with interrupts() as interrupted:
        run.start()
        was_stopped = _watch_until_over(run, watch, interrupted)
        ended = run.clock.now()
        is_killed = interrupted.count > 1
        status = run.status().get(RECORD, {})
        sent = sum(host.traffic.bytes_sent for replica, host in run.hosts.items() if replica.role == "syncer")
        run.close(1.0 if is_killed else 10.0)
    for tape in tapes.values():
        tape.close()
    failure = run.error or status.get("error")
    outcome = "failed" if failure is not None or is_killed else "stopped" if was_stopped else "done"
    summary = summarise(
        status,
        trace.spans,
        program=request.name,
        outcome=outcome,
        learners=request.job.learners,
        shards=counts.get("syncer", 0),
        fragment_sizes=fragment_sizes(request.graph),
        ended=ended,
        cpu_seconds=_cpu_seconds() - cpu_before,
        bytes_sent_by_shards=sent,
    )
    summary["error"] = failure
    leave_behind(folder, summary, list(trace.spans), Instant(status.get("zero") or 0))
    if watch is not None:
        watch.close(summary)
    if failure is not None:
        raise RunError(failure)
    if is_killed:
        raise RunError("ended at once by a second Ctrl-C; what had been merged by then is not written")
    return Outcome(summary, folder)


def _watch_until_over(run: LocalRun, watch: Watch | None, interrupted: Interrupts) -> bool:
    """Wait for the end, showing how it goes; whether somebody asked for it."""
    is_stopping = False
    while not run.wait(STATUS_SECONDS):
        if interrupted.count and not is_stopping:
            is_stopping = True
            run.request_stop()
        if interrupted.count > 1:
            break
        if watch is not None:
            status = dict(run.status())
            pacing = {name: values for name, values in status.items() if name.endswith("/pacer")}
            watch.update({**status.get(RECORD, {}), "pacing": pacing})
    return is_stopping


def _placement(request: Request) -> dict[str, str]:
    """Every node on this machine."""
    return {node.name: platform.node() for node in request.graph.nodes}


def _cpu_seconds() -> float:
    """CPU seconds of this process and its children so far."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)
