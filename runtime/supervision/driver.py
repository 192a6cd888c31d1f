"""Drives a core of supervision: events go in one at a time, and what the core says is performed in its order.

It decides nothing. Performing may lead to further events at once; they wait until all commands before them are
performed. Every event and what came of it is on the tape, from which a fresh core says the same again. The shells of
daemons and the universes of the simulator have the same driver.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.supervision.home.events import HomeCommand, HomeEvent
from isthmus.runtime.supervision.station_events import StationCommand, StationEvent
from isthmus.runtime.tape.writing import SEGMENT_BYTES, Tape


class Core(Protocol):
    """A state machine: events and the time go in, commands come out."""

    def handle(self, event: Any, now: Instant) -> list[Any]:
        """What an event leads to."""

    def saved(self) -> bytes:
        """What it is between two events."""


class Driver:
    """Of one core. `perform` does what a command says; `now` tells the time; a segment of its tape is full at
    `segment_bytes`."""

    def __init__(
        self,
        core: Core,
        perform: Callable[[Any], None],
        now: Callable[[], Instant],
        *,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.tape = Tape(segment_bytes)
        self.tape.begin(core.saved)
        self._core, self._perform, self._now = core, perform, now
        self._waiting: deque[Any] = deque()
        self._is_busy = False

    def feed(self, event: HomeEvent | StationEvent) -> None:
        """Let something happen."""
        self._waiting.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._waiting:
                event, now = self._waiting.popleft(), self._now()
                commands = self._core.handle(event, now)
                self.tape.append(now, event, commands)
                for command in commands:
                    self._perform(command)
        finally:
            self._is_busy = False
            self._waiting.clear()


class HomeRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event of a home, and what its core decided about it."""

    at: Instant
    event: HomeEvent
    commands: list[HomeCommand]


class StationRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event of a station, and what its core decided about it."""

    at: Instant
    event: StationEvent
    commands: list[StationCommand]


def replay(core: Core, records: list[Any]) -> None:
    """Feed a fresh core with what a tape has; InvariantError if it says anything else."""
    for record in records:
        said = core.handle(record.event, record.at)
        if said != record.commands:
            told = f"after {record.event} the tape has {record.commands}, this core says {said}"
            raise InvariantError(f"replay at {record.at} ns: {told}")
