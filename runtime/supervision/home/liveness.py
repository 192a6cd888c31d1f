"""Liveness of a run's hosts: the membership core, and the cause of each state.

It decides which silence is excused (`excuse` returns the present cause), and which members are condemned. The core of
the home decides what that means for a life.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, assert_never

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.membership.core import MembershipCore
from isthmus.runtime.membership.messages import (
    SILENT,
    AdmitMember,
    ClearSlow,
    ClearSuspicion,
    Excuse,
    ExcuseEnded,
    ExcuseMember,
    MembershipEvent,
    MembershipTimerFired,
    NoteSlow,
    RefuseMember,
    RemoveMember,
    SetMembershipTimer,
    SilenceExcused,
    SuspectMember,
)
from isthmus.runtime.membership.options import MembershipOptions
from isthmus.runtime.roles import LEARNER, leader
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.messages import HEARTBEAT_SECONDS

PATIENCE: Final = seconds(20)
"""A silent host is replaced after this, whatever was learned."""
DEVIATION_MIN: Final = seconds(1)
"""A host with regular heartbeats is suspect after 3.3 s of silence, and replaced after 7.3 s: on a machine with six
times as many busy processes as cores a healthy one was silent for 1.9 s, and a body that holds the interpreter for some
seconds must not cost a life."""
HURRY: Final = seconds(5)
"""Once a run comes to its end, no silent learner is awaited for longer than this."""


@dataclass(slots=True)
class Findings:
    """Results of an event: incidents to record, members to kill and why, and whether the live members changed."""

    written: list[tuple[Member, incidents.Incident]] = field(default_factory=list)
    condemned: list[tuple[Member, incidents.Verdict | None]] = field(default_factory=list)
    has_changed: bool = False


class Roll:
    """The membership of one run. `timer_at` is when `fire` has to be called next."""

    def __init__(
        self,
        slots_max: Mapping[str, int],
        patience: Duration,
        excuse: Callable[[Member], Excuse | None],
        described: Callable[[Member], tuple[int, str]],
    ) -> None:
        """`described` returns the pid of a member, and its machine ('' where that is home)."""
        self.timer_at: Instant | None = None
        self._excuse, self._described = excuse, described
        self._core = MembershipCore(
            MembershipOptions(
                slots_max=slots_max,
                interval_first=seconds(HEARTBEAT_SECONDS),
                deviation_min=DEVIATION_MIN,
                silence_max=patience,
            )
        )
        self._hurried: dict[Member, Instant] = {}

    def state(self, replica: Replica) -> str | None:
        """The state of the member of a replica; None if it has none."""
        return self._core.state(replica)

    def members(self) -> list[Member]:
        """All members that have not been removed, suspects among them, sorted."""
        return [member for member, _, _ in self._core.roster()]

    def has(self, member: Member) -> bool:
        return member in self.members()

    def has_ended(self, member: Member) -> bool:
        """Whether this life is over for good, even if a report still lists it."""
        return self._core.has_ended(member)

    def is_heard(self, member: Member) -> bool:
        """Whether this life is a member whose heartbeats arrive."""
        return self.has(member) and self._core.state(member.replica) not in SILENT

    def take(self, event: MembershipEvent, now: Instant, found: Findings | None = None) -> Findings:
        found = Findings() if found is None else found
        for command in self._core.handle(event, now):
            match command:
                case AdmitMember():
                    found.has_changed = True
                case RemoveMember():
                    found.has_changed = True
                    found.condemned.append((command.member, command.finding))
                case SuspectMember():
                    found.written.append((command.member, incidents.Suspected(command.finding)))
                case ExcuseMember():
                    told = incidents.Excused(command.excuse, command.silence, *self._described(command.member))
                    found.written.append((command.member, told))
                case ClearSuspicion():
                    found.written.append((command.member, incidents.HeardAgain(command.silence)))
                case NoteSlow():
                    found.written.append((command.member, incidents.Slow(command.pace)))
                case ClearSlow():
                    found.written.append((command.member, incidents.KeepsUp(command.pace)))
                case RefuseMember():
                    found.written.append((command.member, incidents.Refused(command.refusal)))
                case SetMembershipTimer():
                    self.timer_at = command.at
                case _:
                    assert_never(command)
        return found

    def fire(self, now: Instant) -> Findings:
        """Judge all silences when the timer fires."""
        found = Findings()
        # The same instant for both: no member may become late between the question and the judgement.
        for member in self._core.late(now):
            self._ask(member, "alive", now, found)
        self.timer_at = None
        return self.take(MembershipTimerFired(), now, found)

    def review(self, now: Instant, *, is_hurried: bool) -> Findings:
        """Check whether the excuse of each silence still holds.

        `is_hurried`: the run comes to its end, and no silent learner is awaited for long, because the last rounds would
        wait for it.
        """
        found = Findings()
        silent = [(member, state) for member, _, state in self._core.roster() if state in SILENT]
        self._hurried = {
            member: self._hurried.get(member, now)
            for member, _ in silent
            if is_hurried and leader(member.replica).role == LEARNER
        }
        for member, state in silent:
            if now - self._hurried.get(member, now) >= HURRY:
                found.condemned.append((member, incidents.Hurried()))
            elif state != "suspect":
                self._ask(member, state, now, found)
        return found

    def check(self) -> None:
        """Raise InvariantError unless the invariants of the membership core hold."""
        self._core.check()

    def _ask(self, member: Member, state: str, now: Instant, found: Findings) -> None:
        """Start or end the excuse for the silence of a member that is in `state`."""
        excuse = self._excuse(member)
        if excuse is not None:
            self.take(SilenceExcused(member, excuse), now, found)
        elif state in ("stopped", "unheard"):
            self.take(ExcuseEnded(member), now, found)
