"""Carries out a request as processes: a daemon on loopback, and under it a host for every replica.

The command stays light: it prepares the request in a child, which runs the task on shapes and so imports jax, and then
watches. It keeps a daemon running (`private_daemon`), holding a pipe whose end ends the run; the next daemon adopts the
hosts of one that died. If no daemon can be started, the command kills the remaining processes, and writes the end of a
failed run.
"""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from isthmus.programs.engine.islands.sizes import sizes_here
from isthmus.programs.engine.request import new_folder, spec
from isthmus.programs.engine.request.environment import compute_on_cpu, has_backend
from isthmus.programs.engine.request.kept_model import keep
from isthmus.programs.engine.request.new_folder import OVER, InUseError, RunLock
from isthmus.programs.engine.request.request import Request
from isthmus.programs.engine.run import private_daemon
from isthmus.programs.engine.run.interrupts import GRACE_SECONDS, Interrupts, interrupts
from isthmus.programs.engine.run.private_daemon import PrivateDaemon
from isthmus.programs.engine.run.watch_loop import (
    DetachedError,
    RunOutcome,
    RunWatch,
    Watch,
    ended,
    say,
)
from isthmus.runtime.errors import ConfigError, Fault, GraphError, PlacementError, RequestError, RunError
from isthmus.runtime.graph.template import Job
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.flows import Flows, as_used
from isthmus.runtime.system.files import write_json
from isthmus.runtime.system.processes import cpu_seconds, follow_daemon, kill_session

SIGNAL_SECONDS: Final = 0.05
"""Interval of checks for a signal."""
SUMMARY: Final = "summary.json"


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
    `begins` says what one begins from that does not begin at random.
    """

    name: str
    job: Job
    run_dir: Path
    warnings: tuple[Fault, ...] = ()
    chosen: Mapping[str, Any] = field(default_factory=dict)
    lock: RunLock | None = None
    resumption: Resumption | None = None
    begins: str = ""

    def locked(self) -> RunLock:
        """The lock on the run folder, taken now if it was not; RunError if another process has it."""
        try:
            return self.lock or RunLock(self.run_dir)
        except InUseError as error:
            raise RunError(f"expected {self.run_dir} to be this command's, found {error}") from None


def submit(request: Request, begins_from: Path | None = None) -> Submitted:
    """Make the run folder of a verified request, with the files that daemon and hosts read, and the weights that it
    begins from."""
    from isthmus.programs.engine.recorder.summary import fragments_in
    from isthmus.programs.engine.request.graph_view import as_json
    from isthmus.programs.engine.request.weights import weights_of

    fragments = fragments_in(request.graph)
    weights = None if begins_from is None else weights_of(begins_from, fragments)
    elastic = sizes_here(request)
    private_daemon.check_loopback(f"Starting {request.name}")
    request = request.with_folder()
    placement = {node.name: platform.node() for node in request.graph.nodes}
    shape = as_json(request.graph, request.proof, request.fingerprint, placement)
    with new_folder.prepared(request.run_dir):
        write_json(request.run_dir / "graph.json", shape)
        keep(request.run_dir, request.job.task.text)
        if weights is not None:
            weights.write(request.run_dir, fragments)
    used = cpu_seconds(with_children=True)
    fields = spec.of(request, zero_ns=time.monotonic_ns(), cpu_seconds=used, elastic=elastic)
    with new_folder.prepared(request.run_dir):
        spec.write(request.run_dir, fields)
    begins = "" if weights is None else weights.words
    return Submitted(request.name, request.job, request.run_dir, request.warnings, dict(request.chosen), begins=begins)


def submit_in_child(make: Callable[[], Request], begins_from: Path | None = None) -> Submitted:
    """Make a request and submit it in a child; raises what `in_child` does."""

    def work() -> dict[str, Any]:
        accepted = submit(make(), begins_from)
        return {
            "folder": str(accepted.run_dir),
            "name": accepted.name,
            "warnings": accepted.warnings,
            "chosen": accepted.chosen,
            "begins": accepted.begins,
        }

    answer = in_child(work)
    run = submitted(Path(answer["folder"]), answer["name"])
    warnings = tuple(Fault(*warning) for warning in answer["warnings"])
    return replace(run, warnings=warnings, chosen=answer["chosen"], begins=answer["begins"])


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `work`, as JSON; runs in a child, so that this process imports neither jax nor the task.

    Raises the child's errors, as a RequestError with the same faults; RunError if the child dies; KeyboardInterrupt at
    a signal. The child ends with this process, however that ends, and its jax is on the CPU, where it computes the loss
    of a small task's first batch: accelerators are for the hosts. Where jax has a backend already there is no child,
    because a process with its threads must not be forked.
    """
    if has_backend():
        return work()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Counted, because an exception that a handler raises in the middle of a fork is lost.
    with interrupts() as interrupted:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _prepare(work, writer)
        os.close(writer)
        try:
            text = _read(reader, child, interrupted)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
            kill_session(child)
            os.waitpid(child, 0)
            os.close(reader)
    if not text:
        raise RunError("the process that prepared the request died")
    answer: dict[str, Any] = json.loads(text)
    if "faults" in answer:
        kinds = {kind.__name__: kind for kind in (ConfigError, GraphError, PlacementError)}
        raise kinds[answer["kind"]].of([Fault(*fault) for fault in answer["faults"]])
    if "error" in answer:
        raise RunError(answer["error"])
    done: dict[str, Any] = answer["done"]
    return done


