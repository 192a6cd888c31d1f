"""Whether the replicas that a run requires serve it, and for how long they have not.

Lives that end in a row are counted elsewhere (`restarts`), and so is one that is cut off (`reach`): each is followed by
another. But a machine may have no room for the next process, its disk may accept no number, or its interface may have
lost its address for good, while its daemon still sends reports. Then lives follow each other, or none comes, without an
end. This core counts how long such a replica has not served at all, and decides when the run fails for it.

A replica serves if its daemon hears it and it has a data connection with some host. A recorder must have one with each
other required replica, and with a learner, where any of them is heard: without these it never learns of the end.
Learners are awaited for as long as their machines are, and so are replicas on a machine that is not heard. Beats are
those of the home, so that a suspended home blames no replica.
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
"""A minute, once the run comes to its end: no learner trains any more, and a new life takes some ten seconds."""
BEAT: Final = seconds(0.5)


class Unserved(NamedTuple):
    """A replica that has not served for `lasted`."""

    replica: Replica
    lasted: Duration


class Service:
    """The required service of one run."""

    def __init__(self) -> None:
        self._beats: dict[Replica, int] = {}
        self._last_beats: dict[Replica, int] = {}

    def beat(self, needed: Collection[Replica], said: Mapping[Member, Said], *, is_hurried: bool) -> Unserved | None:
        """Count a beat; returns a `needed` replica that has not served for too long, or None.

        `said` is the last heartbeat of each member that is heard; `is_hurried`: the run comes to its end.
        """
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
