"""What learners and evaluation share, whatever their devices and frameworks are; no framework comes in.

The life that seeds a learner, the merged leaves of a model, a part of a leaf; a function that a learner calls on its
devices, for callers that compile it without calling it; and turns on the cores, for learners that share one process.

XLA's CPU runtime runs every computation of a process on one pool of threads, which takes the newest work first: of four
learners on two cores two starve for hundreds of milliseconds while the other two run. So each CPU computation takes a
turn, in order of arrival; there are as many turns as cores. No turn is needed where a process has no more learners than
turns, for example where each learner has a process of its own, nor for an accelerator.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias


class Turnstile:
    """A semaphore that serves in order of arrival; a context manager. Each user registers once, by `join`."""

    def __init__(self, turns: int) -> None:
        """ValueError for fewer than one turn."""
        if turns < 1:
            raise ValueError(f"a turnstile: expected at least 1 turn, found {turns}")
        self.is_needed = False
        """Whether users may outnumber turns; read at every step, so it is not a property."""
        self._turns = self._free = turns
        self._users = 0
        self._lock = threading.Lock()
        self._waiting: deque[threading.Lock] = deque()

    def join(self) -> None:
        """Register one more user; from any thread.

        Computations that run without a turn at that moment finish without one.
        """
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
        """Pass the turn to the thread that has waited longest."""
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


CORES = Turnstile(len(os.sched_getaffinity(0)))
"""The turns of this process."""


NICENESS = 5
"""A third of the weight of a thread at 0: low enough to be preempted at once, high enough not to starve beside other
work."""


def lower_priority() -> None:
    """Lower the priority of this thread, and of those that it starts, below that of threads with little to do.

    Where learners share cores with the rest of the program, a message crosses a dozen threads on its way, and each of
    them would wait a time slice or two of an inner step for its turn.
    """
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


class DeviceCall(NamedTuple):
    """A jitted function, with arguments as shapes and shardings.

    The first argument is the part of the learner's state that it takes. `is_step` marks functions that every step
    calls. `batch` is the index of the argument that is a batch, None if none is.
    """

    name: str
    function: Any
    arguments: tuple[Any, ...]
    is_step: bool = False
    batch: int | None = None


Tensors: TypeAlias = Mapping[str, Any]
"""The merged leaves of a model, by name."""


class IslandSlot(NamedTuple):
    """The slot of an island, of at most so many, in a run of this seed."""

    slot: int
    slots: int
    seed: int


class LearnerLife(NamedTuple):
    """The life that a learner's random numbers depend on: one life of a slot, in a run of this seed."""

    seed: int
    slot: int
    incarnation: int


class LeafPart(NamedTuple):
    """Some values of a leaf, in the order of its memory, in an array of their own.

    `leaf` is, with the first part of it, something that has its `dtype` and `shape`; None with the others.
    """

    values: Any
    leaf: Any
