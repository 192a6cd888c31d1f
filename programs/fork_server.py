"""The fork server: `python -m isthmus.programs.fork_server RUN SOCKET`, which starts the hosts that compute.

Importing jax and tracing a training step takes longer than everything else that a learner does before its first step.
So it is done once for a run: this process imports the task, lets the bodies prepare what needs no device and no thread,
and then forks a host whenever its daemon asks for one; pages that nobody writes are shared. It is safe to fork as long
as there is only one thread. Where the task has started others, or cannot be prepared, this process says so, and the
daemon starts such hosts from nothing.

Started by a daemon, never by hand. SOCKET is the number of the inherited socket: a request is {name, incarnation,
endpoint}, the answer {pid} or {refused}. A host is forked twice, so that it becomes a child of the daemon, which is the
nearest subreaper. Without its daemon this process ends.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from setproctitle import setproctitle

from isthmus.programs import host_process, reference, spec
from isthmus.programs.environment import prepare_environment
from isthmus.programs.launch import log_of
from isthmus.runtime.graph import Reference
from isthmus.runtime.ids import Replica
from isthmus.runtime.lowering import lower

REQUEST_BYTES_MAX: Final = 1 << 16


def main(arguments: list[str]) -> int:
    """Prepare, then fork on request until the daemon is gone."""
    folder, daemon = Path(arguments[0]), socket.socket(fileno=int(arguments[1]))
    setproctitle("isthmus fork-server")
    prepare_environment(1)
    refusal = _refusal(folder)
    gc.collect()
    gc.freeze()
    with suppress(ConnectionError):  # The daemon died between a request and its answer: nobody is left to tell.
        while request := daemon.recv(REQUEST_BYTES_MAX):
            answer = {"refused": refusal} if refusal else {"pid": _fork(folder, daemon, json.loads(request))}
            daemon.send(json.dumps(answer).encode())
    return 0


def _fork(folder: Path, daemon: socket.socket, request: dict[str, Any]) -> int:
    """Fork a host; its pid, once it is a child of the daemon, which may want to wait for it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _fork_host(folder, daemon, writer, request)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        host = int(pipe.read())
    os.waitpid(child, 0)
    return host


def _refusal(folder: Path) -> str:
    """Prepare every host that may be asked for; why it cannot be forked, or ''."""
    try:
        told = spec.load(folder)
        plans = lower(told.graph())
        for role in told.computing:
            for node in plans[role].nodes:
                _prepare(node)
    except BaseException:
        return f"preparing the hosts failed:\n{traceback.format_exc()}"
    threads = len(os.listdir("/proc/self/task"))
    return f"the task has started {threads - 1} threads, and with threads no process can be forked" * (threads > 1)


def _prepare(node: Any) -> None:
    """Let a body prepare what its hosts would each do in vain."""
    if not hasattr(node.body, "prepare"):
        return
    given = {name: _resolved(value) for name, value in node.keywords.items()}
    node.body(*map(_resolved, node.arguments), **given).prepare()


def _resolved(value: Any) -> Any:
    return reference.resolve(value) if isinstance(value, Reference) else value


def _fork_host(folder: Path, daemon: socket.socket, writer: int, request: dict[str, Any]) -> None:
    """In the child: leave a grandchild behind, say which, and end."""
    host = os.fork()
    if host:
        os.write(writer, str(host).encode())
        os._exit(0)
    status = 1
    try:
        daemon.close()
        os.close(writer)
        os.setsid()
        replica = Replica.parse(request["name"])
        with log_of(folder, replica).open("ab") as log, Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        status = host_process.main([str(folder), request["name"], str(request["incarnation"]), request["endpoint"]])
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
