"""The base type of every core's events and commands: frozen records, compared by value and stored with their kind."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True, forbid_unknown_fields=True):
    """Base of events and commands: compared and stored by value."""
