"""Carries out a request as processes: a daemon on loopback, and under it a host for every replica.

The command stays light: it prepares the request in a child, which runs the task on shapes and so imports jax, and then
watches. It holds a pipe to the daemon, whose end ends the run; a daemon that dies is replaced, and adopts the hosts.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from isthmus.programs import run_folder, spec
from isthmus.programs.interrupts import Interrupts, interrupts
from isthmus.programs.request import Request
from isthmus.programs.run import Outcome, Watch
from isthmus.runtime.control import ask
from isthmus.runtime.errors import ConfigError, Fault, GraphError, RequestError, RunError
from isthmus.runtime.graph import Job
from isthmus.runtime.store import write_json

STATUS_SECONDS: Final = 0.25
DAEMON_SECONDS: Final = 20.0
"""How long a daemon may take to say where it is: it imports a few modules and binds a socket."""
DAEMONS_MAX: Final = 5
"""So many daemons in a row that die before the run is over are not an accident."""


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
    write_json(request.run_dir / "graph.json", shape)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in used)
    spec.submit(request, zero_ns=time.monotonic_ns(), cpu_seconds=cpu_seconds)
    return Submitted(request.name, request.job, request.run_dir)


def submit_apart(make: Callable[[], Request]) -> Submitted:
    """Make a request and submit it in a child, so that this process imports neither jax nor the task.

    Raises what `make` raises, as a RequestError with the same faults; RunError if the child dies.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "w") as pipe:
            json.dump(_answer(make), pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if not text:
        raise RunError("the process that prepared the request died")
    answer = json.loads(text)
    if "faults" in answer:
        kind = GraphError if answer["kind"] == "GraphError" else ConfigError
        raise kind.of([Fault(*fault) for fault in answer["faults"]])
    if "error" in answer:
        raise RunError(answer["error"])
    return submitted(Path(answer["folder"]), answer["name"])


def submitted(folder: Path, name: str) -> Submitted:
    """What was submitted into a run folder."""
    return Submitted(name, spec.load(folder).job, folder)


def _answer(make: Callable[[], Request]) -> dict[str, Any]:
    try:
        made = submit(make())
    except RequestError as error:
        return {"kind": type(error).__name__, "faults": [list(fault) for fault in error.faults]}
    except BaseException:
        return {"error": f"preparing the request failed:\n{traceback.format_exc()}"}
    return {"folder": str(made.run_dir), "name": made.name}


def run_processes(request: Submitted, *, watch: Watch | None) -> Outcome:
    """Train; RunError if the run failed, or if Ctrl-C came twice."""
    with interrupts() as interrupted:
        _watch_until_over(request.run_dir, watch, interrupted)
    path = request.run_dir / "summary.json"
    if not path.exists():
        raise RunError("the run ended without a summary")
    summary: dict[str, Any] = json.loads(path.read_text())
    if watch is not None:
        watch.close(summary)
    if summary["outcome"] == "failed":
        raise RunError(str(summary["error"]))
    return Outcome(summary, request.run_dir)


def _watch_until_over(folder: Path, watch: Watch | None, interrupted: Interrupts) -> None:
    """Keep a daemon there, pass on Ctrl-C, and show how it goes, until the run is over."""
    daemon = _start_daemon(folder)
    started, asked = 1, 0
    try:
        while not (folder / "over.json").exists():
            if daemon.poll() is not None:
                if started >= DAEMONS_MAX:
                    raise RunError(
                        f"{started} daemons died, one after another; look at {folder / 'logs' / 'daemon.log'}"
                    )
                daemon, started = _start_daemon(folder), started + 1
            endpoint = _endpoint(folder, daemon.pid)
            if endpoint is not None and interrupted.count > asked:
                asked += 1
                kind = "stop" if asked == 1 else "end"
                ask(endpoint, {"type": kind, "reason": "ended at once by a second Ctrl-C"}, seconds_max=2.0)
            status = None if endpoint is None else ask(endpoint, {"type": "status"}, seconds_max=1.0)
            if watch is not None and status is not None:
                watch.update(_shown(status))
            time.sleep(STATUS_SECONDS)
    finally:
        assert daemon.stdin is not None
        daemon.stdin.close()
        daemon.wait()


def _shown(status: Mapping[str, Any]) -> dict[str, Any]:
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
