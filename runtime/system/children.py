"""Children: the processes of ours that a process has beside it, which serve it and end with it.

A `ChildProcess` is a child of this process, however it was started, from its start to its end: it is known by a pidfd,
never by its number alone. A `Child` is one that has a `ProcessLine`: a module of ours with arguments, and descriptors
that it inherits; or it is adopted, where it was forked. `Succession` is one after the other: when the next one is due
is its owner's policy. A `KeptChild` is one that is always there: where it has died, it is started again, at once the
first time.

How one is started, heard, restarted and ended is here, whole. What it is for, and what its messages mean, does not come
in. A host of a run is no child in this sense: its lives are counted and told (`runtime.supervision`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import IO, TYPE_CHECKING, Any, Final, Self, final

from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.pidfds import pidfd_open, pidfd_send_signal
from isthmus.runtime.system.processes import die_with_parent, end_child, follow_daemon, name_process
from isthmus.runtime.system.waiting import readable

if TYPE_CHECKING:  # A command has children, and need not load it.
    import asyncio

RESTART_SECONDS: Final = 1.0
"""A child that has lived for a shorter time is started again only after it: one that cannot live costs a start of
Python a second, and no more."""
LOOK_SECONDS: Final = 0.1
"""How late a child learns of what has changed, at the cost of ten comparisons of a small state a second."""


@final
class ChildProcess:
    """A child of this process, with the number `pid`, which is no other's until it is reaped here."""

    def __init__(self, pid: int) -> None:
        """Watch it; OSError if that cannot be, and then it was ended."""
        self.pid = pid
        self.status: int | None = None
        """Its exit status, negative for a signal, once it was reaped here; None where others have done that."""
        self.cpu_seconds = 0.0
        """Used by it and what it has waited for, once `reap` has counted that."""
        self.is_over = False
        """Whether it is watched no more: it has ended, or was let go."""
        self._closing = threading.Lock()
        try:
            self.watch = pidfd_open(pid)
            """A descriptor that can be read once it has ended."""
        except OSError:
            with suppress(ChildProcessError):
                end_child(pid)
            raise

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, after so many seconds at most."""
        return self.is_over or bool(readable([self.watch], seconds))

    def kill(self) -> None:
        """Kill it, if it has not ended. Any thread may."""
        with self._closing:  # The descriptor's number may be another file's as soon as it is closed.
            if not self.is_over:
                with suppress(ProcessLookupError):
                    pidfd_send_signal(self.watch, SIGKILL)

    def reap(self, seconds: float | None = 0.0) -> bool:
        """Reap it, if it has ended after so many seconds; whether it has. What it has started lives on."""
        if not self.wait(seconds):
            return False
        if not self.is_over:
            with suppress(ChildProcessError):  # Another one has reaped it.
                _, status, usage = os.wait4(self.pid, 0)
                self.status, self.cpu_seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
            self.let_go()
        return True

    def end(self) -> None:
        """Kill it, and with it what it has started, if it leads a session, and reap it. Idempotent."""
        if not self.is_over:
            with suppress(ChildProcessError):
                self.status = end_child(self.pid)
            self.let_go()

    def let_go(self) -> None:
        """Watch it no more. Idempotent."""
        with self._closing:
            if not self.is_over:
                self.is_over = True
                os.close(self.watch)


@final
class Child:
    """A module of ours as a process beside this one, with the number of its end of the line as its last argument.

    It inherits the descriptors `files`, and this process's output unless there is an `output`. `leads`: it leads a
    session, and gets no signal of a terminal.
    """

    def __init__(
        self,
        module: str,
        arguments: Iterable[object] = (),
        *,
        files: Iterable[int] = (),
        output: IO[bytes] | None = None,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        leads: bool = False,
    ) -> None:
        """Start it; OSError if there is no room for it."""
        line, its = ProcessLine.pair()
        with its:
            command = [sys.executable, "-m", module, *map(str, arguments), str(its.fileno())]
            try:
                started = subprocess.Popen(
                    command,
                    pass_fds=(*files, its.fileno()),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=folder,
                    env=None if variables is None else dict(variables),
                    start_new_session=leads,
                )
            except OSError:
                line.close()
                raise
        started.returncode = 0  # It is reaped here, by its pidfd, and not by subprocess.
        self._hold(started.pid, line)

    @classmethod
    def adopted(cls, pid: int, line: ProcessLine) -> Self:
        """A child of this process that was started in another way, as by fork, with our end of the line to it; OSError
        if it cannot be watched, and then it was ended."""
        child = cls.__new__(cls)
        child._hold(pid, line)
        return child

    def _hold(self, pid: int, line: ProcessLine) -> None:
        self.line = line
        try:
            self._process = ChildProcess(pid)
        except OSError:
            line.close()
            raise

    @property
    def pid(self) -> int:
        """Its number, which is no other's until it is ended here."""
        return self._process.pid

    @property
    def watch(self) -> int:
        """A descriptor that can be read once it has ended."""
        return self._process.watch

    @property
    def status(self) -> int | None:
        """Its exit status, negative for a signal, once it was reaped here; None where others have done that."""
        return self._process.status

    @property
    def cpu_seconds(self) -> float:
        """Used by it, once `reap` has counted that."""
        return self._process.cpu_seconds

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, after so many seconds at most."""
        return self._process.wait(seconds)

    def kill(self) -> None:
        """Kill it, if it has not ended. Any thread may."""
        self._process.kill()

    def reap(self, seconds: float | None = 0.0) -> bool:
        """Reap it, if it has ended after so many seconds, and close its line; whether it has. What it has started lives
        on."""
        if not self._process.reap(seconds):
            return False
        self.line.close()
        return True

    def let_go(self, seconds: float) -> None:
        """Hear it no more; it has some seconds to end, and lives on if it does not."""
        self.line.end()
        if self.wait(seconds):
            self._process.end()
        self._process.let_go()
        self.line.close()

    def end(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """End it: it hears the end of its line, and is killed if it has not ended after so many seconds; with it goes
        what it has started, if it leads a session. What it has still said; its descriptors are closed. Idempotent."""
        if self._process.is_over:
            return []
        self.line.end()
        self.wait(seconds)
        self._process.end()
        last = self.line.hear()  # After its end: it can say no more. Before the line is closed: nothing is lost.
        self.line.close()
        return last


@final
class Succession:
    """One child after the other: the present one, if there is one, and when the next one is due.

    `start` starts one. `follow` sees to one that has ended, or the error with which one could not be started, and
    returns in how many seconds the next one is due, by the `clock`.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        follow: Callable[[Child | OSError], float],
        first: Child | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start, self._follow, self._clock = start, follow, clock
        self.child = first
        self._due = 0.0

    @property
    def seconds(self) -> float:
        """Until the next one is due."""
        return max(0.0, self._due - self._clock())

    def look(self) -> None:
        """See to the end of the present one, if it has ended."""
        child = self.child
        if child is not None and child.wait(0.0):
            self.child = None
            self._put_off(child)

    def begin(self) -> None:
        """Start one now; OSError if there is no room for it."""
        assert self.child is None  # One at a time: the one before has been ended, with its descriptors.
        self.child = self._start()

    def go_on(self) -> bool:
        """Start the next one, if none is there and it is due; whether one was started."""
        if self.child is not None or self.seconds:
            return False
        try:
            self.begin()
        except OSError as error:
            self._put_off(error)
            return False
        return True

    def _put_off(self, ended: Child | OSError) -> None:
        seconds = self._follow(ended)  # Which takes its time: it counts from its end.
        self._due = self._clock() + seconds


