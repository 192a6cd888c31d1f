"""Threads on the real clock: how hosts run in real time.

One event loop thread (uvloop where there is one) runs every host of the process and never computes; each node's body
has a thread of its own, started with its first work, which takes a turn of the loop when a firing ends. A body may
leave work to an accelerator and return: its thread is then free for the next firing while the device computes. Nothing
here is deterministic.

A node's thread may also be *lent* by code that goes on with something else in between: a loop of the user's, which
makes the steps itself. Works of the node then wait until the owner of the thread runs them.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Final, final

from isthmus.runtime.system.processes import name_thread
from isthmus.runtime.system.shared_loop import SharedLoop

Done = Callable[[Any, BaseException | None], None]
Work = tuple[Callable[[], Any], Done]


@final
class LentThread:
    """The thread of one node, lent by its owner, who alone calls `run`; everything else may be called by any thread."""

    def __init__(self) -> None:
        self.works: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self.is_closed = False
        """Whether no more works will come."""
        self._parts: Generator[None, None, Any] | None = None
        self._done: Done | None = None

    def run(self, is_enough: Callable[[], bool]) -> bool:
        """Go on with the work that was interrupted, and then with those that follow.

        Returns True when a work yields; False when no work has begun and there is none to come, or that `is_enough`.
        """
        while True:
            work, result, error = None, None, None
            if self._parts is None:
                if self.is_closed or is_enough():
                    return False
                entry = self.works.get()
                if entry is None:
                    self.is_closed = True
                    return False
                work, self._done = entry
            try:
                result = None if work is None else work()
                if isinstance(result, Generator):
                    self._parts = result
                if self._parts is not None:
                    next(self._parts)
                    return True
            except StopIteration as end:
                result = end.value
            except BaseException as caught:  # It ends this node, and the owner of the thread hears of it from there.
                result, error = None, caught
            self._parts = None
            assert self._done is not None
            self._done(result, error)


class ThreadExecutor:
    """A thread per node, but for the node `lent`, whose thread is lent. Threads are daemonic: a body that never returns
    cannot keep the process alive.

    `done` is called in the node's thread, without the turn, which the callee takes. An exception of it is raised again
    on the loop. `turn`, `poll` and `listen` are those of the loop.
    """

    has_threads: Final = True

    def __init__(self, loop: SharedLoop, name: str, lent: tuple[int, LentThread] | None = None) -> None:
        self.turn, self.poll, self.listen = loop.turn, loop.poll, loop.listen
        self._loop = loop
        self._name = name
        self._works: dict[int, queue.SimpleQueue[Work | None]] = {}
        self._lent = None if lent is None else lent[0]
        if lent is not None:
            self._works[lent[0]] = lent[1].works
        self._threads: list[threading.Thread] = []
        self._is_closed = False

    def lends(self, node: int) -> bool:
        """Whether the thread of a node is lent."""
        return node == self._lent

    def submit(self, node: int, work: Callable[[], Any], done: Done) -> None:
        """Run `work` and then `done` in the node's thread; does nothing once the executor is closed."""
        if self._is_closed:
            return
        works = self._works.get(node)
        if works is None:
            works = self._works[node] = queue.SimpleQueue()
            thread = threading.Thread(target=self._serve, args=(node, works), name=f"{self._name}:{node}", daemon=True)
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

    def _serve(self, node: int, works: queue.SimpleQueue[Work | None]) -> None:
        name_thread(f"node-{node}")  # Not that of the thread which has started it: what runs here is the user's, too.
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
