"""Hosts that are cut off: no other host hears them, though their heartbeats reach their daemon.

Heartbeats pass between daemons, items between hosts, on ports of their own: a network may block one and not the other.
This core decides which member is *cut off*, when that is reported, and when it is condemned for it. `liveness` judges
members that are silent towards their daemon.

Theory of operation. A heartbeat contains the number of a host's peers, and to how many of these it has no data
connection; both ends give up a silent connection within five seconds. A member that has none at all is cut off, as long
as most of the members with peers are not: where half of them are, the network between them is at fault, and no host. It
is awaited for as long as a lost machine, because its work is lost with its life; while the run comes to its end, rounds
wait for it, and a learner is awaited as briefly as a silent one. Its next life is on the same machine, and gets twice
the time, and so on. Beats are those of the home, so that a suspended home condemns no member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from isthmus.runtime.clock import Duration, seconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.roles import LEARNER
from isthmus.runtime.supervision import incidents
from isthmus.runtime.supervision.home.liveness import Findings
from isthmus.runtime.supervision.messages import Said

TOLD_BEATS: Final = 10
"""Five seconds, beside the five in which its connections are given up: on busy cores a new host needs some for its
first ones."""
CUT_OFF_BEATS: Final = 40
"""Twenty seconds, as for a lost machine."""
HURRY_BEATS: Final = 10
"""Five seconds, as for a learner that is silent while the run comes to its end."""
DOUBLINGS_MAX: Final = 5
"""Ten minutes, as for a silence that is excused."""
BEAT: Final = seconds(0.5)


class Reach:
    """The reach of the hosts of one run."""

    def __init__(self) -> None:
        self._beats: dict[Member, int] = {}
        self._condemned: Counter[Replica] = Counter()

    def is_cut_off(self, member: Member) -> bool:
        """Whether this member was reported as cut off."""
        return self._beats.get(member, 0) >= TOLD_BEATS

    def beat(self, said: Mapping[Member, Said], *, is_hurried: bool) -> Findings:
        """Count a beat.

        `said` is the last heartbeat of each member that is heard; `is_hurried`: the run comes to its end.
        """
        found = Findings()
        cut_off = [member for member, each in said.items() if each.peers and each.unreached >= each.peers]
        is_of_network = 2 * len(cut_off) >= sum(bool(each.peers) for each in said.values())
        before, self._beats = self._beats, {}
        for member in () if is_of_network else cut_off:
            beats = self._beats[member] = before.get(member, 0) + 1
            if beats == TOLD_BEATS:
                found.written.append((member, incidents.CutOff(said[member].peers)))
            is_brief = is_hurried and member.replica.role == LEARNER
            if beats >= (HURRY_BEATS if is_brief else CUT_OFF_BEATS << self._times(member)):
                lasted, times = Duration(beats * BEAT), 1 << self._times(member)
                found.condemned.append((member, incidents.Unreached(lasted, said[member].peers, times)))
        for member, beats in before.items():
            if beats >= TOLD_BEATS and member in said and member not in self._beats:
                found.written.append((member, incidents.Reached(Duration(beats * BEAT))))
        return found

    def ended(self, replica: Replica) -> None:
        """A life of a replica ended because it was cut off: its next one gets twice the time."""
        self._condemned[replica] += 1

    def _times(self, member: Member) -> int:
        """The number of times that its patience was doubled."""
        return min(self._condemned[member.replica], DOUBLINGS_MAX)
