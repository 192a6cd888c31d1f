"""Time as integer nanoseconds. Only the types are here; the clocks themselves belong to shells, and nothing here reads
one: whoever imports this stays pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NewType, Protocol

Instant = NewType("Instant", int)
"""Nanoseconds since the run's own zero; only differences mean something."""

Duration = NewType("Duration", int)
"""Nanoseconds, never negative."""


def seconds(value: float) -> Duration:
    """`value` seconds as a Duration, rounded to the nanosecond."""
    return Duration(round(value * 1e9))


def milliseconds(value: float) -> Duration:
    """`value` milliseconds as a Duration, rounded to the nanosecond."""
    return Duration(round(value * 1e6))


class Clock(Protocol):
    """A host's source of time and timers; callbacks run in turns of the host's own loop."""

    def now(self) -> Instant:
        """The present instant; never smaller than one returned before."""

    def queued(self) -> Duration:
        """For how long the calling thread has waited for a core so far; 0 where that is not known."""

    def call_at(self, at: Instant, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once at `at` or as soon as possible after it; the result cancels the call."""

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Call `callback` from the loop, after the callbacks that are queued already."""

    def post(self, callback: Callable[[], None]) -> None:
        """Like `call_soon`, from any thread."""
