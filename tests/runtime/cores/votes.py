"""Openings and votes of learners, as the tests of the quorum core write them."""

from __future__ import annotations

from typing import Any

from isthmus.runtime.clock import Duration, milliseconds
from isthmus.runtime.cores.quorum_messages import RoundOpened, VoteArrived
from isthmus.runtime.ids import Handle, Member, Replica

MS = milliseconds(1)
FOUR = tuple((slot, 1) for slot in range(4))
OPENING = 100
"""Handles of openings start here in the stories; a vote's handle is its slot + 10 times its key."""


def slot(number: int) -> Replica:
    return Replica("learner", number)


def life(number: int, incarnation: int = 1) -> Member:
    return Member(slot(number), incarnation)


def opening(key: int, lives: Any = FOUR, *, attempt: int = 1, handle: int = OPENING, **more: Any) -> RoundOpened:
    chosen: dict[str, Any] = {"count_min": 1, "grace": Duration(0), "required": (), "deadline": None, **more}
    chosen["required"] = tuple(map(slot, chosen["required"]))
    members = tuple(life(*pair) for pair in lives)
    return RoundOpened(key, attempt, members, handle=Handle(handle), **chosen)


def vote(key: int, number: int, incarnation: int = 1) -> VoteArrived:
    return VoteArrived(key, slot(number), incarnation, Handle(10 * key + number))
