"""How a daemon starts the processes of a run's hosts.

Hosts that compute come from the run's fork server, which has imported jax and the task already; all others, which are
to import neither, are started from nothing. Either way they are children of the daemon, in a session of their own, with
a log in the run folder. The daemon's loop never waits: it hears of a fork when the fork server has answered, which for
the first one takes about a second.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.runtime.errors import RunError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.process import environment

ANSWER_BYTES_MAX: Final = 1 << 16
FORK_SERVER_LOG: Final = "forkserver.log"
_PR_SET_CHILD_SUBREAPER: Final = 36


class _Wanted(NamedTuple):
    """A host that was asked for."""

    member: Member
    endpoint: str
    started: Callable[[int], None]


class Launcher:
    """Starts the hosts of the run in `folder`, of whose roles those named in `computing` import jax and the task.

    `cpu_seconds` is what fork servers have used that have ended.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, folder: Path, computing: Iterable[str]) -> None:
        self._loop, self._folder, self._computing = loop, folder, frozenset(computing)
        self.cpu_seconds = 0.0
        self._server: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._asked: deque[_Wanted] = deque()
        (folder / "logs").mkdir(exist_ok=True)
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
            raise RunError(f"this process cannot become a subreaper: {os.strerror(ctypes.get_errno())}")

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        """Start the fork server, if one of these needs it; they come last, because it is not ready at once."""
        if self._socket is None and any(replica.role in self._computing for replica in wanted):
            self._start_server()
        return sorted(wanted, key=lambda replica: replica.role in self._computing)

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        """Start one host, which finds its daemon at `endpoint`, and call `started` with its pid."""
        wanted = _Wanted(member, endpoint, started)
        if member.replica.role not in self._computing:
            started(self._start(wanted))
            return
        if self._socket is None:
            self._start_server()
        assert self._socket is not None
        request = {"name": str(member.replica), "incarnation": member.incarnation, "endpoint": endpoint}
        self._asked.append(wanted)
        try:
            self._socket.send(json.dumps(request).encode())
        except OSError:
            self._give_up()

    def close(self) -> None:
        """End the fork server; the hosts go on."""
        if self._socket is not None and self._server is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._server.kill()  # It holds nothing, and may be busy with the imports of the user's task.
            _, status, used = os.wait4(self._server.pid, 0)
            self._server.returncode = os.waitstatus_to_exitcode(status)
            self.cpu_seconds += used.ru_utime + used.ru_stime
            self._socket = self._server = None

    # -- the fork server -----------------------------------------------------------------------------------------------

    def _start_server(self) -> None:
        mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        mine.setblocking(False)
        command = [sys.executable, "-m", "isthmus.programs.fork_server", str(self._folder), str(its.fileno())]
        with its, (self._folder / "logs" / FORK_SERVER_LOG).open("ab") as log:
            self._server = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(computes=True),
                start_new_session=True,
                pass_fds=[its.fileno()],
            )
        self._socket = mine
        self._loop.add_reader(mine.fileno(), self._hear)

    def _hear(self) -> None:
        """The fork server has answered the first request that is open, or is gone."""
        assert self._socket is not None
        try:
            answer = self._socket.recv(ANSWER_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            answer = b""
        if not answer:
            self._give_up()
            return
        told = json.loads(answer)
        wanted = self._asked.popleft()
        wanted.started(told["pid"] if "pid" in told else self._start_from_nothing(wanted, told["refused"]))

    def _give_up(self) -> None:
        """The fork server is gone: what was asked of it is started without it, and later hosts get a new one."""
        self.close()
        asked, self._asked = self._asked, deque()
        for wanted in asked:
            why = f"the fork server is gone; look at {self._folder / 'logs' / FORK_SERVER_LOG}"
            wanted.started(self._start_from_nothing(wanted, why))

    # -- from nothing --------------------------------------------------------------------------------------------------

    def _start_from_nothing(self, wanted: _Wanted, why: str) -> int:
        """Start a host that should have been forked, and say so."""
        sys.stdout.write(f"{wanted.member} is started from nothing: {why}\n")
        sys.stdout.flush()
        return self._start(wanted)

    def _start(self, wanted: _Wanted) -> int:
        replica = wanted.member.replica
        command = [sys.executable, "-m", "isthmus.programs.host_process", str(self._folder), str(replica)]
        with log_of(self._folder, replica).open("ab") as log:
            files = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
            ]
            return os.posix_spawn(
                sys.executable,
                [*command, str(wanted.member.incarnation), wanted.endpoint],
                environment(computes=replica.role in self._computing),
                file_actions=files,
                setsid=True,
            )


def log_of(folder: Path, replica: Replica) -> Path:
    """Where a host's output goes, over all its lives."""
    return folder / "logs" / f"{replica.role}-{replica.slot}.log"
