"""The quorum core: whole command lists for chosen stories. (`test_quorum_model` tries events in any order.)"""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import msgspec
import pytest

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.cores import quorum_core
from isthmus.runtime.cores import quorum_core as quorum
from isthmus.runtime.cores.quorum_core import QuorumCore
from isthmus.runtime.cores.quorum_messages import (
    CancelQuorumTimer,
    CloseRound,
    Decision,
    MemberJoined,
    MemberLeft,
    QuorumCommand,
    QuorumEvent,
    QuorumTimerFired,
    RefuseOpening,
    RefuseVote,
    ReplaceOpening,
    SetQuorumTimer,
    VoteArrived,
    WithdrawRound,
)
from isthmus.runtime.errors import InvariantError, LocalProtocolError
from isthmus.runtime.ids import Handle
from tests.runtime.cores.votes import FOUR, MS, OPENING, life, opening, slot, vote


def refused(key: int, number: int, reason: Any) -> RefuseVote:
    return RefuseVote(Handle(10 * key + number), slot(number), reason, key)


def closed(
    key: int, why: str, times: tuple[int, int, int], voters: Any, left: Any = (), at: int = OPENING
) -> CloseRound:
    votes = tuple((slot(number), Handle(10 * key + number)) for number in voters)
    opened_at, quorum_at, closed_at = (Instant(time * MS) for time in times)
    decision = Decision(key, why, opened_at, quorum_at, closed_at, tuple(map(slot, voters)), tuple(map(slot, left)))
    return CloseRound(key, Handle(at), votes, decision)


class Story:
    """A core with learners 0 to 3 live, told events at milliseconds."""

    def __init__(self, learners: int = 4) -> None:
        self.core = QuorumCore()
        for number in range(learners):
            assert self.at(0, MemberJoined(life(number))) == []

    def at(self, ms: float, *events: QuorumEvent) -> list[QuorumCommand]:
        commands: list[QuorumCommand] = []
        for event in events:
            commands += self.core.handle(event, Instant(round(ms * MS)))
            self.core.check()
        return commands


# -- closing -----------------------------------------------------------------------------------------------------------


def test_without_grace_a_quorum_of_one_closes_on_the_first_vote() -> None:
    story = Story()
    assert story.at(1, opening(7, FOUR[::-1])) == []
    why = "grace of 0.0 ms ended with 1 of 4; learner/0, learner/1, learner/3 left out"
    assert story.at(3, vote(7, 2)) == [closed(7, why, (1, 3, 3), [2], [0, 1, 3])]
    assert story.at(4, vote(7, 1)) == [refused(7, 1, "late")]


def test_the_grace_begins_with_the_quorum_and_ends_by_its_timer() -> None:
    story = Story()
    story.at(0, opening(7, count_min=2, grace=12 * MS), vote(7, 3))
    assert story.at(5, vote(7, 1)) == [SetQuorumTimer(7, 1, Instant(17 * MS))]
    assert story.at(6, vote(7, 0)) == []
    why = "grace of 12.0 ms ended with 3 of 4; learner/2 left out"
    assert story.at(17, QuorumTimerFired(7, 1)) == [closed(7, why, (0, 5, 17), [0, 1, 3], [2])]


def test_votes_are_sorted_by_replica_and_the_last_one_ends_the_grace_early() -> None:
    story = Story()
    story.at(0, opening(7, FOUR[::-1], count_min=2, grace=12 * MS), vote(7, 3), vote(7, 1), vote(7, 0))
    end = closed(7, "all 4 members voted", (0, 0, 2), [0, 1, 2, 3])
    assert story.at(2, vote(7, 2)) == [CancelQuorumTimer(7, 1), end]


def test_grace_without_limit_waits_for_everybody() -> None:
    story = Story()
    assert story.at(0, opening(7, grace=None), vote(7, 0), vote(7, 1), vote(7, 2)) == []
    assert story.at(99, vote(7, 3)) == [closed(7, "all 4 members voted", (0, 0, 99), [0, 1, 2, 3])]


def test_a_required_voter_is_waited_for_until_the_deadline() -> None:
    story = Story()
    story.at(0, opening(7, grace=2 * MS, required=[3], deadline=50 * MS))
    assert story.at(1, vote(7, 0)) == [SetQuorumTimer(7, 1, Instant(50 * MS))]
    why = "deadline of 50.0 ms for required voters ended with 1 of 4; learner/1, learner/2, learner/3 left out"
    assert story.at(50, QuorumTimerFired(7, 1)) == [closed(7, why, (0, 1, 50), [0], [1, 2, 3])]


