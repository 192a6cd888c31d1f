"""Children: the processes of ours that a process has beside it, which serve it and end with it.

A `Child` is one from its start to its end: a module of ours with arguments, descriptors that it inherits, and a
`ProcessLine`. It is known by a pidfd, never by its number alone. A `KeptChild` is one that is always there: where it
has died, it is started again, at once the first time.

How one is started, heard, restarted and ended is here, whole. What it is for, and what its messages mean, does not come
in. A host of a run is no child in this sense: its lives are counted and told (`runtime.supervision`).
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final, final

from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.pidfds import pidfd_open
from isthmus.runtime.system.processes import die_with_parent, end_child, follow_daemon, name_process
from isthmus.runtime.system.waiting import readable

RESTART_SECONDS: Final = 1.0
"""A child that has lived for a shorter time is started again only after it: one that cannot live costs a start of
Python a second, and no more."""
LOOK_SECONDS: Final = 0.1
"""How late a child learns of what has changed, at the cost of ten comparisons of a small state a second."""


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
        self.line, its = ProcessLine.pair()
        with its:
            command = [sys.executable, "-m", module, *map(str, arguments), str(its.fileno())]
            try:
                self._process = subprocess.Popen(
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
                self.line.close()
                raise
        self.status: int | None = None
        """Its exit status, negative for a signal, once it was ended here."""
        try:
            self.watch = pidfd_open(self._process.pid)
            """A descriptor that can be read once it has ended."""
        except OSError:
            self.line.close()
            self._reap()
            raise

    @property
    def pid(self) -> int:
        """Its number, which is no other's until it is ended here."""
        return self._process.pid

    def wait(self, seconds: float | None = None) -> bool:
        """Whether it has ended, after so many seconds at most."""
        return self.status is not None or bool(readable([self.watch], seconds))

    def let_go(self, seconds: float) -> None:
        """Hear it no more; it has some seconds to end, and lives on if it does not."""
        self.line.end()
        if self.wait(seconds):
            self._reap()
        self._close()

    def end(self, seconds: float = 0.0) -> list[dict[str, Any]]:
        """End it: it hears the end of its line, and is killed if it has not ended after so many seconds; with it goes
        what it has started, if it leads a session. What it has still said; its descriptors are closed. Idempotent."""
        if self.status is not None:
            return []
        self.line.end()
        self.wait(seconds)
        self._reap()
        last = self.line.hear()  # After its end: it can say no more. Before the line is closed: nothing is lost.
        self._close()
        return last

    def _reap(self) -> None:
        self.status = self._process.returncode = end_child(self._process.pid)

    def _close(self) -> None:
        self.line.close()
        os.close(self.watch)


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
        self._child: Child | None = None
        self._told: Mapping[str, Any] | None = None
        self._is_closed = False
        self.begun_at = 0.0
        """When the last one was started, by the loop's clock."""

    def start(self, loop: asyncio.AbstractEventLoop, tell: Callable[[str], None]) -> None:
        """Start it, and keep it by this loop; OSError if there is no room for the first."""
        self._loop, self._tell = loop, tell
        self._begin()
        self._look()

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._child is None else self._child.pid

    def hear(self) -> None:
        """Take what it has said so far."""
        while self._child is not None and (messages := self._child.line.hear()):
            for message in messages:
                self._take(message)

    def close(self) -> None:
        """End it. It has some seconds to do so by itself."""
        self._is_closed = True
        self._end(self._end_seconds)

    def _begin(self) -> None:
        if self._is_closed:
            return
        assert self._child is None  # One at a time: the one before has been ended, with its descriptors.
        self.begun_at = self._loop.time()
        child = self._child = self._start()
        self._loop.add_reader(child.line.fileno(), self._hear_or_leave)
        self._loop.add_reader(child.watch, self._died)
        self._told = None
        self._say()
        assert self._told is not None  # A line that is new takes a message: the state is the first that a child hears.

    def _look(self) -> None:
        if not self._is_closed:
            self._say()
            self._loop.call_later(LOOK_SECONDS, self._look)

    def _say(self) -> None:
        if self._child is None or not self._child.line.flush():
            return
        state = self._state()
        if state != self._told and self._child.line.offer(state):
            self._told = state

    def _hear_or_leave(self) -> None:
        self.hear()
        if self._child is not None and self._child.line.is_over:  # It ends: its pidfd tells when.
            self._loop.remove_reader(self._child.line.fileno())

    def _died(self) -> None:
        self._end()
        if not self._is_closed:
            self._tell(f"{self._name} has died, and is started again; connections through it are made anew")
            self._loop.call_later(max(0.0, self.begun_at + RESTART_SECONDS - self._loop.time()), self._begin_again)

    def _begin_again(self) -> None:
        try:
            self._begin()
        except OSError as error:
            self._tell(f"{self._name} cannot be started, which is tried again: {error}")
            self._loop.call_later(RESTART_SECONDS, self._begin_again)

    def _end(self, seconds: float = 0.0) -> None:
        child, self._child = self._child, None
        if child is not None:
            # Before the end, which closes the descriptors: their numbers may be another file's at once.
            self._loop.remove_reader(child.line.fileno())
            self._loop.remove_reader(child.watch)
            for message in child.end(seconds):
                self._take(message)
