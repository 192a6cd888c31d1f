"""The host processes of a run on this machine: started, watched and killed.

It decides nothing. It watches processes by their pidfds, so it sees at once when one ends, and never signals a process
with a reused pid.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.system.processes import is_stopped


class Launch(Protocol):
    """Starts host processes, as children of this one."""

    def prepare(self, wanted: Sequence[Replica]) -> list[Replica]:
        """Prepares launches of `wanted`; returns the order that loses least time."""

    def __call__(self, member: Member, endpoint: str, started: Callable[[int], None]) -> None:
        """Start a host with its daemon at `endpoint`; call `started` with its pid, now or later. May raise OSError."""

    def close(self) -> None:
        """No more hosts will be started. Those that were started go on."""


REAP_SECONDS: Final = 0.25
REAPED_MAX: Final = 40
"""Ten seconds: the kernel kills a host's own children when the host is gone, and they end at once."""


@dataclass(slots=True)
class _Watched:
    """A process, by its pidfd."""

    pid: int
    watch: int


class LocalProcesses:
    """Processes of this machine, by the life that each is.

    `ended(member, exited, cpu_seconds)` is called once for each; the seconds are None where it was not a child of this
    process.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[Member, Exited, float | None], None]) -> None:
        self._loop, self._ended = loop, ended
        self._watched: dict[Member, _Watched] = {}

    def watch(self, member: Member, pid: int) -> None:
        """Watch a process for its end; one that no longer exists has ended."""
        try:
            watch = os.pidfd_open(pid)
        except OSError:
            self._loop.call_soon(self._ended, member, Exited(), None)
            return
        self._watched[member] = _Watched(pid, watch)
        self._loop.add_reader(watch, self._end, member)

    def kill(self, member: Member) -> None:
        """Kill a process, which then ends soon; does nothing where it is not watched."""
        known = self._watched.get(member)
        if known is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(known.watch, signal.SIGKILL)

    def stopped(self) -> tuple[Member, ...]:
        """Members whose process is stopped, by a signal or a debugger."""
        return tuple(member for member, known in self._watched.items() if is_stopped(known.pid))

    def close(self) -> None:
        """Release everything; the processes go on."""
        for known in self._watched.values():
            self._loop.remove_reader(known.watch)
            os.close(known.watch)
        self._watched.clear()

    def _end(self, member: Member) -> None:
        known = self._watched.pop(member)
        self._loop.remove_reader(known.watch)
        os.close(known.watch)
        try:
            pid, status, used = os.wait4(known.pid, os.WNOHANG)
        except ChildProcessError:  # A former daemon was its parent.
            pid = 0
        self._reap_group(known.pid)
        if not pid:  # Not our child, or traced: the tracer learns its status first.
            self._ended(member, Exited(), None)
            return
        code = os.waitstatus_to_exitcode(status)
        exited = Exited(signal=signal.Signals(-code).name) if code < 0 else Exited(code)
        self._ended(member, exited, used.ru_utime + used.ru_stime)

    def _reap_group(self, group: int, times: int = REAPED_MAX) -> None:
        """Reap a process's children in its group, which are children of this one by now, or will be soon."""
        with suppress(ChildProcessError):
            while os.waitpid(-group, os.WNOHANG)[0]:
                pass
            if times:
                self._loop.call_later(REAP_SECONDS, self._reap_group, group, times - 1)
