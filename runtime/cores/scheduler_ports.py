"""The ports of a host's nodes while it runs: the items that wait at an input, and the credit of an output.

A *link* is an edge and the member at its other end; a new incarnation is a new link. An input port fed by Queue edges
takes from one FIFO per link; one fed by Latest edges is a mailbox with the newest item per (link, key). An output port
is an exit of routes, one per edge. Ports hold handles and know nothing of firing rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from isthmus.runtime.cores.scheduler_events import Entry, Fields
from isthmus.runtime.errors import LocalProtocolError, RemoteProtocolError
from isthmus.runtime.graph.plans import EdgePlan, OutputPlan
from isthmus.runtime.ids import Handle, Member

KEY_TYPES: Final = (int, str)
"""Types that may name a mailbox, a replica or a round: exactly these, because a bool or a NumPy integer changes its
type once it has been on the tape or the wire."""

CONSTANTS_PER_EDGE: Final = 1 << 16
"""More than the largest capacity of a Queue, so that constants of different edges have different handles."""

KEPT_MAX: Final = 4096
"""Keys of one edge whose newest item is kept: far more than a model has fragments."""


def constant(edge: int, index: int) -> Handle:
    """The handle of initial item `index` of an edge: negative, the same on every host."""
    return Handle(-1 - edge * CONSTANTS_PER_EDGE - index)


class Link:
    """An edge and the member at its other end, while both are live. Links are numbered in the order of opening.

    `credit` is how many more items the producer may send on a Queue edge; both ends keep it in the same way. `outlet`
    is set at the producer's end. `items` wait at the consumer's end. `is_local`: both ends are on this host.
    """

    __slots__ = ("credit", "edge", "is_local", "is_open", "items", "member", "number", "outlet")

    def __init__(self, number: int, edge: EdgePlan, member: Member, outlet: Outlet | None) -> None:
        self.number = number
        self.edge = edge
        self.member = member
        self.outlet = outlet
        self.credit = edge.capacity - len(edge.initial)
        self.items: deque[Handle] = deque()
        self.is_open = True
        self.is_local = False

    def clear(self) -> list[Handle]:
        """Remove and return everything that waits here."""
        handles = list(self.items)
        self.items.clear()
        return handles


class QueueInlet:
    """An input port fed by Queue edges. A firing takes one item of each link that has one; `new` counts those links."""

    __slots__ = ("links", "new")

    def __init__(self) -> None:
        self.links: list[Link] = []
        self.new = 0

    def open(self, link: Link, initial: tuple[Handle, ...]) -> None:
        """Start a link with its initial items."""
        self.links.append(link)
        link.items.extend(initial)
        self.new += bool(initial)

    def close(self, link: Link) -> list[Handle]:
        """End a link; returns what it still held."""
        self.links.remove(link)
        self.new -= bool(link.items)
        return link.clear()

    def put(self, link: Link, handle: Handle, key: int | str | None) -> Handle | None:
        """Add an item, for which its producer had credit. It supersedes nothing."""
        if not link.items:
            self.new += 1
        link.items.append(handle)
        return None

    def take(self) -> tuple[tuple[Entry, ...], list[Link]]:
        """The first item of every link that has one, and the links whose producers get a credit back."""
        entries: list[Entry] = []
        links: list[Link] = []
        for link in self.links:
            if link.items:
                entries.append((link.member.replica, None, link.items.popleft()))
                links.append(link)
                if not link.items:
                    self.new -= 1
        return tuple(entries), links

    def is_complete(self) -> bool:
        """Whether there are links and every one has an item."""
        return 0 < self.new == len(self.links)

    def clear(self) -> list[Handle]:
        """Remove and return everything that waits here."""
        self.new = 0
        return [handle for link in self.links for handle in link.clear()]


class Mailbox:
    """An input port fed by Latest edges. A firing takes everything that is `new`, by link and key."""

    __slots__ = ("new",)

    def __init__(self) -> None:
        self.new: dict[tuple[Link, int | str | None], Handle] = {}

    def open(self, link: Link, initial: tuple[Handle, ...]) -> None:
        """Start a link; a Latest edge has no initial items."""

    def close(self, link: Link) -> list[Handle]:
        """End a link; returns what it still held."""
        return [self.new.pop(place) for place in list(self.new) if place[0] is link]

    def put(self, link: Link, handle: Handle, key: int | str | None) -> Handle | None:
        """Add an item; returns the older one that it supersedes."""
        superseded = self.new.pop((link, key), None)
        self.new[(link, key)] = handle
        return superseded

    def take(self) -> tuple[tuple[Entry, ...], list[Link]]:
        """Everything that is new, in order of arrival; no credit is due."""
        entries = [(link.member.replica, key, handle) for (link, key), handle in self.new.items()]
        self.new.clear()
        return tuple(entries), []

    def is_complete(self) -> bool:
        return bool(self.new)

    def clear(self) -> list[Handle]:
        """Remove and return everything that waits here."""
        handles = list(self.new.values())
        self.new.clear()
        return handles


Inlet = QueueInlet | Mailbox
"""In both, `new` is falsy where there is nothing new."""


class Arrival:
    """An edge that enters port number `port` of node `consumer`, with its live links by producer.

    Quorum ports have no inlet: their items go to the node's rounds, as votes if the edge `is_voting`.
    """

    __slots__ = ("consumer", "edge", "inlet", "is_voting", "links", "port")

    def __init__(self, edge: EdgePlan, port: int, inlet: Inlet | None, *, is_voting: bool) -> None:
        self.consumer = edge.target
        self.edge = edge
        self.inlet = inlet
        self.is_voting = is_voting
        self.links: dict[Member, Link] = {}
        self.port = port


class Outlet:
    """The producer's end of a Queue edge; `starved` counts its live links without credit."""

    __slots__ = ("links", "producer", "starved")

    def __init__(self, producer: int) -> None:
        self.producer = producer
        self.links: list[Link] = []
        self.starved = 0

    def open(self, link: Link) -> None:
        """Start a link, whose initial items occupy credit."""
        self.links.append(link)
        self.starved += link.credit == 0

    def close(self, link: Link) -> None:
        self.links.remove(link)
        self.starved -= link.credit == 0

    def spend(self, link: Link) -> None:
        """Spend one credit; there must be one."""
        link.credit -= 1
        if link.credit == 0:
            self.starved += 1

    def restore(self, link: Link) -> bool:
        """Take back one credit from a consumer on this host; returns whether there had been none."""
        was_starved = link.credit == 0
        if was_starved:
            self.starved -= 1
        link.credit += 1
        return was_starved

    def grant(self, link: Link, count: int) -> None:
        """Take back `count` credits; RemoteProtocolError if the consumer took more than it was sent."""
        under_way = link.edge.capacity - link.credit
        if not 1 <= count <= under_way:
            raise RemoteProtocolError(
                f"{link.member} granted {count} credits on {link.edge.name}, where {under_way} items were under way"
            )
        self.starved -= link.credit == 0
        link.credit += count


