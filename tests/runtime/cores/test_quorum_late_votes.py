"""Rounds of a chain: a vote that comes too late for one counts in the next, and changes nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.quorum_core import CHAINS_MAX, QuorumCore
from isthmus.runtime.cores.quorum_messages import (
    CloseRound,
    MemberJoined,
    MemberLeft,
    QuorumCommand,
    QuorumEvent,
    RefuseVote,
    RoundOpened,
)
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.ids import Handle
from tests.runtime.cores.votes import FOUR, MS, life, opening, slot, vote


class Story:
    """A core with learners 0 to 3 live; in `closed` is what each round closed with."""

    def __init__(self) -> None:
        self.core = QuorumCore()
        self.closed: dict[int, CloseRound] = {}
        for number in range(4):
            self.tell(0, MemberJoined(life(number)))

    def tell(self, ms: int, *events: QuorumEvent) -> list[QuorumCommand]:
        commands = [command for event in events for command in self.core.handle(event, Instant(ms * MS))]
        self.core.check()
        self.closed |= {command.key: command for command in commands if isinstance(command, CloseRound)}
        return [command for command in commands if isinstance(command, RefuseVote)]

    def close(self, ms: int, key: int, *voters: int, chain: int | None = 5, lives: Any = FOUR) -> list[QuorumCommand]:
        """Open a round and have it close with these votes."""
        return self.tell(ms, link(key, chain, lives), *(vote(key, number) for number in voters))

    def votes(self, key: int) -> list[int]:
        """Whose votes a round closed with; each is the one that was cast, in that round or in an earlier one."""
        return [replica.slot for replica, _ in self.closed[key].votes]


def link(key: int, chain: int | None = 5, lives: Any = FOUR) -> RoundOpened:
    """A round that closes with its first vote."""
    return opening(key, lives, chain=chain)


def refused(key: int, number: int, reason: Any = "late") -> RefuseVote:
    return RefuseVote(Handle(10 * key + number), slot(number), reason, key)


def test_a_late_vote_counts_in_the_next_round_of_its_chain() -> None:
    story = Story()
    story.close(1, 7, 2)
    assert story.tell(2, vote(7, 0)) == []
    assert story.core.statistics()["votes waiting"] == 1
    story.close(3, 8, 2)
    assert story.votes(8) == [0, 2]
    assert dict(story.closed[8].votes)[slot(0)] == Handle(70)
    decision = story.closed[8].decision
    assert decision.voters == (slot(0), slot(2))
    assert decision.left_out == (slot(1), slot(3))
    assert decision.reason.endswith("late for the round before, and counted here: 1")
    assert story.core.statistics()["votes waiting"] == 0
    story.close(4, 9, 2)
    assert story.votes(9) == [2]


def test_it_moves_neither_the_quorum_nor_the_end() -> None:
    story = Story()
    story.close(1, 7, 2)
    story.tell(2, vote(7, 0), opening(8, chain=5, count_min=2, grace=9 * MS))
    story.tell(3, vote(8, 1))
    assert 8 not in story.closed
    story.tell(4, vote(8, 2), vote(8, 3))
    assert 8 not in story.closed  # Learner 0 may still vote.
    story.tell(5, MemberLeft(life(1)))
    assert 8 not in story.closed
    story.tell(6, vote(8, 0))
    assert story.votes(8) == [0, 1, 2, 3]
    assert dict(story.closed[8].votes)[slot(0)] == Handle(80)


def test_a_vote_in_time_makes_it_idle() -> None:
    story = Story()
    story.close(1, 7, 2)
    story.tell(2, vote(7, 0))
    assert story.close(3, 8, 0) == [refused(7, 0)]
    assert story.votes(8) == [0]
    assert "counted here" not in story.closed[8].decision.reason


@pytest.mark.parametrize("order", [(7, 8), (8, 7)])
def test_of_two_that_of_the_later_round_stays(order: tuple[int, int]) -> None:
    story = Story()
    story.close(1, 7, 2)
    story.close(2, 8, 2)
    assert story.tell(3, vote(order[0], 0)) == []
    assert story.tell(4, vote(order[1], 0)) == [refused(7, 0)]
    story.close(5, 9, 1)
    assert dict(story.closed[9].votes) == {slot(0): Handle(80), slot(1): Handle(91)}


def test_other_chains_do_not_count_it_and_without_a_chain_it_is_refused() -> None:
    story = Story()
    story.close(1, 7, 2)
    story.close(1, 8, 2, chain=None)
    assert story.tell(2, vote(7, 0), vote(8, 0)) == [refused(8, 0)]
    story.close(3, 9, 1, chain=6)
    story.close(3, 10, 1, chain=None)
    assert (story.votes(9), story.votes(10)) == ([1], [1])
    story.close(4, 11, 1)
    assert story.votes(11) == [0, 1]


def test_it_goes_with_its_voter() -> None:
    story = Story()
    story.close(1, 7, 2)
    story.close(1, 8, 2, chain=6)
    story.tell(2, vote(8, 0), vote(7, 0))
    assert story.tell(3, MemberLeft(life(0))) == [refused(7, 0, "not live"), refused(8, 0, "not live")]
    assert story.tell(4, MemberJoined(life(0, 2)), vote(7, 0)) == [refused(7, 0)]


def test_it_waits_for_a_round_that_its_voter_is_a_member_of() -> None:
    story = Story()
    story.close(1, 7, 2)
    story.tell(2, vote(7, 0))
    story.close(3, 8, 1, lives=[(1, 1), (2, 1)])
    assert story.votes(8) == [1]
    story.close(4, 9, 1)
    assert story.votes(9) == [0, 1]


@pytest.mark.parametrize("chain", [-1, CHAINS_MAX])
def test_chains_are_bounded(chain: int) -> None:
    story = Story()
    with pytest.raises(LocalProtocolError, match=f"expected a chain from 0 to {CHAINS_MAX - 1}, found {chain}"):
        story.tell(1, link(7, chain))
    story.tell(1, link(7, CHAINS_MAX - 1))


def test_who_leaves_takes_no_vote_of_others_along_and_each_is_counted() -> None:
    story = Story()
    story.close(1, 7, 2)
    story.tell(2, vote(7, 0), vote(7, 1), vote(7, 3))
    assert story.tell(3, MemberLeft(life(0))) == [refused(7, 0, "not live")]
    story.close(4, 8, 2)
    assert story.votes(8) == [1, 2, 3]
    counts = story.core.statistics()
    assert (counts["votes kept"], counts["votes counted"], counts["votes waiting"]) == (3, 4, 0)
