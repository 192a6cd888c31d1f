"""The contract of channels: how items and credit get from one host to another.

A host has one channel; it sends along edges of its plan to members on other hosts. Every implementation passes the same
conformance suite. The contract:

- Queue: every item arrives once, in the order in which it was sent on one (edge, target), or the peer is lost.
- Latest: `send` returns at once, always. An item that still waits is superseded by a newer one of the same
  (edge, target, key), which takes its place in the line; a transfer that has begun is finished.
- Waiting items go in the order in which their place in the line was taken: no key starves.
- Per peer at most `window_bytes` are under way, or one item if it is larger; a receiver that pauses stops the rest at
  the sender.
- Nothing arrives after `close`, nor from or to a member that has left.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import msgspec

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member
from isthmus.runtime.items.encoding import Encoded
from isthmus.runtime.scheduler.events import Fields


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """An item on its way: `edge` by its index, `key` of its mailbox, the fields that cores may see, its digest (0 if
    none was taken), its size, and what it is encoded as, where it leaves its host (None where it has come)."""

    edge: int
    key: int | str | None
    item: Any
    fields: Fields
    digest: int
    size_bytes: int
    encoded: Encoded | None = None


class Endpoints(NamedTuple):
    """Where a host listens, as ZeroMQ endpoints: `tcp://127.0.0.1:4001`; and its machine's public key, where it has
    keys."""

    control: str
    data: str
    key: str = ""


class Receiver(Protocol):
    """What a channel calls on its host's loop."""

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        """An item came from a peer."""

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        """A peer took `count` items of a Queue edge."""


class Channel(Protocol):
    """One host's end of all its connections."""

    def open(self, receiver: Receiver) -> None:
        """Start to deliver to `receiver`."""

    def send(self, target: Member, parcel: Parcel, *, replaces: bool) -> None:
        """Hand over an item; `replaces` on Latest edges."""

    def grant(self, source: Member, edge: int, count: int) -> None:
        """Tell the producer of a Queue edge that `count` items were taken."""

    def pause(self) -> None:
        """Take nothing more from the peers; what is under way waits."""

    def resume(self) -> None:
        """Take again."""

    def close(self) -> None:
        """Leave; items under way are lost."""

    def statistics(self) -> dict[str, int]:
        """Items and bytes sent and received, items superseded and dropped."""


class Standing(NamedTuple):
    """Of `peers` that a host is to talk with, those `missing`, with which it has no connection, each with how
    long ago it was heard on one, 0 if it never was."""

    peers: int
    missing: list[tuple[Member, Duration]]


class DiallingChannel(Channel, Protocol):
    """A channel between processes: it can be bound, and told whom to dial and whom to forget."""

    def bind(self, endpoint: str) -> Endpoints:
        """Accept connections; the result is where."""

    def expect(self, peer: Member) -> None:
        """Keep what is sent to a peer until it has dialled."""

    def connect(self, peer: Member, endpoints: Endpoints) -> None:
        """Dial a peer, and keep dialling."""

    def relay(self, peer: Member, through: Member) -> None:
        """Talk to a peer through another that both have dialled."""

    def forget(self, peer: Member) -> None:
        """A peer is gone for good."""

    def standing(self) -> Standing:
        """Which of the peers that were named to it have no connection at present."""

    def under_way(self) -> list[tuple[Member, int, Instant]]:
        """Of each peer that has not said that it was given all it was sent: the oldest of that, its size in bytes, and
        when its transfer began."""