class OutgoingRoute:
    """An edge that leaves a node here, with its live links by consumer; `arrival` is its other end, if on this host.

    An edge that `keeps` has the newest item per key for consumers that join later: `kept` by key, oldest
    first, at most KEPT_MAX.
    """

    __slots__ = ("arrival", "edge", "keeps", "kept", "links", "outlet")

    def __init__(self, edge: EdgePlan, arrival: Arrival | None) -> None:
        self.arrival = arrival
        self.edge = edge
        self.links: dict[Member, Link] = {}
        self.outlet = Outlet(edge.source) if edge.kind == "queue" else None
        self.keeps = edge.is_kept
        self.kept: dict[int | str | None, tuple[Handle, Fields]] = {}

    def keep(self, key: int | str | None, handle: Handle, fields: Fields) -> Handle | None:
        """Keep the newest item of a key; returns the one that it displaces, if any."""
        former = self.kept.pop(key, None)
        if former is None and len(self.kept) >= KEPT_MAX:
            former = self.kept.pop(next(iter(self.kept)))
        self.kept[key] = (handle, fields)
        return None if former is None else former[0]


class Exit:
    """An output port with the edges that leave it; `has_fields`: some of them need fields of its items."""

    __slots__ = ("has_fields", "outlets", "plan", "routes")

    def __init__(self, plan: OutputPlan) -> None:
        self.has_fields = bool(plan.fields)
        self.outlets: list[Outlet] = []
        self.plan = plan
        self.routes: list[OutgoingRoute] = []

    def add(self, route: OutgoingRoute) -> None:
        """Attach an edge that leaves here."""
        self.routes.append(route)
        if route.outlet is not None:
            self.outlets.append(route.outlet)

    def check_fields(self, node: str, fields: Fields) -> None:
        """Raise LocalProtocolError unless an item has the fields that its edges need."""
        for name in self.plan.fields:
            value: Any = (fields or {}).get(name)
            is_integer = name in self.plan.fields_integer
            if type(value) not in KEY_TYPES or (is_integer and type(value) is not int):
                expected = "an integer" if is_integer else "an integer or a text"
                raise LocalProtocolError(
                    f"node {node!r} emitted an item on {self.plan.name!r}: expected {expected} in field {name!r}, "
                    f"found {value!r}"
                )


def consumers(edge: EdgePlan, producer: Member, live: Mapping[str, tuple[Member, ...]]) -> tuple[Member, ...]:
    """The live replicas that an edge leads to from a live producer; `live` gives those of each role, by slot."""
    producers = live[edge.source_role]
    if producer not in producers:
        return ()
    if edge.route == "local":
        return (producer,)
    if edge.route == "next":
        return (producers[(producers.index(producer) + 1) % len(producers)],)
    return _grouped(live[edge.target_role], producer, edge, is_sender=True)


def producers(edge: EdgePlan, consumer: Member, live: Mapping[str, tuple[Member, ...]]) -> tuple[Member, ...]:
    """The live replicas from which an edge leads to a live consumer."""
    producers = live[edge.source_role]
    if edge.route not in ("local", "next"):
        if consumer not in live[edge.target_role]:
            return ()
        return _grouped(producers, consumer, edge, is_sender=False)
    if consumer not in producers:
        return ()
    return (consumer,) if edge.route == "local" else (producers[producers.index(consumer) - 1],)


def _grouped(members: tuple[Member, ...], of: Member, edge: EdgePlan, *, is_sender: bool) -> tuple[Member, ...]:
    """Those of these members that are in the group of one, which is the sender or the receiver; all without groups."""
    if not edge.groups:
        return members
    own, is_other = edge.group_of(of.replica.slot, is_sender=is_sender), not is_sender
    return tuple(each for each in members if edge.group_of(each.replica.slot, is_sender=is_other) == own)
