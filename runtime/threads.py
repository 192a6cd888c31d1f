"""Threads on the real clock: how hosts run in real time.

One event loop thread (uvloop where there is one) runs every host of the process and never computes; each node's body
has a thread of its own, started with its first work. A body may leave work to an accelerator and return: its thread is
then free for the next firing while the device computes. Nothing here is deterministic, and nothing claims to be.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from isthmus.runtime.clock import Clock, Instant

Work = tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]


class LoopClock:
    """The monotonic clock and the loop of this process; zero is when it was made."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._zero = time.monotonic_ns()
        self._loop_zero = loop.time()

    def now(self) -> Instant:
        """Nanoseconds since this clock was made; from any thread."""
        return Instant(time.monotonic_ns() - self._zero)

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once at `at`; the result cancels the call."""
        delay = (at - self.now()) / 1e9
        handle = self._loop.call_soon(callback) if delay <= 0 else self._loop.call_later(delay, callback)
        return handle.cancel

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` from the loop, after what is queued already."""
        self._loop.call_soon(callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Like `call_soon`, from any thread; nothing happens once the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


class ThreadExecutor:
    """A thread per node. Threads are daemonic: a body that never returns cannot keep the process alive."""

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self._name = name
        self._works: dict[int, queue.SimpleQueue[Work | None]] = {}
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, node: int, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` in the node's thread, then `done` on the loop."""
        works = self._works.get(node)
        if works is None:
            works = self._works[node] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(works,), name=f"{self._name}:{node}", daemon=True)
            self._threads.append(thread)
            thread.start()
        works.put((work, done))

    def close(self) -> None:
        """Let every thread end after what it is doing."""
        self._is_closed = True
        for works in self._works.values():
            works.put(None)

    def join(self, seconds_max: float) -> bool:
        """Wait for the threads to end, at most `seconds_max` in all; whether they did."""
        until = time.monotonic() + seconds_max
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, works: queue.SimpleQueue[Work | None]) -> None:
        while (entry := works.get()) is not None:
            work, done = entry
            result, error = None, None
            try:
                result = work()
            except Exception as caught:
                error = caught
            if not self._is_closed:
                self._clock.post(lambda done=done, result=result, error=error: done(result, error))  # type: ignore[misc]
            del entry, work, done, result, error
