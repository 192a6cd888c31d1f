"""A record of a host's tape: an event, and the commands that its scheduler returned for it."""

from __future__ import annotations

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.scheduler.events import Command, Event


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event and the core's commands for it."""

    at: Instant
    event: Event
    commands: list[Command]


def compare(record: Record, commands: list[Command]) -> None:
    """Raise InvariantError if a core that replays `record.event` returned other commands."""
    if record.commands != commands:
        raise InvariantError(
            f"replay at {record.at} ns: after {record.event} the tape has {record.commands}, this core says {commands}"
        )
