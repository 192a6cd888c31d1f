"""What has crossed between a host, or a daemon, and each of its peers: counted where it leaves and where it arrives.

Decides what is counted apart; what the numbers mean for a run is the business of those who read them. Both ends count,
each what it has handed to its sockets and what it got from them, so that either has a witness.

Theory of operation. Bytes are those of TCP's payload. On a direct link every message is counted once: control messages
by themselves, and of data messages the items by their edges, and what is relayed for others. The rest is *framing*:
headers, what encryption adds, and handshakes. Of a peer that is reached through another one, items are counted as
well, but no bytes of messages: those are the other one's. Whatever is counted is an addition to numbers that are
there; only the first item of an edge makes something.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal, TypeAlias, final

import msgspec

from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Count

Direction: TypeAlias = Literal["sent", "received"]
CONTROL: Final = "control"
RELAYED: Final = "relayed"
FRAMING: Final = "framing"
ITEMS: Final = "items"
LENT: Final = ("items_lent", "bytes_lent", "items_unlent", "bytes_unlent", "bytes_copied", "desk_unreached")
"""Statistics of channels that share memory: items of that size that went there and that did not, bytes that were copied
there, once for all peers and items that have them, and peers of the same machine with which none could be shared."""


@final
class Tally:
    """Things of one kind that have crossed: `count` of them, their bytes, the `largest`, and the times of the `first`
    and the `last`."""

    __slots__ = ("count", "first", "largest", "last", "size_bytes")

    def __init__(self) -> None:
        self.count = self.size_bytes = self.largest = 0
        self.first = self.last = Instant(0)

    def add(self, size_bytes: int, at: Instant) -> None:
        """One more thing, of `size_bytes`."""
        if not self.count:
            self.first = at
        self.count += 1
        self.size_bytes += size_bytes
        self.last = at
        if size_bytes > self.largest:
            self.largest = size_bytes


@final
class OneWay:
    """What has crossed in one direction. `whole_bytes` are those of data messages, `greeting_bytes` of handshakes,
    `lent_bytes` those of items that were in no message, but in memory that both ends share."""

    __slots__ = ("control", "edges", "greeting_bytes", "lent_bytes", "relayed", "whole_bytes")

    def __init__(self) -> None:
        self.control, self.relayed = Tally(), Tally()
        self.edges: dict[int, Tally] = {}
        self.whole_bytes = self.greeting_bytes = self.lent_bytes = 0

    def items(self, crossing: Iterable[tuple[int, int]], at: Instant) -> None:
        """Items cross together: the edge of each, by its index in the graph, and its bytes."""
        edges, last, tally = self.edges, None, None
        for edge, size_bytes in crossing:
            if tally is None or edge != last:
                last, tally = edge, edges.get(edge)
                if tally is None:
                    tally = edges[edge] = Tally()
            tally.add(size_bytes, at)

    @property
    def framing_bytes(self) -> int:
        """Bytes that are of no item and of no control message; an item that is under way counts as a whole."""
        items = sum(each.size_bytes for each in self.edges.values())
        return max(0, self.whole_bytes + self.lent_bytes - items - self.relayed.size_bytes) + self.greeting_bytes


@final
class Crossed:
    """What has crossed between this end and one peer."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.sent, self.received = OneWay(), OneWay()


class EdgeCrossing(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A line of an account: what has crossed between this end and a peer, in one direction, of one kind.

    `edge` is the name of an edge where `kind` is ITEMS; of another account, the type of a message. `through` is the
    peer that relays, '' for none: the bytes are then in its own lines as well. Times are nanoseconds of the run's
    clock, 0 where nothing has crossed or no time is known.
    """

    peer: str
    incarnation: Count
    machine: str
    through: str
    direction: Direction
    kind: str
    edge: str
    count: Count
    size_bytes: Count
    largest: Count
    first: int
    last: int

    @classmethod
    def of(cls, peer: dict[str, Any], direction: Direction, kind: str, tally: Tally, edge: str = "") -> EdgeCrossing:
        """A line about things of a kind; `peer` has the fields that name the other end."""
        figures = tally.count, tally.size_bytes, tally.largest, tally.first, tally.last
        ends = peer["peer"], peer["incarnation"], peer["machine"], peer["through"]
        return cls(*ends, direction, kind, edge, *figures)


def lines(peer: dict[str, Any], crossed: Crossed, names: dict[int, str]) -> list[EdgeCrossing]:
    """The lines of one peer; `peer` has the fields that name it, `names` those of edges by index."""
    account = []
    ways: tuple[tuple[Direction, OneWay], ...] = ("sent", crossed.sent), ("received", crossed.received)
    for direction, way in ways:
        for index, tally in sorted(way.edges.items()):
            account.append(EdgeCrossing.of(peer, direction, ITEMS, tally, names.get(index, str(index))))
        if peer["through"]:
            continue
        for kind, tally in ((CONTROL, way.control), (RELAYED, way.relayed)):
            if tally.count:
                account.append(EdgeCrossing.of(peer, direction, kind, tally))
        if way.framing_bytes:
            framing = Tally()
            framing.size_bytes = way.framing_bytes
            account.append(EdgeCrossing.of(peer, direction, FRAMING, framing))
    return account


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The account of one life of a host, or of a run's home daemon: a file of the run folder.

    `clock` (nanoseconds of the run's clock) and `time` (seconds since 1970) are of the same moment, that of writing;
    `is_last`: nothing crosses after it.
    """

    host: str
    incarnation: Count
    machine: str
    clock: int
    time: float
    is_last: bool
    is_encrypted: bool
    lines: list[EdgeCrossing]
    error_texts: dict[str, str] = {}
    """Of a daemon: where the machines say that texts of errors stay, 'local' or 'home'."""
    lent: dict[str, Count] = {}
    """Of a host, by LENT: what it sent to hosts of its machine through memory that both map."""
