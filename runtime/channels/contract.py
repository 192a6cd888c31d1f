"""The contract of channels: how items and credit get from one host to another.

A host has one channel; it sends along edges of its plan to members on other hosts. Every implementation passes the same
conformance suite. The contract:

- Queue: every item arrives once, in the order in which it was sent on one (edge, target), or the peer is lost.
- Latest: `send` returns at once, always. An item that still waits is superseded by a newer one of the same (edge,
  target, key), which takes its place in the line; a transfer that has begun is finished.
- Waiting items go in the order in which their place in the line was taken: no key starves.
- Per peer at most `window_bytes` are under way, or one item if it is larger; a receiver that pauses stops the rest at
  the sender.
- A host that knows what a link carries may keep less under way than the window (`pace`), but never less than one item.
- Nothing arrives after `close`, nor from or to a member that has left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from isthmus.runtime.channels.crossings import Crossed
from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.cores.scheduler_events import Fields
from isthmus.runtime.ids import Member
from isthmus.runtime.items.encoding import Encoded

OnTransfer: TypeAlias = Callable[[int, Member, Member, int, Instant, Instant], None]
"""Called with (edge, source, target, size in bytes, begun, arrived) for every transfer."""


class Parcel(msgspec.Struct, frozen=True, gc=False):
    """An item on its way: `edge` by its index, `key` of its mailbox, its digest and size, and the fields for cores.

    `digest` is 0 if none was taken; `encoded` is its encoding on the host that sends it, None on the one that received
    it.
    """

    edge: int
    key: int | str | None
    item: Any
    fields: Fields
    digest: int
    size_bytes: int
    encoded: Encoded | None = None


class Endpoints(NamedTuple):
    """ZeroMQ endpoints of a host, such as `tcp://127.0.0.1:4001`, and its machine's public key, if it has one.

    `porter` is the address of its machine's porter, if it has one: a host that cannot be dialled is *relayed* by it.
    One that `is_inside` listens where only its porter reaches it.
    """

    control: str
    data: str
    key: str = ""
    porter: str = ""
    is_inside: bool = False


class Receiver(Protocol):
    """The callbacks of a channel, called on its host's loop."""

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        """An item arrived from a peer."""

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        """A peer took `count` items of a Queue edge."""


class Channel(Protocol):
    """One host's end of all its connections."""

    def open(self, receiver: Receiver) -> None:
        """Start to deliver to `receiver`."""

    def send(self, target: Member, parcel: Parcel, *, replaces: bool) -> None:
        """Send an item; `replaces` on Latest edges."""

    def grant(self, source: Member, edge: int, count: int) -> None:
        """Tell the producer of a Queue edge that `count` items were taken."""

    def pace(self, target: Member, size_bytes: int) -> None:
        """Keep no more than about so many bytes under way to a peer from now on: what is more waits at this end, where
        newer items supersede it."""

    def pause(self) -> None:
        """Take nothing more from the peers; items under way wait."""

    def resume(self) -> None:
        """Take items again after `pause`."""

    def close(self) -> None:
        """Leave; items under way are lost."""

    def statistics(self) -> dict[str, int]:
        """Items and bytes sent and received, items superseded and dropped."""


class PeerReachability(NamedTuple):
    """The number of a host's `peers`, those `missing` a connection, and those that a porter relays.

    Each missing one comes with the time since it was last heard on a connection; 0 if never.
    """

    peers: int
    missing: list[tuple[Member, Duration]]
    relayed: list[Member]


class DiallingChannel(Channel, Protocol):
    """A channel between processes: it can be bound, and its peers are named to it, dialled and forgotten."""

    def bind(self, endpoint: str) -> Endpoints:
        """Accept connections; returns the endpoints."""

    def expect(self, peer: Member) -> None:
        """Keep items for a peer until it has dialled."""

    def connect(self, peer: Member, endpoints: Endpoints) -> None:
        """Dial a peer, and keep dialling."""

    def relay(self, peer: Member, through: Member) -> None:
        """Talk to a peer through another that both have dialled."""

    def forget(self, peer: Member) -> None:
        """A peer is gone for good."""

    def reachability(self) -> PeerReachability:
        """The named peers without a connection at present."""

    def crossed(self) -> list[tuple[Member, Member | None, Crossed]]:
        """What has crossed to and from each peer that was ever named, and the peer that relays, None if none does."""

    def under_way(self) -> list[tuple[Member, int, Instant]]:
        """The oldest unacknowledged item of each peer: its size in bytes, and when its transfer began."""