def serve_line(title: str, number: int | str) -> ProcessLine:
    """Be a child, with this title, from now on: the line to the process that has started this one, with which it ends.
    Signals of a terminal are that one's."""
    die_with_parent()
    name_process(f"isthmus {title}")
    follow_daemon()
    return ProcessLine.inherited(number)


@final
class KeptChild:
    """A child that is always there, until this is closed.

    `start` starts one. `state` returns what it is to know, which it gets as its first message, and again whenever that
    has changed; `hear` gets each of its own. `tell` gets a line for people when it has died, which calls it `name`.
    """

    def __init__(
        self,
        name: str,
        start: Callable[[], Child],
        *,
        state: Callable[[], Mapping[str, Any]],
        hear: Callable[[Mapping[str, Any]], None],
        end_seconds: float = 0.0,
    ) -> None:
        self._name, self._start, self._state, self._take = name, start, state, hear
        self._end_seconds = end_seconds
        self._children = Succession(self._begin, self._follow, clock=lambda: self._loop.time())
        self._told: Mapping[str, Any] | None = None
        self._is_closed = False
        self.begun_at = 0.0
        """When the last one was started, by the loop's clock."""

    def start(self, loop: asyncio.AbstractEventLoop, tell: Callable[[str], None]) -> None:
        """Start it, and keep it by this loop; OSError if there is no room for the first."""
        self._loop, self._tell = loop, tell
        self._children.begin()
        self._look()

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._children.child is None else self._children.child.pid

    def hear(self) -> None:
        """Take what it has said so far."""
        while self._children.child is not None and (messages := self._children.child.line.hear()):
            for message in messages:
                self._take(message)

    def close(self) -> None:
        """End it. It has some seconds to do so by itself."""
        self._is_closed = True
        child, self._children.child = self._children.child, None
        if child is not None:
            self._end(child, self._end_seconds)

    def _begin(self) -> Child:
        self.begun_at = self._loop.time()
        child = self._start()
        self._loop.add_reader(child.line.fileno(), self._hear_or_leave)
        self._loop.add_reader(child.watch, self._died)
        self._told = None
        is_told = self._say_to(child)
        assert is_told  # A line that is new takes a message: the state is the first that a child hears.
        return child

    def _look(self) -> None:
        if not self._is_closed:
            if self._children.child is not None:
                self._say_to(self._children.child)
            self._loop.call_later(LOOK_SECONDS, self._look)

    def _say_to(self, child: Child) -> bool:
        """Whether it has been sent the newest state."""
        if not child.line.flush():
            return False
        state = self._state()
        if state != self._told and child.line.offer(state):
            self._told = state
        return state == self._told

    def _hear_or_leave(self) -> None:
        self.hear()
        child = self._children.child
        if child is not None and child.line.is_over:  # It ends: its pidfd tells when.
            self._loop.remove_reader(child.line.fileno())

    def _died(self) -> None:
        self._children.look()
        self._go_on()

    def _follow(self, ended: Child | OSError) -> float:
        if isinstance(ended, OSError):
            self._tell(f"{self._name} cannot be started, which is tried again: {ended}")
            return RESTART_SECONDS
        self._end(ended)
        self._tell(f"{self._name} has died, and is started again; connections through it are made anew")
        return max(0.0, self.begun_at + RESTART_SECONDS - self._loop.time())

    def _go_on(self) -> None:
        if not self._is_closed and not self._children.go_on():
            self._loop.call_later(self._children.seconds, self._go_on)

    def _end(self, child: Child, seconds: float = 0.0) -> None:
        # Before the end, which closes the descriptors: their numbers may be another file's at once.
        self._loop.remove_reader(child.line.fileno())
        self._loop.remove_reader(child.watch)
        for message in child.end(seconds):
            self._take(message)
