"""The quorum core: when a round of votes closes, with which votes, and why.

It decides which votes count, when a round closes or is withdrawn, and which timers that needs. It does not know what a
vote holds, how long a grace should be, or which body opens rounds; membership decides which voters are live.

Theory of operation. A round is a key (an integer; new rounds have growing keys, and no key is used for a second round)
with the members of its newest attempt. Everything else is a function of the members, the *live* roster and the votes:

- the effective quorum is max(1, min(count_min, live members));
- without a live member and without a vote the round is withdrawn;
- with votes and no live member that has not voted, it closes;
- else it closes when `grace` has passed since the effective quorum was reached, and, as long as a live `required` voter
  has not voted, not before `opened_at + deadline`. A grace or deadline of None has no end: membership bounds the wait.

`opened_at` is that of the first attempt, so that renewals do not move the deadline. A vote that counted stays, even if
its voter leaves. Memory is bounded by the constants below; of ended rounds, the newest are remembered exactly, and any
older key counts as late.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple, assert_never

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.cores.quorum_messages import (
    REFUSALS,
    CancelQuorumTimer,
    CloseRound,
    Decision,
    MemberJoined,
    MemberLeft,
    QuorumCommand,
    QuorumEvent,
    QuorumTimerFired,
    Refusal,
    RefuseOpening,
    RefuseVote,
    ReplaceOpening,
    RoundOpened,
    SetQuorumTimer,
    VoteArrived,
    WithdrawRound,
    released_count,
)
from isthmus.runtime.errors import CoreSubject, LocalProtocolError, demand
from isthmus.runtime.ids import LEARNERS_MAX, Handle, Member, Replica
from isthmus.runtime.tape.state import Kind

EARLY_MAX: Final = 64
"""Unopened keys with held votes, and how far above the newest key they may lie: a voter is early by the delay of one
edge, in which at most the rounds in flight can open."""


@dataclass(slots=True)
class EarlyVotes:
    """Votes that may be early: their round is not open yet, or their voter is not a member of it yet.

    The round may be withdrawn and come back with a higher attempt, or its renewal may be under way on another edge. A
    vote refused then would be lost for good, because a voter votes once per key. A held vote is released when its voter
    leaves, its round closes, or a later round opens before its own: openings arrive in order.
    """

    _votes: dict[int, dict[Replica, Handle]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._votes.values()))

    def rounds(self) -> list[int]:
        """The rounds for which votes are held, sorted."""
        return sorted(self._votes)

    def voters(self, key: int) -> list[Replica]:
        """The voters whose votes are held for a round, sorted."""
        return sorted(self._votes.get(key, ()))

    def hold(self, key: int, voter: Replica, handle: Handle) -> None:
        self._votes.setdefault(key, {})[voter] = handle

    def pop(self, key: int, voter: Replica) -> Handle:
        """Remove and return a held vote; KeyError if there is none."""
        handle = self._votes[key].pop(voter)
        if not self._votes[key]:
            del self._votes[key]
        return handle

    def pop_all(self, voter: Replica) -> list[tuple[int, Replica, Handle]]:
        """Remove and return all held votes of a voter, by round."""
        return [(key, voter, self.pop(key, voter)) for key in self.rounds() if voter in self._votes[key]]

    def pop_round(self, key: int) -> list[tuple[Replica, Handle]]:
        """Remove and return all held votes for a round, by voter."""
        return sorted(self._votes.pop(key, {}).items())

    def has_room(self, key: int, opened: Container[int]) -> bool:
        """Whether votes can be held for a key that is not in `opened`, the open ones."""
        return sum(other not in opened for other in self._votes if other != key) < EARLY_MAX


CHAINS_MAX: Final = 4096
"""Chains are numbered from 0: those of the shipped programs are fragments."""


class LateVote(NamedTuple):
    """A vote, and the round that it was cast in."""

    key: int
    voter: Replica
    handle: Handle


@dataclass(slots=True)
class LateVotes:
    """Votes that came too late for their round, and may count in the next round of its chain.

    A late vote moves neither the quorum nor the end of any round: the next round of the chain that closes with its
    voter as a live member counts it, unless the voter has voted there. Memory: one vote for each chain and live voter.
    """

    _chains: dict[int, dict[Replica, LateVote]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self._chains.values()))

    def voters(self, chain: int | None) -> list[Replica]:
        """The voters whose votes are kept in a chain, sorted."""
        return sorted(self._chains.get(chain, ())) if chain is not None else []

    def keep(self, chain: int, vote: LateVote) -> LateVote | None:
        """Keep a vote; returns the vote that it displaces, or `vote` itself if a later round's is kept, or None."""
        votes = self._chains.setdefault(chain, {})
        former = votes.get(vote.voter)
        if former is not None and former.key > vote.key:
            return vote
        votes[vote.voter] = vote
        return former

    def pop(self, chain: int, voter: Replica) -> LateVote:
        """Remove and return a kept vote; KeyError if there is none."""
        vote = self._chains[chain].pop(voter)
        if not self._chains[chain]:
            del self._chains[chain]
        return vote

    def pop_all(self, voter: Replica) -> list[LateVote]:
        """Remove and return all kept votes of a voter, by chain."""
        return [self.pop(chain, voter) for chain in sorted(self._chains) if voter in self._chains[chain]]

    def everybody(self) -> set[Replica]:
        """The voters with a kept vote in any chain."""
        return {voter for votes in self._chains.values() for voter in votes}


