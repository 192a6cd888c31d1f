"""The quorum core against a naive replay: a state machine of events in any order, and what became of every handle."""

from __future__ import annotations

import contextlib
import copy
from typing import Any
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from isthmus.runtime.clock import Instant
from isthmus.runtime.cores import quorum_core
from isthmus.runtime.cores import quorum_core as quorum
from isthmus.runtime.cores.quorum_core import QuorumCore
from isthmus.runtime.cores.quorum_messages import (
    CancelQuorumTimer,
    CloseRound,
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
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.ids import Handle, Member
from tests.effort import examples
from tests.runtime.cores.votes import life, opening, slot
from tests.runtime.tape.twin import restored

BOUNDS: Any = {"ROUNDS_MAX": 3, "ENDED_MAX": 3}
EARLY_MAX = 2


class Replay:
    """What became of every handle, by going through the whole history; lists and scans, no bookkeeping."""

    def __init__(self, history: list[tuple[QuorumEvent, int]]) -> None:
        self.alive: list[Member] = []
        self.rounds: dict[int, dict[str, Any]] = {}
        self.over: list[tuple[int, int, bool]] = []
        self.chains: dict[int, int | None] = {}
        self.late: list[tuple[int | None, int, Member, Handle]] = []
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
                self.let_go(lambda chain, key, voter: voter == member, "not live")
            case VoteArrived(key, voter, incarnation, handle):
                self.fates[handle] = reason = self.verdict(key, Member(voter, incarnation))
                if reason == "kept":
                    self.keep(key, Member(voter, incarnation), handle)
                    return []
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
                if ends[0] and self.chains[key] is not None and voter in self.alive:
                    return "kept"
                if ends[0] or not self.has_room(key):
                    return "late"
            elif key <= self.newest:
                return "late" if key <= self.forgotten else "unknown round"
            elif (self.newest >= 0 and key > self.newest + quorum_core.EARLY_MAX) or not self.has_room(key):
                return "unknown round"
        if voter not in self.alive:
            return "not live"
        voted = [] if found is None else [replica for replica, _ in found["votes"]]
        voted += [other.replica for waits_for, other, _ in self.waiting if waits_for == key]
        return "duplicate" if voter.replica in voted else "waits"

    def keep(self, key: int, voter: Member, handle: Handle) -> None:
        chain = self.chains[key]
        same = [entry for entry in self.late if (entry[0], entry[2]) == (chain, voter)]
        last = max([*((entry[1], place) for place, entry in enumerate(same)), (key, len(same))])[1]
        self.late = [entry for entry in self.late if entry not in same]
        for place, entry in enumerate([*same, (chain, key, voter, handle)]):
            self.fates[entry[3]] = "waits" if place == last else "late"
            if place == last:
                self.late.append(entry)

    def let_go(self, condition: Any, fate: Any) -> list[Member]:
        gone = [entry for entry in self.late if condition(*entry[:3])]
        self.late = [entry for entry in self.late if entry not in gone]
        for _, _, voter, handle in gone:
            self.fates[handle] = fate(voter) if callable(fate) else fate
        return [voter for _, _, voter, _ in gone]

    def has_room(self, key: int) -> bool:
        return len({k for k, _, _ in self.waiting if k != key and k not in self.rounds}) < quorum_core.EARLY_MAX

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
                self.refuse_waiting(lambda k, _: k > key + quorum_core.EARLY_MAX, "unknown round")
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
            if event.chain is not None:
                self.let_go(lambda chain, _, voter: chain == event.chain and voter.replica in voters, "late")
                counted = self.let_go(
                    lambda chain, _, voter: chain == event.chain and voter in event.members,
                    lambda voter: ("counted", key, voter.replica),
                )
                missing = [replica for replica in missing if replica not in [voter.replica for voter in counted]]
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
        self.chains[key] = found["event"].chain
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
        self.bounds = contextlib.ExitStack()
        self.bounds.enter_context(mock.patch.multiple(quorum, **BOUNDS))
        self.bounds.enter_context(mock.patch.object(quorum_core, "EARLY_MAX", EARLY_MAX))
        self.core = QuorumCore()
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
        self.bounds.close()

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
            case WithdrawRound(_, opened, _):
                fates = [(opened, "withdrawn")]
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

    @rule()
    def restore(self) -> None:
        self.core = restored(quorum.STATE, self.core, QuorumCore())

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
        chain=st.sampled_from([0, 0, 1, None]),
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
TestQuorumMachine.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)
