"""One machine of a run, as the home knows it: the lives that are tracked there, and its beats of silence.

It decides nothing about lives. A life is *tracked* from when it is wanted until its end is known; one that is to be
killed is tracked, and *condemned*. A machine that is silent for LOST_BEATS beats is *lost*: its lives count as ended,
even if they still run there, and are no longer wanted if it comes back. Beats are those of the home's own daemon, so
that a suspended daemon blames no machine for its own pause.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.messages import Wanted

LOST_BEATS: Final = 40
"""Twenty seconds. Until then its silence excuses that of its hosts."""
SILENT_BEATS: Final = 2
"""Beats without a report after which a machine is silent."""


@dataclass(slots=True)
class Machine:
    """Lives by replica: those `tracked`, of those the `condemned`, and the `fresh` ones, numbered by this daemon.

    `is_away`: the machine no longer takes part.
    """

    name: str
    tracked: dict[Replica, int] = field(default_factory=dict)
    condemned: set[Replica] = field(default_factory=set)
    fresh: set[Replica] = field(default_factory=set)
    silent_beats: int = 0
    is_lost: bool = False
    is_away: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether the machine has been silent for long enough to excuse the silence of its hosts."""
        return self.silent_beats >= SILENT_BEATS

    @property
    def is_reached(self) -> bool:
        """Whether lives may be begun here."""
        return not self.is_lost and not self.is_away

    def has(self, member: Member) -> bool:
        """Whether a life is tracked here."""
        return self.tracked.get(member.replica) == member.incarnation

    def track(self, member: Member, *, is_new: bool = False) -> None:
        """Track a life as wanted from now on."""
        self.tracked[member.replica] = member.incarnation
        if is_new:
            self.fresh.add(member.replica)

    def forget(self, member: Member) -> None:
        """Stop tracking a life, whose end is known."""
        del self.tracked[member.replica]
        self.condemned.discard(member.replica)
        self.fresh.discard(member.replica)

    def members(self) -> list[Member]:
        """All tracked members, sorted."""
        return [Member(replica, incarnation) for replica, incarnation in sorted(self.tracked.items())]

    def wanted(self) -> tuple[Wanted, ...]:
        """The lives that its orders list."""
        return tuple(
            Wanted(member, member.replica in self.condemned, member.replica in self.fresh) for member in self.members()
        )

    def heard(self) -> None:
        self.silent_beats, self.is_lost = 0, False

    def beat(self) -> bool:
        """Count a beat; returns whether the machine is lost from now on."""
        self.silent_beats += 1
        if self.silent_beats == LOST_BEATS:
            self.is_lost = True
            return True
        return False
