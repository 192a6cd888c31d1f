"""Whether the replicas that a run cannot do without serve it, and for how long they do not.

Lives that end in a row are counted elsewhere (`restarts`), and so is one that is cut off (`reach`): each is followed by
another. But a machine may have no room for the next process, its disk may take no number, or its interface may have
lost its address for good, while its daemon goes on speaking. Then lives follow each other, or none comes, without an
end. This core counts how long such a replica has not served at all, and decides when the run has to be told so.

Served is who is heard by its daemon and has a data connection with some host. A recorder has to have one with each
other replica that the run cannot do without, and with a learner, where any of them is heard: without these it never
hears of the end. Learners are waited for as long as their machines are, and so is whoever is on a machine that is not
heard. Beats are those of the home, so that one that was stopped blames nobody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.roles import LEARNER, RECORDER
from isthmus.runtime.supervision.messages import Said

UNSERVED_BEATS: Final = 1200
"""Ten minutes, as for a silence that is excused: learners train meanwhile, and keep what they have."""
LAST_BEATS: Final = 120
"""A minute, once the run comes to its end: nobody trains any more, and a new life takes some ten seconds."""
BEAT: Final = seconds(0.5)


class Unserved(NamedTuple):
    """A replica that has not served for `lasted`."""

    replica: Replica
    lasted: Duration


class Service:
    """Of one run."""

    def __init__(self) -> None:
        self._beats: dict[Replica, int] = {}
        self._last_beats: dict[Replica, int] = {}

    def beat(self, needed: Collection[Replica], said: Mapping[Member, Said], *, is_hurried: bool) -> Unserved | None:
        """Note that time has passed; which of those `needed` has not served for too long. `said` is what the members
        have said last that are heard, `is_hurried`: the run comes to its end."""
        heard = {member.replica: each for member, each in said.items()}
        idle = [replica for replica in needed if not _serves(replica, heard, needed)]
        self._beats = {replica: self._beats.get(replica, 0) + 1 for replica in idle}
        self._last_beats = {replica: self._last_beats.get(replica, 0) + is_hurried for replica in idle}
        for replica, beats in self._beats.items():
            if beats >= UNSERVED_BEATS or self._last_beats[replica] >= LAST_BEATS:
                return Unserved(replica, Duration(beats * BEAT))
        return None


def _serves(replica: Replica, heard: Mapping[Replica, Said], needed: Collection[Replica]) -> bool:
    said = heard.get(replica)
    if said is None:
        return False
    if said.peers and said.unreached >= said.peers:
        return False
    if replica.role != RECORDER:
        return True
    missing = {each.member.replica for each in said.missing}
    learners = {each for each in heard if each.role == LEARNER}
    return missing.isdisjoint(each for each in needed if each in heard) and not (learners and learners <= missing)
