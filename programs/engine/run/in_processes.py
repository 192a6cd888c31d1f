"""Carries out a request as processes: a daemon on loopback, and under it a host for every replica.

The command stays light: another process, which runs the task on shapes and so imports jax, prepares the request, and
the command then watches (`preparing`). It keeps a daemon running (`private_daemon`), with a line whose end ends the
run; the next daemon adopts the hosts of one that died. If no daemon can be started, the command kills the remaining
processes, and writes the end of a failed run.
"""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from isthmus.programs.engine.request import new_folder
from isthmus.programs.engine.request.environment import has_backend
from isthmus.programs.engine.request.grace import GRACE_SECONDS
from isthmus.programs.engine.request.new_folder import InUseError, RunLock
from isthmus.programs.engine.results.run_files import OVER, SUMMARY, over_of, summary_of
from isthmus.programs.engine.run.going_on import going_on
from isthmus.programs.engine.run.interrupts import Interrupts, interrupts
from isthmus.programs.engine.run.preparing import DaemonAhead, in_child
from isthmus.programs.engine.run.watch_loop import (
    SECOND_SECONDS,
    CutOffError,
    DetachedError,
    LastResort,
    RunOutcome,
    RunWatch,
    Watch,
    ended,
    say,
)
from isthmus.runtime.errors import Fault, InterruptedRunError, RunError
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.home_events import INTERRUPTED
from isthmus.runtime.system import phases
from isthmus.runtime.system.files import write_json
from isthmus.runtime.system.processes import began_ns, cpu_seconds

if TYPE_CHECKING:
    from isthmus.programs.engine.request.request import Request
    from isthmus.programs.job import Job

COMMAND: Final = "command"
PREPARER: Final = "preparer"
"""Names among the phases of a start."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """What a run that was cut off goes on from; None where the files do not say.

    `snapshot`: its number. `tokens`: those whose work is in it; `tokens_undone`: those that were trained and are not in
    it. Both are means over fragments, weighted by size. `age_seconds`: since it was taken.
    """

    snapshot: int
    outer_steps: int | None = None
    tokens: int | None = None
    tokens_undone: int | None = None
    age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request whose run folder exists, with its spec: everything that a watching command needs.

    Of a run that is resumed, this process has the `lock` since it looked at the folder; `resumption` is of such a run.
    `begins` says what one begins from that does not begin at random. `data`: a line or two on the data. `ahead` is a
    daemon that waits for it.
    """

    name: str
    job: Job
    run_dir: Path
    warnings: tuple[Fault, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)
    lock: RunLock | None = None
    resumption: Resumption | None = None
    begins: str = ""
    ahead: DaemonAhead | None = None
    altered: tuple[str, ...] = ()
    """What is not as before in a run that goes on, a line each."""
    data: tuple[str, ...] = ()

    def locked(self) -> RunLock:
        """The lock on the run folder, taken now if it was not; RunError if another process has it."""
        try:
            return self.lock or RunLock(self.run_dir)
        except InUseError as error:
            raise RunError(f"expected {self.run_dir} to be this command's, found {error}") from None


