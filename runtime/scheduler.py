"""The scheduler core: one host's plan, from arrivals to firings.

It decides when a node fires, what each firing takes, where its items go, and who gets credit back. It does not run
bodies, move payloads, measure time or know what an item means.

Theory of operation. A node is *running* from `RunBody` to `FiringEnded`; one firing at a time. It is *ready* when its
body is open, every Queue output has credit at every live consumer, and its firing rule is satisfied. Ready nodes are
started at once, in the order in which they became ready, at the end of the event that made them so. An *idle* node
(its body said so) takes no required inputs: it fires when something new is sampled, until its body is idle no more.
Links come and go with replicas: a new incarnation is a new link with fresh credit and fresh initial items, and what
the old one held is dropped and counted. Payloads are handles with counted uses: every use ends in exactly one RunBody,
SendItem or DropItem. An illegal event raises and leaves the state as it was.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Final

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import InvariantError, LocalProtocolError, RemoteProtocolError
from isthmus.runtime.events import (
    BodyFailed,
    Command,
    CreditGranted,
    DropItem,
    EndNode,
    Entry,
    Event,
    FailHost,
    Fields,
    FiringEnded,
    GrantCredit,
    ItemArrived,
    ItemsEmitted,
    NodeOpened,
    Output,
    ReplicaJoined,
    ReplicaLeft,
    RunBody,
    SendItem,
    SetTimer,
    ShareItem,
    StopRequested,
    TimerFired,
)
from isthmus.runtime.graph import AllOf, AnyOf, Every, Quorum
from isthmus.runtime.ids import Handle, Member
from isthmus.runtime.lowering import EdgePlan, NodePlan, Plan
from isthmus.runtime.ports import Inlet, Link, Mailbox, Outlet, QueueInlet
from isthmus.runtime.rounds import Rounds, Settled

CONSTANTS_PER_EDGE: Final = 1 << 16
"""More than the largest capacity of a Queue, so that constants of different edges have different handles."""


def constant(edge: int, index: int) -> Handle:
    """The handle of initial item `index` of an edge: negative, the same on every host."""
    return Handle(-1 - edge * CONSTANTS_PER_EDGE - index)


class _Node:
    """A node while it runs."""

    __slots__ = (
        "firings", "inlets", "is_due", "is_finished", "is_idle", "is_nudged", "is_open", "is_running", "outlets",
        "plan", "required", "rounds", "routes", "rule", "sampled",
    )  # fmt: skip

    def __init__(self, plan: NodePlan) -> None:
        self.plan = plan
        self.inlets: list[Inlet | None] = [_inlet(port.kind) for port in plan.inputs]
        self.required = tuple(i for i, port in enumerate(plan.inputs) if port.is_required)
        self.sampled = tuple(i for i, port in enumerate(plan.inputs) if not port.is_required)
        self.routes: list[list[_Route]] = [[] for _ in plan.outputs]
        self.outlets: list[Outlet] = []
        self.rounds: Rounds | None = None
        self.rule: Callable[[_Node], bool] = _RULES[type(plan.fires)]
        self.firings = 0
        self.is_open = self.is_running = self.is_idle = self.is_nudged = self.is_due = self.is_finished = False


class _Route:
    """One edge that leaves a node, with its live links."""

    __slots__ = ("consumer", "edge", "links", "outlet", "port")

    def __init__(self, edge: EdgePlan, outlet: Outlet | None, consumer: _Node | None, port: int) -> None:
        self.edge = edge
        self.outlet = outlet
        self.consumer = consumer
        self.port = port
        self.links: dict[Member, Link] = {}


class _Arrival:
    """One edge that enters this host's node, with its live links; `route` is set where the producer is here too."""

    __slots__ = ("consumer", "edge", "links", "port")

    def __init__(self, edge: EdgePlan, consumer: _Node, port: int) -> None:
        self.edge = edge
        self.consumer = consumer
        self.port = port
        self.links: dict[Member, Link] = {}


def _inlet(kind: str) -> Inlet | None:
    return QueueInlet() if kind == "queue" else Mailbox() if kind == "latest" else None


def _all_of(node: _Node) -> bool:
    for port in node.required:
        inlet = node.inlets[port]
        if inlet is None or not inlet.is_complete():
            return False
    return True


def _any_of(node: _Node) -> bool:
    return any(inlet is not None and inlet.is_new() for inlet in map(node.inlets.__getitem__, node.required))


def _has_sampled(node: _Node) -> bool:
    """Whether a sampled port has something new: what an idle node fires for."""
    return any(inlet is not None and inlet.is_new() for inlet in map(node.inlets.__getitem__, node.sampled))


