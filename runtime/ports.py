"""The ports of a host's nodes while it runs: what waits at an input, and what credit an output has.

A *link* is an edge and the member at its other end, numbered by the scheduler; a new incarnation is a new link. An
input port fed by Queue edges keeps one FIFO per link; one fed by Latest edges is a mailbox with the newest item per
(link, key). Ports hold handles and know nothing of firing rules.
"""

from __future__ import annotations

from collections import deque

from isthmus.runtime.errors import LocalProtocolError, RemoteProtocolError
from isthmus.runtime.events import Entry
from isthmus.runtime.ids import Handle, Replica

Link = int


class QueueInlet:
    """An input port fed by Queue edges. A firing takes one item of each link that has one."""

    __slots__ = ("capacities", "filled", "producers", "queues")

    def __init__(self) -> None:
        self.queues: dict[Link, deque[Handle]] = {}
        self.producers: dict[Link, Replica] = {}
        self.capacities: dict[Link, int] = {}
        self.filled = 0

    def open(self, link: Link, producer: Replica, capacity: int, initial: tuple[Handle, ...]) -> None:
        """Start a link with its initial items."""
        self.queues[link] = deque(initial)
        self.producers[link] = producer
        self.capacities[link] = capacity
        self.filled += bool(initial)

    def close(self, link: Link) -> tuple[Handle, ...]:
        """End a link; the result is what it still held."""
        queue = self.queues.pop(link)
        del self.capacities[link], self.producers[link]
        self.filled -= bool(queue)
        return tuple(queue)

    def put(self, link: Link, handle: Handle, key: int | str | None = None) -> Handle | None:
        """Add an item; RemoteProtocolError if its producer had no credit for it. Supersedes nothing."""
        queue = self.queues[link]
        if not queue:
            self.filled += 1
        elif len(queue) >= self.capacities[link]:
            raise RemoteProtocolError(
                f"{self.producers[link]} sent an item without credit: {self.capacities[link]} are waiting already"
            )
        queue.append(handle)
        return None

    def take(self) -> tuple[list[Entry], list[Link]]:
        """The first item of every link that has one, and the links that get their credit back."""
        entries: list[Entry] = []
        taken: list[Link] = []
        for link, queue in self.queues.items():
            if queue:
                entries.append((self.producers[link], None, queue.popleft()))
                taken.append(link)
                if not queue:
                    self.filled -= 1
        return entries, taken

    def is_new(self) -> bool:
        """Whether any link has an item."""
        return self.filled > 0

    def is_complete(self) -> bool:
        """Whether there are links and every one has an item."""
        return 0 < self.filled == len(self.queues)

    def handles(self) -> list[Handle]:
        """Everything that waits here."""
        return [handle for queue in self.queues.values() for handle in queue]


class Mailbox:
    """An input port fed by Latest edges. A firing takes everything that is new."""

    __slots__ = ("items", "producers")

    def __init__(self) -> None:
        self.items: dict[tuple[Link, int | str | None], Handle] = {}
        self.producers: dict[Link, Replica] = {}

    def open(self, link: Link, producer: Replica, capacity: int, initial: tuple[Handle, ...]) -> None:
        """Start a link; a mailbox has no capacity to keep, and `verify` sees to it that it has no initial items."""
        self.producers[link] = producer

    def close(self, link: Link) -> tuple[Handle, ...]:
        """End a link; the result is what it still held."""
        del self.producers[link]
        keys = [key for key in self.items if key[0] == link]
        return tuple(self.items.pop(key) for key in keys)

    def put(self, link: Link, handle: Handle, key: int | str | None = None) -> Handle | None:
        """Add an item; the result is the older one that it supersedes."""
        superseded = self.items.pop((link, key), None)
        self.items[(link, key)] = handle
        return superseded

    def take(self) -> tuple[list[Entry], list[Link]]:
        """Everything that is new, in order of arrival; no credit is due."""
        entries: list[Entry] = [(self.producers[link], key, handle) for (link, key), handle in self.items.items()]
        self.items.clear()
        return entries, []

    def is_new(self) -> bool:
        """Whether there is anything."""
        return bool(self.items)

    is_complete = is_new

    def handles(self) -> list[Handle]:
        """Everything that waits here."""
        return list(self.items.values())


Inlet = QueueInlet | Mailbox


class Outlet:
    """The credits of one Queue edge, per live consumer; `starved` counts the consumers that have none left."""

    __slots__ = ("capacity", "credits", "starved")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.credits: dict[Link, int] = {}
        self.starved = 0

    def open(self, link: Link, initial: int) -> None:
        """Start a link, whose initial items occupy credit."""
        self.credits[link] = self.capacity - initial
        self.starved += self.credits[link] == 0

    def close(self, link: Link) -> None:
        """End a link."""
        self.starved -= self.credits.pop(link) == 0

    def least(self) -> int:
        """The credit at the consumer that has the least; without consumers, the capacity."""
        return min(self.credits.values(), default=self.capacity)

    def spend(self, link: Link) -> None:
        """Use one credit; LocalProtocolError if there is none."""
        left = self.credits[link] - 1
        if left < 0:
            raise LocalProtocolError(f"an item was emitted without credit (capacity {self.capacity})")
        self.credits[link] = left
        if not left:
            self.starved += 1

    def grant(self, link: Link, count: int) -> None:
        """Take `count` credits back; RemoteProtocolError if the consumer took more than it was sent."""
        left = self.credits[link]
        if count < 1 or left + count > self.capacity:
            raise RemoteProtocolError(f"{count} credits were granted; {self.capacity - left} items were under way")
        self.credits[link] = left + count
        self.starved -= left == 0
