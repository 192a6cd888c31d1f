"""The clock and loop of one host in a universe: it may be wrong, stand still, or never call again.

Wraps the one virtual clock of the universe. Calls and input that come due while the host is paused wait, in order: its
process does not run. A dead host gets no more calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.host.virtual_time import VirtualClock

MILLION: Final = 1_000_000


class HostClock:
    """Shows the time of the universe, plus its leaps, at a rate of its own: `drift` parts per million too fast."""

    def __init__(self, universe: VirtualClock) -> None:
        self.is_paused = self.is_dead = False
        self._universe = universe
        self._true, self._shown = universe.now(), universe.now()
        self._rate = MILLION
        self._waiting: deque[Callable[[], None]] = deque()

    def now(self) -> Instant:
        """The time that this clock shows."""
        return Instant(self._shown + (self._universe.now() - self._true) * self._rate // MILLION)

    def skew(self, leap: Duration, drift: int) -> None:
        """Leap forward, and run at another rate from now on; pending calls keep their instants, like kernel timers."""
        self._shown, self._true = Instant(self.now() + leap), self._universe.now()
        self._rate = MILLION + drift

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once this clock shows `at`; the result cancels the call."""
        call = _Call(self, callback, at)
        call.wait()
        return call.cancel

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` at this instant, after the calls that are due already."""
        self.call_at(self.now(), callback)

    def post(self, callback: Callable[[], None]) -> None:
        """There is only one thread: the same as `call_soon`."""
        self.call_at(self.now(), callback)

    def run(self, callback: Callable[[], None]) -> None:
        """Run `callback` in this process: now, when it resumes, or never."""
        if self.is_dead:
            return
        if self.is_paused:
            self._waiting.append(callback)
        else:
            callback()

    def resume(self) -> None:
        """Resume: waiting calls happen now."""
        self.is_paused = False
        while self._waiting and not self.is_dead:
            self._waiting.popleft()()

    def wait_until(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Schedule a call of the universe for when this clock will show `at`, at its present rate."""
        ahead = max(0, at - self.now())
        return self._universe.call_at(Instant(self._universe.now() - (-ahead * MILLION // self._rate)), callback)


class _Call:
    """A scheduled call, unless it was cancelled."""

    __slots__ = ("_callback", "_cancel", "_clock", "at")

    def __init__(self, clock: HostClock, callback: Callable[[], None], at: Instant) -> None:
        self._clock, self._callback, self.at = clock, callback, at
        self._cancel: Callable[[], None] | None = None

    def wait(self) -> None:
        """Schedule the call for its instant."""
        self._cancel = self._clock.wait_until(self.at, self._come)

    def cancel(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _come(self) -> None:
        self._clock.run(self._call)

    def _call(self) -> None:
        if self._cancel is None:
            return
        if self._clock.now() < self.at:  # The clock runs slower than it did.
            self.wait()
        else:
            self._cancel = None
            self._callback()