def submit(request: Request, begins_from: Path | None = None, *, counts: bool = True) -> Submitted:
    """Make the run folder of a verified request, with the files that daemon and hosts read, and the weights that it
    begins from.

    `counts`: what this process has computed until now is the run's, because nothing else counts it.
    """
    from isthmus.programs.engine.islands.sizes import sizes_here
    from isthmus.programs.engine.recorder.graph_parts import fragments_in, roster_counts
    from isthmus.programs.engine.request import new_spec, sources, spec
    from isthmus.programs.engine.request.graph_view import as_json
    from isthmus.programs.engine.request.kept_model import keep
    from isthmus.programs.engine.request.weights import weights_of
    from isthmus.programs.engine.run.room_for_hosts import check_compiler, check_loopback, check_room_for

    fragments = fragments_in(request.graph)
    weights = None if begins_from is None else weights_of(begins_from, fragments)
    elastic = sizes_here(request)
    doing = f"Starting {request.name}"
    check_compiler(doing)
    check_room_for(doing, sum(roster_counts(request.graph, request.job.learners).values()))
    check_loopback(doing)
    request = request.with_folder()
    placement = {node.name: platform.node() for node in request.graph.nodes}
    shape = as_json(request.graph, request.proof, request.fingerprint, placement)
    with new_folder.prepared(request.run_dir):
        write_json(request.run_dir / "graph.json", shape)
        keep(request.run_dir, request.job.task.text)
        request.write_data(request.run_dir)
        sources.write(request.run_dir, sources.of_now(request.job.program, request.job.task.text, fragments))
        if weights is not None:
            weights.write(request.run_dir, fragments)
    used = cpu_seconds(with_children=True) if counts else 0.0
    fields = new_spec.of(request, zero_ns=time.monotonic_ns(), cpu_seconds=used, elastic=elastic)
    with new_folder.prepared(request.run_dir):
        spec.write(request.run_dir, fields)
    begins = "" if weights is None else weights.words
    return Submitted(
        request.name,
        request.job,
        request.run_dir,
        request.warnings,
        dict(request.chosen),
        begins=begins,
        data=request.data_lines,
    )


def submit_ahead(
    make: Callable[[], Request], begins_from: Path | None = None, *, meanwhile: Callable[[], Any] = lambda: None
) -> Submitted:
    """Make a request and submit it in the process that will be its fork server, under a daemon that waits for it.

    Calls `meanwhile`, once it has forked. Raises what `in_child` does.
    """

    def work() -> dict[str, Any]:
        request = make()
        prepared_ns, task = time.monotonic_ns(), task_to_fork(request)
        accepted = submit(request, begins_from, counts=not task)
        phases.note(accepted.run_dir, PREPARER, "begun", at_ns=began_ns())
        phases.note(accepted.run_dir, PREPARER, "prepared", at_ns=prepared_ns)
        phases.note(accepted.run_dir, PREPARER, "written")
        return {**_submitted_as_data(accepted), "task": task}

    if has_backend():
        meanwhile()
        return _read_submitted(work())
    forked_ns, ahead = time.monotonic_ns(), DaemonAhead(work, meanwhile)
    run = replace(_read_submitted(ahead.answer), ahead=ahead)
    phases.note(run.run_dir, COMMAND, "begun", at_ns=began_ns())
    phases.note(run.run_dir, COMMAND, "forked", at_ns=forked_ns)
    return run


def task_to_fork(request: Request) -> str:
    """The task whose hosts this process can fork once it has prepared the request; '' if another process has to."""
    from isthmus.programs.engine.request import new_spec

    is_alone = len(os.listdir("/proc/self/task")) == 1 and not has_backend()
    is_ours = len(request.tasks) == 1 and new_spec.forks(request)
    return request.job.task.text if is_alone and is_ours else ""


def submit_in_child(make: Callable[[], Request], begins_from: Path | None = None) -> Submitted:
    """Make a request and submit it in a child; raises what `in_child` does."""
    return _read_submitted(in_child(lambda: _submitted_as_data(submit(make(), begins_from))))


def _submitted_as_data(accepted: Submitted) -> dict[str, Any]:
    return {
        "folder": str(accepted.run_dir),
        "name": accepted.name,
        "warnings": accepted.warnings,
        "chosen": dict(accepted.chosen),
        "begins": accepted.begins,
        "data": accepted.data,
    }


def _read_submitted(data: Mapping[str, Any]) -> Submitted:
    run = submitted(Path(data["folder"]), data["name"])
    warnings = tuple(Fault(*warning) for warning in data["warnings"])
    return replace(
        run, warnings=warnings, chosen=data["chosen"], begins=data["begins"], data=tuple(data.get("data", ()))
    )


