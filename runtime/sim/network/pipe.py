"""One direction of a simulated connection: when a message arrives.

Decides that from the weather of the path; knows nothing of the messages. Everything arrives complete and in order.
While the path is cut messages wait, and after UNHEARD the connection is given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from isthmus.runtime.clock import Clock, Duration, Instant, seconds
from isthmus.runtime.items.layout import Bytes

UNHEARD: Final = seconds(5)
"""As on real sockets: TCP gives up when nothing is acknowledged for so long."""

Message = list[Bytes] | None
"""A pipe's message: frames, or None for the end of the sending side."""


class Weather(Protocol):
    """The present conditions of the path from one machine to another."""

    def is_mute(self, source: str, target: str) -> bool:
        """Whether nothing arrives."""

    def latency(self, source: str, target: str) -> Duration:
        """The time that an empty message takes; called once for each message."""

    def pace(self, source: str, target: str, size_bytes: int) -> Duration:
        """The time for which `size_bytes` occupy the link."""


class Pipe:
    """One direction of a connection."""

    def __init__(
        self,
        clock: Clock,
        weather: Weather,
        source: str,
        target: str,
        arrive: Callable[[Message], None],
        give_up: Callable[[], None],
    ) -> None:
        self._clock, self._weather, self._arrive, self._give_up = clock, weather, arrive, give_up
        self._source, self._target = source, target
        self._waiting: deque[tuple[Instant, Message]] = deque()
        self._arrives_last = self._is_free_at = Instant(0)
        self._cancel: Callable[[], None] | None = None
        self._is_stuck = False

    def put(self, message: Message) -> None:
        now, weather = self._clock.now(), self._weather
        took = weather.pace(self._source, self._target, sum(map(len, message or [])))
        self._is_free_at = Instant(max(self._is_free_at, now) + took)
        latency = weather.latency(self._source, self._target)
        self._arrives_last = Instant(max(self._arrives_last, self._is_free_at + latency))
        self._waiting.append((self._arrives_last, message))
        if self._cancel is None:
            self._wait()

    def __len__(self) -> int:
        """The number of messages under way."""
        return len(self._waiting)

    def changed(self) -> None:
        """Resume stuck messages, if the path allows it."""
        if self._is_stuck and not self._weather.is_mute(self._source, self._target):
            self._is_stuck = False
            self._stop()
            self._wait()

    def close(self) -> None:
        """Drop the messages under way."""
        self._waiting.clear()
        self._stop()

    def _wait(self) -> None:
        if self._waiting:
            self._cancel = self._clock.call_at(self._waiting[0][0], self._deliver)

    def _stop(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    def _deliver(self) -> None:
        self._cancel = None
        if self._weather.is_mute(self._source, self._target):
            self._is_stuck = True
            self._cancel = self._clock.call_at(Instant(self._clock.now() + UNHEARD), self._give_up)
            return
        _, message = self._waiting.popleft()
        self._arrive(message)
        if self._cancel is None:
            self._wait()
