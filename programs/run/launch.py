"""The start of the processes of a run's hosts by its daemon.

Hosts that compute come from the run's fork server, which has imported jax and the task already; all others, which are
to import neither, are started from nothing. Either way they are children of the daemon, in a session of their own, with
a log in the run folder. The daemon's loop never waits: it learns of a fork when the fork server has answered, which for
the first one takes about a second.

A host that a fork server does not start, because it refuses, hangs (`fork_link`) or dies, is started from nothing, and
the log of the daemon has the reason. A fork server that had come to be ready is replaced at once, so that the next host
does not wait for imports; one that dies before, or after several of which no host was asked, is replaced when a host
asks for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from isthmus.programs.run.fork_link import ForkLink
from isthmus.runtime.errors import RunError
from isthmus.runtime.host.own_process import environment
from isthmus.runtime.ids import Member, Replica, leader
from isthmus.runtime.system import files

FORK_SERVER_LOG: Final = "forkserver.log"
UNASKED_MAX: Final = 3
"""Fork servers that are started in a row without a host that needs one: the cause of so many ends would persist."""
RETRY_SECONDS: Final = 1.0
"""Between two attempts to start a process for which there is no room."""
SOCKET_THERE: Final = 3
"""The number that a fork server's end of the socket has there."""
_PR_SET_CHILD_SUBREAPER: Final = 36


class _Wanted(NamedTuple):
    """A requested host."""

    member: Member
    endpoint: str
    started: Callable[[int], None]