def submitted(folder: Path, name: str, lock: RunLock | None = None, resumption: Resumption | None = None) -> Submitted:
    """The submitted request of a run folder, of which this process may have the lock, and which may be resumed."""
    from isthmus.programs.engine.request import spec

    return Submitted(name, spec.load(folder).job, folder, lock=lock, resumption=resumption)


def run_processes(
    request: Submitted, *, watch: Watch | None, detaches: bool = False, grace: float = GRACE_SECONDS
) -> RunOutcome:
    """Train; RunError if the run failed, or after a second Ctrl-C. SIGTERM has it set aside within `grace` seconds.

    DetachedError if it `detaches` where nobody reads the output any more, or there is none to read.
    """
    from isthmus.programs.engine.run.private_daemon import PrivateDaemon

    folder = request.run_dir
    with request.locked() as lock, interrupts() as interrupted:
        daemon = PrivateDaemon(folder, lock, say, grace, request.ahead)
        loop, is_detached = RunWatch(daemon, interrupted, grace, SECOND_SECONDS, is_own=True), False
        with LastResort(daemon, interrupted):
            try:
                loop.until_over(folder, watch, detaches=detaches)
            except DetachedError:
                is_detached = True
                raise
            except CutOffError as error:
                daemon.kill()
                way = going_on(folder, INTERRUPTED)
                assert way is not None
                raise InterruptedRunError(f"{folder} was {error}; to go on with it: {way.words()}") from None
            except RunError as error:
                daemon.kill()
                if daemon.is_unwritten or not leave_failed(folder, daemon.seen, str(error), _left(interrupted)):
                    raise
            finally:
                if not is_detached:
                    daemon.close(loop.patience)
        if watch is None and detaches and interrupted.count:
            raise interrupted.error()
    summary = summary_of(folder)
    over = over_of(folder) if summary is None else None
    if over is not None and over.error:
        raise RunError(over.error)
    return ended(folder, summary, watch)


def detach(request: Submitted, grace: float = GRACE_SECONDS) -> None:
    """Start a daemon for the run, and leave it alone once it answers; RunError, and nothing left, if it does not.

    Until then it holds the pipe, so that an end of this command at any moment ends the run, too.
    """
    with suppress(DetachedError):
        run_processes(request, watch=None, detaches=True, grace=grace)


ALL_SECONDS: Final = 9.5
"""From a second signal until every process of the command is gone: what writes the end is one."""


def _left(interrupted: Interrupts) -> float | None:
    """The seconds in which the end of a run may be written without its daemon; None for as long as that takes."""
    if interrupted.second_at is None:
        return None
    return max(0.0, interrupted.second_at + ALL_SECONDS - time.monotonic())


def leave_failed(folder: Path, seen: Mapping[str, Any], error: str, seconds_max: float | None = None) -> bool:
    """Write the end of a run without a daemon, from the last status; returns whether it is written.

    Does not wait for a disk that takes nothing now, nor for longer than `seconds_max`.
    """
    import msgspec

    from isthmus.programs.engine.run.private_daemon import refusal_of
    from isthmus.programs.engine.run.run_end import FINISH_SECONDS_MAX, RunEnd, finish_apart
    from isthmus.runtime.supervision.flows import Flows, as_used

    if refusal_of(folder):
        return False
    hosts = seen.get("hosts", [])
    used: dict[str, float] = {}
    for host in hosts:
        used.update(as_used(Replica.parse(host["name"]), msgspec.convert(host.get("flows", Flows()), Flows)))
    cpu = sum(host.get("cpu_seconds", 0.0) for host in hosts)
    ending = RunEnd("failed", error, seen.get("training", {}), cpu, used, time.monotonic_ns(), None, [])
    with suppress(OSError, subprocess.SubprocessError):
        if not (folder / SUMMARY).exists():
            finish_apart(folder, ending, FINISH_SECONDS_MAX if seconds_max is None else seconds_max)
        write_json(folder / OVER, {"outcome": "failed", "error": error})
        return (folder / SUMMARY).exists()
    return False
