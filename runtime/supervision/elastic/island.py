"""The core of one elastic island: which of its processes train together, as a *form*, which has a number.

Theory of operation. Each process has lives of its own. The first form of an island waits for all of its processes. When
one of a form is gone, or the leader says that nothing comes of the form, another form is told at once, of those that
are there; when one comes back, there is a form with it, once no other is about to come. A form always has the leader:
while that is gone, the others wait for its next life, and hold what they have of the state. Where too few are left,
the island ends, and begins again whole.

A process that is silent is as good as gone, and back when it speaks: to go on without it costs seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.errors import InvariantError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.elastic.choice import largest
from isthmus.runtime.supervision.messages import Form, Formed

MEET: Duration = seconds(60)
"""How long the first form waits for all: as long as a process has for its first word to its daemon."""
KNOWN: Duration = seconds(1)
"""How long the end of a process may take to be known, once the leader finds that nothing comes of its form."""
GATHER: Duration = seconds(3)
"""How long one that is back waits for others that are about to come: each form costs seconds."""


class Changed(msgspec.Struct, frozen=True):
    """A new form: who was in the one before and is not in this one, who is and was not, and who had not come in
    time."""

    form: Form
    lost: tuple[Member, ...] = ()
    back: tuple[Member, ...] = ()
    missing: tuple[Replica, ...] = ()


class TooFew(msgspec.Struct, frozen=True):
    """The island cannot go on: `found` of its processes are there, and it needs `least`."""

    found: int
    least: int


class ElasticIsland:
    """Of one learner. `sizes` are how many processes may train together, `gang` all that there are, the leader first;
    `form` is the one that was told last."""

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
        """What follows from who is there: `present` speak and are wanted, `coming` are about to. `formed` is what the
        leader says of its form; numbers are above `floor`."""
        live = {member.replica: member for member in present}
        if self.leader not in live:
            self._since = None
            return None
        known = self.form
        if not self._is_first and known is not None:
            if any(live.get(member.replica) != member for member in known.members):
                return self._chosen(live, known, floor)
            if formed.broken >= known.number:
                return self._chosen(live, known, floor) if self._is_past(KNOWN, now) else None
            return self._grown(known, live, coming, floor, now)
        if coming and not self._is_past(MEET, now):
            return None
        found = self._chosen(live, None, floor)
        if isinstance(found, Changed):
            missing = tuple(each for each in self.gang if each not in live)
            return msgspec.structs.replace(found, missing=missing)
        return found

    def has_formed(self, formed: Formed) -> bool:
        """Whether the leader says for the first time that a form trains."""
        is_news = formed.number > self._told
        self._told = max(self._told, formed.number)
        return is_news

    def check(self) -> None:
        """Raise InvariantError unless the form has the leader first, each process once, and as many as may train."""
        if self.form is not None:
            there = [member.replica for member in self.form.members]
            is_sound = there == [each for each in self.gang if each in there] and there[0] == self.leader
            if not is_sound or len(there) not in self.sizes:
                raise InvariantError(f"supervision: of {self.leader} there is form {self.form}, of {self.sizes}")

    def _grown(
        self, known: Form, live: dict[Replica, Member], coming: Sequence[Replica], floor: int, now: Instant
    ) -> Changed | TooFew | None:
        """A form with those that are back, where more can train together than do."""
        if largest(self.sizes, len(live)) <= len(known.members):
            self._since = None
            return None
        if coming and not self._is_past(GATHER, now):
            return None
        return self._chosen(live, known, floor)

    def _chosen(self, live: dict[Replica, Member], known: Form | None, floor: int) -> Changed | TooFew:
        self._since = None
        count = largest(self.sizes, len(live))
        if not count:
            self._is_first = True
            return TooFew(len(live), self.sizes[0])
        members = tuple(live[each] for each in self.gang if each in live)[:count]
        before = () if known is None else known.members
        last = 0 if self.form is None else self.form.number
        self.form = Form(self.leader, 1 + max(floor, last), members)
        self._is_first = False
        lost = tuple(member for member in before if member not in members)
        back = tuple(member for member in members if known is not None and member not in before)
        return Changed(self.form, lost, back)

    def _is_past(self, limit: Duration, now: Instant) -> bool:
        """Whether somebody was waited for as long as that."""
        if self._since is None:
            self._since = now
        return now - self._since >= limit