def _read(reader: int, child: int, interrupted: Interrupts) -> bytes:
    """All bytes of a pipe from a child; KeyboardInterrupt if a signal arrives first.

    Processes that the child has started have the other end, too, so they are ended with it.
    """
    parts = []
    watch = os.pidfd_open(child)
    watched = [reader, watch]
    try:
        while True:
            if interrupted.count:
                raise interrupted.error()
            able = select.select(watched, [], [], SIGNAL_SECONDS)[0]
            if reader in able:
                parts.append(os.read(reader, 1 << 16))
                if not parts[-1]:
                    return b"".join(parts)
            elif watch in able:
                kill_session(child)
                watched = [reader]
    finally:
        os.close(watch)


def _prepare(work: Callable[[], dict[str, Any]], writer: int) -> NoReturn:
    """In the child: write the result of the work into the pipe and end; end earlier if the reader does."""

    def end_with_reader() -> None:
        poll = select.poll()
        poll.register(writer, 0)
        poll.poll()  # No events are requested, so this returns only when the reader has closed.
        kill_session(os.getpid())
        os._exit(1)

    os.setsid()  # The task may start processes, which end with this one.
    follow_daemon()  # A terminal sends them here, too; the command acts on them.
    threading.Thread(target=end_with_reader, daemon=True).start()
    try:
        answer = json.dumps(_answer(lambda: _on_cpu(work))).encode()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def _on_cpu(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of `work`, with a jax that starts no accelerator."""
    compute_on_cpu()
    return work()


def submitted(folder: Path, name: str, lock: RunLock | None = None, resumption: Resumption | None = None) -> Submitted:
    """The submitted request of a run folder, of which this process may have the lock, and which may be resumed."""
    return Submitted(name, spec.load(folder).job, folder, lock=lock, resumption=resumption)


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"done": work()}
    except RequestError as error:
        return {"kind": type(error).__name__, "faults": [list(fault) for fault in error.faults]}
    except BaseException:
        return {"error": f"preparing the request failed:\n{traceback.format_exc()}"}


def run_processes(
    request: Submitted, *, watch: Watch | None, detaches: bool = False, grace: float = GRACE_SECONDS
) -> RunOutcome:
    """Train; RunError if the run failed, or after a second Ctrl-C. SIGTERM has it set aside within `grace` seconds.

    DetachedError if it `detaches` where nobody reads the output any more, or there is none to read.
    """
    folder = request.run_dir
    with request.locked() as lock, interrupts() as interrupted:
        daemon = PrivateDaemon(folder, lock, say, grace)
        loop, is_detached = RunWatch(daemon, interrupted, grace), False
        try:
            loop.until_over(folder, watch, detaches=detaches)
        except DetachedError:
            is_detached = True
            raise
        except RunError as error:
            daemon.kill()
            if daemon.is_unwritten or not leave_failed(folder, daemon.seen, str(error)):
                raise
        finally:
            if not is_detached:
                daemon.close(loop.patience)
        if watch is None and detaches and interrupted.count:
            raise interrupted.error()
    path, over = folder / SUMMARY, folder / OVER
    if not path.exists() and over.exists() and (failure := json.loads(over.read_text())["error"]):
        raise RunError(str(failure))
    return ended(folder, json.loads(path.read_text()) if path.exists() else None, watch)


def detach(request: Submitted, grace: float = GRACE_SECONDS) -> None:
    """Start a daemon for the run, and leave it alone once it answers; RunError, and nothing left, if it does not.

    Until then it holds the pipe, so that an end of this command at any moment ends the run, too.
    """
    with suppress(DetachedError):
        run_processes(request, watch=None, detaches=True, grace=grace)


def leave_failed(folder: Path, seen: Mapping[str, Any], error: str) -> bool:
    """Write the end of a run without a daemon, from the last status; returns whether it is written.

    Does not wait for a disk that takes nothing now.
    """
    from isthmus.programs.engine.run.run_end import RunEnd, finish_apart

    if private_daemon.refusal_of(folder):
        return False
    hosts = seen.get("hosts", [])
    used: dict[str, float] = {}
    for host in hosts:
        used.update(as_used(Replica.parse(host["name"]), msgspec.convert(host.get("flows", Flows()), Flows)))
    cpu = sum(host.get("cpu_seconds", 0.0) for host in hosts)
    ending = RunEnd("failed", error, seen.get("training", {}), cpu, used, time.monotonic_ns(), None, [])
    with suppress(OSError, subprocess.SubprocessError):
        if not (folder / SUMMARY).exists():
            finish_apart(folder, ending)
        write_json(folder / OVER, {"outcome": "failed", "error": error})
        return (folder / SUMMARY).exists()
    return False