def test_a_required_vote_closes_once_the_grace_has_ended() -> None:
    story = Story()
    story.at(0, opening(7, grace=2 * MS, required=[3], deadline=None))
    assert story.at(1, vote(7, 0)) == []
    why = "grace of 2.0 ms ended with 2 of 4; learner/1, learner/2 left out; no required voter is awaited"
    assert story.at(9, vote(7, 3)) == [closed(7, why, (0, 1, 9), [0, 3], [1, 2])]


def test_a_deadline_before_the_end_of_the_grace_changes_nothing() -> None:
    story = Story()
    story.at(0, opening(7, grace=20 * MS, required=[3], deadline=10 * MS))
    assert story.at(1, vote(7, 0)) == [SetQuorumTimer(7, 1, Instant(21 * MS))]
    why = "grace of 20.0 ms ended with 1 of 4; learner/1, learner/2, learner/3 left out"
    assert story.at(21, QuorumTimerFired(7, 1)) == [closed(7, why, (0, 1, 21), [0], [1, 2, 3])]


def test_an_early_timer_is_set_again_and_a_cancelled_one_ignored() -> None:
    story = Story()
    story.at(0, opening(7, grace=10 * MS), vote(7, 0))
    assert story.at(9, QuorumTimerFired(7, 1)) == [SetQuorumTimer(7, 2, Instant(10 * MS))]
    assert story.at(10, QuorumTimerFired(7, 1)) == []
    assert story.core.statistics()["timers stale"] == 1
    assert isinstance(story.at(10, QuorumTimerFired(7, 2))[0], CloseRound)


def test_a_sentence_names_a_bounded_number_of_replicas() -> None:
    story = Story(learners=12)
    [close] = story.at(0, opening(7, [(number, 1) for number in range(12)]), vote(7, 0))
    assert isinstance(close, CloseRound)
    assert close.decision.reason.endswith(
        "1 of 12; " + ", ".join(f"learner/{n}" for n in range(1, 9)) + " and 3 more left out"
    )
    [close] = story.at(0, opening(8, [(number, 1) for number in range(9)]), vote(8, 0))
    assert isinstance(close, CloseRound)
    assert close.decision.reason.endswith("1 of 9; " + ", ".join(f"learner/{n}" for n in range(1, 9)) + " left out")


# -- members that come and go ------------------------------------------------------------------------------------------


def test_a_death_lowers_the_quorum_and_may_close_the_round() -> None:
    story = Story()
    story.at(0, opening(7, count_min=4, grace=None), vote(7, 0), vote(7, 1), vote(7, 2))
    why = "all live members voted, 3 of 4; votes in all: 3"
    assert story.at(5, MemberLeft(life(3))) == [closed(7, why, (0, 5, 5), [0, 1, 2])]


def test_a_vote_outlives_its_voter_and_counts_towards_the_quorum() -> None:
    story = Story()
    story.at(0, opening(7, count_min=3, grace=None), vote(7, 0), vote(7, 1))
    assert story.at(1, MemberLeft(life(0))) == []
    assert story.at(2, vote(7, 2), vote(7, 3)) == [
        closed(7, "all live members voted, 3 of 4; votes in all: 4", (0, 2, 2), [0, 1, 2, 3])
    ]


def test_votes_close_a_round_that_has_lost_all_its_members() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1), (1, 1)], count_min=2, grace=None), vote(7, 0), MemberLeft(life(0)))
    assert story.at(3, MemberLeft(life(1))) == [
        closed(7, "no member is live any more; votes cast before: 1", (0, 0, 3), [0])
    ]


def test_a_round_with_a_timer_is_closed_and_not_withdrawn_when_its_members_are_gone_and_the_timer_cancelled() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1), (1, 1)], grace=9 * MS))
    assert story.at(1, vote(7, 0)) == [SetQuorumTimer(7, 1, Instant(10 * MS))]
    assert story.at(2, MemberLeft(life(0))) == []
    why = "no member is live any more; votes cast before: 1"
    end = [CancelQuorumTimer(7, 1), closed(7, why, (0, 1, 3), [0])]
    assert story.at(3, MemberLeft(life(1))) == end
    assert story.core.statistics()["rounds withdrawn"] == 0


