"""The scheduler core: one host's plan, from arrivals to firings.

It decides when a node fires, what each firing takes, where its items go, and who gets credit back. It does not run
bodies, move payloads, measure time or know what an item means.

Theory of operation. A node is *running* from `RunBody` to `FiringEnded`; one firing at a time. It is *ready* when its
body is open, every Queue output has credit at every live consumer, and its firing rule is satisfied. Ready nodes are
started at once, in the order in which they became ready, at the end of the event that made them so. An *idle* node
(its body said so) takes no required inputs: it fires when something new is sampled, until its body is idle no more.
Links come and go with replicas: a new incarnation is a new link with fresh credit and fresh initial items, and what
the old one held is dropped and counted. Payloads are handles with counted uses: every use ends in exactly one RunBody,
SendItem or DropItem. Of a Latest edge to other hosts the newest item per key is kept, and sent again to whoever joins
later (ResendItem uses nothing up). An illegal event raises and leaves the state as it was.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from isthmus.runtime.clock import Instant
from isthmus.runtime.errors import InvariantError, LocalProtocolError, RemoteProtocolError
from isthmus.runtime.events import (
    BodyFailed,
    CancelTimer,
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
    ResendItem,
    RunBody,
    SendItem,
    SetTimer,
    ShareItem,
    StopRequested,
    TimerFired,
)
from isthmus.runtime.graph import AllOf, AnyOf, Every, Quorum
from isthmus.runtime.ids import Handle, Member, Replica
from isthmus.runtime.lowering import EdgePlan, NodePlan, Plan
from isthmus.runtime.ports import (
    KEY_TYPES,
    Arrival,
    Exit,
    Inlet,
    Link,
    Mailbox,
    Outlet,
    QueueInlet,
    Route,
    consumers,
    producers,
)
from isthmus.runtime.rounds import Rounds, Settled

CONSTANTS_PER_EDGE: Final = 1 << 16
"""More than the largest capacity of a Queue, so that constants of different edges have different handles."""


def constant(edge: int, index: int) -> Handle:
    """The handle of initial item `index` of an edge: negative, the same on every host."""
    return Handle(-1 - edge * CONSTANTS_PER_EDGE - index)


class _Node:
    """A node while it runs. The ports of its Quorum have no inlet: what comes there goes to its rounds."""

    __slots__ = (
        "exits", "firings", "index", "inlets", "is_due", "is_finished", "is_idle", "is_nudged", "is_open", "is_running",
        "link_newest", "outlets", "plan", "required", "rounds", "rule", "sampled",
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
        self.rule: Callable[[_Node], bool] = _RULES[type(plan.fires)]
        self.firings = self.link_newest = 0
        self.is_open = self.is_running = self.is_idle = self.is_nudged = self.is_due = self.is_finished = False

    def inlet(self, port: int) -> Inlet | None:
        """The inlet of input port number `port`."""
        return next((inlet for number, inlet, _ in self.inlets if number == port), None)


def _inlet(kind: str) -> Inlet | None:
    return QueueInlet() if kind == "queue" else Mailbox() if kind == "latest" else None


def _all_of(node: _Node) -> bool:
    for inlet in node.required:  # noqa: SIM110 -- all(...) takes three times as long, and every firing comes here.
        if inlet is None or not inlet.is_complete():
            return False
    return True


def _any_of(node: _Node) -> bool:
    return any(inlet is not None and inlet.is_new() for inlet in node.required)


def _has_sampled(node: _Node) -> bool:
    """Whether a sampled port has something new: what an idle node fires for."""
    return any(inlet.is_new() for inlet in node.sampled)


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
        self._live: dict[str, tuple[Member, ...]] = dict.fromkeys(plan.replicas, ())
        self._newest: dict[Replica, int] = {}
        self._nodes: dict[int, _Node] = {node.index: _Node(node) for node in plan.nodes}
        self._routes: dict[int, Route] = {}
        self._arrivals: dict[int, Arrival] = {}
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
        if now < self._now:
            raise LocalProtocolError(f"{event} came at {now} ns, after an event at {self._now} ns. Fix the clock.")
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
        return self._live[role]

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
        edge, link = arrival.edge, arrival.links.get(event.source)
        key = None if edge.key is None else (event.fields or {}).get(edge.key)
        if edge.key is not None and type(key) not in KEY_TYPES:
            raise RemoteProtocolError(f"{event.source} sent an item on {edge.name} without {edge.key!r}")
        if link is None:
            self._drop(event.handle, "not connected")
            return
        if edge.kind == "queue" and link.credit == 0:
            raise RemoteProtocolError(f"{event.source} sent an item on {edge.name} without credit")
        self._deliver(arrival, link, event.handle, key, event.fields)
        link.credit -= edge.kind == "queue"  # After what may have raised.

    def _credit_granted(self, event: CreditGranted) -> None:
        route = self._routes.get(event.edge)
        if route is None or route.outlet is None:
            raise RemoteProtocolError(f"{event.target} granted credit on edge {event.edge}, no Queue that begins here")
        link = route.links.get(event.target)
        if link is not None:
            route.outlet.grant(link, event.count)
            self._woken.append(self._nodes[route.outlet.producer])

    def _node_opened(self, event: NodeOpened) -> None:
        node = self._nodes.get(event.node)
        if node is None or node.is_open:
            raise LocalProtocolError(f"node {event.node} was opened twice, or is not of this host")
        node.is_open = True
        node.is_idle = node.is_nudged = event.is_idle
        if isinstance(node.plan.fires, Every):
            self._commands.append(SetTimer(node.index, Instant(self._now + node.plan.fires.period)))
        self._woken.append(node)

    def _body_failed(self, event: BodyFailed) -> None:
        node = self._nodes.get(event.node)
        if node is None or (node.is_open and not node.is_running):
            raise LocalProtocolError(f"node {event.node} failed, which was neither being opened nor running")
        node.is_running = False
        node.is_open = False
        self._commands.append(FailHost(event.node, event.error))

    def _timer_fired(self, event: TimerFired) -> None:
        node = self._nodes.get(event.timer)
        if node is not None and isinstance(node.plan.fires, Every):
            if not node.is_finished:
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
        role, slot = member.replica.role, member.replica.slot
        if role not in self._live or not 0 <= slot < self.plan.replicas[role][1]:
            raise RemoteProtocolError(f"{member} joined; graph {self.plan.graph!r} has no replica {member.replica}")
        newest = self._newest.get(member.replica, 0)
        if member.incarnation <= newest:
            raise RemoteProtocolError(f"{member} joined, but incarnation {newest} has joined before")
        self._newest[member.replica] = member.incarnation
        self._have_live(role, [*(other for other in self._live[role] if other.replica != member.replica), member])

    def _replica_left(self, event: ReplicaLeft) -> None:
        role = event.member.replica.role
        if event.member not in self._live.get(role, ()):
            raise LocalProtocolError(f"{event.member} left, but is not live")
        self._have_live(role, [member for member in self._live[role] if member != event.member])

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
        inputs: list[tuple[int, tuple[Entry, ...]]] = []
        decision: dict[str, Any] | None = None
        if node.rounds is not None and not node.is_idle:
            closed = node.rounds.take()
            for link in closed.links:
                self._return_vote(link)
            inputs.extend(closed.inputs)
            decision = closed.decision
        for port, inlet, is_required in node.inlets:
            if inlet.is_new() and not (is_required and node.is_idle):
                entries, taken = inlet.take()
                inputs.append((port, entries))
                for link in taken:
                    self._give_back(link)
        node.is_running = True
        node.is_due = node.is_nudged = False
        node.link_newest = self._link_last
        node.firings += 1
        self._commands.append(RunBody(node.index, node.firings, tuple(inputs), decision))

    def _give_back(self, link: Link) -> None:
        """One item of a Queue link was taken: its producer gets a credit."""
        if link.outlet is not None:
            if link.credit == 0:  # Else the producer waits for something else.
                self._woken.append(self._nodes[link.outlet.producer])
            link.outlet.grant(link, 1)
        else:
            link.credit += 1
            self._commands.append(GrantCredit(link.edge.index, link.member, 1))

    def _finish(self, node: _Node) -> None:
        """End a node. What waits for it is dropped and its credit kept: nobody needs to send it more."""
        node.is_finished = True
        for _, inlet, _ in node.inlets:
            for handle in inlet.clear():
                self._drop(handle, "node finished")
        if node.rounds is not None:
            handles, timers = node.rounds.clear()
            for handle in handles:
                self._drop(handle, "node finished")
            self._commands.extend(timers)
            node.rounds = None
        if isinstance(node.plan.fires, Every):
            self._commands.append(CancelTimer(node.index))
        self._commands.append(EndNode(node.index))

    # -- items ---------------------------------------------------------------------------------------------------------

    def _check_outputs(self, node: _Node, outputs: tuple[Output, ...]) -> None:
        """Raise LocalProtocolError for outputs that no body may emit."""
        is_ample = len(outputs) <= 1
        for output in outputs:
            if not 0 <= output.port < len(node.exits):
                raise LocalProtocolError(
                    f"node {node.plan.name!r} emitted on port {output.port}, which it does not have"
                )
            exit_ = node.exits[output.port]
            if exit_.plan.fields:
                exit_.check_fields(node.plan.name, output.fields)
            for outlet in exit_.outlets:
                is_ample = is_ample and not outlet.starved
        if not is_ample:
            self._check_credit(node, outputs)

    def _check_credit(self, node: _Node, outputs: tuple[Output, ...]) -> None:
        """Raise LocalProtocolError if there are more outputs than some consumer gave credit for."""
        spent: Counter[Link] = Counter()
        for output in outputs:
            for route in node.exits[output.port].routes:
                for link in self._targets(node, route, output.fields) if route.outlet is not None else ():
                    spent[link] += 1
                    if spent[link] > link.credit:
                        raise LocalProtocolError(
                            f"node {node.plan.name!r} emitted {spent[link]} items at once on {route.edge.name}, "
                            f"where {link.member} had given credit for {link.credit}"
                        )

    def _emit(self, node: _Node, output: Output) -> None:
        """Send one item along every edge of its port."""
        uses, at = 0, len(self._commands)
        handle, fields = output.handle, output.fields
        for route in node.exits[output.port].routes:
            edge = route.edge
            key = fields[edge.key] if edge.key is not None and fields is not None else None
            if route.keeps:
                uses += 1
                former = route.keep(key, handle, fields)
                if former is not None:
                    self._drop(former, "newest no more")
            for link in self._targets(node, route, fields):
                uses += 1
                if route.outlet is not None:
                    route.outlet.spend(link)
                if link.is_local:
                    assert route.arrival is not None
                    self._deliver(route.arrival, link, handle, key, fields)
                else:
                    self._commands.append(SendItem(edge.index, link.member, handle, key, fields))
        if uses == 0:
            self._drop(handle, "nobody to send to")
        elif uses > 1:
            self._commands.insert(at, ShareItem(handle, uses))

    def _targets(self, node: _Node, route: Route, fields: Fields) -> Iterable[Link]:
        """The links that an item goes along.

        A Queue link counts from the first firing that began after it was opened: it starts with its initial items, and
        a firing that had begun before must not add to them, nor find that they left it no credit.
        """
        links: Iterable[Link] = route.links.values()
        if route.edge.route_key is not None and fields is not None:
            links = self._addressed(route, fields[route.edge.route_key])
        if route.outlet is None or node.link_newest == self._link_last:
            return links
        return [link for link in links if link.number <= node.link_newest]

    def _addressed(self, route: Route, number: int) -> list[Link]:
        """The link to replica `number` modulo the replicas of the role, if it is live."""
        role = route.edge.target_role
        low, high = self.plan.replicas[role]
        live = self._live[role]
        slot = number % high if low == high else live[number % len(live)].replica.slot if live else -1
        return [link for member, link in route.links.items() if member.replica.slot == slot]

    def _deliver(self, arrival: Arrival, link: Link, handle: Handle, key: int | str | None, fields: Fields) -> None:
        """Put an item into the port of a node of this host."""
        node = self._nodes[arrival.consumer]
        if node.is_finished:
            self._drop(handle, "node finished")
        elif arrival.inlet is None:
            self._enter_round(node, arrival, link, handle, fields)
        else:
            superseded = arrival.inlet.put(link, handle, key)
            if superseded is not None:
                self._drop(superseded, "superseded")
            if not node.is_running:
                self._woken.append(node)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _enter_round(self, node: _Node, arrival: Arrival, link: Link, handle: Handle, fields: Fields) -> None:
        """Take a vote or an opening. One that is not allowed is the fault of the body that emitted it."""
        assert node.rounds is not None
        try:
            settled = node.rounds.arrived(arrival.port, link, handle, fields, self._now)
        except LocalProtocolError as error:
            if not link.is_local:
                raise RemoteProtocolError(f"{link.member} sent an item on {arrival.edge.name}: {error}") from None
            self._drop(handle, "not allowed")
            if link.outlet is not None:
                self._give_back(link)
            self._commands.append(FailHost(arrival.edge.source, str(error)))
            return
        self._settle(node, settled)

    def _settle(self, node: _Node, settled: Settled) -> None:
        """Carry out what the rounds of a Quorum node decided."""
        for handle, link, reason in settled.refused:
            self._return_vote(link)
            self._drop(handle, reason)
        self._commands.extend(settled.timers)
        if settled.has_closed:
            self._woken.append(node)

    def _return_vote(self, link: Link) -> None:
        """A vote or an opening is used up: where it came by a Queue, its producer gets the credit back."""
        if link.is_open and link.edge.kind == "queue":
            self._give_back(link)

    def _drop(self, handle: Handle, reason: str) -> None:
        self.counts[reason] += 1
        self._commands.append(DropItem(handle, reason))

    # -- links ---------------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Set up routes and arrivals of the plan; links open as replicas join."""
        for edge in self.plan.edges.values():
            consumer, producer = self._nodes.get(edge.target), self._nodes.get(edge.source)
            if consumer is not None:
                self._arrivals[edge.index] = self._arrival(edge, consumer)
            if producer is not None:
                route = self._routes[edge.index] = Route(edge, self._arrivals.get(edge.index))
                producer.exits[[item.name for item in producer.plan.outputs].index(edge.source_port)].add(route)
        for node in self._nodes.values():
            node.outlets = [outlet for exit_ in node.exits for outlet in exit_.outlets]

    def _arrival(self, edge: EdgePlan, consumer: _Node) -> Arrival:
        fires = consumer.plan.fires
        is_voting = isinstance(fires, Quorum) and edge.target_port == fires.port
        if is_voting and consumer.rounds is None:
            consumer.rounds = Rounds(consumer.plan, edge.source_role)
        port = [item.name for item in consumer.plan.inputs].index(edge.target_port)
        return Arrival(edge, port, consumer.inlet(port), is_voting=is_voting)

    def _have_live(self, role: str, members: list[Member]) -> None:
        """Open and close links so that they are what the roster says, and tell the rounds who may vote."""
        self._live[role] = tuple(sorted(members))
        left: list[tuple[Arrival, Member]] = []
        joined: list[tuple[Arrival, Member]] = []
        for route in self._routes.values():
            wanted = consumers(route.edge, self.member, self._live)
            for member in [member for member in route.links if member not in wanted]:
                self._close_outlet(route, member)
            for member in wanted:
                if member not in route.links:
                    self._open_outlet(route, member)
        for arrival in self._arrivals.values():
            wanted = producers(arrival.edge, self.member, self._live)
            for member in [member for member in arrival.links if member not in wanted]:
                self._close_inlet(arrival, member)
                left.append((arrival, member))
            for member in wanted:
                if member not in arrival.links:
                    self._open_inlet(arrival, member)
                    joined.append((arrival, member))
        self._change_voters(left, joined)
        self._woken.extend(self._nodes.values())

    def _change_voters(self, left: list[tuple[Arrival, Member]], joined: list[tuple[Arrival, Member]]) -> None:
        """Tell the rounds who votes no more and who may vote; only when every link is as it will be."""
        for arrival, member in left:
            node = self._nodes[arrival.consumer]
            if arrival.is_voting and node.rounds is not None:
                self._settle(node, node.rounds.left(member, self._now))
        for arrival, member in joined:
            node = self._nodes[arrival.consumer]
            if arrival.is_voting and node.rounds is not None:
                self._settle(node, node.rounds.joined(member, self._now))

    def _open_outlet(self, route: Route, member: Member) -> None:
        self._link_last += 1
        link = route.links[member] = Link(self._link_last, route.edge, member, route.outlet)
        link.is_local = route.arrival is not None and member == self.member
        if route.outlet is not None:
            route.outlet.open(link)
        if not link.is_local:
            for key, (handle, fields) in route.kept.items():
                if route.edge.route_key is None or link in self._addressed(route, (fields or {})[route.edge.route_key]):
                    self._commands.append(ResendItem(route.edge.index, member, handle, key, fields))

    def _close_outlet(self, route: Route, member: Member) -> None:
        link = route.links.pop(member)
        link.is_open = False
        if route.outlet is not None:
            route.outlet.close(link)

    def _open_inlet(self, arrival: Arrival, member: Member) -> None:
        route = self._routes.get(arrival.edge.index)
        if route is not None and member == self.member:
            link = route.links[member]
        else:
            self._link_last += 1
            link = Link(self._link_last, arrival.edge, member, None)
        arrival.links[member] = link
        if arrival.inlet is not None:
            count = 0 if self._nodes[arrival.consumer].is_finished else len(arrival.edge.initial)
            arrival.inlet.open(link, tuple(constant(arrival.edge.index, i) for i in range(count)))

    def _close_inlet(self, arrival: Arrival, member: Member) -> None:
        link = arrival.links.pop(member)
        link.is_open = False
        for handle in arrival.inlet.close(link) if arrival.inlet is not None else ():
            self._drop(handle, "link ended")

    # -- invariants ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise InvariantError unless counters and contents agree and no ready node was left waiting."""
        for node in self._nodes.values():
            name = node.plan.name
            for outlet in node.outlets:
                _demand(outlet.starved == sum(not link.credit for link in outlet.links), f"{name}: starved")
            for _, inlet, _ in node.inlets:
                if isinstance(inlet, QueueInlet):
                    _demand(inlet.filled == sum(bool(link.items) for link in inlet.links), f"{name}: filled")
            if node.rounds is not None:
                node.rounds.check()
            _demand(not self._is_ready(node), f"{name}: ready, but not started")
        for route in self._routes.values():
            _demand(
                set(route.links) == set(consumers(route.edge, self.member, self._live)), f"{route.edge.name}: links"
            )
            for link in route.links.values():
                _demand(0 <= link.credit <= route.edge.capacity, f"{route.edge.name}: credit out of range")
        for arrival in self._arrivals.values():
            edge, node = arrival.edge, self._nodes[arrival.consumer]
            _demand(set(arrival.links) == set(producers(edge, self.member, self._live)), f"{edge.name}: links")
            if edge.kind == "queue" and arrival.inlet is not None and not node.is_finished:
                kept = [len(link.items) + link.credit == edge.capacity for link in arrival.links.values()]
                _demand(all(kept), f"{edge.name}: credit and items are not its capacity")


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise InvariantError(what)
