"""Drives a core of supervision: feeds it one event at a time, and performs its commands in order.

It decides nothing. Performing a command may produce further events at once; they wait until all commands before them
are performed. Every event and its commands are on the tape, from which a fresh core reproduces the commands. Daemons
and the simulator use the same driver; which core it drives, and what a command means, does not come in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import CoreError, InvariantError
from isthmus.runtime.supervision.home_events import HomeCommand, HomeEvent
from isthmus.runtime.supervision.station_events import StationCommand, StationEvent
from isthmus.runtime.tape.last_events import LastEvents
from isthmus.runtime.tape.writing import SEGMENT_BYTES, Tape


class Core(Protocol):
    """A state machine: events and the time go in, commands come out."""

    def handle(self, event: Any, now: Instant) -> list[Any]:
        """Commands that follow from `event` at time `now`, in order of execution."""

    def saved(self) -> bytes:
        """Its state between two events."""

    def check(self) -> None:
        """Raise InvariantError unless its invariants hold."""


class Driver:
    """Drives one core. `perform` executes a command; `now` returns the time.

    A segment of its tape is full at `segment_bytes`.
    """

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
        self._last_events = LastEvents(self.tape, _DaemonRecord)
        self._core, self._perform, self._now = core, perform, now
        self._waiting: deque[Any] = deque()
        self._is_busy = False

    def feed(self, event: HomeEvent | StationEvent) -> None:
        """Handle an event, after those that are being handled."""
        self._waiting.append(event)
        if self._is_busy:
            return
        self._is_busy = True
        try:
            while self._waiting:
                event, now = self._waiting.popleft(), self._now()
                try:
                    commands = self._core.handle(event, now)
                except CoreError as error:
                    self._last_events.add_to(error, event)
                    raise
                self.tape.append(now, event, commands)
                for command in commands:
                    self._perform(command)
        finally:
            self._is_busy = False
            self._waiting.clear()

    def check(self) -> None:
        """Raise InvariantError, with its last events, unless the invariants of the core hold."""
        with self._last_events.told():
            self._core.check()


class HomeRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event of a home, and its core's commands."""

    at: Instant
    event: HomeEvent
    commands: list[HomeCommand]


class StationRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event of a station, and its core's commands."""

    at: Instant
    event: StationEvent
    commands: list[StationCommand]


class _DaemonRecord(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event of either, and its core's commands."""

    at: Instant
    event: HomeEvent | StationEvent
    commands: list[HomeCommand | StationCommand]


def replay(core: Core, records: list[Any]) -> None:
    """Feed a fresh core with the events of a tape; InvariantError if it returns other commands."""
    for record in records:
        commands = core.handle(record.event, record.at)
        if commands != record.commands:
            difference = f"after {record.event} the tape has {record.commands}, this core says {commands}"
            raise InvariantError(f"replay at {record.at} ns: {difference}")
