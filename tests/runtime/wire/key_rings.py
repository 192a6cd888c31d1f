"""Keys for tests: every replica lives on a machine of its own, of its own name, with a key of its own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from isthmus.runtime.ids import Member
from isthmus.runtime.wire.security_keys import KeyPair, Keyring

STRANGER = KeyPair.draw()
"""Whom nobody admits."""


@cache
def pair_of(machine: str) -> KeyPair:
    """The key of a machine."""
    return KeyPair.draw()


def machine_of(member: Member) -> str:
    """Where a member lives."""
    return str(member.replica)


def ring_of(member: Member, *admitted: Member) -> Keyring:
    """The keyring of a member's machine, which admits those of others."""
    names = [machine_of(other) for other in admitted]
    return Keyring(pair_of(machine_of(member)), {pair_of(name).public: name for name in names}, machine_of(member))


def keyed(member: Member, admitted: Iterable[Member]) -> dict[str, Any]:
    """What the channel of a member is given, whose machine admits those of others."""
    return {"keys": ring_of(member, *admitted), "machine_of": machine_of}
