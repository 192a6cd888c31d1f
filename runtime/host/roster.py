"""The peers of a host: connects to the live members in the rosters that its daemon sends.

Decides which peers to dial, to wait for, to reach through another, and to forget, and reports joins and leaves to the
core. Does not decide which members are live, nor how a roster gets here.

A roster is complete each time. A member that is missing in it is gone; one with another incarnation has been replaced.
A member that is gone never comes back: a daemon whose disk failed may name lives that ended before it began, until it
finds that they have. Members without an edge to or from this host are ignored, and a member that cannot be met yet is
met with a later roster. When the relay has a new life, the members behind it are reached through that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from isthmus.runtime.channels.contract import DiallingChannel, Endpoints
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.roles import LEARNER, leader
from isthmus.runtime.scheduler.events import Event, ReplicaJoined, ReplicaLeft

RELAY: Final = "recorder"
"""The role that relays between hosts that both only dial."""

Meeting: TypeAlias = Literal["dial", "wait", "relay"]
"""The way to meet a peer: this host dials it, it dials this host, or both dial a third."""
Row: TypeAlias = Sequence[Any]
"""A row of a roster: [replica, incarnation, endpoints, machine]."""


class Meetings:
    """The peers of one host, which runs `plan` as `member`. `live` holds the members that it has met, and itself."""

    def __init__(
        self,
        plan: Plan,
        member: Member,
        *,
        channel: DiallingChannel,
        meets: Callable[[Replica], Meeting],
        tell: Callable[[Event], None],
    ) -> None:
        self.live: dict[Replica, Member] = {member.replica: member}
        self._member, self._channel, self._meets, self._tell = member, channel, meets, tell
        crossing = [edge for edge in plan.edges.values() if edge.route != "local"]
        mine = member.replica.role
        self._roles = {edge.target_role for edge in crossing if edge.source_role == mine}
        self._roles |= {edge.source_role for edge in crossing if edge.target_role == mine}
        self._relay: Member | None = None
        self._gone: dict[Replica, int] = {}
        """The latest life of each replica whose member has gone."""

    def take(self, rows: Sequence[Row], keys: Mapping[str, str]) -> None:
        """Meet the new members of a roster, and forget those that are gone. `keys` gives the public keys of machines.

        A daemon whose ledger was lost may name a life before one that was met: a replaced member is not met again.
        """
        named = [(Member(Replica.parse(row[0]), row[1]), *row[2:]) for row in rows]
        present = {row[0].replica: row for row in named if not self._is_former(row[0])}
        if present.get(self._member.replica, (None,))[0] != self._member:
            return  # The daemon does not know this host yet.
        relay = next((row[0] for replica, row in present.items() if replica.role == RELAY), None)
        for replica, member in list(self.live.items()):
            if replica not in present or present[replica][0] != member:
                del self.live[replica]
                self._gone[replica] = member.incarnation
                self._channel.forget(member)
                self._tell(ReplicaLeft(member))
        if relay != self._relay and relay is not None:
            self._relay = relay
            for replica in sorted(self.live):
                if replica != self._member.replica and self._meets(replica) == "relay":
                    self._channel.relay(self.live[replica], relay)
        for replica, (member, endpoints, machine) in sorted(present.items()):
            if replica not in self.live and replica.role in self._roles:
                dialled = Endpoints(endpoints[0], endpoints[1], keys.get(machine, "")) if endpoints else None
                if self._meet(member, dialled, relay):
                    self.live[replica] = member
                    self._tell(ReplicaJoined(member))

    def _is_former(self, member: Member) -> bool:
        """Whether this life has gone, or was replaced by one that was met."""
        met = self.live.get(member.replica)
        is_replaced = met is not None and member.incarnation < met.incarnation
        return is_replaced or member.incarnation <= self._gone.get(member.replica, 0)

    def _meet(self, member: Member, endpoints: Endpoints | None, relay: Member | None) -> bool:
        """Dial or expect a peer, or reach it through the relay; False if that is not possible yet."""
        meeting = self._meets(member.replica)
        if meeting == "wait":
            self._channel.expect(member)
        elif meeting == "dial" and endpoints is not None:
            self._channel.connect(member, endpoints)
        elif meeting == "relay" and relay is not None:
            self._channel.relay(member, relay)
        else:
            return False
        return True


def meets(mine: Replica, other: Replica) -> Meeting:
    """The way in which host `mine` meets host `other`.

    Learners dial all others and are never dialled, so that they may be behind NAT, and reach each other through a
    relay; of two others the one that comes first by name dials.
    """
    if mine.role == other.role == "learner":
        return "relay"
    if "learner" in (mine.role, other.role):
        return "dial" if mine.role == "learner" else "wait"
    return "dial" if mine < other else "wait"


def phase(replica: Replica, published: Mapping[str, Mapping[str, Any]], *, is_open: bool) -> str:
    """The phase of a host with this published status: for a learner, that of its inner-step."""
    if not is_open:
        return "compiling" if leader(replica).role == LEARNER else "starting"
    for each in published.values():
        if "phase" in each and replica.role == "learner":
            return "recovering" if each["phase"] == "ready" else str(each["phase"])
    return "serving"


def steps(published: Mapping[str, Mapping[str, Any]]) -> int:
    """The steps of this life, from the node that publishes the phase."""
    return next((int(each["step"]) for each in list(published.values()) if "phase" in each and "step" in each), 0)