NAMES_MAX: Final = 8
"""Replicas that a sentence names before it only counts them."""


@dataclass(slots=True)
class OpenRound:
    """An open round; `opened` is its newest attempt, `members` maps that attempt's replicas to incarnations, sorted.

    `live_count` of these are live, and `missing` are those of the live that have not voted, sorted. Both are kept,
    because every vote needs them. It changes nothing but itself, and knows no other round.
    """

    opened: RoundOpened
    members: dict[Replica, int]
    opened_at: Instant
    votes: dict[Replica, Handle] = field(default_factory=dict)
    quorum_at: Instant | None = None
    timer: int = 0
    timer_at: Instant | None = None
    live_count: int = 0
    missing: dict[Replica, None] = field(default_factory=dict)

    def count(self, live: Mapping[Replica, int]) -> None:
        """Set `live_count` and `missing` anew: the members have changed, or one of them has joined or left."""
        self.live_count, self.missing = self.census(live)

    def vote(self, voter: Replica, handle: Handle) -> None:
        """Count the vote of a member."""
        self.votes[voter] = handle
        self.missing.pop(voter, None)

    def census(self, live: Mapping[Replica, int]) -> tuple[int, dict[Replica, None]]:
        """The number of live members, and those of them that have not voted, sorted."""
        present = [slot for slot, incarnation in self.members.items() if live.get(slot) == incarnation]
        return len(present), dict.fromkeys(slot for slot in present if slot not in self.votes)

    def has_quorum(self) -> bool:
        """Whether the votes reach the effective quorum."""
        return len(self.votes) >= max(1, min(self.opened.count_min, self.live_count))

    def end(self) -> Instant | None:
        """When the round closes if nothing else happens; None if time alone does not close it."""
        end = self.end_of_grace() if self.missing else self.quorum_at
        if end is None or not self._awaits():
            return end
        return None if self.opened.deadline is None else max(end, Instant(self.opened_at + self.opened.deadline))

    def end_of_grace(self) -> Instant | None:
        """When the grace ends; None before the quorum, and where it has no limit."""
        grace = self.opened.grace
        return None if self.quorum_at is None or grace is None else Instant(self.quorum_at + grace)

    def reason(self) -> str:
        """Why the round closes, as a sentence; valid only where it does."""
        opened, votes, members = self.opened, len(self.votes), len(self.members)
        live_count, missing = self.live_count, tuple(self.missing)
        if live_count == 0:
            return f"no member is live any more; votes cast before: {votes}"
        if not missing and live_count == members == votes:
            return f"all {members} members voted" if members > 1 else "the only member voted"
        if not missing:
            return f"all live members voted, {live_count} of {members}; votes in all: {votes}"
        what = f"grace of {(opened.grace or 0) / 1e6:.1f} ms"
        if self._awaits() and self.end() != self.end_of_grace():
            what = f"deadline of {(opened.deadline or 0) / 1e6:.1f} ms for required voters"
        more = f" and {len(missing) - NAMES_MAX} more" if len(missing) > NAMES_MAX else ""
        names = ", ".join(map(str, missing[:NAMES_MAX])) + more
        settled = "; no required voter is awaited" if opened.required and not self._awaits() else ""
        return f"{what} ended with {votes} of {votes + len(missing)}; {names} left out{settled}"

    def _awaits(self) -> bool:
        return any(slot in self.missing for slot in self.opened.required)


