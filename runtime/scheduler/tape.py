"""A record of the tape of a host: an event, and what its scheduler decided about it."""

from __future__ import annotations

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.scheduler.events import Command, Event


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """One event and what the core decided about it."""

    at: Instant
    event: Event
    commands: list[Command]


def compare(record: Record, commands: list[Command]) -> None:
    """Raise InvariantError if a core that was fed `record.event` again decided something else."""
    if record.commands != commands:
        raise InvariantError(
            f"replay at {record.at} ns: after {record.event} the tape has {record.commands}, this core says {commands}"
        )
