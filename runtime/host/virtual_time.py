"""Inline on the virtual clock: how hosts run deterministically, in one thread, as fast as they can.

A body is called at the instant at which its firing begins, and its outputs appear after the node's modelled duration:
configuration and seeded jitter, never measured. Simultaneous calls happen in the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, TypeAlias

from isthmus.runtime.clock import Clock, Duration, Instant

_TURN: Final = nullcontext()

Durations = Callable[[int], Duration]
"""Node index -> how long its next firing takes."""


class _VirtualCall:
    """A scheduled call, unless it was cancelled."""

    __slots__ = ("callback",)

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback: Callable[[], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class VirtualClock:
    """Time that passes only from call to call."""

    def __init__(self) -> None:
        self._now = Instant(0)
        self._order = itertools.count()
        self._calls: list[tuple[Instant, int, _VirtualCall]] = []

    def now(self) -> Instant:
        return self._now

    def queued(self) -> Duration:
        """Nobody waits for a core in virtual time."""
        return Duration(0)

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at `at`, or now if that is past; the result cancels the call."""
        call = _VirtualCall(callback)
        heapq.heappush(self._calls, (Instant(max(at, self._now)), next(self._order), call))
        return call.cancel

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` at this instant, after the calls that are due already."""
        self.call_at(self._now, callback)

    def post(self, callback: Callable[[], None]) -> None:
        """There is only one thread: the same as `call_soon`."""
        self.call_at(self._now, callback)

    def due(self) -> Instant | None:
        """The instant of the next call; None if there is none."""
        while self._calls and self._calls[0][2].callback is None:
            heapq.heappop(self._calls)
        return self._calls[0][0] if self._calls else None

    def step(self) -> bool:
        """Make the next call; False if there is none."""
        if self.due() is None:
            return False
        self._call_next()
        return True

    def _call_next(self) -> None:
        """Make the call that is due next; there is one."""
        self._now, _, call = heapq.heappop(self._calls)
        assert call.callback is not None
        call.callback()

    def run(self, until: Callable[[], bool], instant_max: Instant) -> None:
        """Make calls until `until()` holds; TimeoutError if nothing is left to do up to `instant_max`."""
        while not until():
            due = self.due()
            if due is None:
                raise TimeoutError(f"nothing is left to do at {self._now / 1e9:.3f} virtual seconds")
            if due > instant_max:
                raise TimeoutError(f"not over after {instant_max / 1e9:.3f} virtual seconds")
            self._call_next()


class InlineExecutor:
    """Calls bodies on the loop itself."""

    has_threads: Final = False

    def __init__(self, clock: Clock, duration: Durations) -> None:
        self._clock = clock
        self._duration = duration
        self._is_closed = False

    @property
    def turn(self) -> AbstractContextManager[None]:
        """There is only one thread, which always has the turn."""
        return _TURN

    def poll(self) -> None:
        """Does nothing: input is processed as it arrives."""

    def listen(self, is_listening: bool) -> None:
        """Does nothing: input is processed as it arrives."""

    def lends(self, node: int) -> bool:
        return False

    def submit(self, node: int, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` now; call `done` after the node's duration. Does nothing once the executor is closed."""
        if self._is_closed:
            return
        result, error = None, None
        try:
            result = work()
        except (Exception, SystemExit) as caught:
            error = caught

        def finish() -> None:
            if not self._is_closed:
                done(result, error)

        self._clock.call_at(Instant(self._clock.now() + self._duration(node)), finish)

    def close(self) -> None:
        """Accept no more work, and make no more callbacks."""
        self._is_closed = True


Spread: TypeAlias = Callable[[random.Random, float], float]
"""(generator, jitter) -> the factor of a duration, 1 on average."""


def evenly(rng: random.Random, jitter: float) -> float:
    """Uniform in [1 - jitter, 1 + jitter]."""
    return 1.0 + jitter * (2.0 * rng.random() - 1.0)


def normally(rng: random.Random, jitter: float) -> float:
    """Normal around 1 with the standard deviation `jitter`, and no less than a twentieth."""
    return max(0.05, rng.gauss(1.0, jitter))


def jittered(duration: Duration, jitter: float, seed: int, spread: Spread = evenly) -> Callable[[], Duration]:
    """Durations around this one, the same for the same seed."""
    rng = random.Random(seed)
    return lambda: Duration(round(duration * spread(rng, jitter)))
