"""A daemon's link to one fork server: requests go out, answers come back, and its end is seen exactly once.

Decides when a fork server hangs, and ensures that nothing of it is left behind. `launch` decides what happens to
requests that it has not answered.

Theory of operation. The fork server is a child of the daemon and leads a session and a process group of its own. The
daemon knows it by its pidfd: that this becomes readable is the only sign of its end, and nothing else reaps it. The end
of the socket is no such sign, because it comes a moment before or after. At the end everything that it has sent is
taken first, so that a request that is then unanswered has become no host: a forked host waits, in this process group,
until its pid has been sent, and ends by itself if that never happens (`fork_server`). So a request without an answer
may be carried out in another way, without two processes for one life.

Time is counted in ticks, of which a daemon that was stopped sees one: it does not blame a fork server for its own
sleep.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, final

from isthmus.runtime.system.processes import is_stopped

ANSWER_BYTES_MAX: Final = 1 << 16
TICK_SECONDS: Final = 0.5
ANSWER_TICKS_MAX: Final = 20
"""Ten seconds for an answer, which takes some hundredths of a second: on a machine with six times as many busy
processes as cores a healthy one was late by 1.9 s."""
PREPARE_TICKS_MAX: Final = 120
"""A minute to import and trace, as long as a host that is started from nothing has for the same (HELLO_BEATS)."""
CLOSE_SECONDS_MAX: Final = 5.0
"""Time limit for a killed process to be gone; with 250 MB of memory it takes some hundredths of a second."""

Asked = TypeVar("Asked")


@final
class ForkLink(Generic[Asked]):
    """One fork server, from its start to its end. `spawn` starts it with its end of the socket, as a session leader,
    and returns its pid.

    `answered(asked, answer)` is called for each request, in order; `used(cpu_seconds)` for each process that was
    reaped; `ended(unanswered, how)` once, if it ends before it is closed.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        spawn: Callable[[int], int],
        *,
        answered: Callable[[Asked, Mapping[str, Any]], None],
        used: Callable[[float], None],
        ended: Callable[[list[Asked], str], None],
    ) -> None:
        """Start it; OSError if the process cannot be created."""
        self._loop, self._answered, self._used, self._ended = loop, answered, used, ended
        self._asked: deque[Asked] = deque()
        self._ticks = 0
        self.is_ready = self._is_ticking = self._is_reaped = False
        self._verdict = ""
        self.is_gone = False
        """Whether it and its whole process group are gone."""
        self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with its:
                self._pid = spawn(its.fileno())
            self._watch = _watch(self._pid)
        except BaseException:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._hear)
        loop.add_reader(self._watch, self._see_end)

    def ask(self, asked: Asked, request: Mapping[str, Any]) -> None:
        """Send a request; OSError if it cannot be sent now, and then it is not answered."""
        with suppress(ConnectionError):  # It has ended; the pidfd reports it, and `ended` gets the request.
            self._socket.send(json.dumps(request).encode())
        if not self._asked:
            self._ticks = 0
        self._asked.append(asked)
        self._keep_ticking()

    def close(self) -> None:
        """End it with its process group, which hosts have left. Idempotent."""
        if not self._is_reaped:
            os.killpg(self._pid, signal.SIGKILL)  # It is not reaped, so that the number is its own.
            poll = select.poll()
            poll.register(self._watch, select.POLLIN)
            poll.poll(1000 * CLOSE_SECONDS_MAX)
            self._reap()
        elif not self._reap_group():
            os.killpg(self._pid, signal.SIGKILL)  # One of its group is a child of this process, and holds the number.
        self._reap_group_soon()

    # -- answers -------------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Read everything that it has sent."""
        while not self._is_reaped:  # An answer may cause `close`.
            try:
                data = self._socket.recv(ANSWER_BYTES_MAX)
            except BlockingIOError:
                return
            except ConnectionError:  # Raised once, if it ended with unread requests: its answers remain.
                continue
            if not data:
                self._loop.remove_reader(self._socket.fileno())
                return
            self._take(json.loads(data))

    def _take(self, answer: Mapping[str, Any]) -> None:
        self._ticks = 0
        if "ready" in answer:
            self.is_ready = True
        else:
            self._answered(self._asked.popleft(), answer)

    def _see_end(self) -> None:
        self._hear()
        if not self._is_reaped:
            how = self._reap()
            self._reap_group_soon()  # A host that waits for its pid ends about now.
            self._ended(list(self._asked), self._verdict or how)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _keep_ticking(self) -> None:
        if self._asked and not self._is_ticking:
            self._is_ticking = True
            self._loop.call_later(TICK_SECONDS, self._tick)

    def _tick(self) -> None:
        """Kill it if it owes an answer for too long."""
        self._is_ticking = False
        if self._is_reaped:
            return
        self._ticks += 1
        is_preparing = not self.is_ready and not is_stopped(self._pid)
        if self._asked and self._ticks > (PREPARE_TICKS_MAX if is_preparing else ANSWER_TICKS_MAX):
            self._verdict = f"did not answer for {self._ticks * TICK_SECONDS:.0f} s, and was killed"
            signal.pidfd_send_signal(self._watch, signal.SIGKILL)
        self._keep_ticking()

    # -- the end -------------------------------------------------------------------------------------------------------

    def _reap(self) -> str:
        """Reap it and close its descriptors; returns how it ended."""
        self._is_reaped = True
        self._loop.remove_reader(self._watch)
        self._loop.remove_reader(self._socket.fileno())
        os.close(self._watch)
        self._socket.close()
        pid, status = self._wait(self._pid)
        if not pid:
            return "has ended"
        code = os.waitstatus_to_exitcode(status)
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"

    def _reap_group_soon(self) -> None:
        """Reap the ended processes of its group now and, if some are left, a tick from now."""
        if not self._reap_group():
            self._loop.call_later(TICK_SECONDS, self._reap_group)

    def _reap_group(self) -> bool:
        """Reap the ended processes of its group; returns whether none is left that is a child of this process."""
        while not self.is_gone and self._wait(-self._pid)[0]:
            pass
        return self.is_gone

    def _wait(self, which: int) -> tuple[int, int]:
        """Reap a child that has ended and count its CPU time; returns its pid, 0 if there is none, and its status."""
        try:
            pid, status, usage = os.wait4(which, os.WNOHANG)
        except ChildProcessError:
            self.is_gone = which < 0
            return 0, 0
        if pid:
            self._used(usage.ru_utime + usage.ru_stime)
        return pid, status


def _watch(pid: int) -> int:
    """The pidfd of a child; if it cannot be opened, kills the child and raises OSError."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
