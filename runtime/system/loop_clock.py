"""The clock of a process in real time: the kernel's monotonic one, with timers on its event loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.system.shared_loop import Handle, Loop

_SCHEDULED: Final = Path("/proc/thread-self/schedstat")
"""Nanoseconds on a core, nanoseconds of waiting for one, turns (Documentation/scheduler/sched-stats.rst of Linux)."""


class LoopClock:
    """The monotonic clock and the loop of this process.

    Zero is `zero_ns` of the monotonic clock, which the processes of a machine share, or when this clock was made.
    """

    def __init__(self, loop: Loop, zero_ns: int | None = None) -> None:
        self._loop = loop
        self._zero = time.monotonic_ns() if zero_ns is None else zero_ns

    def now(self) -> Instant:
        """Nanoseconds since zero; from any thread."""
        return Instant(time.monotonic_ns() - self._zero)

    def queued(self) -> Duration:
        """By the kernel's statistics of the thread; 0 where the kernel keeps none."""
        try:
            return Duration(int(_SCHEDULED.read_text().split()[1]))
        except (OSError, ValueError, IndexError):
            return Duration(0)

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once at `at` or up to 2 ms later; the result cancels the call."""
        call = _TimedCall(self, self._loop, at, callback)
        call.arm()
        return call.cancel

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    def post(self, callback: Callable[[], None]) -> None:
        """Like `call_soon`, from any thread; does nothing once the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            if not self._loop.is_closed():
                raise


class _TimedCall:
    """A call at an instant.

    Loops round to their own ticks (uvloop to milliseconds) and may be early: then it is armed again, because a core
    would set a timer that fires early again, and again.
    """

    __slots__ = ("_at", "_callback", "_clock", "_handle", "_loop")

    def __init__(self, clock: LoopClock, loop: Loop, at: Instant, callback: Callable[[], None]) -> None:
        self._clock, self._loop, self._at, self._callback = clock, loop, at, callback
        self._handle: Handle | None = None

    def arm(self) -> None:
        """Schedule the call for its instant, in whole milliseconds."""
        delay_ms = math.ceil((self._at - self._clock.now()) / 1e6)
        if delay_ms > 0:
            self._handle = self._loop.call_later(delay_ms / 1e3, self._due)
        else:
            self._handle = self._loop.call_soon(self._callback)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _due(self) -> None:
        if self._clock.now() < self._at:
            self.arm()
        else:
            self._callback()
