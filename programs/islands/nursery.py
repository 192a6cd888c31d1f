"""Begins the processes that compute for a host of an elastic island, one after the other.

A process that has threads cannot be forked, and a host has; so it forks a *nursery* before it has any, which has none,
and has all imported and traced that the host had. The nursery forks a worker whenever the host requests one, and ends
the one before. Both end with the host: the kernel kills the nursery when the host is gone, and the worker when the
nursery is.
"""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, Final, final

from setproctitle import setproctitle

from isthmus.runtime.system.processes import die_with_parent, end_after

REQUEST_BYTES_MAX: Final = 1 << 16

Work = Callable[[Mapping[str, Any], Connection], None]
"""The work of a worker: it serves a connection, given the arguments of `start`."""


@final
class Nursery:
    """The host's end of its nursery; made before the host has threads. `work` runs in each worker."""

    def __init__(self, name: str, work: Work) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            end_after(lambda: _serve(self._socket, its, name, work, host))
        its.close()
        self._worker = 0
        self._connection: Connection | None = None

    def start(self, told: Mapping[str, Any]) -> Connection:
        """Start a worker with `told`; returns the connection to it. OSError if there is no room for the process."""
        self.end()
        ours, its = socket.socketpair()
        with its:
            socket.send_fds(self._socket, [json.dumps(told).encode()], [its.fileno()])
            said = self._socket.recv(REQUEST_BYTES_MAX)
        if not said:
            ours.close()
            raise OSError("beginning a process that computes: what begins them has ended")
        answer = json.loads(said)
        self._connection = Connection(ours.detach())
        self._worker = int(answer["pid"])
        if not self._worker:
            raise OSError(f"beginning a process that computes: {answer['error']}")
        return self._connection

    def end(self) -> None:
        """End the worker, if any; it has ended when this returns."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._worker:
            self._worker = 0
            self._socket.send(b"{}")
            self._socket.recv(REQUEST_BYTES_MAX)

    def cpu_seconds(self) -> float:
        """CPU seconds of the nursery and its workers."""
        return sum(_used(pid, with_children=pid == self._pid) for pid in (self._pid, self._worker) if pid)


def _used(pid: int, *, with_children: bool) -> float:
    """The CPU seconds of a process, and of its ended children (proc_pid_stat(5)); 0 if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")


def _serve(theirs: socket.socket, host: socket.socket, name: str, work: Work, parent: int) -> int:
    """The nursery: start and end workers until the host, whose end is `theirs`, is gone."""
    die_with_parent(parent)
    theirs.close()
    setproctitle(f"isthmus {name} nursery")
    worker = 0
    while True:
        data, descriptors, _, _ = socket.recv_fds(host, REQUEST_BYTES_MAX, 1)
        if not data:
            return 0
        if worker:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            worker = 0
        answer: dict[str, Any] = {"pid": 0}
        if descriptors:
            begun = partial(_work, host, descriptors[0], os.getpid(), name, work, data)
            try:
                worker = os.fork()
                if worker == 0:
                    end_after(begun)
                answer = {"pid": worker}
            except OSError as error:
                answer = {"pid": 0, "error": str(error)}
            os.close(descriptors[0])
        with suppress(OSError):
            host.send(json.dumps(answer).encode())


def _work(host: socket.socket, descriptor: int, nursery: int, name: str, work: Work, told: bytes) -> int:
    """A worker."""
    die_with_parent(nursery)
    host.close()
    setproctitle(f"isthmus {name} worker")
    work(json.loads(told), Connection(descriptor))
    return 0
