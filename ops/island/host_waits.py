"""What a learner's host waits for on its device: how often, and how long, by what it waited for.

Whoever reaches a device counts here (`torch_device`, `jax_device`), in any thread. On CPUs nothing is counted: what is
asked of them is done when the call returns.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, Protocol, TypeAlias, final, get_args, runtime_checkable

WaitedFor: TypeAlias = Literal["step", "answer", "scalars", "leaves", "arrivals", "evaluation"]
"""`step`: the step before the newest one, so that no more than one is queued behind the one that is computed; `answer`:
a fragment or its codes, in the thread that sends them; `scalars`: the loss of a step, and others; `leaves`: of a state,
for a copy of it, for another learner, or to look whether they have changed; `arrivals`: what arrives there, where it
would else take more memory than fragments do; `evaluation`: figures of a model."""
WAITED_FOR: tuple[WaitedFor, ...] = get_args(WaitedFor)


@final
class HostWaits:
    """Counters, by what is waited for; `now` is in nanoseconds."""

    def __init__(self, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._counts: dict[WaitedFor, list[int]] = {}

    @contextmanager
    def during(self, what: WaitedFor) -> Iterator[None]:
        """Count what is waited for meanwhile."""
        begun = self._now()
        try:
            yield
        finally:
            took = self._now() - begun
            with self._lock:
                count = self._counts.setdefault(what, [0, 0])
                count[0] += 1
                count[1] += took

    def rows(self) -> list[tuple[WaitedFor, int, int]]:
        """(what, how often, nanoseconds in all), of what was waited for."""
        with self._lock:
            counts = self._counts
            return [(what, counts[what][0], counts[what][1]) for what in WAITED_FOR if what in counts]


@runtime_checkable
class CountsWaits(Protocol):
    """A learner that counts what its host waits for."""

    @property
    def host_waits(self) -> HostWaits: ...
