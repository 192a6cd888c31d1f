"""Identifiers that outlive a process: replicas of roles and their incarnations."""

from __future__ import annotations

from typing import NewType

import msgspec

Handle = NewType("Handle", int)
"""A payload's number on its host. Cores see handles only; a negative handle names a constant of the graph."""


class Replica(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """A numbered place in a role (`learner/2`); for learners the number is the slot."""

    role: str
    slot: int

    def __str__(self) -> str:
        return f"{self.role}/{self.slot}"

    @classmethod
    def parse(cls, text: str) -> Replica:
        """The replica that `text` such as 'learner/2' names; ValueError if it names none."""
        role, separator, slot = text.partition("/")
        if not role or not separator or not slot.isdecimal():
            raise ValueError(f"a replica is written role/number, not {text!r}")
        return cls(role, int(slot))


class Member(msgspec.Struct, frozen=True, gc=False, order=True, array_like=True):
    """One incarnation (life) of a replica: incarnations count up from 1 and are never used again."""

    replica: Replica
    incarnation: int

    def __str__(self) -> str:
        return f"{self.replica}#{self.incarnation}"
