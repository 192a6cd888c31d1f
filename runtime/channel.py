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

from typing import Any, Protocol

import msgspec

from isthmus.runtime.encoding import Encoded
from isthmus.runtime.events import Fields
from isthmus.runtime.ids import Member


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
