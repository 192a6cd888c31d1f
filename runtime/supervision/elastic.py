"""One elastic island: which of its processes train together, as a numbered *form*.

Theory of operation. Each process has lives of its own. The first form waits for all processes. When a process of a form
is gone, or the leader reports that the form has failed, a form of the present processes follows at once; when a process
comes back, a form with it follows, once no other is about to come. A form always includes the leader: while that is
gone, the others wait for its next life and keep their part of the state. Where too few are left, the island ends and
starts again as a whole.

A silent process counts as gone, and as back when it sends a heartbeat again: continuing without it costs only seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.errors import CoreSubject, InvariantError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.messages import Form, Formed


def largest(allowed: Sequence[int], present: int) -> int:
    """The largest allowed number up to `present`; 0 if there is none."""
    return max((count for count in allowed if count <= present), default=0)


MEET: Duration = seconds(60)
"""The time for which the first form waits for all: as long as a process has for its first heartbeat."""
KNOWN: Duration = seconds(1)
"""The time that the report of a process's end may take, once the leader finds that its form has failed."""
GATHER: Duration = seconds(3)
"""The time for which a process that is back waits for others that are about to come: each form costs seconds."""


class Changed(msgspec.Struct, frozen=True):
    """A new form: processes `lost` from the one before, processes `back`, and those `missing` at the first form."""

    form: Form
    lost: tuple[Member, ...] = ()
    back: tuple[Member, ...] = ()
    missing: tuple[Replica, ...] = ()


class TooFew(msgspec.Struct, frozen=True):
    """The island cannot continue: it has so many `processes`, and needs `least`."""

    processes: int
    least: int


class ElasticIsland:
    """The elastic island of one learner.

    `sizes` are the numbers of processes that may train together, `gang` lists all processes, the leader first; `form`
    is the newest one.
    """

    def __init__(self, gang: Sequence[Replica], sizes: Sequence[int], form: Form | None = None) -> None:
        self.gang, self.sizes = tuple(gang), tuple(sorted(sizes))
        self.form = form
        self._since: Instant | None = None
        self._is_first = form is None
        self._told = 0

    @property
    def leader(self) -> Replica:
        return self.gang[0]

    def look(
        self, present: Sequence[Member], coming: Sequence[Replica], formed: Formed, floor: int, now: Instant
    ) -> Changed | TooFew | None:
        """The new form, or the end of the island, that follows from its processes; None if nothing changes.

        `present` processes are heard and wanted, `coming` ones are about to start. `formed` is the leader's report of
        its form; new forms are numbered above `floor`.
        """
        live = {member.replica: member for member in present}
        if self.leader not in live:
            self._since = None
            return None
        former = self.form
        if not self._is_first and former is not None:
            if any(live.get(member.replica) != member for member in former.members):
                return self._chosen(live, former, floor)
            if formed.broken >= former.number:
                return self._chosen(live, former, floor) if self._is_past(KNOWN, now) else None
            return self._grown(former, live, coming, floor, now)
        if coming and not self._is_past(MEET, now):
            return None
        change = self._chosen(live, None, floor)
        if isinstance(change, Changed):
            missing = tuple(each for each in self.gang if each not in live)
            return msgspec.structs.replace(change, missing=missing)
        return change

    def has_formed(self, formed: Formed) -> bool:
        """Whether the leader reports for the first time that a form trains."""
        is_news = formed.number > self._told
        self._told = max(self._told, formed.number)
        return is_news

    def check(self) -> None:
        """Raise InvariantError unless the form has the leader first, each process once, and an allowed size."""
        if self.form is not None:
            there = [member.replica for member in self.form.members]
            is_sound = there == [each for each in self.gang if each in there] and there[0] == self.leader
            if not is_sound or len(there) not in self.sizes:
                about = [CoreSubject("replica", each) for each in self.gang]
                raise InvariantError(f"supervision: of {self.leader} there is form {self.form}, of {self.sizes}", about)

    def _grown(
        self, form: Form, live: dict[Replica, Member], coming: Sequence[Replica], floor: int, now: Instant
    ) -> Changed | TooFew | None:
        """A form with the processes that are back, if more can train together than do now."""
        if largest(self.sizes, len(live)) <= len(form.members):
            self._since = None
            return None
        if coming and not self._is_past(GATHER, now):
            return None
        return self._chosen(live, form, floor)

    def _chosen(self, live: dict[Replica, Member], former: Form | None, floor: int) -> Changed | TooFew:
        self._since = None
        count = largest(self.sizes, len(live))
        if not count:
            self._is_first = True
            return TooFew(len(live), self.sizes[0])
        members = tuple(live[each] for each in self.gang if each in live)[:count]
        before = () if former is None else former.members
        last = 0 if self.form is None else self.form.number
        self.form = Form(self.leader, 1 + max(floor, last), members)
        self._is_first = False
        lost = tuple(member for member in before if member not in members)
        back = tuple(member for member in members if former is not None and member not in before)
        return Changed(self.form, lost, back)

    def _is_past(self, limit: Duration, now: Instant) -> bool:
        """Whether the current wait has lasted for `limit`; starts one if there is none."""
        if self._since is None:
            self._since = now
        return now - self._since >= limit
