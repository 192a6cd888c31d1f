"""The rounds of one Quorum node, between the scheduler and the quorum core.

Translates the scheduler's terms (ports, links, fields of items) into the quorum core's events, and its commands into
scheduler actions (refuse handles, set timers, fire). A round that is withdrawn because no voter is left fires too,
without votes, so that the body learns of it. Decides nothing by itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from isthmus.runtime.clock import Duration, Instant
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
from isthmus.runtime.cores.scheduler_events import CancelTimer, Command, Entry, Fields, SetTimer
from isthmus.runtime.cores.scheduler_ports import Link
from isthmus.runtime.errors import CoreSubject, InvariantError, LocalProtocolError
from isthmus.runtime.graph.plans import NodePlan
from isthmus.runtime.graph.template import Quorum
from isthmus.runtime.ids import Handle, Member, Replica


class Closed(NamedTuple):
    """A round to fire: inputs by port, the decision as a plain dict, and the links of its opening and votes."""

    inputs: tuple[tuple[int, tuple[Entry, ...]], ...]
    decision: dict[str, Any]
    links: tuple[Link, ...]


@dataclass(slots=True)
class Settled:
    """Tasks for the scheduler: drop `refused` (handle, link, reason), carry out `timers`, fire if a round closed."""

    refused: list[tuple[Handle, Link, str]] = field(default_factory=list)
    timers: list[Command] = field(default_factory=list)
    has_closed: bool = False


class Rounds:
    """Rounds of a Quorum node. `role` is that of the voters that an opening lists in `members` and `required`."""

    def __init__(self, plan: NodePlan, role: str) -> None:
        assert isinstance(plan.fires, Quorum)
        names = [port.name for port in plan.inputs]
        self._fires = plan.fires
        self._vote_port = names.index(plan.fires.port)
        self._opening_port = names.index(plan.fires.opened_by)
        self._role = role
        self._voters: dict[Replica, Member] = {}
        self._core = QuorumCore()
        self._closed: deque[Closed] = deque()
        self._links: dict[tuple[int, Handle], Link] = {}
        self._timer_base = (plan.index + 1) << 32
        self._timer_keys: dict[int, int] = {}

    @property
    def has_closed(self) -> bool:
        """Whether there is a round to fire."""
        return bool(self._closed)

    def owns(self, timer: int) -> bool:
        """Whether `timer` was set by these rounds."""
        return timer & ~0xFFFFFFFF == self._timer_base

    def pop_closed(self) -> Closed:
        """Remove and return the oldest round that is to be fired."""
        return self._closed.popleft()

    def clear(self) -> tuple[list[Handle], list[Command]]:
        """Everything still held, and the commands that cancel the timers, for a node that has finished."""
        handles = [handle for _, handle in self._links]
        handles += [handle for closed in self._closed for _, entries in closed.inputs for _, _, handle in entries]
        return handles, [CancelTimer(self._timer_base + number) for number in self._timer_keys]

    def arrived(self, port: int, link: Link, handle: Handle, fields: Fields, now: Instant) -> Settled:
        """Handle a vote or an opening. LocalProtocolError, with the state as it was, if Quorum does not allow it."""
        event: QuorumEvent
        if port == self._vote_port:
            source = link.member
            event = VoteArrived(_integer(fields, self._fires.key), source.replica, source.incarnation, handle)
        else:
            event = self._opening(handle, fields or {})
        commands = self._core.handle(event, now)
        self._links[port, handle] = link
        return self._settled(commands)

    def timer_fired(self, timer: int, now: Instant) -> Settled:
        """A timer came due."""
        number = timer - self._timer_base
        key = self._timer_keys.pop(number, None)
        return Settled() if key is None else self._settle(QuorumTimerFired(key, number), now)

    def joined(self, voter: Member, now: Instant) -> Settled:
        """A member can vote from now on."""
        self._voters[voter.replica] = voter
        return self._settle(MemberJoined(voter), now)

    def left(self, voter: Member, now: Instant) -> Settled:
        """A member can no longer vote."""
        del self._voters[voter.replica]
        return self._settle(MemberLeft(voter), now)

    def check(self) -> None:
        """Raise InvariantError unless the invariants of the core hold."""
        try:
            self._core.check()
        except InvariantError as error:  # Of its keys, or of the node where it is about none.
            fields = [each._replace(name=self._fires.key) if each.name == "key" else each for each in error.about]
            error.about = tuple(fields) or (CoreSubject("node", (self._timer_base >> 32) - 1),)
            raise

    def statistics(self) -> dict[str, int]:
        """Counts of the core."""
        return self._core.statistics()

    def _opening(self, handle: Handle, fields: dict[str, Any]) -> RoundOpened:
        key = _integer(fields, self._fires.key)
        listed = fields.get("members")
        if listed is None:
            members = tuple(self._voters.values())
        else:
            members = tuple(Member(Replica(self._role, slot), life) for slot, life in _pairs(listed))
        required = tuple(Replica(self._role, slot) for slot in _integers(fields.get("required") or []))
        grace = fields.get("grace", self._fires.grace)
        deadline = fields.get("deadline")
        return RoundOpened(
            key,
            _integer(fields, "attempt", 1),
            members,
            _integer(fields, "count_min", self._fires.count_min),
            None if grace is None else Duration(_integer({"grace": grace}, "grace")),
            required,
            None if deadline is None else Duration(_integer(fields, "deadline")),
            handle,
            None if fields.get("chain") is None else _integer(fields, "chain"),
        )

    def _settle(self, event: QuorumEvent, now: Instant) -> Settled:
        return self._settled(self._core.handle(event, now))

    def _settled(self, commands: list[QuorumCommand]) -> Settled:
        settled = Settled()
        for command in commands:
            self._carry_out(command, settled)
        return settled

    def _carry_out(self, command: QuorumCommand, settled: Settled) -> None:
        match command:
            case CloseRound():
                decision = {
                    "reason": command.decision.reason,
                    "opened_at": command.decision.opened_at,
                    "quorum_at": command.decision.quorum_at,
                    "closed_at": command.decision.closed_at,
                    "left_out": [replica.slot for replica in command.decision.left_out],
                }
                self._close(command.key, command.opening, command.votes, decision)
                settled.has_closed = True
            case WithdrawRound():
                self._close(command.key, command.opening, (), {"reason": command.reason, "left_out": []})
                settled.has_closed = True
            case RefuseVote():
                why = f"vote refused: {command.reason}"
                settled.refused.append(self._refused(self._vote_port, command.handle, why))
            case ReplaceOpening():
                settled.refused.append(self._refused(self._opening_port, command.dropped, "opening renewed"))
            case RefuseOpening():
                settled.refused.append(self._refused(self._opening_port, command.opening, "opening refused"))
            case SetQuorumTimer():
                self._timer_keys[command.timer] = command.key
                settled.timers.append(SetTimer(self._timer_base + command.timer, command.at))
            case CancelQuorumTimer():
                del self._timer_keys[command.timer]
                settled.timers.append(CancelTimer(self._timer_base + command.timer))

    def _refused(self, port: int, handle: Handle, reason: str) -> tuple[Handle, Link, str]:
        return handle, self._links.pop((port, handle)), reason

    def _close(
        self, key: int, opening: Handle, votes: tuple[tuple[Replica, Handle], ...], decision: dict[str, Any]
    ) -> None:
        opener = self._links.pop((self._opening_port, opening))
        voters = [self._links.pop((self._vote_port, handle)) for _, handle in votes]
        entries: tuple[Entry, ...] = tuple((replica, key, handle) for replica, handle in votes)
        inputs = ((self._opening_port, ((opener.member.replica, None, opening),)), (self._vote_port, entries))
        self._closed.append(Closed(inputs, decision, (opener, *voters)))


def _integer(fields: Fields, name: str, default: int | None = None) -> int:
    value = (fields or {}).get(name, default)
    if not isinstance(value, int):
        raise LocalProtocolError(
            f"a round: expected an integer in field {name!r}, found {value!r}. Fix the opening body."
        )
    return value


def _integers(values: Any) -> list[int]:
    if not isinstance(values, list | tuple) or not all(isinstance(value, int) for value in values):
        raise LocalProtocolError(f"a round: expected a list of slots, found {values!r}. Fix the opening body.")
    return list(values)


def _pairs(values: Any) -> list[tuple[int, int]]:
    if not isinstance(values, list | tuple) or not all(len(_integers(pair)) == 2 for pair in values):
        raise LocalProtocolError(
            f"a round: expected [slot, incarnation] pairs, found {values!r}. Fix the opening body."
        )
    return [(pair[0], pair[1]) for pair in values]
