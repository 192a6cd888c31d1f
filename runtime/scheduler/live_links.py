"""Live replicas and the links that follow from them: the pairs between which an item of this host may travel.

It decides which links exist, and which of them an item takes; not what travels on them. Edges of the plan are *routes*
where they leave a node of this host and *arrivals* where they enter one. With every change of the live replicas, links
are opened and closed to match the edges; a `Change` returns what a closed link still held, and what a new one must be
sent. A new incarnation is a new link, with fresh credit and fresh initial items.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from isthmus.runtime.errors import LocalProtocolError, RemoteProtocolError
from isthmus.runtime.graph.plans import EdgePlan, Plan
from isthmus.runtime.graph.template import Quorum
from isthmus.runtime.ids import Handle, Member, Replica
from isthmus.runtime.scheduler.events import Fields, ResendItem
from isthmus.runtime.scheduler.nodes import NodeState, demand
from isthmus.runtime.scheduler.ports import Arrival, Link, Route, constant, consumers, producers
from isthmus.runtime.scheduler.quorum_node import Rounds


@dataclass(slots=True)
class Change:
    """Consequences of a roster change.

    `resent`: kept items for new consumers; `dropped`: items of ended links; `left` and `joined`: producers whose links
    into an arrival closed and opened.
    """

    resent: list[ResendItem] = field(default_factory=list)
    dropped: list[Handle] = field(default_factory=list)
    left: list[tuple[Arrival, Member]] = field(default_factory=list)
    joined: list[tuple[Arrival, Member]] = field(default_factory=list)


class Roster:
    """The live replicas, `members` in one set, and the links of one host. `link_newest` is the number of the newest
    link."""

    def __init__(self, plan: Plan, member: Member, nodes: dict[int, NodeState]) -> None:
        self.member = member
        self.live: dict[str, tuple[Member, ...]] = dict.fromkeys(plan.replicas, ())
        self.routes: dict[int, Route] = {}
        self.arrivals: dict[int, Arrival] = {}
        self.members: frozenset[Member] = frozenset()
        self.link_newest = 0
        self._plan = plan
        self._nodes = nodes
        self._newest: dict[Replica, int] = {}
        self._connect()

    def join(self, member: Member) -> Change:
        """Mark a member as live, in place of an earlier incarnation; RemoteProtocolError if it may not join."""
        role, slot = member.replica.role, member.replica.slot
        if role not in self.live or not 0 <= slot < self._plan.replicas[role][1]:
            raise RemoteProtocolError(f"{member} joined; graph {self._plan.graph!r} has no replica {member.replica}")
        newest = self._newest.get(member.replica, 0)
        if member.incarnation <= newest:
            raise RemoteProtocolError(f"{member} joined, but incarnation {newest} has joined before")
        self._newest[member.replica] = member.incarnation
        return self._have_live(role, [*(other for other in self.live[role] if other.replica != member.replica), member])

    def leave(self, member: Member) -> Change:
        """Mark a member as gone; LocalProtocolError if it is not live."""
        role = member.replica.role
        if member not in self.live.get(role, ()):
            raise LocalProtocolError(f"{member} left, but is not live")
        return self._have_live(role, [other for other in self.live[role] if other != member])

    def targets(self, route: Route, fields: Fields, link_newest: int) -> Iterable[Link]:
        """The links that an item takes, emitted by a firing that began when `link_newest` was the newest.

        A Queue link counts from the first firing that began after it was opened: it starts with its initial items, and
        a firing that had begun before must neither add to them, nor stall because they left it no credit.
        """
        links: Iterable[Link] = route.links.values()
        if route.edge.route_key is not None and fields is not None:
            links = self._addressed(route, fields[route.edge.route_key])
        if route.outlet is None or link_newest == self.link_newest:
            return links
        return [link for link in links if link.number <= link_newest]

    def check(self) -> None:
        """Raise InvariantError unless links match the roster, and credit is within its bounds."""
        demand(self.members == {member for of_role in self.live.values() for member in of_role}, "members")
        for route in self.routes.values():
            demand(set(route.links) == set(consumers(route.edge, self.member, self.live)), f"{route.edge.name}: links")
            for link in route.links.values():
                demand(0 <= link.credit <= route.edge.capacity, f"{route.edge.name}: credit out of range")
        for arrival in self.arrivals.values():
            edge, links = arrival.edge, arrival.links.values()
            demand(set(arrival.links) == set(producers(edge, self.member, self.live)), f"{edge.name}: links")
            if edge.kind == "queue" and arrival.inlet is not None and not self._nodes[arrival.consumer].is_finished:
                kept = [len(link.items) + link.credit == edge.capacity for link in links]
                demand(all(kept), f"{edge.name}: credit and items are not its capacity")

    def _addressed(self, route: Route, number: int) -> list[Link]:
        """The link to replica `number`, if it is live.

        Where the role has a fixed number of replicas, `number` is taken modulo that. Otherwise, where replica `number`
        is not live, the link is to the live replica at index `number` modulo the number of live ones.
        """
        role = route.edge.target_role
        low, high = self._plan.replicas[role]
        slots = [member.replica.slot for member in self.live[role]]
        slot = number % high if low == high else number
        if low != high and slots and number not in slots:
            slot = slots[number % len(slots)]
        return [link for member, link in route.links.items() if member.replica.slot == slot]

    # -- routes and arrivals -------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Set up routes and arrivals of the plan; links open as replicas join."""
        for edge in self._plan.edges.values():
            consumer, producer = self._nodes.get(edge.target), self._nodes.get(edge.source)
            if consumer is not None:
                self.arrivals[edge.index] = self._arrival(edge, consumer)
            if producer is not None:
                route = self.routes[edge.index] = Route(edge, self.arrivals.get(edge.index))
                producer.exits[[item.name for item in producer.plan.outputs].index(edge.source_port)].add(route)
        for node in self._nodes.values():
            node.outlets = [outlet for exit_ in node.exits for outlet in exit_.outlets]

    def _arrival(self, edge: EdgePlan, consumer: NodeState) -> Arrival:
        fires = consumer.plan.fires
        is_voting = isinstance(fires, Quorum) and edge.target_port == fires.port
        if is_voting and consumer.rounds is None:
            consumer.rounds = Rounds(consumer.plan, edge.source_role)
        port = [item.name for item in consumer.plan.inputs].index(edge.target_port)
        return Arrival(edge, port, consumer.inlet(port), is_voting=is_voting)

    # -- links ---------------------------------------------------------------------------------------------------------

    def _have_live(self, role: str, members: list[Member]) -> Change:
        """Set the live members of a role, and open and close links to match."""
        self.live[role] = tuple(sorted(members))
        self.members = frozenset(member for of_role in self.live.values() for member in of_role)
        change = Change()
        for route in self.routes.values():
            wanted = dict.fromkeys(consumers(route.edge, self.member, self.live))
            for member in [member for member in route.links if member not in wanted]:
                self._close_outlet(route, member)
            for member in wanted:
                if member not in route.links:
                    self._open_outlet(route, member, change)
        for arrival in self.arrivals.values():
            wanted = dict.fromkeys(producers(arrival.edge, self.member, self.live))
            for member in [member for member in arrival.links if member not in wanted]:
                self._close_inlet(arrival, member, change)
            for member in wanted:
                if member not in arrival.links:
                    self._open_inlet(arrival, member, change)
        return change

    def _open_outlet(self, route: Route, member: Member, change: Change) -> None:
        self.link_newest += 1
        link = route.links[member] = Link(self.link_newest, route.edge, member, route.outlet)
        link.is_local = route.arrival is not None and member == self.member
        if route.outlet is not None:
            route.outlet.open(link)
        if not link.is_local:
            for key, (handle, fields) in route.kept.items():
                if route.edge.route_key is None or link in self._addressed(route, (fields or {})[route.edge.route_key]):
                    change.resent.append(ResendItem(route.edge.index, member, handle, key, fields))

    def _close_outlet(self, route: Route, member: Member) -> None:
        link = route.links.pop(member)
        link.is_open = False
        if route.outlet is not None:
            route.outlet.close(link)

    def _open_inlet(self, arrival: Arrival, member: Member, change: Change) -> None:
        route = self.routes.get(arrival.edge.index)
        if route is not None and member == self.member:
            link = route.links[member]
        else:
            self.link_newest += 1
            link = Link(self.link_newest, arrival.edge, member, None)
        arrival.links[member] = link
        if arrival.inlet is not None:
            count = 0 if self._nodes[arrival.consumer].is_finished else len(arrival.edge.initial)
            arrival.inlet.open(link, tuple(constant(arrival.edge.index, i) for i in range(count)))
        change.joined.append((arrival, member))

    def _close_inlet(self, arrival: Arrival, member: Member, change: Change) -> None:
        link = arrival.links.pop(member)
        link.is_open = False
        if arrival.inlet is not None:
            change.dropped += arrival.inlet.close(link)
        change.left.append((arrival, member))
