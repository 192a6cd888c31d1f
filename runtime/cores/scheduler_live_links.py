"""Live replicas, the links that follow from them, and whether a node of this host may fire.

It decides which links exist, and which of them an item takes; not what travels on them. Edges of the plan are *routes*
where they leave a node of this host and *arrivals* where they enter one. With every change of the live replicas, links
are opened and closed to match the edges; a `RosterChange` returns what a closed link still held, and what a new one
must be sent. A new incarnation is a new link, with fresh credit and fresh initial items.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from isthmus.runtime.cores.scheduler_events import Fields, Output, ResendItem
from isthmus.runtime.cores.scheduler_ports import (
    Arrival,
    Exit,
    Inlet,
    Link,
    Mailbox,
    OutgoingRoute,
    Outlet,
    QueueInlet,
    constant,
    consumers,
    producers,
)
from isthmus.runtime.cores.scheduler_quorum_node import Rounds
from isthmus.runtime.errors import CoreSubject, LocalProtocolError, RemoteProtocolError, demand
from isthmus.runtime.graph.plans import EdgePlan, NodePlan, Plan
from isthmus.runtime.graph.template import AllOf, AnyOf, Every, Quorum
from isthmus.runtime.ids import Handle, Member, Replica


class NodeState:
    """A node while it runs. Its Quorum ports have no inlet: their items go to its rounds.

    `held` are outputs that wait for credit, the head of the line first; `link_newest` is the newest link when its
    firing began. `is_ending`: its last firing is over, and it ends once nothing is held.
    """

    __slots__ = (
        "exits", "firings", "held", "index", "inlets", "is_due", "is_ending", "is_finished", "is_idle", "is_nudged",
        "is_open", "is_running", "link_newest", "outlets", "plan", "required", "rounds", "rule", "sampled",
    )  # fmt: skip

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.index = plan.index
        voting = (plan.fires.opened_by, plan.fires.port) if isinstance(plan.fires, Quorum) else ()
        inlets = [None if port.name in voting else _inlet(port.kind) for port in plan.inputs]
        self.required = tuple(inlet for inlet, port in zip(inlets, plan.inputs, strict=True) if port.is_required)
        self.inlets = tuple(
            (number, inlet, port.is_required)
            for number, (inlet, port) in enumerate(zip(inlets, plan.inputs, strict=True))
            if inlet is not None
        )
        self.sampled = tuple(inlet for _, inlet, is_required in self.inlets if not is_required)
        self.exits = tuple(Exit(output) for output in plan.outputs)
        self.outlets: list[Outlet] = []
        self.rounds: Rounds | None = None
        self.rule: Callable[[NodeState], bool] = _RULES[type(plan.fires)]
        self.firings = self.link_newest = 0
        self.held: deque[Output] = deque()
        self.is_open = self.is_running = self.is_idle = self.is_nudged = self.is_due = False
        self.is_ending = self.is_finished = False

    def inlet(self, port: int) -> Inlet | None:
        """The inlet of input port number `port`."""
        return next((inlet for number, inlet, _ in self.inlets if number == port), None)

    def check(self) -> None:
        """Raise InvariantError unless counters and contents agree."""
        name, about = self.plan.name, subjects(self.plan)
        for outlet in self.outlets:
            _demand(outlet.starved == sum(not link.credit for link in outlet.links), about, "{}: starved", name)
        for _, inlet, _ in self.inlets:
            if isinstance(inlet, QueueInlet):
                _demand(inlet.new == sum(bool(link.items) for link in inlet.links), about, "{}: new", name)
        if self.rounds is not None:
            self.rounds.check()
        _demand(bool(self.held) or not self.is_ending, about, "{}: ending, but holds nothing", name)


def is_ready(node: NodeState) -> bool:
    """Whether a node that holds nothing is ready to fire.

    It is ready when its body is open and not running, every Queue output has credit at every live consumer, and its
    firing rule is satisfied; an *idle* one, in place of the rule, when something new is sampled or the node was nudged
    (opened idle, or a stop requested).
    """
    if node.is_running or not node.is_open or node.is_finished:
        return False
    for outlet in node.outlets:
        if outlet.starved:
            return False
    return node.is_nudged or _has_sampled(node) if node.is_idle else node.rule(node)


def subjects(node: NodePlan) -> tuple[CoreSubject, ...]:
    """What an error about a node is about: the node, and its edges."""
    edges = [edge for port in node.inputs for edge in port.edges]
    edges += [edge for port in node.outputs for edge in port.edges]
    return (CoreSubject("node", node.index), *(CoreSubject("edge", edge) for edge in edges))


_demand: Final = partial(demand, "scheduler")


def _inlet(kind: str) -> Inlet | None:
    return QueueInlet() if kind == "queue" else Mailbox() if kind == "latest" else None


def _all_of(node: NodeState) -> bool:
    for inlet in node.required:  # noqa: SIM110 -- all(...) takes three times as long, and every firing comes here.
        if inlet is None or not inlet.is_complete():
            return False
    return True


def _any_of(node: NodeState) -> bool:
    return any(inlet is not None and inlet.new for inlet in node.required)


def _has_sampled(node: NodeState) -> bool:
    """Whether a sampled port has something new, for which an idle node fires."""
    return any(inlet.new for inlet in node.sampled)


_RULES: Final[dict[type, Callable[[NodeState], bool]]] = {
    AllOf: _all_of,
    AnyOf: _any_of,
    Every: lambda node: node.is_due,
    Quorum: lambda node: node.rounds is not None and node.rounds.has_closed,
}


@dataclass(slots=True)
class RosterChange:
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
        self._in_slot: dict[str, dict[int, Member]] = {role: {} for role in plan.replicas}
        """The same, by slot."""
        self.routes: dict[int, OutgoingRoute] = {}
        self.arrivals: dict[int, Arrival] = {}
        self.members: frozenset[Member] = frozenset()
        self.link_newest = 0
        self._plan = plan
        self._nodes = nodes
        self._newest: dict[Replica, int] = {}
        self._connect()

    def join(self, member: Member) -> RosterChange:
        """Mark a member as live, in place of an earlier incarnation; RemoteProtocolError if it may not join."""
        role, slot = member.replica.role, member.replica.slot
        if role not in self.live or not 0 <= slot < self._plan.replicas[role][1]:
            raise RemoteProtocolError(f"{member} joined; graph {self._plan.graph!r} has no replica {member.replica}")
        newest = self._newest.get(member.replica, 0)
        if member.incarnation <= newest:
            raise RemoteProtocolError(f"{member} joined, but incarnation {newest} has joined before")
        self._newest[member.replica] = member.incarnation
        return self._have_live(role, [*(other for other in self.live[role] if other.replica != member.replica), member])

    def leave(self, member: Member) -> RosterChange:
        """Mark a member as gone; LocalProtocolError if it is not live."""
        role = member.replica.role
        if member not in self.live.get(role, ()):
            raise LocalProtocolError(f"{member} left, but is not live")
        return self._have_live(role, [other for other in self.live[role] if other != member])

    def targets(self, route: OutgoingRoute, fields: Fields, link_newest: int) -> Iterable[Link]:
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
        _demand(self.members == {member for of_role in self.live.values() for member in of_role}, (), "members")
        for role, members in self.live.items():
            _demand(self._in_slot[role] == {each.replica.slot: each for each in members}, (), "members by slot")
        for route in self.routes.values():
            about, name = (CoreSubject("edge", route.edge.index),), route.edge.name
            _demand(set(route.links) == set(consumers(route.edge, self.member, self.live)), about, "{}: links", name)
            for link in route.links.values():
                _demand(0 <= link.credit <= route.edge.capacity, about, "{}: credit out of range", name)
        for arrival in self.arrivals.values():
            edge, links = arrival.edge, arrival.links.values()
            about = (CoreSubject("edge", edge.index),)
            _demand(set(arrival.links) == set(producers(edge, self.member, self.live)), about, "{}: links", edge.name)
            if edge.kind == "queue" and arrival.inlet is not None and not self._nodes[arrival.consumer].is_finished:
                kept = [len(link.items) + link.credit == edge.capacity for link in links]
                _demand(all(kept), about, "{}: credit and items are not its capacity", edge.name)

    def _addressed(self, route: OutgoingRoute, number: int) -> list[Link]:
        """The link to replica `number`, if it is live; of a route to some, those to all that `number` stands for.

        Where the role has a fixed number of replicas, `number` is taken modulo that. Otherwise, where replica `number`
        is not live, the link is to the live replica at index `number` modulo the number of live ones.
        """
        edge, role = route.edge, route.edge.target_role
        if edge.route == "some":
            wanted = edge.classes[number] if 0 <= number < len(edge.classes) else ()
            return [link for member, link in route.links.items() if member.replica.slot % edge.period in wanted]
        low, high = self._plan.replicas[role]
        live, in_slot = self.live[role], self._in_slot[role]
        member = in_slot.get(number % high if low == high else number)
        if member is None and low != high and live:
            member = live[number % len(live)]
        return [route.links[member]] if member in route.links else []

    # -- routes and arrivals -------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Set up routes and arrivals of the plan; links open as replicas join."""
        for edge in self._plan.edges.values():
            consumer, producer = self._nodes.get(edge.target), self._nodes.get(edge.source)
            if consumer is not None:
                self.arrivals[edge.index] = self._arrival(edge, consumer)
            if producer is not None:
                route = self.routes[edge.index] = OutgoingRoute(edge, self.arrivals.get(edge.index))
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

    def _have_live(self, role: str, members: list[Member]) -> RosterChange:
        """Set the live members of a role, and open and close links to match."""
        self.live[role] = tuple(sorted(members))
        self._in_slot[role] = {member.replica.slot: member for member in members}
        self.members = frozenset(member for of_role in self.live.values() for member in of_role)
        change = RosterChange()
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

    def _open_outlet(self, route: OutgoingRoute, member: Member, change: RosterChange) -> None:
        self.link_newest += 1
        link = route.links[member] = Link(self.link_newest, route.edge, member, route.outlet)
        link.is_local = route.arrival is not None and member == self.member
        if route.outlet is not None:
            route.outlet.open(link)
        if not link.is_local:
            for key, (handle, fields) in route.kept.items():
                if route.edge.route_key is None or link in self._addressed(route, (fields or {})[route.edge.route_key]):
                    change.resent.append(ResendItem(route.edge.index, member, handle, key, fields))

    def _close_outlet(self, route: OutgoingRoute, member: Member) -> None:
        link = route.links.pop(member)
        link.is_open = False
        if route.outlet is not None:
            route.outlet.close(link)

    def _open_inlet(self, arrival: Arrival, member: Member, change: RosterChange) -> None:
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

    def _close_inlet(self, arrival: Arrival, member: Member, change: RosterChange) -> None:
        link = arrival.links.pop(member)
        link.is_open = False
        if arrival.inlet is not None:
            change.dropped += arrival.inlet.close(link)
        change.left.append((arrival, member))
