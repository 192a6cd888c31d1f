"""Votes are given to a body that takes them early while they wait for their round to close."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from isthmus.runtime.errors import RunError
from isthmus.runtime.sim.world import World
from tests.runtime.host.worlds import Merge, body_of, rounds, start

VOTERS = {"here": 1, "there": 3}


class EarlyMerge(Merge):
    """Remembers which votes came early, and in which thread, beside its calls."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.story: list[Any] = []

    def take_early(self, vote: Any) -> None:
        self.story.append(vote)
        self.thread = threading.current_thread()

    def __call__(self, vote: Any, opened: Any, decision: Any) -> None:
        super().__call__(vote, opened, decision)
        self.story.append(list(vote.values()))


class SometimesEarly(EarlyMerge):
    """Takes votes early only if it is opened so."""

    def open(self, context: Any) -> None:
        super().open(context)
        self.take_early = None  # type: ignore[assignment,method-assign]


class FailsEarly(EarlyMerge):
    """Cannot do anything ahead."""

    def take_early(self, vote: Any) -> None:
        raise ArithmeticError("too early")


def ran(merge: type[EarlyMerge]) -> World:
    return start(rounds(merge), until="merge", counts=VOTERS)


def test_each_vote_but_the_last_comes_early_and_once() -> None:
    body = body_of(ran(EarlyMerge), "merge")
    early = [each for each in body.story if not isinstance(each, list)]
    assert len(early) == 2 * (VOTERS["there"] - 1)
    at = 0
    for closed in [each for each in body.story if isinstance(each, list)]:
        there = body.story[at : at + VOTERS["there"] - 1]
        assert len(closed) == VOTERS["there"]
        # The same objects, before the call that gets them.
        assert all(any(vote is each for each in closed) for vote in there)
        assert body.story[at + len(there)] is closed
        at += len(there) + 1
    assert body.thread is threading.current_thread()


def test_nothing_else_changes_where_votes_come_early() -> None:
    worlds = [ran(EarlyMerge), ran(SometimesEarly)]
    early, plain = [world.tape() for world in worlds]
    assert early == plain
    assert body_of(worlds[0], "merge").times == body_of(worlds[1], "merge").times
    assert not any(isinstance(each, dict) for each in body_of(worlds[1], "merge").story)


def test_what_fails_early_fails_the_next_firing() -> None:
    with pytest.raises(RunError, match="ArithmeticError"):
        ran(FailsEarly)
