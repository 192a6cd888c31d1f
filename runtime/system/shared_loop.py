"""The event loop of a process, shared with the threads of its nodes.

Decides which thread has the *turn*, in which everything that the loop owns may be touched, and which thread handles
input. Knows neither hosts nor sockets.

Theory of operation. There is one turn at a time: a callback of the loop's own, or what another thread does `with turn`.
In its turn a thread may do what the loop does, send its outputs and take its input (`poll`), without a detour through
the loop, whose thread would begin on cold caches. Calls made with `call_soon` meanwhile are run by the same thread, at
the turn's end; those that they make in turn, timers and calls from `post` are left to the loop, so that a turn ends.

Files are watched by an epoll of ours, which the loop watches through a second one. So the thread that has the turn can
query which files are ready, and any thread can tell the loop not to watch (`listen`): for a while in which another
thread queries soon, and nothing could use the input before.
"""

from __future__ import annotations

import asyncio
import select
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol

READY_MAX: Final = 64
"""Files that are handled in one turn; the others are handled in the next one."""


class Handle(Protocol):
    """A scheduled call."""

    def cancel(self) -> None:
        """Cancel the call."""


class Loop(Protocol):
    """The interface of an event loop for sockets, clocks and links: a plain one of asyncio, or a `SharedLoop`."""

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> object:
        """Call back whenever a file can be read."""

    def remove_reader(self, fd: int, /) -> object:
        """Stop watching a file."""

    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> Handle:
        """Call back after the calls that are queued already."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Handle:
        """Call back in `delay` seconds."""

    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> object:
        """Like `call_soon`, from any thread; RuntimeError once the loop is closed."""

    def is_closed(self) -> bool:
        """Whether it will never run again."""

    def time(self) -> float:
        """Seconds of its clock."""


class SharedLoop:
    """A `Loop` over one of asyncio's, with which threads may take turns.

    Without the turn only `turn`, `call_soon_threadsafe`, `stop` and queries may be used; before `run_forever`
    everything.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread: int | None = None
        self.turn = _Turn(self)
        """The turn, as a context manager; from any thread, but not within a turn."""
        self.at_end: list[_Call] = []
        self._readers: dict[int, Callable[[], object]] = {}
        self._ready, self._gate = select.epoll(), select.epoll()
        self._gate.register(self._ready.fileno(), select.EPOLLIN)
        self._is_listening = True
        loop.add_reader(self._gate.fileno(), self._in_turn, self.poll)

    def run_forever(self) -> None:
        """Run the loop in this thread until `stop`."""
        self._thread = threading.get_ident()
        self._loop.run_forever()

    def stop(self) -> None:
        """Make `run_forever` return."""
        self.call_soon_threadsafe(self._loop.stop)

    def close(self) -> None:
        """Release everything; the loop must not run, nor any thread have a turn."""
        self._loop.remove_reader(self._gate.fileno())
        self._gate.close()
        self._ready.close()
        self._loop.close()

    def is_closed(self) -> bool:
        return self._loop.is_closed()

    def time(self) -> float:
        return self._loop.time()

    # -- turns ---------------------------------------------------------------------------------------------------------

    def call_soon(self, callback: Callable[..., object], /, *args: Any) -> Handle:
        """Call back on the loop, after what is queued there; in a turn of another thread, at the end of it."""
        call = _Call(callback, args)
        if self._is_loops():
            call.handle = self._loop.call_soon(self._in_turn, call)
        else:
            self.at_end.append(call)
        return call

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Handle:
        timer = _Timer(self, callback, args)
        if self._is_loops():
            timer.arm(delay)
        else:
            self.call_soon_threadsafe(timer.arm, delay)
        return timer

    def call_soon_threadsafe(self, callback: Callable[..., object], /, *args: Any) -> object:
        """Call back on the loop; from any thread. RuntimeError once the loop is closed."""
        return self._loop.call_soon_threadsafe(self._in_turn, callback, *args)

    def _is_loops(self) -> bool:
        """Whether this thread is the loop's, or will be."""
        return self._thread is None or self._thread == threading.get_ident()

    def _in_turn(self, callback: Callable[..., object], *args: Any) -> None:
        with self.turn.lock:
            callback(*args)

    def end_turn(self) -> None:
        """Run the calls made in this turn, and leave the calls that they make to the loop."""
        calls, self.at_end = self.at_end, []
        for call in calls:
            self._attempt(call)
        following, self.at_end = self.at_end, []
        for call in following:
            self.call_soon_threadsafe(call)

    def _attempt(self, callback: Callable[[], object]) -> None:
        """Call back on behalf of another caller: an exception is raised on the loop."""
        try:
            callback()
        except Exception as error:
            self.call_soon_threadsafe(_raise, error)

    # -- files ---------------------------------------------------------------------------------------------------------

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
        """Call back, in some thread's turn, whenever a file can be read."""
        self._readers[fd] = callback
        self._ready.register(fd, select.EPOLLIN)

    def remove_reader(self, fd: int, /) -> bool:
        if self._readers.pop(fd, None) is None:
            return False
        self._ready.unregister(fd)
        return True

    def poll(self) -> None:
        """Handle all files that can be read now."""
        for fd, _ in self._ready.poll(0, READY_MAX):
            reader = self._readers.get(fd)
            if reader is not None:
                self._attempt(reader)

    def listen(self, is_listening: bool) -> None:
        """Whether the loop handles files by itself, for all its users.

        A caller that stops it must call `poll` instead, soon and often.
        """
        if is_listening != self._is_listening:
            self._is_listening = is_listening
            self._gate.modify(self._ready.fileno(), select.EPOLLIN if is_listening else 0)


class _Turn:
    """The turn as a context manager, the same object every time."""

    __slots__ = ("_loop", "lock")

    def __init__(self, loop: SharedLoop) -> None:
        self._loop = loop
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        self.lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if self._loop.at_end:
                self._loop.end_turn()
        finally:
            self.lock.release()


class _Call:
    """A call made with `call_soon`."""

    __slots__ = ("_args", "_callback", "handle")

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback: Callable[..., object] | None = callback
        self._args = args
        self.handle: Handle | None = None

    def __call__(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback(*self._args)

    def cancel(self) -> None:
        """Cancel the call."""
        self._callback = None


class _Timer(_Call):
    """A call made with `call_later`.

    Only the loop's thread may touch the loop's own timers: one that another thread has cancelled still fires, and does
    nothing.
    """

    __slots__ = ("_loop",)

    def __init__(self, loop: SharedLoop, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        super().__init__(callback, args)
        self._loop = loop

    def arm(self, delay: float) -> None:
        """Schedule the call in `delay` seconds; on the loop."""
        if self._callback is not None:
            self.handle = self._loop._loop.call_later(delay, self._loop._in_turn, self)

    def cancel(self) -> None:
        """Cancel the call."""
        super().cancel()
        if self.handle is not None and self._loop._is_loops():
            self.handle.cancel()


def _raise(error: Exception) -> None:
    raise error
