"""Who of a run's hosts is alive, slow, suspect, stuck or gone: the membership core on a real clock, and its reasons.

It keeps the core's timer, asks its owner what excuses a silence before the core judges it, and tells its owner what the
core decides; what a removal means is the owner's business.
"""

from __future__ import annotations

import asyncio
import time
from typing import Final, Protocol, assert_never

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.membership import MembershipCore
from isthmus.runtime.patience import MembershipOptions
from isthmus.runtime.presence import (
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

HURRY_SECONDS: Final = 5.0
"""Once a run comes to its end, nobody waits longer than this for a learner that is silent."""


class Owner(Protocol):
    """Who wants to know."""

    def members_changed(self) -> None:
        """Somebody was admitted or removed."""

    def member_removed(self, member: Member, reason: str) -> None:
        """A member is gone, for what everybody else is to believe."""

    def excuse(self, member: Member) -> tuple[Excuse, str] | None:
        """Why the silence of a member is not its own doing, if that is so, and in words that follow 'it is'."""

    def tell(self, member: Member, what: str) -> None:
        """Something happened to a host that is worth writing down."""


class Roll:
    """The roll of one run."""

    def __init__(self, loop: asyncio.AbstractEventLoop, options: MembershipOptions, owner: Owner) -> None:
        self._loop, self._owner = loop, owner
        self._core = MembershipCore(options)
        self._zero = time.monotonic_ns()
        self._timer: asyncio.TimerHandle | None = None
        self._gone: dict[Replica, str] = {}
        self._reasons: dict[Replica, str] = {}
        self._verdicts: dict[Member, str] = {}
        self._hurried: dict[Member, float] = {}

    def state(self, replica: Replica) -> str:
        """'starting', 'alive', 'slow', 'suspect', 'stopped', 'unheard', 'stuck' or 'gone'."""
        return self._core.state(replica) or self._gone.get(replica, "starting")

    def reason(self, replica: Replica) -> str:
        """Why it is in this state; may be empty."""
        return self._reasons.get(replica, "")

    def explain(self, member: Member, reason: str) -> None:
        """Say why a host is in its state; why it was removed, if it was, comes first."""
        verdict = self._verdicts.pop(member, "")
        self._reasons[member.replica] = f"{verdict}; {reason}" if verdict else reason

    def members(self) -> list[Member]:
        """Everybody who has not been removed, suspects among them, sorted."""
        return [member for member, _, _ in self._core.roster()]

    def remember(self, event: MembershipEvent) -> None:
        """Feed the core, and do what it says."""
        self._feed(event, self._now())

    def review(self, hurried: str) -> None:
        """See whether what excused a silence still does; to be called again and again. For members of the role
        `hurried` (none if empty), which the last rounds of a run would wait for, nobody waits for long."""
        now = self._loop.time()
        silent = [(member, state) for member, _, state in self._core.roster() if state in SILENT]
        self._hurried = {
            member: self._hurried.get(member, now) for member, _ in silent if member.replica.role == hurried
        }
        for member, state in silent:
            if now - self._hurried.get(member, now) >= HURRY_SECONDS:
                self._owner.member_removed(member, "silent while the run comes to its end")
            elif state != "suspect":
                self._ask(member, state, self._now())

    def close(self) -> None:
        """Let go of the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _feed(self, event: MembershipEvent, now: Instant) -> None:
        has_changed = False
        for command in self._core.handle(event, now):
            match command:
                case AdmitMember():
                    self._gone.pop(command.member.replica, None)
                    self._reasons.pop(command.member.replica, None)
                    has_changed = True
                case RemoveMember():
                    self._remove(command)
                    has_changed = True
                case SuspectMember() | ExcuseMember() | ClearSuspicion() | NoteSlow() | ClearSlow():
                    self._reasons[command.member.replica] = command.reason
                    self._owner.tell(command.member, command.reason)
                case SetMembershipTimer():
                    self._set_timer(command.at)
                case RefuseMember():
                    self._owner.tell(command.member, f"refused: {command.reason}")
                case _:
                    assert_never(command)
        if has_changed:
            self._owner.members_changed()

    def _remove(self, command: RemoveMember) -> None:
        replica = command.member.replica
        self._gone[replica] = "stuck" if command.cause == "stuck" else "gone"
        self._reasons[replica] = command.reason
        if command.cause != "ended":
            self._verdicts = {member: why for member, why in self._verdicts.items() if member.replica != replica}
            self._verdicts[command.member] = command.reason
        self._owner.member_removed(command.member, command.reason)

    def _ask(self, member: Member, state: str, now: Instant) -> None:
        """Ask what excuses the silence of a member that is in `state`."""
        excuse = self._owner.excuse(member)
        if excuse is not None:
            self._feed(SilenceExcused(member, *excuse), now)
        elif state in ("stopped", "unheard"):
            self._feed(ExcuseEnded(member), now)

    def _fired(self) -> None:
        now = self._now()  # The same for both: nobody may become late between the question and the judgement.
        for member in self._core.late(now):
            self._ask(member, "alive", now)
        self._feed(MembershipTimerFired(), now)

    def _set_timer(self, at: Instant) -> None:
        self.close()
        delay = max(0.0, (at - self._now()) / 1e9)
        self._timer = self._loop.call_later(delay, self._fired)

    def _now(self) -> Instant:
        return Instant(Duration(time.monotonic_ns() - self._zero))
