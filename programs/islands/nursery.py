"""Begins the processes that compute for a host of an elastic island, one after the other.

A process that has threads cannot be forked, and a host has; so it forks a *nursery* before it has any, which has none,
and has all imported and traced that the host had. The nursery forks a worker whenever the host asks for one, and ends
the one before. Both end with the host: the kernel kills the nursery when the host is gone, and the worker when that is.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final, final

from setproctitle import setproctitle

REQUEST_BYTES_MAX: Final = 1 << 16
_PR_SET_PDEATHSIG: Final = 1

Work = Callable[[Mapping[str, Any], Connection], None]
"""What a worker does: told these things, it serves a connection."""


@final
class Nursery:
    """That of one host, as it has it; made before the host has threads. `work` runs in each worker."""

    def __init__(self, name: str, work: Work) -> None:
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        host = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            self._socket.close()
            _serve(its, name, work, host)
        its.close()
        self._worker = 0
        self._connection: Connection | None = None

    def start(self, told: Mapping[str, Any]) -> Connection:
        """Begin a worker, and tell it this; the connection with it. OSError if there is no room for it."""
        self.end()
        ours, its = socket.socketpair()
        with its:
            socket.send_fds(self._socket, [json.dumps(told).encode()], [its.fileno()])
            answer = json.loads(self._socket.recv(REQUEST_BYTES_MAX))
        self._connection = Connection(ours.detach())
        self._worker = int(answer["pid"])
        if not self._worker:
            raise OSError(f"beginning a process that computes: {answer['error']}")
        return self._connection

    def end(self) -> None:
        """End the worker, if there is one; it is gone when this returns."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._worker:
            self._worker = 0
            self._socket.send(b"{}")
            self._socket.recv(REQUEST_BYTES_MAX)

    def cpu_seconds(self) -> float:
        """What the nursery and its workers have used."""
        return sum(_used(pid, with_children=pid == self._pid) for pid in (self._pid, self._worker) if pid)


def _used(pid: int, *, with_children: bool) -> float:
    """The CPU seconds of a process, and of its children that have ended (proc_pid_stat(5)); 0 where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11 : 15 if with_children else 13])) / os.sysconf("SC_CLK_TCK")


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _serve(host: socket.socket, name: str, work: Work, parent: int) -> None:
    """The nursery: begin and end workers until the host is gone."""
    _die_with(parent)
    setproctitle(f"isthmus {name} nursery")
    worker = 0
    while True:
        data, descriptors, _, _ = socket.recv_fds(host, REQUEST_BYTES_MAX, 1)
        if not data:
            os._exit(0)
        if worker:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            worker = 0
        answer: dict[str, Any] = {"pid": 0}
        if descriptors:
            nursery = os.getpid()
            try:
                worker = os.fork()
                if worker == 0:
                    _die_with(nursery)
                    host.close()
                    _work(descriptors[0], name, work, json.loads(data))
                answer = {"pid": worker}
            except OSError as error:
                answer = {"pid": 0, "error": str(error)}
            os.close(descriptors[0])
        with suppress(OSError):
            host.send(json.dumps(answer).encode())


def _work(descriptor: int, name: str, work: Work, told: Mapping[str, Any]) -> None:
    """A worker."""
    status = 1
    try:
        setproctitle(f"isthmus {name} worker")
        work(told, Connection(descriptor))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