ROUNDS_MAX: Final = 256
"""Open rounds; a syncer shard has a few in flight (two at the published settings), so more is a bug of the opener."""
MEMBERS_MAX: Final = LEARNERS_MAX
"""Live voters, and members of a round."""
ENDED_MAX: Final = 1024
"""Ended rounds that are remembered: four times ROUNDS_MAX, so that late votes of every voter's last rounds get their
exact refusal."""

STATE: Final = Kind(("cores", "ids"))


class _Ended(NamedTuple):
    """The remembered facts of an ended round."""

    attempt: int
    has_closed: bool
    chain: int | None


class QuorumCore:
    """The rounds of one Quorum node."""

    def __init__(self) -> None:
        self._now = Instant(0)
        self._live: dict[Replica, int] = {}
        self._rounds: dict[int, OpenRound] = {}
        self._held = EarlyVotes()
        self._late = LateVotes()
        self._ended: dict[int, _Ended] = {}
        self._newest: int | None = None  # The highest key that was ever opened.
        self._forgotten: int | None = None  # The highest key that was dropped from _ended.
        self._timers = 0
        names = ("rounds opened", "rounds renewed", "rounds closed", "rounds withdrawn", "openings refused")
        more = ("votes counted", "votes held", "votes kept", "timers stale", "handles taken", "handles released")
        self._counts = dict.fromkeys((*names, *more, *(f"votes refused: {reason}" for reason in REFUSALS)), 0)

    def handle(self, event: QuorumEvent, now: Instant) -> list[QuorumCommand]:
        """Commands that follow from `event` at time `now`, in order of execution.

        Raises LocalProtocolError, with the state as it was, for time that runs backwards, a round that is not new, too
        many rounds or members, values out of range, a member that joins twice or leaves without being live, and a timer
        that was never set. A vote never raises: it comes from a peer.
        """
        if now < self._now:
            raise _illegal("handling an event", f"an instant from {self._now} ns on", f"{now} ns", "Fix the clock.")
        match event:
            case VoteArrived():
                commands = self._vote(event, now)
            case RoundOpened():
                commands = self._open(event, now)
            case MemberJoined():
                commands = self._join(event.member, now)
            case MemberLeft():
                commands = self._leave(event.member, now)
            case QuorumTimerFired():
                commands = self._fire(event, now)
            case _:
                assert_never(event)
        self._now = now  # After the event: one that raises leaves the state as it was.
        self._counts["handles taken"] += isinstance(event, RoundOpened | VoteArrived)
        self._counts["handles released"] += sum(map(released_count, commands))
        return commands

    def statistics(self) -> dict[str, int]:
        """Counts since the start, and the present number of open rounds, held votes and live voters."""
        waiting = len(self._held) + len(self._late)
        return self._counts | {
            "rounds open": len(self._rounds),
            "votes waiting": waiting,
            "voters live": len(self._live),
        }

    # -- events --------------------------------------------------------------------------------------------------------

    def _open(self, event: RoundOpened, now: Instant) -> list[QuorumCommand]:
        key = event.key
        if self._is_over(event):
            self._counts["openings refused"] += 1
            reason = f"round {key} had closed, or was forgotten, before its attempt {event.attempt} arrived"
            return [RefuseOpening(key, event.handle, reason)]
        commands: list[QuorumCommand] = []
        members = {member.replica: member.incarnation for member in sorted(event.members)}
        open_round = self._rounds.get(key)
        if open_round is not None:
            self._counts["rounds renewed"] += 1
            commands.append(ReplaceOpening(key, open_round.opened.handle, event.handle))  # Names the former handle.
            open_round.opened, open_round.members = event, members
        else:
            self._counts["rounds opened"] += 1
            self._ended.pop(key, None)  # It was withdrawn, and comes back.
            self._rounds[key] = open_round = OpenRound(event, members, now)
            if self._newest is None or key > self._newest:
                self._newest = key
                commands = self._refuse_overtaken()  # The round is open by now: its own held votes stay.
        for voter in self._held.voters(key):
            if members.get(voter) == self._live[voter]:
                open_round.votes[voter] = self._held.pop(key, voter)
                self._counts["votes counted"] += 1
        open_round.count(self._live)  # After the held votes, whose voters are not missing.
        return commands + self._settle(key, now)

    def _vote(self, event: VoteArrived, now: Instant) -> list[QuorumCommand]:
        refusal = self._refusal(event)
        if refusal == "late" and self._live.get(event.voter) == event.incarnation:  # Its chain may still count it.
            return self._keep(event)
        if refusal is not None:
            return [self._refuse(event.key, event.voter, event.handle, refusal)]
        open_round = self._rounds.get(event.key)
        if open_round is None or open_round.members.get(event.voter) != event.incarnation:
            self._counts["votes held"] += 1
            self._held.hold(event.key, event.voter, event.handle)
            return []
        self._counts["votes counted"] += 1
        open_round.vote(event.voter, event.handle)
        return self._settle(event.key, now)

    def _join(self, member: Member, now: Instant) -> list[QuorumCommand]:
        incarnation = self._live.get(member.replica)
        if incarnation is not None:
            raise _illegal(
                f"{member} joining", "a replica that is not live", f"incarnation {incarnation}", "Let it leave."
            )
        if len(self._live) >= MEMBERS_MAX:
            raise _illegal(f"{member} joining", f"at most {MEMBERS_MAX} voters", "one more", "Lower slots_max.")
        # After the checks, which leave the state as it was; before its rounds settle, which count the live.
        self._live[member.replica] = member.incarnation
        return self._settle_rounds_of(member, now)

    def _leave(self, member: Member, now: Instant) -> list[QuorumCommand]:
        replica = member.replica
        incarnation = self._live.get(replica)
        if incarnation != member.incarnation:
            raise _illegal(f"{member} leaving", "a live member", f"incarnation {incarnation}", "Report each end once.")
        del self._live[replica]  # Before its rounds settle: they must not wait for it.
        votes = [*self._held.pop_all(replica), *self._late.pop_all(replica)]
        return [self._refuse(*vote, "not live") for vote in votes] + self._settle_rounds_of(member, now)

    def _fire(self, event: QuorumTimerFired, now: Instant) -> list[QuorumCommand]:
        if not 0 < event.timer <= self._timers:
            raise _illegal(f"timer {event.timer} firing", f"one of 1 to {self._timers}", "another", "Fix the host.")
        open_round = self._rounds.get(event.key)
        if open_round is None or open_round.timer != event.timer:
            self._counts["timers stale"] += 1
            return []
        open_round.timer, open_round.timer_at = 0, None  # It has fired: settling must not cancel it.
        return self._settle(event.key, now)

    # -- validity of openings and votes --------------------------------------------------------------------------------

    def _is_over(self, event: RoundOpened) -> bool:
        """Whether the round of an opening has closed; raises LocalProtocolError if the opening is illegal."""
        key, doing = event.key, f"opening round {event.key}, attempt {event.attempt}"
        _check_limits(doing, event.count_min, event.grace, event.deadline)
        slots = {member.replica for member in event.members}
        if len(slots) != len(event.members) or len(slots) > MEMBERS_MAX:
            listed = f"{len(event.members)} members, {len(slots)} replicas"
            raise _illegal(doing, f"each replica once, at most {MEMBERS_MAX}", listed, "Fix the opener.")
        if event.chain is not None and not 0 <= event.chain < CHAINS_MAX:
            raise _illegal(doing, f"a chain from 0 to {CHAINS_MAX - 1}", str(event.chain), "Number chains from 0.")
        if key in self._rounds or key in self._ended:
            ended = self._ended.get(key)
            attempt = self._rounds[key].opened.attempt if ended is None else ended.attempt
            if event.attempt <= attempt:
                raise _illegal(doing, f"an attempt above {attempt}", str(event.attempt), "Count attempts up.")
            if ended is not None and ended.has_closed:
                return True
        elif self._forgotten is not None and key <= self._forgotten:
            return True
        elif self._newest is not None and key <= self._newest:
            raise _illegal(doing, f"a key above {self._newest}", str(key), "Open rounds with growing keys.")
        if key not in self._rounds and len(self._rounds) >= ROUNDS_MAX:
            raise _illegal(doing, f"at most {ROUNDS_MAX} open rounds", "one more", "Let rounds close first.")
        return False

    def _refusal(self, event: VoteArrived) -> Refusal | None:
        """Why a vote does not count, or None if it counts or may be early."""
        open_round = self._rounds.get(event.key)
        if open_round is None and (reason := self._closure(event.key)) is not None:
            return reason
        if self._live.get(event.voter) != event.incarnation:
            return "not live"
        has_voted = open_round is not None and event.voter in open_round.votes
        return "duplicate" if has_voted or event.voter in self._held.voters(event.key) else None

    def _closure(self, key: int) -> Refusal | None:
        """Why votes for a key that is not open are refused; None if it may open yet and there is room to hold them."""
        if key in self._ended:  # First: a withdrawn round that is remembered may come back, also below a forgotten key.
            return "late" if self._ended[key].has_closed or not self._held.has_room(key, self._rounds) else None
        if self._forgotten is not None and key <= self._forgotten:
            return "late"
        is_near = self._newest is None or self._newest < key <= self._newest + EARLY_MAX
        return None if is_near and self._held.has_room(key, self._rounds) else "unknown round"

    def _keep(self, event: VoteArrived) -> list[QuorumCommand]:
        """Keep a late vote of a live voter for the next round of its chain; refuse it if its round has no chain."""
        ended = self._ended.get(event.key)
        chain = None if ended is None or not ended.has_closed else ended.chain
        if chain is None:
            return [self._refuse(event.key, event.voter, event.handle, "late")]
        self._counts["votes kept"] += 1
        gone = self._late.keep(chain, LateVote(event.key, event.voter, event.handle))
        return [] if gone is None else [self._refuse(*gone, "late")]

    def _refuse(self, key: int, voter: Replica, handle: Handle, reason: Refusal) -> RefuseVote:
        self._counts[f"votes refused: {reason}"] += 1
        return RefuseVote(handle, voter, reason, key)

    def _refuse_held(self, key: int, reason: Refusal) -> list[QuorumCommand]:
        return [self._refuse(key, voter, handle, reason) for voter, handle in self._held.pop_round(key)]

    def _refuse_overtaken(self) -> list[QuorumCommand]:
        """Refuse the held votes that a new newest key has overtaken or, if it is the first, left out of reach."""
        commands: list[QuorumCommand] = []
        for key in self._held.rounds():
            if key not in self._rounds:
                reason = "late" if key in self._ended else self._closure(key)
                commands += self._refuse_held(key, reason) if reason is not None else []
        return commands

    # -- the end of a round --------------------------------------------------------------------------------------------

    def _settle_rounds_of(self, member: Member, now: Instant) -> list[QuorumCommand]:
        """Re-evaluate every round of a member that joined or left."""
        commands: list[QuorumCommand] = []
        for key in sorted(self._rounds):
            if self._rounds[key].members.get(member.replica) == member.incarnation:
                self._rounds[key].count(self._live)  # Before it settles by these counts.
                commands += self._settle(key, now)
        return commands

    def _settle(self, key: int, now: Instant) -> list[QuorumCommand]:
        """Close or withdraw a round if its rules say so; else update its timer."""
        open_round = self._rounds[key]
        if not open_round.live_count and not open_round.votes:
            # There is nothing to cancel: a timer needs a quorum, that needs a vote, and a vote that counted stays.
            assert not open_round.timer
            self._counts["rounds withdrawn"] += 1
            listed = f"{len(open_round.members)} listed in attempt {open_round.opened.attempt}"
            reason = f"no member is live and nobody has voted ({listed})"
            withdraw = WithdrawRound(key, open_round.opened.handle, reason)
            return [withdraw, *self._end(key, has_closed=False)]
        # Before `end`, which counts the grace from here. A quorum may be lost again: members join.
        if not open_round.has_quorum():
            open_round.quorum_at = None
        elif open_round.quorum_at is None:
            open_round.quorum_at = now
        end = open_round.end()
        if open_round.quorum_at is None or end is None or now < end:
            return self._move_timer(open_round, end)
        self._counts["rounds closed"] += 1
        reason = open_round.reason()
        # Only now that the round closes: late votes move neither its quorum nor its end.
        refused, late = self._late_votes(open_round)
        votes = tuple(sorted({**open_round.votes, **late}.items()))
        voters = tuple(replica for replica, _ in votes)
        left_out = tuple(replica for replica in open_round.missing if replica not in late)
        reason += f"; late for the round before, and counted here: {len(late)}" if late else ""
        decision = Decision(key, reason, open_round.opened_at, open_round.quorum_at, now, voters, left_out)
        close = CloseRound(key, open_round.opened.handle, votes, decision)
        # The timer before the end, which forgets the round; the close before votes that it leaves are refused.
        return [*self._move_timer(open_round, None), close, *refused, *self._end(key, has_closed=True)]

    def _late_votes(self, open_round: OpenRound) -> tuple[list[QuorumCommand], dict[Replica, Handle]]:
        """Late votes of a closing round's chain: refusals where the voter has voted in it, and the votes that count."""
        chain = open_round.opened.chain
        refused: list[QuorumCommand] = []
        late: dict[Replica, Handle] = {}
        for voter in self._late.voters(chain):
            assert chain is not None
            if voter in open_round.votes:  # First: no voter counts twice in a round.
                refused.append(self._refuse(*self._late.pop(chain, voter), "late"))
            elif open_round.members.get(voter) == self._live[voter]:
                late[voter] = self._late.pop(chain, voter).handle
                self._counts["votes counted"] += 1
        return refused, late

    def _move_timer(self, open_round: OpenRound, at: Instant | None) -> list[QuorumCommand]:
        """Move the timer of a round to `at`; None cancels it."""
        if open_round.timer_at == at:
            return []
        key = open_round.opened.key
        commands: list[QuorumCommand] = [CancelQuorumTimer(key, open_round.timer)] if open_round.timer else []
        # After the command, which names the former timer.
        open_round.timer, open_round.timer_at = 0, at
        if at is not None:
            self._timers += 1
            open_round.timer = self._timers
            commands.append(SetQuorumTimer(key, open_round.timer, at))
        return commands

    def _end(self, key: int, *, has_closed: bool) -> list[QuorumCommand]:
        """End an open round; remember its attempt, and forget the oldest ended round beyond ENDED_MAX."""
        opened = self._rounds.pop(key).opened
        self._ended[key] = _Ended(opened.attempt, has_closed, opened.chain)
        commands: list[QuorumCommand] = []
        if has_closed:
            commands = self._refuse_held(key, "not a member")
        elif not self._held.has_room(key, self._rounds):
            commands = self._refuse_held(key, "late")
        if len(self._ended) > ENDED_MAX:  # After this round: so many are remembered, whatever ends.
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._forgotten = oldest if self._forgotten is None else max(oldest, self._forgotten)
            commands += self._refuse_held(oldest, "late")
        return commands

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantError unless every bound holds, every handle is accounted for, and no round is overdue."""
        inside = (
            len(self._held) + len(self._late) + sum(1 + len(open_round.votes) for open_round in self._rounds.values())
        )
        counted = self._counts["handles taken"] - self._counts["handles released"]
        _demand(counted == inside, (), "{} handles are held by the count, {} by the state", counted, inside)
        _demand(len(self._rounds) <= ROUNDS_MAX, (), "{} rounds are open, {} may be", len(self._rounds), ROUNDS_MAX)
        _demand(len(self._ended) <= ENDED_MAX, (), "{} rounds are remembered, {} may be", len(self._ended), ENDED_MAX)
        _demand(len(self._live) <= MEMBERS_MAX, (), "{} voters are live, {} may be", len(self._live), MEMBERS_MAX)
        early = [key for key in self._held.rounds() if key not in self._rounds]
        _demand(len(early) <= EARLY_MAX, (), "{} keys hold early votes, {} may", len(early), EARLY_MAX)
        for key in self._held.rounds():
            about = (CoreSubject("key", key),)
            ended, voters = self._ended.get(key), self._held.voters(key)
            _demand(ended is None or not ended.has_closed, about, "votes are held for round {}, which closed", key)
            _demand(bool(voters) and set(voters) <= self._live.keys(), about, "round {} holds votes of {}", key, voters)
        gone = self._late.everybody() - self._live.keys()
        _demand(
            not gone,
            [CoreSubject("replica", voter) for voter in sorted(gone)],
            "late votes are kept of {}, who are not live",
            sorted(gone),
        )
        for key, open_round in self._rounds.items():
            about, end = (CoreSubject("key", key),), open_round.end()
            is_counted = open_round.census(self._live) == (open_round.live_count, open_round.missing)
            _demand(
                is_counted,
                about,
                "round {} counts {} live members, and misses {}",
                key,
                open_round.live_count,
                list(open_round.missing),
            )
            _demand(key not in self._ended, about, "round {} is open and ended", key)
            _demand(self._newest is not None and key <= self._newest, about, "round {} is above the newest", key)
            _demand(bool(open_round.missing), about, "round {} is open, and awaits no vote", key)
            _demand(
                (open_round.quorum_at is not None) == open_round.has_quorum(),
                about,
                "round {} has a wrong quorum_at",
                key,
            )
            _demand(
                open_round.timer_at == end,
                about,
                "round {} waits until {}, its timer is at {}",
                key,
                end,
                open_round.timer_at,
            )
            _demand(
                (open_round.timer > 0) == (end is not None),
                about,
                "round {} has timer {} for {}",
                key,
                open_round.timer,
                end,
            )
            twice = [voter for voter in self._held.voters(key) if voter in open_round.votes]
            _demand(not twice, about, "round {} both counts and holds votes of {}", key, twice)


def _check_limits(action: str, count_min: int, grace: Duration | None, deadline: Duration | None) -> None:
    for name, value, least in (("count_min", count_min, 1), ("grace", grace, 0), ("deadline", deadline, 0)):
        if value is not None and value < least:
            raise _illegal(action, f"{name} of at least {least}", str(value), "Fix the opening item or the graph.")


def _illegal(action: str, expected: str, found: str, remedy: str) -> LocalProtocolError:
    return LocalProtocolError(f"{action}: expected {expected}, found {found}. {remedy}")


_demand: Final = partial(demand, "quorum")
