"""Another machine of a run, as its home knows it: the lives that are wanted there, and what its outpost says of them.

It decides nothing about lives; it makes a machine that is reached over a link look like processes that are watched.

Theory of operation. Both ends tell everything that they know, again and again, and act on the difference: the home
which lives there are to be, the outpost which there are and how others ended. So a message that is lost costs half a
second, a link that was cut goes on where it was, and a new daemon at either end needs nothing but what it hears. A life
is *tracked* from when it is wanted until the outpost has told its end; one that is to be killed is tracked, and not
wanted. A machine that says nothing for LOST_BEATS beats is *lost*: its lives count as ended, whatever they do there,
and if it comes back they are not wanted any more. A beat that comes late counts once, so that a home which was stopped
itself blames nobody.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from isthmus.runtime.control import Message
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.lives import Life

LOST_BEATS: Final = 40
"""Twenty seconds of beats. Until then its silence excuses that of its hosts."""
REPORT: Final = "report"
ORDERS: Final = "orders"
"""The types of the two messages, from the outpost and to it."""


class Owner(Protocol):
    """Who is told what becomes of lives."""

    def life_began(self, life: Life) -> None:
        """There is a process."""

    def life_heard(self, life: Life) -> None:
        """It said that it lives."""

    def life_failed(self, life: Life) -> None:
        """A body of it raised."""

    def life_ended(self, life: Life, reason: str) -> None:
        """It is there no more."""


class Post:
    """One machine. `lives` is shared with everybody who supervises the run; `count` is given the lives that ended;
    `send` takes a message to the machine, or loses it."""

    def __init__(
        self,
        name: str,
        lives: dict[Replica, Life],
        owner: Owner,
        *,
        count: Callable[[Life], None],
        send: Callable[[Message], None],
    ) -> None:
        self.name = name
        self.is_lost = False
        self._lives, self._owner, self._count, self._send = lives, owner, count, send
        self._tracked: dict[Replica, int] = {}
        self._condemned: set[Replica] = set()
        self._silent_beats = 0

    @property
    def is_idle(self) -> bool:
        """Whether no life is tracked."""
        return not self._tracked

    @property
    def is_silent(self) -> bool:
        """Whether two beats have gone by without a word from its outpost."""
        return self._silent_beats > 1

    def is_starting(self, replica: Replica) -> bool:
        """Whether a life is wanted of which nothing was heard yet."""
        return replica in self._tracked and replica not in self._lives

    def start(self, member: Member) -> None:
        """Want a life; one of the replica that is tracked is there already, and stays."""
        self._tracked.setdefault(member.replica, member.incarnation)

    def kill(self, life: Life) -> None:
        """Want a life no more; its end is told once the outpost has told it."""
        if self._tracked.get(life.member.replica) == life.member.incarnation:
            self._condemned.add(life.member.replica)

    def condemn(self) -> None:
        """Want no life here any more."""
        self._condemned.update(self._tracked)

    def order(self, **everybody: Any) -> None:
        """Tell the outpost which lives there are to be, and what all of its hosts are to know."""
        members = [
            [str(replica), incarnation, replica not in self._condemned]
            for replica, incarnation in sorted(self._tracked.items())
        ]
        self._send({"type": ORDERS, "members": members, **everybody})

    def beat(self) -> None:
        """Note that time has passed."""
        self._silent_beats += 1
        if self._silent_beats == LOST_BEATS:
            self.give_up(f"ended with its machine {self.name}, which has not been heard of for {LOST_BEATS // 2} s")

    def give_up(self, reason: str) -> None:
        """Count every life as ended, whatever becomes of it there."""
        self.is_lost = True
        for replica, incarnation in list(self._tracked.items()):
            known = self._lives.get(replica)
            self._end(Member(replica, incarnation), {} if known is None else known.figures, reason)

    def hear(self, report: Mapping[str, Any]) -> None:
        """Take what the outpost says; KeyError, TypeError or ValueError for what no outpost of ours says."""
        self._silent_beats, self.is_lost = 0, False
        for row in report["lives"]:
            member = Member(Replica.parse(row["replica"]), int(row["incarnation"]))
            if self._tracked.get(member.replica) == member.incarnation:
                self._hear_life(member, row)
        for name, incarnation, reason, figures in report["ended"]:
            member = Member(Replica.parse(name), int(incarnation))
            if self._tracked.get(member.replica) == member.incarnation:
                self._end(member, dict(figures), str(reason))

    def _hear_life(self, member: Member, row: Mapping[str, Any]) -> None:
        life = self._lives.get(member.replica)
        if life is None or life.member != member:
            life = self._lives[member.replica] = Life(member, int(row["pid"]), None, is_child=False)
            self._owner.life_began(life)
        life.pid, life.is_stopped = int(row["pid"]), bool(row["is_stopped"])
        if row["error"] and not life.error:
            life.error = str(row["error"])
            self._owner.life_failed(life)
        if int(row["beats"]) != life.beats:
            life.take(row, time.monotonic())
            life.beats = int(row["beats"])
            self._owner.life_heard(life)

    def _end(self, member: Member, figures: dict[str, Any], reason: str) -> None:
        """A life is there no more."""
        del self._tracked[member.replica]
        self._condemned.discard(member.replica)
        life = self._lives.pop(member.replica, None)
        if life is None or life.member != member:
            life = Life(member, 0, None, is_child=False)
        life.figures |= figures
        self._count(life)
        self._owner.life_ended(life, reason)
