"""The quorum core: whole command lists for chosen stories, and a state machine against a naive replay."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isthmus.runtime import quorum
from isthmus.runtime.clock import Duration, Instant, milliseconds
from isthmus.runtime.errors import InvariantError, LocalProtocolError
from isthmus.runtime.ids import Handle, Member, Replica
from isthmus.runtime.quorum import QuorumCore
from isthmus.runtime.voting import (
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
    RoundOpened,
    SetQuorumTimer,
    VoteArrived,
    WithdrawRound,
)

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
        self.core = QuorumCore(1, None)
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


def test_without_live_member_and_vote_the_round_is_withdrawn_and_a_higher_attempt_opens_it_again() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1)]))
    why = "no member is live and nobody has voted (1 listed in attempt 1)"
    assert story.at(1, MemberLeft(life(0))) == [WithdrawRound(7, Handle(OPENING), (), why)]
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
    assert story.at(1, vote(70 + quorum.EARLY_MAX, 0)) == []
    assert story.at(1, vote(71 + quorum.EARLY_MAX, 0)) == [refused(71 + quorum.EARLY_MAX, 0, "unknown round")]


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_before_the_first_round_early_votes_are_held_for_a_bounded_number_of_keys() -> None:
    story = Story()
    for key in range(quorum.EARLY_MAX):
        assert story.at(0, vote(1000 * key, 0)) == []
    assert story.at(0, vote(7, 0)) == [refused(7, 0, "unknown round")]
    overtaken = [refused(1000 * key, 0, "unknown round") for key in range(quorum.EARLY_MAX) if key != 5]
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
    with pytest.raises(LocalProtocolError, match="count_min of at least 1"):
        QuorumCore(0, None)


def test_a_renewal_needs_no_room_for_another_round() -> None:
    story = Story()
    with mock.patch.object(quorum, "ROUNDS_MAX", 1):
        assert story.at(0, opening(7), opening(7, attempt=2, handle=101)) == [
            ReplaceOpening(7, Handle(OPENING), Handle(101))
        ]


def test_held_votes_of_withdrawn_rounds_are_bounded_too() -> None:
    story = Story()
    story.at(0, opening(7, [(0, 1)]), opening(8, [(0, 1)]), opening(9, [(2, 1)]), vote(7, 1), vote(8, 1))
    with mock.patch.multiple(quorum, EARLY_MAX=1, ENDED_MAX=2):
        first, second, third = story.at(1, MemberLeft(life(0)))
        assert [type(command) for command in (first, second)] == [WithdrawRound, WithdrawRound]
        assert third == refused(8, 1, "late")
        assert story.at(2, MemberLeft(life(2)))[1:] == [refused(7, 1, "late")]


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


# -- against a naive replay --------------------------------------------------------------------------------------------

BOUNDS: Any = {"ROUNDS_MAX": 3, "EARLY_MAX": 2, "ENDED_MAX": 3}


class Replay:
    """What became of every handle, by going through the whole history; lists and scans, no bookkeeping."""

    def __init__(self, history: list[tuple[QuorumEvent, int]]) -> None:
        self.alive: list[Member] = []
        self.rounds: dict[int, dict[str, Any]] = {}
        self.over: list[tuple[int, int, bool]] = []
        self.waiting: list[tuple[int, Member, Handle]] = []
        self.forgotten = self.newest = -(10**9)
        self.fates: dict[Handle, Any] = {}
        for event, now in history:
            touched = self.tell(event, now)
            for key in sorted(key for key in touched if key in self.rounds):
                self.judge(key, now)

    def tell(self, event: QuorumEvent, now: int) -> list[int]:
        match event:
            case MemberJoined(member):
                self.alive.append(member)
            case MemberLeft(member):
                self.alive.remove(member)
                self.refuse_waiting(lambda key, voter: voter == member, "not live")
            case VoteArrived(key, voter, incarnation, handle):
                self.fates[handle] = reason = self.verdict(key, Member(voter, incarnation))
                if reason != "waits":
                    return []
                self.waiting.append((key, Member(voter, incarnation), handle))
                is_expected = key in self.rounds and Member(voter, incarnation) in self.rounds[key]["event"].members
                return [key] if is_expected else []
            case RoundOpened():
                self.open(event, now)
                return [event.key]
            case QuorumTimerFired(key, _):
                return [key]
        return [key for key, found in self.rounds.items() if event.member in found["event"].members]

    def verdict(self, key: int, voter: Member) -> str:
        found = self.rounds.get(key)
        if found is None:
            ends = [has_closed for other, _, has_closed in self.over if other == key]
            if ends:
                if ends[0] or not self.has_room(key):
                    return "late"
            elif key <= self.newest:
                return "late" if key <= self.forgotten else "unknown round"
            elif (self.newest >= 0 and key > self.newest + quorum.EARLY_MAX) or not self.has_room(key):
                return "unknown round"
        if voter not in self.alive:
            return "not live"
        voted = [] if found is None else [replica for replica, _ in found["votes"]]
        voted += [other.replica for waits_for, other, _ in self.waiting if waits_for == key]
        return "duplicate" if voter.replica in voted else "waits"

    def has_room(self, key: int) -> bool:
        return len({k for k, _, _ in self.waiting if k != key and k not in self.rounds}) < quorum.EARLY_MAX

    def refuse_waiting(self, condition: Any, reason: str) -> None:
        for entry in [entry for entry in self.waiting if condition(entry[0], entry[1])]:
            self.waiting.remove(entry)
            self.fates[entry[2]] = reason

    def open(self, event: RoundOpened, now: int) -> None:
        key = event.key
        ends = [has_closed for other, _, has_closed in self.over if other == key]
        if key in self.rounds:
            self.fates[self.rounds[key]["event"].handle] = "replaced"
            self.rounds[key]["event"] = event
        elif (ends and ends[0]) or (not ends and key <= self.forgotten):
            self.fates[event.handle] = "opening refused"
            return
        else:
            withdrawn = [other for other, _, _ in self.over]
            self.over = [entry for entry in self.over if entry[0] != key]
            self.rounds[key] = {"event": event, "opened_at": now, "votes": [], "quorum_at": None}
            if key > self.newest:
                self.newest = key
                self.refuse_waiting(lambda k, _: k in withdrawn and k not in self.rounds, "late")
                self.refuse_waiting(lambda k, _: k < key and k not in self.rounds, "unknown round")
                self.refuse_waiting(lambda k, _: k > key + quorum.EARLY_MAX, "unknown round")
        self.fates[event.handle] = "open"

    def judge(self, key: int, now: int) -> None:
        found = self.rounds[key]
        event: RoundOpened = found["event"]
        for entry in [entry for entry in self.waiting if entry[0] == key and entry[1] in event.members]:
            self.waiting.remove(entry)
            found["votes"].append((entry[1].replica, entry[2]))
            self.fates[entry[2]] = "voted"
        voters = [replica for replica, _ in found["votes"]]
        live = [member.replica for member in event.members if member in self.alive]
        missing = [replica for replica in live if replica not in voters]
        if not voters and not live:
            self.end(key, "withdrawn", has_closed=False)
            return
        if len(voters) < max(1, min(event.count_min, len(live))):
            found["quorum_at"] = None
        elif found["quorum_at"] is None:
            found["quorum_at"] = now
        end = self.due(key)
        if end is not None and now >= end:
            instants = (found["opened_at"], found["quorum_at"], now)
            self.end(key, ("closed", key, *instants, tuple(sorted(missing))), has_closed=True)

    def due(self, key: int) -> int | None:
        found = self.rounds[key]
        event: RoundOpened = found["event"]
        voters = [replica for replica, _ in found["votes"]]
        missing = [member.replica for member in event.members if member in self.alive and member.replica not in voters]
        if found["quorum_at"] is None or not missing:
            return None if found["quorum_at"] is None else int(found["quorum_at"])
        ends: list[Any] = [None if event.grace is None else found["quorum_at"] + event.grace]
        if any(replica in missing for replica in event.required):
            ends.append(None if event.deadline is None else found["opened_at"] + event.deadline)
        return None if None in ends else int(max(ends))

    def end(self, key: int, fate: Any, *, has_closed: bool) -> None:
        found = self.rounds.pop(key)
        self.fates[found["event"].handle] = fate
        for replica, handle in found["votes"]:
            self.fates[handle] = ("counted", key, replica)
        self.over.append((key, found["event"].attempt, has_closed))
        if has_closed:
            self.refuse_waiting(lambda k, _: k == key, "not a member")
        elif not self.has_room(key):
            self.refuse_waiting(lambda k, _: k == key, "late")
        if len(self.over) > quorum.ENDED_MAX:
            oldest = self.over.pop(0)[0]
            self.forgotten = max(oldest, self.forgotten)
            self.refuse_waiting(lambda k, _: k == oldest, "late")

    def is_legal(self, event: RoundOpened) -> bool:
        known = [attempt for key, attempt, _ in self.over if key == event.key]
        known += [found["event"].attempt for key, found in self.rounds.items() if key == event.key]
        if known:
            if event.attempt <= known[0]:
                return False
        elif self.forgotten < event.key <= self.newest:
            return False
        takes_place = event.key not in self.rounds and (event.key, *known, True) not in self.over
        takes_place = takes_place and (bool(known) or event.key > self.forgotten)
        return not takes_place or len(self.rounds) < quorum.ROUNDS_MAX


class QuorumMachine(RuleBasedStateMachine):
    """Every event goes to the core and into a history; after each, what is known of every handle must agree."""

    def __init__(self) -> None:
        super().__init__()
        self.bounds = mock.patch.multiple(quorum, **BOUNDS)
        self.bounds.start()
        self.core = QuorumCore(1, None)
        self.history: list[tuple[QuorumEvent, int]] = []
        self.replay = Replay([])
        self.now = 0
        self.handles = 0
        self.ended: dict[Handle, Any] = {}
        self.timers: dict[int, tuple[int, int]] = {}
        self.incarnations = [1, 1, 1, 1]
        for number in range(4):
            self.tell(MemberJoined(life(number)))

    def teardown(self) -> None:
        self.bounds.stop()

    def handle(self) -> Handle:
        self.handles += 1
        return Handle(self.handles)

    def tell(self, event: QuorumEvent, passed: int = 0) -> None:
        self.now += passed
        self.history.append((event, self.now))
        for command in self.core.handle(event, Instant(self.now)):
            self.note(command)
        self.replay = Replay(self.history)

    def note(self, command: QuorumCommand) -> None:
        fates: list[tuple[Handle, Any]] = []
        match command:
            case CloseRound(key, opened, votes, decision):
                assert decision.reason
                assert votes == tuple(sorted(votes))
                assert decision.voters == tuple(replica for replica, _ in votes)
                instants = (decision.opened_at, decision.quorum_at, decision.closed_at)
                fates = [(handle, ("counted", key, replica)) for replica, handle in votes]
                fates += [(opened, ("closed", key, *instants, decision.left_out))]
            case WithdrawRound(_, opened, handles, _):
                fates = [(opened, "withdrawn"), *((handle, "withdrawn") for handle in handles)]
            case RefuseVote(handle, _, reason, _):
                fates = [(handle, reason)]
            case ReplaceOpening(_, dropped, _):
                fates = [(dropped, "replaced")]
            case RefuseOpening(_, opened, _):
                fates = [(opened, "opening refused")]
            case SetQuorumTimer(key, timer, at):
                assert key not in self.timers
                assert at > self.now
                self.timers[key] = (timer, at)
            case CancelQuorumTimer(key, timer):
                assert self.timers.pop(key)[0] == timer
        for handle, fate in fates:
            assert handle not in self.ended, "a handle ended twice"
            self.ended[handle] = fate

    @rule(number=st.integers(0, 3), passed=st.integers(0, 3))
    def leave(self, number: int, passed: int) -> None:
        member = life(number, self.incarnations[number])
        if member in self.replay.alive:
            self.tell(MemberLeft(member), passed)

    @rule(passed=st.integers(0, 3))
    def join(self, passed: int) -> None:
        for number in range(4):
            if life(number, self.incarnations[number]) not in self.replay.alive:
                self.incarnations[number] += 1
                self.tell(MemberJoined(life(number, self.incarnations[number])), passed)
                return

    @rule(
        back=st.sampled_from([-1, -1, 0, 0, -2, 1, 2, 3, 5]),
        attempt=st.integers(0, 3),
        order=st.permutations(range(4)),
        size=st.sampled_from([4, 4, 3, 2, 1, 0]),
        shift=st.sampled_from([0, 0, 0, 0, 1, -1]),
        count_min=st.sampled_from([1, 1, 2, 2, 3, 4]),
        grace=st.sampled_from([0, 1, 2, 4, None]),
        required=st.lists(st.integers(0, 3), max_size=2),
        deadline=st.sampled_from([0, 3, 6, 9, None]),
        passed=st.integers(0, 3),
    )
    def open(self, back: int, attempt: int, order: Any, size: int, shift: int, passed: int, **more: Any) -> None:
        key = max(0, self.replay.newest - back)
        lives = [(number, self.incarnations[number] + shift * (number == 0)) for number in order[:size]]
        event = opening(key, lives, attempt=attempt, handle=self.handle(), **more)
        if self.replay.is_legal(event):
            self.tell(event, passed)
            return
        before = copy.deepcopy(vars(self.core))
        with pytest.raises(LocalProtocolError):
            self.core.handle(event, Instant(self.now))
        assert vars(self.core) == before

    @rule(
        ahead=st.sampled_from([0, -1, 1, 0, -2, 2, -3, 3, -5, 5]),
        number=st.integers(0, 3),
        shift=st.sampled_from([0, 0, 0, 0, 0, -1, 1]),
        passed=st.integers(0, 3),
    )
    def cast(self, ahead: int, number: int, shift: int, passed: int) -> None:
        key = max(0, self.replay.newest) + ahead
        self.tell(VoteArrived(key, slot(number), self.incarnations[number] + shift, self.handle()), passed)

    @rule(which=st.integers(0, 2), number=st.integers(0, 3), passed=st.integers(0, 3))
    def answer(self, which: int, number: int, passed: int) -> None:
        for key in sorted(self.replay.rounds)[which : which + 1]:
            listed = [member.replica.slot for member in self.replay.rounds[key]["event"].members]
            voter = listed[number % len(listed)]
            self.tell(VoteArrived(key, slot(voter), self.incarnations[voter], self.handle()), passed)

    @rule(which=st.integers(0, 2), late=st.integers(-1, 2))
    def fire(self, which: int, late: int) -> None:
        if which < len(self.timers):
            key, (timer, at) = sorted(self.timers.items())[which]
            del self.timers[key]
            self.tell(QuorumTimerFired(key, timer), max(0, at + late - self.now))

    @invariant()
    def agrees(self) -> None:
        self.core.check()
        pending = ("open", "waits", "voted")
        assert self.ended == {handle: fate for handle, fate in self.replay.fates.items() if fate not in pending}
        due = {key: self.replay.due(key) for key in self.replay.rounds}
        assert {key: at for key, (_, at) in self.timers.items()} == {
            key: at for key, at in due.items() if at is not None
        }


TestQuorumMachine = QuorumMachine.TestCase
TestQuorumMachine.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
