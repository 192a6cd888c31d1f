"""The channel over a wire: hosts in different processes and buildings.

Decides when to send: everything that a turn of the loop has for a peer goes in one message at its end, and a long
transfer sends one chunk a turn, so that peers take turns. Its parts decide the rest: `connections` which peers to dial
and when one is lost, `session` what a connection may carry, `transfers` what waits and in which order, `delivery` when
the receiver gets what has come, `relaying` what is passed on, `batches` and `messages` the form in bytes.

Theory of operation. A host may bind (a control and a data ROUTER), may dial (a control and a data DEALER for each
peer), or both; a host that accepts no connection from outside only dials. The channel does not know the maker of its
sockets, ZeroMQ or a simulated world. Everything happens in turns of their loop. The channel only reports that a peer is
up or lost; its owner decides that a member has gone for good, and then calls `forget`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from isthmus.runtime.channels.contract import Endpoints, Parcel, Receiver, Standing
from isthmus.runtime.clock import Clock, Instant
from isthmus.runtime.ids import Member
from isthmus.runtime.protocol.batches import shipment
from isthmus.runtime.protocol.session import Identity, Session
from isthmus.runtime.protocol.session_events import CreditHeard, Event, ParcelsArrived, PeerUp, Refused, ShipmentsEnded
from isthmus.runtime.wire.connections import Connections
from isthmus.runtime.wire.delivery import Delivery
from isthmus.runtime.wire.listener import MachineOf
from isthmus.runtime.wire.peers import Held, Limits, Peer, Watch
from isthmus.runtime.wire.relaying import Relaying
from isthmus.runtime.wire.sockets import Sockets


class WireChannel:
    """One host's end of all its connections. All calls and callbacks are in turns of the loop of `sockets`.

    `on_peer_up(member)`: items can be sent. `on_peer_lost(member, reason)`: a connection ended, or none could be made
    (called once for each reason); the channel tries again until `forget`. `on_snapshot(member, number)`: an item whose
    sender had a higher snapshot number than `snapshot` comes next. `watch` is called for each transfer once it is
    acknowledged, up to a heartbeat after the end of a small one.

    `holds_strangers`: items of a peer that has dialled before it was named wait for `expect`. A core drops items of
    unknown members, and a host may learn of a peer later than hear from it.

    With keys every socket is encrypted; off loopback keys are required. A peer that dials us must be admitted, and may
    act only for members on its machine, by `machine_of(member)` (None: unknown, or not known yet).
    """

    def __init__(
        self,
        member: Member,
        *,
        clock: Clock,
        sockets: Sockets,
        run: str,
        fingerprint: str,
        limits: Limits | None = None,
        watch: Watch | None = None,
        on_peer_up: Callable[[Member], None] = lambda member: None,
        on_peer_lost: Callable[[Member, str], None] = lambda member, reason: None,
        on_snapshot: Callable[[Member, int], None] = lambda member, number: None,
        machine_of: MachineOf = lambda member: None,
        holds_strangers: bool = False,
    ) -> None:
        self.member = member
        self.snapshot = 0
        self._clock, self._watch = clock, watch
        self._on_peer_up, self._on_peer_lost, self._on_snapshot = on_peer_up, on_peer_lost, on_snapshot
        self._counts: Counter[str] = Counter()
        self._awake: dict[Member, Peer] = {}
        self._is_closed = False
        own = Identity(member, run, fingerprint)
        self._connections = Connections(
            own,
            self,
            clock=clock,
            sockets=sockets,
            limits=limits or Limits(),
            counts=self._counts,
            machine_of=machine_of,
        )
        self._delivery = Delivery(
            self._connections.peers, clock, self._counts, self.wake, self._saw, holds_strangers=holds_strangers
        )
        self._relaying = Relaying(self._connections, self.wake, self._counts)

    # -- the contract --------------------------------------------------------------------------------------------------

    def open(self, receiver: Receiver) -> None:
        self._delivery.open(receiver)

    def send(self, target: Member, parcel: Parcel, *, replaces: bool) -> None:
        """Send an item; `replaces` on Latest edges. Waits for a known peer that is not up; dropped for an unknown one.

        LocalProtocolError for one whose fields are too large, and where far too many wait.
        """
        peer = self._connections.peers.get(target)
        if peer is None:
            self._counts["dropped"] += 1
            return
        made = shipment(parcel, self.snapshot, replaces)
        self._counts["superseded"] += peer.pair.outbound.put(made) is not None
        if peer.session is not None:
            self._rouse(peer)

    def grant(self, source: Member, edge: int, count: int) -> None:
        peer = self._connections.peers.get(source)
        if peer is not None:
            peer.pair.grants.give(edge, count)
            self.wake(peer)

    def pace(self, target: Member, size_bytes: int) -> None:
        peer = self._connections.peers.get(target)
        if peer is not None:
            peer.pair.outbound.keep(size_bytes)
            self.wake(peer)

    def pause(self) -> None:
        self._delivery.pause()

    def resume(self) -> None:
        self._delivery.resume()

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._delivery.close()
            self._connections.close()

    def statistics(self) -> dict[str, int]:
        """Items and bytes sent and received, items superseded and dropped, as every channel counts them.

        Beside them `relayed` messages, `stale` ones of older connections, `unheard` ones from refused addresses, and,
        as `refused_REASON`, everything from peers that was not accepted. Items that a peer had not acknowledged when it
        left count as dropped: a few small ones may have arrived within its last heartbeat.
        """
        names = ("items_sent", "items_received", "bytes_sent", "bytes_received", "superseded", "dropped")
        counts = dict.fromkeys(names, 0) | self._counts
        for peer in self._connections.peers.values():
            counts["items_sent"] += peer.pair.outbound.items_begun
            counts["bytes_sent"] += peer.pair.outbound.bytes_begun
        return counts

    # -- connections ---------------------------------------------------------------------------------------------------

    def bind(self, endpoint: str) -> Endpoints:
        """Listen at `tcp://ADDRESS:PORT` and the port after it, at any two that are free where PORT is 0.

        Returns the actual endpoints. Raises ConfigError where that is not possible.
        """
        return self._connections.bind(endpoint)

    def expect(self, peer: Member) -> None:
        """Name a peer that will dial us: items for it wait.

        A peer that has dialled is known without this; its held items are delivered a turn later, so that the caller can
        announce it first.
        """
        self._connections.expect(peer)
        self._clock.call_soon(self._delivery.admit)

    def connect(self, peer: Member, endpoints: Endpoints) -> None:
        """Dial a peer, and dial it again whenever it is lost. ConfigError for invalid endpoints."""
        self._connections.expect(peer, endpoints)

    def relay(self, peer: Member, through: Member) -> None:
        """Reach a peer through another one, which both have dialled; both of them call this."""
        self._connections.expect(peer, through)

    def forget(self, peer: Member) -> None:
        """A member has gone for good: drop everything to it, and everything from it and its earlier incarnations."""
        self._connections.forget(peer)

    def standing(self) -> Standing:
        return self._connections.standing()

    def under_way(self) -> list[tuple[Member, int, Instant]]:
        oldest = [
            (peer, peer.pair.outbound.kept[0]) for peer in self._connections.peers.values() if peer.pair.outbound.kept
        ]
        return [(peer.member, each.parcel.size_bytes, each.begun) for peer, each in oldest if peer.is_up]

    def accepted(self, peer: Member) -> int | None:
        """The number of the newest connection that a peer has made; 0 if it has made none, None if it is unknown."""
        known = self._connections.peers.get(peer)
        return None if known is None else known.accepted

    # -- for its parts -------------------------------------------------------------------------------------------------

    def wake(self, peer: Peer) -> None:
        """Send what is pending for a peer at the end of this turn of the loop."""
        session = peer.session
        if session is not None and session.has_more():
            self._rouse(peer)

    def act_on(self, peer: Peer, session: Session, events: list[Event]) -> None:
        """Handle the events of a session."""
        for event in events:
            if peer.session is not session:
                return
            if isinstance(event, ParcelsArrived):
                self._delivery.hold(peer, Held(session, event.parcels, event.cost))
            elif isinstance(event, CreditHeard):
                self._delivery.credit(peer.member, event.edge, event.more)
            elif isinstance(event, ShipmentsEnded):
                self._shipments_ended(peer, event)
            elif isinstance(event, PeerUp):
                peer.is_up, peer.reason, peer.attempts = True, "", 0
                self._on_peer_up(peer.member)
                self._connections.dial_through(peer)
            elif isinstance(event, Refused):
                self._connections.end(peer, f"refused by the peer ({event.story})")
            else:
                self._relaying.heard(peer, event)

    def lost(self, member: Member, reason: str) -> None:
        self._on_peer_lost(member, reason)

    def _rouse(self, peer: Peer) -> None:
        """Schedule a peer for the end of this turn."""
        if not self._awake:
            self._clock.call_soon(self._turn)
        self._awake[peer.member] = peer

    def _turn(self) -> None:
        """Send what is pending for all scheduled peers."""
        awake, self._awake = self._awake, {}
        for peer in awake.values():
            self._speak(peer)

    def _speak(self, peer: Peer) -> None:
        """Send a peer all pending control messages, and one data message."""
        session, link = peer.session, peer.link
        if session is None or link is None:
            return
        now = self._clock.now()
        while (message := session.next_control(now)) is not None:
            if not link.send_control(message):
                self._connections.end(peer, "disconnected")
                return
        frames = session.next_data(now)
        if frames is None:
            return
        if link.send_data(frames):
            self.wake(peer)
        else:
            self._connections.end(peer, "disconnected")

    def _shipments_ended(self, peer: Peer, event: ShipmentsEnded) -> None:
        if event.is_superseded:
            self._counts["superseded"] += len(event.shipments)
        elif self._watch is not None:
            now = self._clock.now()
            for each, age in zip(event.shipments, event.ages, strict=True):
                arrived = max(each.begun, Instant(now - age))
                self._watch(each.parcel.edge, self.member, peer.member, each.parcel.size_bytes, each.begun, arrived)

    def _saw(self, member: Member, number: int) -> None:
        if number > self.snapshot:
            self._on_snapshot(member, number)
