"""Delivers arrived items to the receiver, in order, while the receiver takes any.

Decides when an item is delivered, and with that when its bytes leave the sender's account. Items that the receiver does
not take are held here, within the windows that were granted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from isthmus.runtime.channels.contract import Receiver
from isthmus.runtime.clock import Clock, Instant
from isthmus.runtime.ids import Member
from isthmus.runtime.wire.peers import Held, Peer


class Delivery:
    """Delivers the items of all peers; `counts` gets what was received.

    `taken(peer)` is called when held items have been delivered, `saw(member, number)` before an item whose sender had
    that snapshot number, where it is not 0.
    """

    def __init__(
        self,
        peers: Mapping[Member, Peer],
        clock: Clock,
        counts: Counter[str],
        taken: Callable[[Peer], None],
        saw: Callable[[Member, int], None],
        *,
        holds_strangers: bool,
    ) -> None:
        self._peers, self._clock, self._counts, self._taken, self._saw = peers, clock, counts, taken, saw
        self._receiver: Receiver | None = None
        self._credit: list[tuple[Member, int, int]] = []
        self._is_paused = self._is_busy = self._is_closed = False
        self._holds_strangers = holds_strangers

    def open(self, receiver: Receiver) -> None:
        """Deliver to `receiver` from now on; first the credit that came before."""
        self._receiver = receiver
        credit, self._credit = self._credit, []
        for member, edge, count in credit:
            receiver.credit_granted(member, edge, count)
        self.resume()

    def close(self) -> None:
        """Stop delivering."""
        self._receiver = None
        self._is_closed = True

    def pause(self) -> None:
        """Hold items that arrive."""
        self._is_paused = True

    def resume(self) -> None:
        """Deliver held items, and those that arrive."""
        self._is_paused = False
        if not self._is_busy:
            self._deliver()

    def admit(self) -> None:
        """Deliver held items of a peer that is expected from now on."""
        if not self._is_busy and not self._is_closed:
            self._deliver()

    def credit(self, member: Member, edge: int, count: int) -> None:
        """A peer took `count` items of a Queue edge."""
        if self._receiver is not None:
            self._receiver.credit_granted(member, edge, count)
        elif not self._is_closed:
            self._credit.append((member, edge, count))

    def hold(self, peer: Peer, held: Held) -> None:
        """Deliver or hold a message that has just arrived. The caller wakes the peer."""
        peer.held.append(held)
        if not self._is_busy and self._is_welcome(peer):
            self._is_busy = True
            try:
                self._give(peer, peer.heard_at)
            finally:
                self._is_busy = False

    def _deliver(self) -> None:
        """Deliver the held items of all peers, as far as the receiver takes them."""
        self._is_busy = True
        try:
            for peer in [peer for peer in self._peers.values() if peer.held and self._is_welcome(peer)]:
                self._give(peer, self._clock.now())
                self._taken(peer)
        finally:
            self._is_busy = False

    def _is_welcome(self, peer: Peer) -> bool:
        return peer.is_expected or not self._holds_strangers

    def _give(self, peer: Peer, now: Instant) -> None:
        """Deliver the held items of a peer. The receiver may pause, resume, close, or forget a peer meanwhile."""
        held = peer.held
        while held and self._receiver is not None and not self._is_paused:
            message = held[0]
            if not message.parcels:
                held.popleft()
                if peer.session is not None:
                    peer.session.take(message.cost)
                continue
            snapshot, parcel = message.parcels.popleft()
            message.session.acknowledge(now, parcel.size_bytes)
            if snapshot:
                self._saw(peer.member, snapshot)
            self._counts["items_received"] += 1
            self._counts["bytes_received"] += parcel.size_bytes
            self._receiver.item_arrived(peer.member, parcel)
