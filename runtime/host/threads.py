"""Threads on the real clock: how hosts run in real time.

One event loop thread (uvloop where there is one) runs every host of the process and never computes; each node's body
has a thread of its own, started with its first work, which takes a turn of the loop when a firing ends. A body may
leave work to an accelerator and return: its thread is then free for the next firing while the device computes. Nothing
here is deterministic.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from isthmus.runtime.system.shared_loop import SharedLoop

Done = Callable[[Any, BaseException | None], None]
Work = tuple[Callable[[], Any], Done]


class ThreadExecutor:
    """A thread per node. Threads are daemonic: a body that never returns cannot keep the process alive.

    `done` is called in the node's thread, without the turn, which the callee takes. An exception of it is raised again
    on the loop. `turn`, `poll` and `listen` are those of the loop.
    """

    has_threads: Final = True

    def __init__(self, loop: SharedLoop, name: str) -> None:
        self.turn, self.poll, self.listen = loop.turn, loop.poll, loop.listen
        self._loop = loop
        self._name = name
        self._works: dict[int, queue.SimpleQueue[Work | None]] = {}
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def submit(self, node: int, work: Callable[[], Any], done: Done) -> None:
        """Run `work` and then `done` in the node's thread; does nothing once the executor is closed."""
        if self._is_closed:
            return
        works = self._works.get(node)
        if works is None:
            works = self._works[node] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(works,), name=f"{self._name}:{node}", daemon=True)
            self._threads.append(thread)
            thread.start()
        works.put((work, done))

    def close(self) -> None:
        """End every thread after its present work."""
        self._is_closed = True
        for works in self._works.values():
            works.put(None)

    def join(self, seconds_max: float) -> bool:
        """Wait for the threads to end, at most `seconds_max` in all; returns whether they did."""
        until = time.monotonic() + seconds_max
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _serve(self, works: queue.SimpleQueue[Work | None]) -> None:
        while (entry := works.get()) is not None and not self._is_closed:
            work, done = entry
            result, error = None, None
            try:
                result = work()
            except BaseException as caught:  # SystemExit too: it would end this thread, and the node would hang.
                error = caught
            try:
                if not self._is_closed:
                    done(result, error)
            except Exception as caught:
                with suppress(RuntimeError):  # The loop is closed: there is nowhere to report it.
                    self._loop.call_soon_threadsafe(_raise, caught)
            del entry, work, done, result, error


def _raise(error: Exception) -> None:
    raise error
