"""Inline on the virtual clock: how hosts run deterministically, in one thread, as fast as they can.

A body is called at the instant at which its firing begins, and its outputs appear after the node's modelled duration:
configuration and seeded jitter, never measured. Simultaneous calls happen in the order in which they were asked for.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any

from isthmus.runtime.clock import Clock, Duration, Instant

Durations = Callable[[int], Duration]
"""Node index -> how long its next firing takes."""


class VirtualClock:
    """Time that passes only from call to call."""

    def __init__(self) -> None:
        self._now = Instant(0)
        self._order = itertools.count()
        self._calls: list[tuple[Instant, int, Callable[[], None] | None]] = []
        self._cancelled: set[int] = set()

    def now(self) -> Instant:
        """The instant of the present call."""
        return self._now

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at `at`, or now if that is past; the result cancels the call."""
        order = next(self._order)
        heapq.heappush(self._calls, (Instant(max(at, self._now)), order, callback))
        return lambda: self._cancelled.add(order)

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` at this instant, after what is due already."""
        self.call_at(self._now, callback)

    def post(self, callback: Callable[[], None]) -> None:
        """There is only one thread: the same as `call_soon`."""
        self.call_at(self._now, callback)

    def step(self) -> bool:
        """Make the next call; False if there is none."""
        while self._calls:
            at, order, callback = heapq.heappop(self._calls)
            if order in self._cancelled:
                self._cancelled.discard(order)
                continue
            self._now = at
            assert callback is not None
            callback()
            return True
        return False

    def run(self, until: Callable[[], bool], instant_max: Instant) -> None:
        """Make calls until `until()` holds; TimeoutError if nothing is left to do or `instant_max` is passed first."""
        while not until():
            if self._now > instant_max:
                raise TimeoutError(f"not over after {self._now / 1e9:.3f} virtual seconds")
            if not self.step():
                raise TimeoutError(f"nothing is left to do at {self._now / 1e9:.3f} virtual seconds")


class InlineExecutor:
    """Calls bodies on the loop itself."""

    def __init__(self, clock: Clock, duration: Durations) -> None:
        self._clock = clock
        self._duration = duration
        self._is_closed = False

    def submit(self, node: int, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` at this instant; call `done` after the node's duration."""
        result, error = None, None
        try:
            result = work()
        except Exception as caught:
            error = caught

        def finish() -> None:
            if not self._is_closed:
                done(result, error)

        self._clock.call_at(Instant(self._clock.now() + self._duration(node)), finish)

    def close(self) -> None:
        """Take no more work, and call nobody back."""
        self._is_closed = True


def jittered(duration: Duration, jitter: float, seed: int) -> Callable[[], Duration]:
    """Durations drawn uniformly from duration x [1 - jitter, 1 + jitter], the same for the same seed."""
    rng = random.Random(seed)
    return lambda: Duration(round(duration * (1.0 + jitter * (2.0 * rng.random() - 1.0))))
