"""Carries out a request as processes: a daemon on loopback, and under it a host for every replica.

The command stays light: it prepares the request in a child, which runs the task on shapes and so imports jax, and then
watches. It holds a pipe to the daemon, whose end ends the run; a daemon that dies is replaced, and adopts the hosts.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from isthmus.programs import run_folder, spec
from isthmus.programs.interrupts import Interrupts, interrupts
from isthmus.programs.request import Request
from isthmus.programs.run import Outcome, Watch
from isthmus.runtime.control import DETACH, ask
from isthmus.runtime.errors import ConfigError, Fault, GraphError, PlacementError, RequestError, RunError
from isthmus.runtime.graph import Job
from isthmus.runtime.ledger import Ledger
from isthmus.runtime.store import write_json

STATUS_SECONDS: Final = 0.25
DAEMON_SECONDS: Final = 20.0
"""How long a daemon may take to say where it is: it imports a few modules and binds a socket."""
DAEMONS_MAX: Final = 5
"""So many daemons in a row that die before the run is over are not an accident."""
SIGNAL_SECONDS: Final = 0.05
"""How often it is looked whether a signal has come."""
SECOND: Final = "ended at once by a second Ctrl-C"


@dataclass(frozen=True, slots=True)
class Submitted:
    """A request whose run folder is there, with its spec: all that whoever watches needs to know."""

    name: str
    job: Job
    run_dir: Path


def submit(request: Request) -> Submitted:
    """Make the run folder of a verified request, with what daemon and hosts read."""
    from isthmus.programs.command.graph_view import as_json

    run_folder.create(request.run_dir, request.config)
    placement = {node.name: platform.node() for node in request.graph.nodes}
    shape = as_json(request.graph, request.proof, request.fingerprint, placement)
    with run_folder.prepared(request.run_dir):
        write_json(request.run_dir / "graph.json", shape)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in used)
    told = spec.of(request, zero_ns=time.monotonic_ns(), cpu_seconds=cpu_seconds)
    with run_folder.prepared(request.run_dir):
        spec.write(request.run_dir, told)
    return Submitted(request.name, request.job, request.run_dir)


def submit_apart(make: Callable[[], Request]) -> Submitted:
    """Make a request and submit it in a child; raises what `apart` does."""

    def work() -> dict[str, Any]:
        made = submit(make())
        return {"folder": str(made.run_dir), "name": made.name}

    told = apart(work)
    return submitted(Path(told["folder"]), told["name"])


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` returns, as JSON would have it, done in a child, so that this process imports neither jax nor the
    task.

    Raises what `work` raises, as a RequestError with the same faults; RunError if the child dies; KeyboardInterrupt at
    a signal. The child goes with this process, however it ends. Where jax is imported already there is no
    child: nothing would be gained, and a process with its threads must not be forked.
    """
    if "jax" in sys.modules:
        return work()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Counted, because what a handler raises in the middle of a fork is lost.
    with interrupts() as interrupted:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            _prepare(work, writer)
        os.close(writer)
        try:
            text = _read(reader, interrupted)
        finally:
            os.kill(child, signal.SIGKILL)
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


def _read(reader: int, interrupted: Interrupts) -> bytes:
    """All that comes through a pipe; KeyboardInterrupt if a signal comes first."""
    parts = []
    while True:
        if interrupted.count:
            raise interrupted.error()
        if select.select([reader], [], [], SIGNAL_SECONDS)[0]:
            parts.append(os.read(reader, 1 << 16))
            if not parts[-1]:
                return b"".join(parts)


def _prepare(work: Callable[[], dict[str, Any]], writer: int) -> NoReturn:
    """In the child: write what came of the work into the pipe, and end, or end with whoever reads it."""

    def end_with_reader() -> None:
        poll = select.poll()
        poll.register(writer, 0)
        poll.poll()  # Nothing is asked for, so this can only be the error that nobody reads any more.
        os._exit(1)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # A terminal sends them here, too; the command acts on them.
    threading.Thread(target=end_with_reader, daemon=True).start()
    try:
        answer = json.dumps(_answer(work)).encode()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(answer)
    finally:
        os._exit(0)


def submitted(folder: Path, name: str) -> Submitted:
    """What was submitted into a run folder."""
    return Submitted(name, spec.load(folder).job, folder)