def test_a_renewal_for_nobody_closes_a_round_with_a_timer_and_cancels_it() -> None:
    story = Story()
    story.at(0, opening(7, grace=9 * MS), vote(7, 0))
    why = "no member is live any more; votes cast before: 1"
    assert story.at(3, opening(7, [(9, 1)], attempt=2, handle=101, grace=9 * MS)) == [
        ReplaceOpening(7, Handle(OPENING), Handle(101)),
        CancelQuorumTimer(7, 1),
        closed(7, why, (0, 0, 3), [0], at=101),
    ]
    assert story.core.statistics()["rounds withdrawn"] == 0


def test_without_live_member_and_vote_the_round_is_withdrawn_and_a_higher_attempt_opens_it_again() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1)]))
    why = "no member is live and nobody has voted (1 listed in attempt 1)"
    assert story.at(1, MemberLeft(life(0))) == [WithdrawRound(7, Handle(OPENING), why)]
    assert story.at(2, MemberJoined(life(0, 2)), vote(7, 0, 2)) == []
    assert story.at(3, opening(7, [(0, 2)], attempt=2, handle=101)) == [
        closed(7, "the only member voted", (3, 3, 3), [0], at=101)
    ]


def test_a_round_opened_for_nobody_is_withdrawn_at_once() -> None:
    story = Story()
    [withdrawn] = story.at(0, opening(7, [(0, 2), (9, 1)]))
    assert isinstance(withdrawn, WithdrawRound)


def test_a_listed_member_that_joins_later_counts_and_raises_the_quorum() -> None:
    story = Story(learners=3)
    story.at(0, opening(7, count_min=4, grace=9 * MS), vote(7, 0), MemberLeft(life(0)))
    assert story.at(1, vote(7, 1)) == [SetQuorumTimer(7, 1, Instant(10 * MS))]
    assert story.at(2, MemberJoined(life(3))) == [CancelQuorumTimer(7, 1)]
    assert story.at(3, vote(7, 3)) == [SetQuorumTimer(7, 2, Instant(12 * MS))]


def test_a_listed_member_that_joins_while_the_quorum_holds_leaves_the_timer_alone() -> None:
    story = Story(learners=3)
    story.at(0, opening(7, grace=9 * MS), vote(7, 0))
    assert story.at(2, MemberJoined(life(3))) == []


def test_a_renewal_replaces_the_members_keeps_the_votes_and_moves_the_timer() -> None:
    story = Story()
    story.at(0, opening(7, grace=10 * MS), vote(7, 0), MemberLeft(life(0)), MemberJoined(life(0, 2)))
    lives = [(0, 2), (1, 1), (2, 1), (3, 1)]
    assert story.at(4, opening(7, lives, attempt=3, handle=101, grace=20 * MS)) == [
        ReplaceOpening(7, Handle(OPENING), Handle(101)),
        CancelQuorumTimer(7, 1),
        SetQuorumTimer(7, 2, Instant(20 * MS)),
    ]
    assert story.at(5, VoteArrived(7, slot(0), 2, Handle(5))) == [RefuseVote(Handle(5), slot(0), "duplicate", 7)]
    assert story.at(6, opening(7, lives, attempt=4, handle=102, count_min=2, grace=20 * MS)) == [
        ReplaceOpening(7, Handle(101), Handle(102)),
        CancelQuorumTimer(7, 2),
    ]
    assert story.at(9, vote(7, 1)) == [SetQuorumTimer(7, 3, Instant(29 * MS))]


def test_a_renewal_under_way_when_its_round_closes_is_refused() -> None:
    story = Story()
    story.at(0, opening(7), vote(7, 0))
    why = "round 7 had closed, or was forgotten, before its attempt 2 arrived"
    assert story.at(1, opening(7, attempt=2, handle=101)) == [RefuseOpening(7, Handle(101), why)]


# -- early votes -------------------------------------------------------------------------------------------------------


def test_early_votes_wait_for_their_round_and_count_together() -> None:
    story = Story()
    assert story.at(0, vote(7, 2), vote(7, 0)) == []
    assert story.at(1, VoteArrived(7, slot(2), 1, Handle(5))) == [RefuseVote(Handle(5), slot(2), "duplicate", 7)]
    why = "grace of 0.0 ms ended with 2 of 4; learner/1, learner/3 left out"
    assert story.at(2, opening(7)) == [closed(7, why, (2, 2, 2), [0, 2], [1, 3])]