class Launcher:
    """Starts the hosts of the run in `folder`, and keeps their logs short.

    Hosts of the `computing` roles import jax and the task.

    `cpu_seconds`: used by fork servers that have ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, computing: Iterable[str]) -> None:
        self._loop, self._folder, self._computing = loop, folder, frozenset(computing)
        self.cpu_seconds = 0.0
        self._server: ForkLink[_Wanted] | None = None
        self._former: list[ForkLink[_Wanted]] = []
        self._is_closed = False
        self._unasked = 0
        (folder / "logs").mkdir(exist_ok=True)
        self._keep_logs_short()
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise RunError(f"this process cannot become a subreaper: {os.strerror(ctypes.get_errno())}")

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        """Start the fork server if one of `wanted` needs it; returns `wanted` with those last, as it is not ready at
        once.
        """
        if any(self._computes(replica) for replica in wanted):
            with suppress(OSError):  # The next request for a host meets the same error.
                self._fork_server()
        return sorted(wanted, key=self._computes)

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        """Start one host with its daemon's `endpoint`, and call `started` with its pid.

        OSError if there is no room for the process.
        """
        wanted = _Wanted(member, endpoint, started)
        if not self._computes(member.replica):
            started(self._start(wanted))
            return
        server, self._unasked = self._fork_server(), 0
        request = {"name": str(member.replica), "incarnation": member.incarnation, "endpoint": endpoint}
        try:
            server.ask(wanted, request)
        except OSError as error:
            self._start_from_nothing(wanted, f"the fork server takes no request: {error}")

    def close(self) -> None:
        """End the fork server and the remains of former ones; hosts go on. Idempotent."""
        self._is_closed = True
        servers = self._former if self._server is None else [*self._former, self._server]
        for server in servers:
            server.close()  # It holds nothing, and may be busy with the imports of the user's task.
        self._server, self._former = None, [server for server in servers if not server.is_gone]

    def _keep_logs_short(self) -> None:
        """Cut logs that have become too long, until this is closed."""
        if not self._is_closed:
            files.cut(self._folder / "logs")
            self._loop.call_later(files.LOOK_SECONDS, self._keep_logs_short)

    def _computes(self, replica: Replica) -> bool:
        return leader(replica).role in self._computing

    # -- the fork server -----------------------------------------------------------------------------------------------

    def _fork_server(self) -> ForkLink[_Wanted]:
        """The fork server, started if there is none; OSError if there is no room for it."""
        if self._server is None:
            self._former = [server for server in self._former if not server.is_gone]
            self._server = ForkLink(
                self._loop, self._spawn_server, answered=self._answered, used=self._used, ended=self._server_ended
            )
        return self._server

    def _spawn_server(self, its: int) -> int:
        arguments = ["isthmus.programs.run.fork_server", str(self._folder), str(SOCKET_THERE)]
        return _spawn(arguments, self._folder / "logs" / FORK_SERVER_LOG, computes=True, given=its)

    def _answered(self, wanted: _Wanted, answer: Mapping[str, Any]) -> None:
        """The fork server has started a host, or refused with a reason."""
        if "pid" in answer:
            wanted.started(answer["pid"])
        else:
            self._start_from_nothing(wanted, answer["refused"])

    def _used(self, cpu_seconds: float) -> None:
        self.cpu_seconds += cpu_seconds

    def _server_ended(self, unanswered: list[_Wanted], how: str) -> None:
        """The fork server is gone: start the hosts requested from it without one; later hosts get a new one."""
        was_ready = self._server is not None and self._server.is_ready
        if self._server is not None:
            self._former.append(self._server)
            self._server = None
        why = f"the fork server {how}; look at {self._folder / 'logs' / FORK_SERVER_LOG}"
        is_replaced = was_ready and self._unasked < UNASKED_MAX
        say(f"{why}; {'a new one is started' if is_replaced else 'the next host that computes gets a new one'}")
        for wanted in unanswered:
            self._start_from_nothing(wanted, why)
        if is_replaced:
            self._unasked += 1
            with suppress(OSError):  # There is no room for it now; the next host asks again.
                self._fork_server()

    # -- from nothing --------------------------------------------------------------------------------------------------

    def _start_from_nothing(self, wanted: _Wanted, why: str) -> None:
        """Start a host that should have been forked, and print why."""
        say(f"{wanted.member} is started from nothing: {why}")
        self._insist(wanted, is_first=True)

    def _insist(self, wanted: _Wanted, *, is_first: bool = False) -> None:
        """Start a host from nothing, as soon as there is room for a process: no caller waits for an error."""
        if self._is_closed:
            return
        try:
            pid = self._start(wanted)
        except OSError as error:
            if is_first:
                say(f"{wanted.member} cannot be started, which is tried again every second: {error}")
            self._loop.call_later(RETRY_SECONDS, self._insist, wanted)
            return
        wanted.started(pid)

    def _start(self, wanted: _Wanted) -> int:
        member, replica = wanted.member, wanted.member.replica
        arguments = ["isthmus.programs.run.host_process", str(self._folder), str(replica), str(member.incarnation)]
        computes = self._computes(replica)
        return _spawn([*arguments, wanted.endpoint], log_of(self._folder, replica), computes=computes)


def _spawn(arguments: Sequence[str], log: Path, *, computes: bool, given: int | None = None) -> int:
    """Start a module of ours with arguments, as the leader of a session; it may have one descriptor. Its pid."""
    with opened_log(log) as file:
        files: list[tuple[Any, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, file.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, file.fileno(), 2),
        ]
        if given is not None:
            files.append((os.POSIX_SPAWN_DUP2, given, SOCKET_THERE))
        command = [sys.executable, "-m", *arguments]
        return os.posix_spawn(sys.executable, command, environment(computes=computes), file_actions=files, setsid=True)


def opened_log(path: Path) -> BinaryIO:
    """A log opened for appending; /dev/null if the disk refuses, because a host without a log is better than none."""
    try:
        return path.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


def say(line: str) -> None:
    """Write a line into the daemon's log; a disk that does not take it costs the line, and nothing else."""
    with suppress(OSError):
        os.write(1, f"{line}\n".encode())


def log_of(folder: Path, replica: Replica) -> Path:
    """The log of a host's output, over all its lives."""
    return folder / "logs" / f"{replica.role}-{replica.slot}.log"
