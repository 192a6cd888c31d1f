"""Events, commands and decisions of the quorum core.

It decides nothing; `quorum_core` does. A key is a round's integer, a handle stands for an item that the host holds.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Handle, Member, Record, Replica

Refusal: TypeAlias = Literal["duplicate", "late", "not a member", "not live", "unknown round"]
REFUSALS: Final[tuple[Refusal, ...]] = ("duplicate", "late", "not a member", "not live", "unknown round")


class Decision(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Why a round closed when it did: a sentence and its instants; its voters and the live members without a vote,
    sorted."""

    key: int
    reason: str
    opened_at: Instant
    quorum_at: Instant
    closed_at: Instant
    voters: tuple[Replica, ...]
    left_out: tuple[Replica, ...]


# -- events ------------------------------------------------------------------------------------------------------------


class RoundOpened(Record, frozen=True):
    """A round, or with a higher attempt its renewal.

    A member of `members` counts only while it is live. Live members of `required` are awaited until `deadline` after
    the opening; a `grace` or `deadline` of None has no end.

    Rounds of one `chain` follow one another: a vote that comes too late for one counts in the next that closes, unless
    its voter has voted there, too. None: late votes are refused.
    """

    key: int
    attempt: int
    members: tuple[Member, ...]
    count_min: int
    grace: Duration | None
    required: tuple[Replica, ...]
    deadline: Duration | None
    handle: Handle
    chain: int | None = None


class VoteArrived(Record, frozen=True):
    """A vote of one incarnation of a replica."""

    key: int
    voter: Replica
    incarnation: int
    handle: Handle


class MemberJoined(Record, frozen=True):
    """A possible voter is live."""

    member: Member


class MemberLeft(Record, frozen=True):
    """A possible voter is gone for good."""

    member: Member


class QuorumTimerFired(Record, frozen=True):
    """A timer fired. One that was cancelled meanwhile is ignored; an early one is set again."""

    key: int
    timer: int


# -- commands ----------------------------------------------------------------------------------------------------------


class CloseRound(Record, frozen=True):
    """Fire with these votes, sorted by replica: the order of arrival does not show."""

    key: int
    opening: Handle
    votes: tuple[tuple[Replica, Handle], ...]
    decision: Decision


class WithdrawRound(Record, frozen=True):
    """Release the opening of a round without a vote or a live member that could vote."""

    key: int
    opening: Handle
    reason: str


class RefuseVote(Record, frozen=True):
    """Release a vote that does not count."""

    handle: Handle
    voter: Replica
    reason: Refusal
    key: int


class ReplaceOpening(Record, frozen=True):
    """A renewal was accepted: release `dropped`, the opening of the attempt before; `opening` is held from now on."""

    key: int
    dropped: Handle
    opening: Handle


class RefuseOpening(Record, frozen=True):
    """Release an opening that came after its round had closed (a renewal that was under way)."""

    key: int
    opening: Handle
    reason: str


class SetQuorumTimer(Record, frozen=True):
    """Send QuorumTimerFired at `at`. A round has at most one timer; numbers are never used again."""

    key: int
    timer: int
    at: Instant


class CancelQuorumTimer(Record, frozen=True):
    """Forget a timer."""

    key: int
    timer: int


QuorumEvent: TypeAlias = RoundOpened | VoteArrived | MemberJoined | MemberLeft | QuorumTimerFired
QuorumCommand: TypeAlias = (
    CloseRound | WithdrawRound | RefuseVote | ReplaceOpening | RefuseOpening | SetQuorumTimer | CancelQuorumTimer
)


def released_count(command: QuorumCommand) -> int:
    """The number of handles that leave the core with a command."""
    match command:
        case CloseRound():
            return 1 + len(command.votes)
        case WithdrawRound() | RefuseVote() | RefuseOpening() | ReplaceOpening():
            return 1
        case _:
            return 0