def test_a_vote_that_is_early_for_a_renewal_waits_for_it() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1), (1, 1)], count_min=2, grace=None), MemberLeft(life(1)), MemberJoined(life(1, 2)))
    assert story.at(1, vote(7, 1, 2)) == []
    assert story.at(1, opening(7, [(0, 1), (1, 1)], attempt=2, handle=101, count_min=2, grace=None)) == [
        ReplaceOpening(7, Handle(OPENING), Handle(101))
    ]
    assert story.core.statistics()["votes waiting"] == 1
    assert story.at(2, opening(7, [(1, 2), (0, 1)], attempt=3, handle=102, count_min=2, grace=None)) == [
        ReplaceOpening(7, Handle(101), Handle(102))
    ]
    assert story.at(3, vote(7, 0)) == [closed(7, "all 2 members voted", (0, 3, 3), [0, 1], at=102)]


def test_a_held_vote_is_refused_when_its_round_closes_its_voter_leaves_or_a_later_round_opens() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1), (1, 1)], grace=None), vote(7, 2))
    assert story.at(1, vote(7, 0), vote(7, 1))[1:] == [refused(7, 2, "not a member")]
    story.at(2, vote(8, 2), vote(8, 3))
    assert story.at(3, MemberLeft(life(3))) == [refused(8, 3, "not live")]
    assert story.at(4, opening(9, grace=None)) == [refused(8, 2, "unknown round")]
    story.at(5, opening(10, [(0, 1)], grace=None))
    story.at(6, MemberLeft(life(0)), vote(10, 1))
    assert story.at(7, opening(11, grace=None)) == [refused(10, 1, "late")]


def test_votes_that_cannot_count_are_refused_with_the_reason() -> None:
    story = Story()
    story.at(0, opening(70, grace=None), vote(70, 1))
    assert story.at(1, vote(70, 0, 2), vote(70, 9)) == [refused(70, 0, "not live"), refused(70, 9, "not live")]
    assert story.at(1, vote(69, 0)) == [refused(69, 0, "unknown round")]
    assert story.at(1, vote(70 + quorum_core.EARLY_MAX, 0)) == []
    assert story.at(1, vote(71 + quorum_core.EARLY_MAX, 0)) == [refused(71 + quorum_core.EARLY_MAX, 0, "unknown round")]


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_before_the_first_round_early_votes_are_held_for_a_bounded_number_of_keys() -> None:
    story = Story()
    for key in range(quorum_core.EARLY_MAX):
        assert story.at(0, vote(1000 * key, 0)) == []
    assert story.at(0, vote(7, 0)) == [refused(7, 0, "unknown round")]
    overtaken = [refused(1000 * key, 0, "unknown round") for key in range(quorum_core.EARLY_MAX) if key != 5]
    assert story.at(1, opening(5000))[:-1] == overtaken


def test_old_rounds_are_forgotten_and_their_votes_are_late() -> None:
    story = Story()
    for key in range(0, 2 * quorum.ENDED_MAX + 2, 2):
        story.core.handle(opening(key, [(0, 1)], handle=10**6 + key), Instant(0))
        story.core.handle(vote(key, 0), Instant(0))
    assert story.at(1, vote(0, 0), vote(3, 0)) == [refused(0, 0, "late"), refused(3, 0, "unknown round")]
    assert isinstance(story.at(1, opening(0, attempt=2))[0], RefuseOpening)
    statistics = story.core.statistics()
    assert statistics["rounds closed"] == quorum.ENDED_MAX + 1
    assert statistics["handles taken"] == statistics["handles released"] == 2 * quorum.ENDED_MAX + 5


def test_rounds_are_forgotten_in_the_order_in_which_they_ended() -> None:
    story = Story()
    with mock.patch.object(quorum, "ENDED_MAX", 1):
        story.at(0, *(opening(key) for key in (7, 8, 9)), vote(8, 0), vote(7, 0), vote(9, 0))
        assert story.at(1, vote(8, 1), vote(6, 0)) == [refused(8, 1, "late"), refused(6, 0, "late")]


@pytest.mark.parametrize(
    ("event", "ms"),
    [
        (opening(7, attempt=1), 5),
        (opening(7, attempt=0), 5),
        (opening(3, attempt=1), 5),
        (opening(6, attempt=1), 5),
        (opening(9, [(0, 1), (0, 2)]), 5),
        (opening(9, count_min=0), 5),
        (opening(7, attempt=2, grace=Duration(-1)), 5),
        (opening(9, deadline=Duration(-1)), 5),
        (MemberJoined(life(1)), 5),
        (MemberJoined(life(1, 2)), 5),
        (MemberLeft(life(1, 2)), 5),
        (MemberLeft(life(4)), 5),
        (QuorumTimerFired(7, 2), 5),
        (QuorumTimerFired(7, 0), 5),
        (vote(7, 1), 1),
    ],
)
def test_an_illegal_event_raises_and_leaves_the_state_as_it_was(event: QuorumEvent, ms: int) -> None:
    story = Story()
    story.at(2, opening(3), vote(3, 0), opening(7, grace=9 * MS), vote(7, 0), vote(8, 1))
    before = copy.deepcopy(vars(story.core))
    with pytest.raises(LocalProtocolError, match=r"expected .*, found"):
        story.at(ms, event)
    assert vars(story.core) == before