def _answer(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return {"done": work()}
    except RequestError as error:
        return {"kind": type(error).__name__, "faults": [list(fault) for fault in error.faults]}
    except BaseException:
        return {"error": f"preparing the request failed:\n{traceback.format_exc()}"}


def run_processes(request: Submitted, *, watch: Watch | None) -> Outcome:
    """Train; RunError if the run failed, or if Ctrl-C came twice."""
    with interrupts() as interrupted:
        _watch_until_over(request.run_dir, watch, interrupted)
    return outcome_of(request.run_dir, watch)


def outcome_of(folder: Path, watch: Watch | None) -> Outcome:
    """What came of a run that is over; RunError if it failed."""
    path, over = folder / "summary.json", folder / "over.json"
    if not path.exists() and over.exists() and (error := json.loads(over.read_text())["error"]):
        raise RunError(str(error))
    return ended(folder, json.loads(path.read_text()) if path.exists() else None, watch)


def ended(folder: Path, summary: dict[str, Any] | None, watch: Watch | None) -> Outcome:
    """What came of a run with this summary; RunError if it failed."""
    if summary is None:
        raise RunError(f"the run ended without a summary; look at {folder / 'logs' / 'daemon.log'}")
    if watch is not None:
        watch.close(summary)
    if summary["outcome"] == "failed":
        raise RunError(str(summary["error"]))
    return Outcome(summary, folder)


def detach(request: Submitted) -> None:
    """Start a daemon for the run, and leave it alone once it answers; RunError, and nothing left, if it does not.

    Until then it holds the pipe, so that an end of this command at any moment ends the run, too.
    """
    daemon = _start_daemon(request.run_dir)
    assert daemon.stdin is not None
    until = time.monotonic() + DAEMON_SECONDS
    try:
        while not _answers(request.run_dir, daemon.pid):
            if daemon.poll() is not None or time.monotonic() > until:
                log = request.run_dir / "logs" / "daemon.log"
                raise RunError(f"the daemon of the run does not answer; look at {log}")
            time.sleep(STATUS_SECONDS)
        daemon.stdin.write(DETACH)
        daemon.stdin.close()
    except BaseException:
        daemon.stdin.close()
        daemon.wait()
        raise


def _answers(folder: Path, pid: int) -> bool:
    endpoint = _endpoint(folder, pid)
    return endpoint is not None and ask(endpoint, {"type": "status"}, seconds_max=1.0) is not None


def _watch_until_over(folder: Path, watch: Watch | None, interrupted: Interrupts) -> None:
    """Keep a daemon there, pass on Ctrl-C, and show how it goes, until the run is over."""
    daemon = _start_daemon(folder)
    started, asked = 1, 0
    try:
        while not (folder / "over.json").exists():
            if daemon.poll() is not None:
                if daemon.returncode == run_folder.UNWRITTEN:
                    raise RunError(f"the run is over, but its end could not be written into {folder}: make room there")
                if started >= DAEMONS_MAX:
                    raise RunError(
                        f"{started} daemons died, one after another; look at {folder / 'logs' / 'daemon.log'}"
                    )
                daemon, started = _start_daemon(folder), started + 1
            endpoint = _endpoint(folder, daemon.pid)
            wanted = min(interrupted.count, 2)
            if wanted > asked and _is_heard(endpoint, "stop" if wanted == 1 else "end"):
                asked = wanted
            elif wanted > asked and wanted == 2:
                _kill(daemon, folder)
                raise RunError(f"{SECOND}; its daemon did not answer, and was killed")
            status = None if endpoint is None else ask(endpoint, {"type": "status"}, seconds_max=1.0)
            if watch is not None and status is not None:
                watch.update(shown(status))
            time.sleep(STATUS_SECONDS)
    finally:
        assert daemon.stdin is not None
        daemon.stdin.close()
        daemon.wait()


def _is_heard(endpoint: str | None, kind: str) -> bool:
    """Whether a daemon confirms that it will stop or end the run; one that is busy or stopped is asked again."""
    return endpoint is not None and ask(endpoint, {"type": kind, "reason": SECOND}, seconds_max=2.0) is not None


def _kill(daemon: subprocess.Popen[bytes], folder: Path) -> None:
    """Kill a daemon that does not answer, and its hosts."""
    daemon.kill()
    daemon.wait()
    ledger = Ledger(folder / "daemon.sqlite")
    for pid in ledger.living():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ledger.close()


def shown(status: Mapping[str, Any]) -> dict[str, Any]:
    """A daemon's status as views of a run take it: the recorder's, with hosts and pacers beside."""
    hosts = status["hosts"]
    pacing = {f"{h['name']}/pacer": h["published"].get("pacer", {}) for h in hosts if h.get("published")}
    return {**status["training"], "hosts": hosts, "pacing": {name: values for name, values in pacing.items() if values}}


def _start_daemon(folder: Path) -> subprocess.Popen[bytes]:
    """Start a daemon for the run, as a process of its own session, holding a pipe from this one."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    with (logs / "daemon.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "isthmus.programs.daemon_process", str(folder), "--pipe"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _endpoint(folder: Path, pid: int) -> str | None:
    """Where the daemon of this pid listens; None as long as it has not said so."""
    try:
        told = json.loads((folder / "daemon.json").read_text())
    except (OSError, ValueError):
        return None
    return str(told["endpoint"]) if told["pid"] == pid else None