_RULES: Final[dict[type, Callable[[_Node], bool]]] = {
    AllOf: _all_of,
    AnyOf: _any_of,
    Every: lambda node: node.is_due,
    Quorum: lambda node: node.rounds is not None and node.rounds.has_closed,
}


class Scheduler:
    """The core of one host. `handle(event, now)` returns the commands, in the order in which to perform them."""

    def __init__(self, plan: Plan, member: Member) -> None:
        self.plan = plan
        self.member = member
        self.counts: Counter[str] = Counter()
        self._roster: dict[str, dict[int, Member]] = {role: {} for role in plan.replicas}
        self._nodes: dict[int, _Node] = {node.index: _Node(node) for node in plan.nodes}
        self._routes: list[_Route] = []
        self._arrivals: dict[int, _Arrival] = {}
        self._links: dict[Link, tuple[_Route | None, _Arrival | None, Member]] = {}
        self._link_last = 0
        self._commands: list[Command] = []
        self._woken: deque[_Node] = deque()
        self._now = Instant(0)
        self._connect()
        self._handlers: dict[type, Callable[[Any], None]] = {
            FiringEnded: self._firing_ended,
            ItemsEmitted: self._items_emitted,
            ItemArrived: self._item_arrived,
            CreditGranted: self._credit_granted,
            NodeOpened: self._node_opened,
            BodyFailed: self._body_failed,
            TimerFired: self._timer_fired,
            ReplicaJoined: self._replica_joined,
            ReplicaLeft: self._replica_left,
            StopRequested: self._stop_requested,
        }

    def handle(self, event: Event, now: Instant) -> list[Command]:
        """What to do about `event`. Raises LocalProtocolError or RemoteProtocolError for one that is illegal."""
        self._now = now
        self._handlers[type(event)](event)
        woken = self._woken
        while woken:
            node = woken.popleft()
            if self._is_ready(node):
                self._start(node)
        commands = self._commands
        self._commands = []
        return commands

    def live(self, role: str) -> tuple[Member, ...]:
        """The live replicas of a role, by slot."""
        return tuple(member for _, member in sorted(self._roster[role].items()))

    def statistics(self) -> dict[str, int]:
        """Firings, and dropped items by reason, since the start."""
        return dict(self.counts) | {"firings": sum(node.firings for node in self._nodes.values())}

    # -- events --------------------------------------------------------------------------------------------------------

    def _items_emitted(self, event: ItemsEmitted) -> None:
        node = self._running(event.node)
        self._check_outputs(node, event.outputs)
        for output in event.outputs:
            self._emit(node, output)

    def _firing_ended(self, event: FiringEnded) -> None:
        node = self._running(event.node)
        self._check_outputs(node, event.outputs)
        node.is_running = False
        node.is_idle = event.is_idle
        for output in event.outputs:
            self._emit(node, output)
        if event.is_finished:
            self._finish(node)
        else:
            self._woken.append(node)

    def _item_arrived(self, event: ItemArrived) -> None:
        arrival = self._arrivals.get(event.edge)
        if arrival is None or arrival.edge.source_role != event.source.replica.role:
            raise RemoteProtocolError(f"{event.source} sent an item on edge {event.edge}, which does not lead here")
        link = arrival.links.get(event.source)
        if link is None:
            self._drop(event.handle, "not connected")
            return
        key = None if arrival.edge.key is None else (event.fields or {}).get(arrival.edge.key)
        if arrival.edge.key is not None and not isinstance(key, int | str):
            raise RemoteProtocolError(f"{event.source} sent an item on {arrival.edge.name} without {arrival.edge.key}")
        self._deliver(arrival.consumer, arrival.port, link, event.handle, key, event.fields)

    def _credit_granted(self, event: CreditGranted) -> None:
        for route in self._routes:
            if route.edge.index == event.edge and route.outlet is not None:
                link = route.links.get(event.target)
                if link is not None:
                    route.outlet.grant(link, event.count)
                    self._woken.append(self._nodes[route.edge.source])
                return
        raise RemoteProtocolError(f"{event.target} granted credit on edge {event.edge}, no Queue that begins here")

    def _node_opened(self, event: NodeOpened) -> None:
        node = self._nodes.get(event.node)
        if node is None or node.is_open:
            raise LocalProtocolError(f"node {event.node} was opened twice, or is not of this host")
        node.is_open = True
        node.is_idle = node.is_nudged = event.is_idle
        if isinstance(node.plan.fires, Every):
            self._commands.append(SetTimer(node.plan.index, Instant(self._now + node.plan.fires.period)))
        self._woken.append(node)

    def _body_failed(self, event: BodyFailed) -> None:
        node = self._nodes[event.node]
        node.is_running = False
        node.is_open = False
        self._commands.append(FailHost(event.node, event.error))

    def _timer_fired(self, event: TimerFired) -> None:
        node = self._nodes.get(event.timer)
        if node is not None and isinstance(node.plan.fires, Every):
            node.is_due = True
            self._commands.append(SetTimer(event.timer, Instant(self._now + node.plan.fires.period)))
            self._woken.append(node)
            return
        for other in self._nodes.values():
            if other.rounds is not None and other.rounds.owns(event.timer):
                self._settle(other, other.rounds.timer_fired(event.timer, self._now))
                return

    def _replica_joined(self, event: ReplicaJoined) -> None:
        member = event.member
        role = self._roster.get(member.replica.role)
        if role is None:
            raise RemoteProtocolError(f"{member} joined; graph {self.plan.graph!r} has no role {member.replica.role!r}")
        old = role.get(member.replica.slot)
        if old is not None and old.incarnation >= member.incarnation:
            raise RemoteProtocolError(f"{member} joined, but {old} is live")
        if old is not None:
            self._replica_left(ReplicaLeft(old))
        role[member.replica.slot] = member
        self._reconnect()
        for node in self._nodes.values():
            if node.rounds is not None:
                self._settle(node, node.rounds.joined(member, self._now))

    def _replica_left(self, event: ReplicaLeft) -> None:
        role = self._roster.get(event.member.replica.role, {})
        if role.get(event.member.replica.slot) != event.member:
            raise LocalProtocolError(f"{event.member} left, but is not live")
        del role[event.member.replica.slot]
        self._reconnect()
        for node in self._nodes.values():
            if node.rounds is not None:
                self._settle(node, node.rounds.left(event.member, self._now))

    def _stop_requested(self, _: StopRequested) -> None:
        for node in self._nodes.values():
            node.is_nudged = True
            self._woken.append(node)

    def _running(self, index: int) -> _Node:
        node = self._nodes.get(index)
        if node is None or not node.is_running:
            raise LocalProtocolError(f"a firing of node {index} emitted or ended that had not begun")
        return node

    # -- firing --------------------------------------------------------------------------------------------------------

    def _is_ready(self, node: _Node) -> bool:
        if node.is_running or not node.is_open or node.is_finished:
            return False
        for outlet in node.outlets:
            if outlet.starved:
                return False
        return node.is_nudged or _has_sampled(node) if node.is_idle else node.rule(node)

    def _start(self, node: _Node) -> None:
        """Fire a ready node: take its inputs, give credit back."""
        decision: dict[str, Any] | None = None
        if node.rounds is not None and not node.is_idle:
            inputs, decision = self._take_round(node)
        else:
            inputs = []
        for port, inlet in enumerate(node.inlets):
            if inlet is None or not inlet.is_new() or (node.is_idle and port in node.required):
                continue
            entries, links = inlet.take()
            inputs.append((port, tuple(entries)))
            for link in links:
                self._give_back(link)
        node.is_running = True
        node.is_due = node.is_nudged = False
        node.firings += 1
        self._commands.append(RunBody(node.plan.index, node.firings, tuple(inputs), decision))

    def _take_round(self, node: _Node) -> tuple[list[tuple[int, tuple[Entry, ...]]], dict[str, Any]]:
        """The inputs of the oldest closed round of a Quorum node."""
        assert node.rounds is not None
        closed = node.rounds.take()
        for handle in closed.handles:
            self._return_vote(node, handle)
        return list(closed.inputs), closed.decision

    def _give_back(self, link: Link) -> None:
        """One item of a Queue link was taken: its producer gets a credit."""
        route, arrival, member = self._links[link]
        if route is not None:
            assert route.outlet is not None
            route.outlet.grant(link, 1)
            self._woken.append(self._nodes[route.edge.source])
        elif arrival is not None:
            self._commands.append(GrantCredit(arrival.edge.index, member, 1))

    def _finish(self, node: _Node) -> None:
        node.is_finished = True
        for inlet in node.inlets:
            for handle in inlet.handles() if inlet is not None else ():
                self._drop(handle, "node finished")
        self._commands.append(EndNode(node.plan.index))

    # -- items ---------------------------------------------------------------------------------------------------------

    def _check_outputs(self, node: _Node, outputs: tuple[Output, ...]) -> None:
        """Raise LocalProtocolError for outputs that no body may emit."""
        emitted: Counter[int] = Counter()
        for output in outputs:
            if not 0 <= output.port < len(node.routes):
                raise LocalProtocolError(
                    f"node {node.plan.name!r} emitted on port {output.port}, which it does not have"
                )
            emitted[output.port] += 1
            credit = min((route.outlet.least() for route in node.routes[output.port] if route.outlet), default=1 << 30)
            if emitted[output.port] > credit:
                what = f"node {node.plan.name!r} emitted {emitted[output.port]} items at once on"
                raise LocalProtocolError(
                    f"{what} {node.plan.outputs[output.port].name!r}, which has credit for {credit}"
                )
            for name in node.plan.outputs[output.port].fields:
                if not isinstance((output.fields or {}).get(name), int | str):
                    where = f"node {node.plan.name!r} emitted on {node.plan.outputs[output.port].name!r} an item"
                    raise LocalProtocolError(f"{where} without the field {name!r} (an integer or a text)")

    def _emit(self, node: _Node, output: Output) -> None:
        """Send one item along every edge of its port."""
        uses = 0
        at = len(self._commands)
        for route in node.routes[output.port]:
            key = None if route.edge.key is None or output.fields is None else output.fields[route.edge.key]
            for member, link in self._targets(route, output.fields):
                uses += 1
                if route.outlet is not None:
                    route.outlet.spend(link)
                if member == self.member and route.consumer is not None:
                    self._deliver(route.consumer, route.port, link, output.handle, key, output.fields)
                else:
                    self._commands.append(SendItem(route.edge.index, member, output.handle, key, output.fields))
        if uses == 0:
            self._drop(output.handle, "nobody to send to")
        elif uses > 1:
            self._commands.insert(at, ShareItem(output.handle, uses))

    def _targets(self, route: _Route, fields: Fields) -> list[tuple[Member, Link]]:
        if route.edge.route != "at" or route.edge.route_key is None or fields is None:
            return list(route.links.items())
        number = fields[route.edge.route_key]
        if not isinstance(number, int):
            raise LocalProtocolError(f"an item on {route.edge.name} has no number in {route.edge.route_key!r}")
        low, high = self.plan.replicas[route.edge.target_role]
        if low == high:
            member = self._roster[route.edge.target_role].get(number % high)
        else:
            live = self.live(route.edge.target_role)
            member = live[number % len(live)] if live else None
        return [] if member is None else [(member, route.links[member])]

    def _deliver(
        self, node: _Node, port: int, link: Link, handle: Handle, key: int | str | None, fields: Fields
    ) -> None:
        """Put an item into the port of a node of this host."""
        if node.is_finished:
            self._drop(handle, "node finished")
            return
        if node.rounds is not None and port in node.required:
            arrival = self._links[link][1]
            assert arrival is not None
            self._settle(node, node.rounds.arrived(port, link, self._links[link][2], handle, fields, self._now))
            return
        inlet = node.inlets[port]
        assert inlet is not None
        superseded = inlet.put(link, handle, key)
        if superseded is not None:
            self._drop(superseded, "superseded")
        if not node.is_running:
            self._woken.append(node)

    def _settle(self, node: _Node, settled: Settled) -> None:
        """Carry out what the rounds of a Quorum node decided."""
        for handle, reason in settled.refused:
            self._return_vote(node, handle)
            self._drop(handle, reason)
        self._commands.extend(settled.timers)
        if settled.has_closed:
            self._woken.append(node)

    def _return_vote(self, node: _Node, handle: Handle) -> None:
        """A vote or an opening is used up: where it came by a Queue, its producer gets the credit back."""
        assert node.rounds is not None
        link = node.rounds.forget(handle)
        if link is None or link not in self._links:
            return
        route, arrival, _ = self._links[link]
        edge = route.edge if route is not None else arrival.edge if arrival is not None else None
        if edge is not None and edge.kind == "queue":
            self._give_back(link)

    def _drop(self, handle: Handle, reason: str) -> None:
        self.counts[reason] += 1
        self._commands.append(DropItem(handle, reason))

    # -- links ---------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Set up routes and arrivals of the plan; links open as replicas join."""
        for edge in self.plan.edges.values():
            consumer = self._nodes.get(edge.target)
            port = -1
            if consumer is not None:
                names = [item.name for item in consumer.plan.inputs]
                port = names.index(edge.target_port)
                self._arrivals[edge.index] = _Arrival(edge, consumer, port)
            producer = self._nodes.get(edge.source)
            if producer is not None:
                outlet = Outlet(edge.capacity) if edge.kind == "queue" else None
                if outlet is not None:
                    producer.outlets.append(outlet)
                route = _Route(edge, outlet, consumer, port)
                output = [item.name for item in producer.plan.outputs].index(edge.source_port)
                producer.routes[output].append(route)
                self._routes.append(route)
        for node in self._nodes.values():
            fires = node.plan.fires
            if isinstance(fires, Quorum):
                node.rounds = Rounds(node.plan, self.live, [edge.source_role for edge in self._voting(node)])

    def _voting(self, node: _Node) -> list[EdgePlan]:
        fires = node.plan.fires
        assert isinstance(fires, Quorum)
        return [e for e in self.plan.edges.values() if e.target == node.plan.index and e.target_port == fires.port]

    def _reconnect(self) -> None:
        """Open and close links so that they are what the roster says."""
        for route in self._routes:
            wanted = self._consumers(route.edge)
            for member in [member for member in route.links if member not in wanted]:
                self._close_link(route, None, member)
            for member in wanted:
                if member not in route.links:
                    is_here = member == self.member and route.consumer is not None
                    arrival = self._arrivals[route.edge.index] if is_here else None
                    self._open_link(route, arrival, member)
        for arrival in self._arrivals.values():
            wanted = self._producers(arrival.edge)
            for member in [member for member in arrival.links if member not in wanted]:
                self._close_link(None, arrival, member)
            for member in wanted:
                if member not in arrival.links:
                    self._open_link(None, arrival, member)
        self._woken.extend(self._nodes.values())

    def _consumers(self, edge: EdgePlan) -> list[Member]:
        live = self.live(edge.target_role)
        if edge.route == "local":
            return [member for member in live if member == self.member]
        if edge.route == "next":
            return [member for member in live if _next(self.live(edge.source_role), self.member) == member]
        return list(live)

    def _producers(self, edge: EdgePlan) -> list[Member]:
        live = self.live(edge.source_role)
        if edge.route == "local":
            return [member for member in live if member == self.member]
        if edge.route == "next":
            return [member for member in live if _next(live, member) == self.member]
        return list(live)

    def _open_link(self, route: _Route | None, arrival: _Arrival | None, member: Member) -> None:
        self._link_last += 1
        link = self._link_last
        self._links[link] = (route, arrival, member)
        if route is not None:
            route.links[member] = link
            if route.outlet is not None:
                route.outlet.open(link, len(route.edge.initial))
        if arrival is not None:
            arrival.links[member] = link
            inlet = arrival.consumer.inlets[arrival.port]
            assert inlet is not None
            count = len(arrival.edge.initial)
            initial = tuple(constant(arrival.edge.index, i) for i in range(count))
            inlet.open(link, member.replica, arrival.edge.capacity, initial)

    def _close_link(self, route: _Route | None, arrival: _Arrival | None, member: Member) -> None:
        """End a link; one whose two ends are both here ends for both."""
        link = (route or arrival).links[member]  # type: ignore[union-attr]
        route, arrival, _ = self._links.pop(link)
        if route is not None:
            del route.links[member]
            if route.outlet is not None:
                route.outlet.close(link)
        if arrival is not None:
            del arrival.links[member]
            inlet = arrival.consumer.inlets[arrival.port]
            assert inlet is not None
            for handle in inlet.close(link):
                self._drop(handle, "link ended")

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantError unless counters and contents agree and no ready node was left waiting."""
        for node in self._nodes.values():
            name = node.plan.name
            for inlet in node.inlets:
                if isinstance(inlet, QueueInlet):
                    _demand(inlet.filled == sum(bool(queue) for queue in inlet.queues.values()), f"{name}: filled")
                    full = [link for link, queue in inlet.queues.items() if len(queue) > inlet.capacities[link]]
                    _demand(not full, f"{name}: a queue holds more than its capacity")
            for outlet in node.outlets:
                starved = sum(credit == 0 for credit in outlet.credits.values())
                _demand(outlet.starved == starved, f"{name}: starved")
                bounded = all(0 <= credit <= outlet.capacity for credit in outlet.credits.values())
                _demand(bounded, f"{name}: credit out of range")
            if node.rounds is not None:
                node.rounds.check()
            _demand(not self._is_ready(node), f"{name}: ready, but not started")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)


def _next(live: tuple[Member, ...], member: Member) -> Member | None:
    """The live replica after `member`, cyclic; `member` itself where it is alone, None where it is not live."""
    if member not in live:
        return None
    return live[(live.index(member) + 1) % len(live)]