def test_open_rounds_and_voters_are_bounded() -> None:
    story = Story()
    for key in range(quorum.ROUNDS_MAX):
        story.core.handle(opening(key), Instant(0))
    with pytest.raises(LocalProtocolError, match="at most 256 open rounds"):
        story.at(0, opening(quorum.ROUNDS_MAX))
    with mock.patch.object(quorum, "MEMBERS_MAX", 4), pytest.raises(LocalProtocolError, match="at most 4 voters"):
        story.at(0, MemberJoined(life(9)))


def test_members_of_a_round_are_bounded() -> None:
    story = Story()
    with mock.patch.object(quorum, "MEMBERS_MAX", 4):
        assert story.at(0, opening(7, grace=None)) == []
        with pytest.raises(LocalProtocolError, match="at most 4, found 5 members, 5 replicas"):
            story.at(0, opening(8, [*FOUR, (4, 1)]))


def test_a_renewal_needs_no_room_for_another_round() -> None:
    story = Story()
    with mock.patch.object(quorum, "ROUNDS_MAX", 1):
        assert story.at(0, opening(7), opening(7, attempt=2, handle=101)) == [
            ReplaceOpening(7, Handle(OPENING), Handle(101))
        ]


def test_held_votes_of_withdrawn_rounds_are_bounded_too() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1)]), opening(8, [(0, 1)]), opening(9, [(2, 1)]), vote(7, 1), vote(8, 1))
    with mock.patch.object(quorum_core, "EARLY_MAX", 1), mock.patch.object(quorum, "ENDED_MAX", 2):
        first, second, third = story.at(1, MemberLeft(life(0)))
        assert [type(command) for command in (first, second)] == [WithdrawRound, WithdrawRound]
        assert third == refused(8, 1, "late")
        assert story.at(2, MemberLeft(life(2)))[1:] == [refused(7, 1, "late")]


def test_a_withdrawn_round_that_holds_votes_has_room_for_more_of_its_own() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1)]), MemberLeft(life(0)))
    with mock.patch.object(quorum_core, "EARLY_MAX", 1):
        assert story.at(1, vote(7, 1), vote(7, 2)) == []
        assert story.at(2, vote(8, 1)) == [refused(8, 1, "unknown round")]


def test_a_renewal_of_the_newest_round_overtakes_no_other() -> None:
    story = Story()
    story.at(0, opening(5, [(0, 1)]), opening(7, [(0, 1)]), MemberLeft(life(0)), vote(5, 1))
    assert story.at(1, opening(7, [(2, 1)], attempt=2, handle=101)) == []
    assert story.core.statistics()["votes waiting"] == 1


def test_a_round_that_closes_may_have_an_older_one_forgotten() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1)]), opening(8, [(1, 1)], grace=None), MemberLeft(life(0)), vote(7, 2), vote(8, 3))
    with mock.patch.object(quorum, "ENDED_MAX", 1):
        assert story.at(1, vote(8, 1))[1:] == [refused(8, 3, "not a member"), refused(7, 2, "late")]


def test_statistics_count_what_came_what_it_led_to_and_what_there_is() -> None:
    story = Story()
    assert set(story.core.statistics().values()) == {0, 4}
    story.at(0, vote(1, 0), vote(1, 2), opening(1, grace=9 * MS, count_min=3))
    story.at(0, opening(1, attempt=2, handle=101, count_min=2), opening(1, attempt=3, handle=102))
    story.at(0, opening(2, grace=9 * MS), opening(2, attempt=2, handle=103, grace=9 * MS), vote(2, 0), vote(2, 0))
    story.at(1, QuorumTimerFired(2, 1), QuorumTimerFired(2, 1), QuorumTimerFired(2, 1), MemberLeft(life(3)))
    story.at(2, opening(3, [(3, 1)]), opening(4, [(3, 1)]), opening(1, attempt=4), opening(1, attempt=5), vote(9, 1))
    story.at(3, vote(1, 1), vote(1, 1), opening(5, [(0, 1)], grace=None), opening(6, [(1, 1)], grace=None))
    assert story.core.statistics() == {
        "rounds opened": 6,
        "rounds renewed": 2,
        "rounds closed": 1,
        "rounds withdrawn": 2,
        "openings refused": 3,
        "votes counted": 3,
        "votes held": 3,
        "votes kept": 0,
        "timers stale": 2,
        "handles taken": 18,
        "handles released": 13,
        "votes refused: duplicate": 1,
        "votes refused: late": 2,
        "votes refused: not a member": 0,
        "votes refused: not live": 0,
        "votes refused: unknown round": 0,
        "rounds open": 3,
        "votes waiting": 1,
        "voters live": 3,
    }


