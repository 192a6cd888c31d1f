"""Turns at the cores, for learners that share one process.

XLA's CPU runtime runs every computation of a process on one pool of threads, which takes the newest work first: of four
learners on two cores two starve for hundreds of milliseconds while the other two run. So whoever computes on the CPU
takes a turn, in order of arrival, of which there are as many as cores. Where no more compute in a process than there
are turns, as where a learner has a process of its own, nobody has to take one, nor does an accelerator.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from types import TracebackType


class Turnstile:
    """A semaphore that serves in order of arrival; a context manager. Whoever will use it says so once, by `join`."""

    def __init__(self, turns: int) -> None:
        """ValueError for fewer than one turn."""
        if turns < 1:
            raise ValueError(f"a turnstile: expected at least 1 turn, found {turns}")
        self.is_needed = False
        """Whether more may come at once than there are turns; asked at every step, so that it is no property."""
        self._turns = self._free = turns
        self._users = 0
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def join(self) -> None:
        """Somebody more may come; from any thread. What is under way without a turn then ends without one."""
        with self._lock:
            self._users += 1
            self.is_needed = self._users > self._turns

    def __enter__(self) -> None:
        """Wait for a turn."""
        with self._lock:
            if self._free and not self._waiting:
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Hand the turn to whoever has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


CORES = Turnstile(len(os.sched_getaffinity(0)))
"""The turns of this process."""


NICENESS = 5
"""A third of the weight of a thread at 0: enough to be preempted at once, not enough to starve beside other work."""


def give_way() -> None:
    """Let this thread, and those that it starts, give way to threads that have little to do.

    Where learners share cores with everything else, a message crosses a dozen threads on its way around, and each would
    wait a time slice or two of somebody's inner step for its turn.
    """
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
