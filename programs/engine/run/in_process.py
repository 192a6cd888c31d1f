"""Carries out a verified request in this process, and leaves the files of a run behind.

The loop has its thread; this one watches, takes Ctrl-C (once: the last fragments are merged; twice: the end, at once),
and writes the files of the run that are not the recorder's.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from isthmus.programs.engine.islands.claims import shares
from isthmus.programs.engine.recorder import summary as recorded
from isthmus.programs.engine.recorder.graph_parts import fragment_sizes, roster_counts
from isthmus.programs.engine.recorder.run_references import resolving
from isthmus.programs.engine.recorder.summary import summarise
from isthmus.programs.engine.request import new_folder, new_spec, spec
from isthmus.programs.engine.request.graph_view import as_json
from isthmus.programs.engine.request.kept_model import keep
from isthmus.programs.engine.request.new_folder import RunLock
from isthmus.programs.engine.request.reference import resolve
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.results import words
from isthmus.programs.engine.run.finish import leave_behind
from isthmus.programs.engine.run.interrupts import Interrupts, interrupts
from isthmus.programs.engine.run.logs import log_of
from isthmus.programs.engine.run.watch_loop import RunOutcome, Watch
from isthmus.programs.program_graph import REGION
from isthmus.programs.update_settings import step_tokens_of
from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import RunError
from isthmus.runtime.host.contract import IslandDevices, Trace
from isthmus.runtime.host.one_process import LocalRun
from isthmus.runtime.ids import LEARNER, Replica
from isthmus.runtime.supervision.flows import RunFlows
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import put_bytes, write_json
from isthmus.runtime.system.processes import cpu_seconds

STATUS_SECONDS: Final = 0.25
RECORD: Final = "recorder/0/record"


def run_inproc(
    request: Request, *, watch: Watch | None, islands: Mapping[Replica, IslandDevices] | None = None
) -> RunOutcome:
    """Train in this process a request whose run folder exists.

    RunError if a body failed, or after a second Ctrl-C; results so far are written. InUseError if another process has
    the folder. `islands` are the devices of the learners; by default they share equally.
    """
    with RunLock(request.run_dir):
        return _run_inproc(request, watch, _islands(request) if islands is None else islands)


def _islands(request: Request) -> dict[Replica, IslandDevices]:
    """The devices of this process, shared among the learners of a request that compute with jax."""
    if "jax" not in sys.modules:
        return {}
    import jax

    learners = roster_counts(request.graph, request.job.learners).get(LEARNER, 0)
    return {Replica(LEARNER, slot): each for slot, each in enumerate(shares(jax.local_device_count(), learners))}


def _run_inproc(request: Request, watch: Watch | None, islands: Mapping[Replica, IslandDevices]) -> RunOutcome:
    folder = request.run_dir
    shape = as_json(request.graph, request.proof, request.fingerprint, _placement(request))
    with new_folder.prepared(folder):
        write_json(folder / "graph.json", shape)
        keep(folder, request.job.task.text)
        request.write_data(folder)
        fields = new_spec.of(
            request, zero_ns=time.monotonic_ns(), cpu_seconds=cpu_seconds(with_children=True), transport=spec.INPROC
        )
        spec.write(folder, fields)
    trace = Trace()

    at = spec.load(folder)
    resolved = resolving(folder, resolve, at.settings.snapshot_every_seconds, at.snapshot_place(folder))

    counts = roster_counts(request.graph, request.job.learners)
    run = LocalRun(
        request.plans,
        counts,
        ends_with="record",
        seed=request.job.seed,
        resolve=resolved,
        folder=folder,
        tape_bytes=request.run.tape_bytes,
        trace=trace,
        islands=islands,
    )
    cpu_before = cpu_seconds(with_children=True)
    with interrupts() as interrupted:
        run.start()
        was_stopped = _watch_until_over(run, watch, interrupted)
        ended = run.clock.now()
        is_killed = interrupted.count > 1
        status = run.status().get(RECORD, {})
        flows = RunFlows.of(((replica, host.flows) for replica, host in run.hosts.items()), REGION)
        run.close(1.0 if is_killed else 10.0)
    failure = _failure(run, folder) or status.get("error")
    is_stopped = was_stopped or status.get("stop_reason") is not None
    outcome = "failed" if failure is not None or is_killed else "stopped" if is_stopped else "done"
    summary = summarise(
        status,
        trace.spans,
        program=request.name,
        outcome=outcome,
        learners=request.job.learners,
        shards=counts.get("syncer", 0),
        fragment_sizes=fragment_sizes(request.graph),
        ended=ended,
        cpu_seconds=at.cpu_seconds + cpu_seconds(with_children=True) - cpu_before,
        graph=request.graph,
        flows=flows,
        merges_recorded=recorded.merges(folder),
        step_tokens=step_tokens_of(request.job),
        evaluations=request.job.evaluations,
    )
    summary["error"] = failure
    leave_behind(folder, summary, list(trace.spans), Instant(status.get("zero") or 0))
    if watch is not None:
        watch.close(summary)
    if failure is not None:
        raise RunError(failure)
    if is_killed:
        raise RunError("ended at once by a second Ctrl-C; what had been merged by then is not written")
    return RunOutcome(summary, folder)


def _watch_until_over(run: LocalRun, watch: Watch | None, interrupted: Interrupts) -> bool:
    """Wait for the end, updating `watch`; returns whether a stop was requested."""
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
            watch.update({**status.get(RECORD, {}), "pacing": pacing, "full": list(DISK.full.now())})
    return is_stopping


def _failure(run: LocalRun, folder: Path) -> str | None:
    """Why a body or the runtime failed, in a line; the whole story is in the log of its host."""
    if run.error is None or run.failed is None or run.failed.raised is None:
        return run.error
    replica = run.failed.member.replica
    log = log_of(folder, replica)
    with suppress(OSError):
        log.parent.mkdir(exist_ok=True)
        put_bytes(log, f"{run.error}\n".encode())
    return f"{replica}: {words.raised(run.failed.raised)}. Look at {log}."


def _placement(request: Request) -> dict[str, str]:
    """Every node on this machine."""
    return {node.name: platform.node() for node in request.graph.nodes}