def test_check_finds_a_lost_handle_and_a_lost_timer() -> None:
    story = Story()
    story.at(0, opening(7, grace=9 * MS), vote(7, 0))
    [found] = story.core._rounds.values()
    timer, found.timer_at = found.timer_at, None
    with pytest.raises(InvariantError, match="its timer is at None"):
        story.core.check()
    found.timer_at = timer
    found.votes[slot(1)] = Handle(5)
    with pytest.raises(InvariantError, match="2 handles are held by the count, 3 by the state"):
        story.core.check()


@pytest.mark.parametrize(
    ("module", "limit", "broken"),
    [
        (quorum, "ROUNDS_MAX", "1 rounds are open, 0 may be"),
        (quorum, "ENDED_MAX", "1 rounds are remembered, 0 may be"),
        (quorum, "MEMBERS_MAX", "4 voters are live, 0 may be"),
        (quorum_core, "EARLY_MAX", "1 keys hold early votes, 0 may"),
    ],
)
def test_check_finds_what_is_out_of_bounds(module: Any, limit: str, broken: str) -> None:
    core = busy_core()
    with mock.patch.object(module, limit, 0), pytest.raises(InvariantError, match=broken):
        core.check()


@pytest.mark.parametrize(
    ("corrupt", "broken"),
    [
        (
            lambda core: core._held._votes.update({3: core._held._votes.pop(8)}),
            "votes are held for round 3, which closed",
        ),
        (lambda core: core._held._votes.update({9: {}}), r"round 9 holds votes of \[\]"),
        (lambda core: core._live.pop(slot(1)), "round 8 holds votes of .*slot=1"),
        (lambda core: core._ended.update({7: (1, False)}), "round 7 is open and ended"),
        (lambda core: setattr(core, "_newest", 6), "round 7 is above the newest"),
        (lambda core: core._rounds[7].members.clear(), "round 7 counts 4 live members, and misses .*"),
        (
            lambda core: (core._rounds[7].members.clear(), core._rounds[7].count(core._live)),
            "round 7 is open, and awaits no vote",
        ),
        (lambda core: setattr(core._rounds[7], "quorum_at", None), "round 7 has a wrong quorum_at"),
        (lambda core: setattr(core._rounds[7], "timer", 0), "round 7 has timer 0 for 11000000"),
        (lambda core: (hold(core, 7, 1), hold(core, 7, 0)), "round 7 both counts and holds votes of .*slot=0"),
    ],
)
def test_check_finds_a_broken_rule(corrupt: Any, broken: str) -> None:
    core = busy_core()
    corrupt(core)
    with pytest.raises(InvariantError, match=broken):
        core.check()


def busy_core() -> QuorumCore:
    """With round 3 closed, round 7 within its grace, and an early vote for round 8."""
    story = Story()
    story.at(2, opening(3), vote(3, 0), opening(7, grace=9 * MS), vote(7, 0), vote(8, 1))
    return story.core


def hold(core: QuorumCore, key: int, number: int) -> None:
    """Have a vote held as if it had come."""
    core._held._votes.setdefault(key, {})[slot(number)] = Handle(99)
    core._counts["handles taken"] += 1


def test_events_and_commands_survive_encoding() -> None:
    story = Story()
    events: list[QuorumEvent] = [
        opening(7, grace=None, required=[1]),
        vote(7, 0),
        vote(7, 1),
        vote(7, 2),
        vote(7, 3),
        MemberLeft(life(2)),
    ]
    records = [*events, *story.at(3, *events), refused(1, 2, "late"), SetQuorumTimer(7, 1, Instant(5))]
    decode = msgspec.msgpack.Decoder(list[QuorumEvent | QuorumCommand]).decode
    assert decode(msgspec.msgpack.encode(records)) == records
