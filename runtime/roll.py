"""Who of a run's hosts is alive, suspect or gone: the membership core on a real clock, with what is said of each host.

It keeps the core's timer and tells its owner what the core decides; what a removal means is the owner's business.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.membership import (
    AdmitMember,
    ClearSuspicion,
    MembershipCore,
    MembershipEvent,
    MembershipOptions,
    MembershipTimerFired,
    RefuseMember,
    RemoveMember,
    SetMembershipTimer,
    SuspectMember,
)


class Owner(Protocol):
    """Who wants to know."""

    def members_changed(self) -> None:
        """Somebody was admitted or removed."""

    def member_suspected(self, member: Member) -> None:
        """A member has been silent for suspiciously long."""

    def member_removed(self, member: Member, reason: str) -> None:
        """A member is gone, for what everybody else is to believe."""

    def tell(self, member: Member, what: str) -> None:
        """Something happened to a host that is worth writing down."""


class Roll:
    """The roll of one run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, options: MembershipOptions, owner: Owner) -> None:
        self._loop, self._owner = loop, owner
        self._core = MembershipCore(options)
        self._zero = time.monotonic_ns()
        self._timer: asyncio.TimerHandle | None = None
        self._states: dict[Replica, str] = {}
        self._reasons: dict[Replica, str] = {}

    def state(self, replica: Replica) -> str:
        """'starting', 'alive', 'suspect' or 'gone'."""
        return self._states.get(replica, "starting")

    def reason(self, replica: Replica) -> str:
        """Why it is in this state; may be empty."""
        return self._reasons.get(replica, "")

    def explain(self, replica: Replica, reason: str) -> None:
        """Say why a host is in its state."""
        self._reasons[replica] = reason

    def members(self) -> list[Member]:
        """Everybody who has not been removed, suspects among them, sorted."""
        return [member for member, _, _ in self._core.roster()]

    def suspects(self) -> list[Member]:
        """The members who are suspect."""
        return [member for member, _, state in self._core.roster() if state == "suspect"]

    def remember(self, event: MembershipEvent) -> None:
        """Feed the core, and do what it says."""
        has_changed = False
        for command in self._core.handle(event, self._now()):
            match command:
                case AdmitMember():
                    self._states[command.member.replica] = "alive"
                    has_changed = True
                case RemoveMember():
                    self._states[command.member.replica] = "gone"
                    self._reasons[command.member.replica] = command.reason
                    self._owner.member_removed(command.member, command.reason)
                    has_changed = True
                case SuspectMember():
                    self._note(command.member, "suspect", command.reason)
                    self._owner.member_suspected(command.member)
                case ClearSuspicion():
                    self._note(command.member, "alive", command.reason)
                case SetMembershipTimer():
                    self._set_timer(command.at)
                case RefuseMember():
                    self._owner.tell(command.member, f"refused: {command.reason}")
        if has_changed:
            self._owner.members_changed()

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _note(self, member: Member, state: str, reason: str) -> None:
        self._states[member.replica], self._reasons[member.replica] = state, reason
        self._owner.tell(member, reason)

    def _set_timer(self, at: Instant) -> None:
        self.close()
        delay = max(0.0, (at - self._now()) / 1e9)
        self._timer = self._loop.call_later(delay, lambda: self.remember(MembershipTimerFired()))

    def _now(self) -> Instant:
        return Instant(Duration(time.monotonic_ns() - self._zero))
