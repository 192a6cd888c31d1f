"""The channel over a wire: hosts in different processes and buildings.

It decides when to send: everything that a turn of the loop has for a peer goes in one message at its end, and a long
transfer sends one chunk a turn, so that peers take turns. `connections` decides which peers to dial and when one is
lost, `protocol_session` what a connection may carry, `protocol_transfers` what waits and in which order, `Delivery`
when the receiver gets what has come, `Relaying` what is passed on.

Theory of operation. A host may bind (a control and a data ROUTER), may dial (a control and a data DEALER for each
peer), or both; a host that accepts no connection from outside only dials. The channel does not know the maker of its
sockets, ZeroMQ or a simulated world. Everything happens in turns of their loop. The channel only reports that a peer is
up or lost; its owner decides that a member has gone for good, and then calls `forget`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from isthmus.runtime.channels.contract import Endpoints, OnTransfer, Parcel, PeerReachability, Receiver
from isthmus.runtime.channels.crossings import Crossed
from isthmus.runtime.clock import Clock, Instant
from isthmus.runtime.ids import Member
from isthmus.runtime.items.layout import Bytes, RefusalError
from isthmus.runtime.wire import protocol_messages
from isthmus.runtime.wire.connections import Connections, MachineOf
from isthmus.runtime.wire.peers import HeldMessage, Limits, Peer, Sockets
from isthmus.runtime.wire.protocol_session import Identity, Session, read_hello
from isthmus.runtime.wire.protocol_transfers import (
    CreditHeard,
    Event,
    FramesHeard,
    ParcelsArrived,
    PeerRefused,
    PeerUp,
    RelayHeard,
    ShipmentsEnded,
    UnreachableHeard,
    shipment,
)


class Delivery:
    """Delivers the items of all peers to the receiver, in order, while the receiver takes any; `counts` gets what was
    received.

    With the delivery of an item its bytes leave the sender's account; items that the receiver does not take are held
    here, within the windows that were granted. `on_delivered(peer)` is called when held items have been delivered,
    `on_snapshot(member, number)` before an item whose sender had that snapshot number, where it is not 0.
    """

    def __init__(
        self,
        peers: Mapping[Member, Peer],
        clock: Clock,
        counts: Counter[str],
        on_delivered: Callable[[Peer], None],
        on_snapshot: Callable[[Member, int], None],
        *,
        holds_strangers: bool,
    ) -> None:
        self._peers, self._clock, self._counts, self._on_delivered, self._on_snapshot = (
            peers,
            clock,
            counts,
            on_delivered,
            on_snapshot,
        )
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

    def hold(self, peer: Peer, held: HeldMessage) -> None:
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
                self._on_delivered(peer)
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
                    peer.session.consume(message.cost)
                continue
            snapshot, parcel = message.parcels.popleft()
            message.session.acknowledge(now, parcel.size_bytes)
            if snapshot:
                self._on_snapshot(peer.member, snapshot)
            self._counts["items_received"] += 1
            self._counts["bytes_received"] += parcel.size_bytes
            self._receiver.item_arrived(peer.member, parcel)


class Relaying:
    """Handles relayed messages on one host, as source, target or relay; `wake(peer)` sends a peer what is pending."""

    def __init__(self, connections: Connections, wake: Callable[[Peer], None], counts: Counter[str]) -> None:
        self._connections, self._wake, self._counts = connections, wake, counts
        self._own = connections.own

    def heard(self, peer: Peer, event: RelayHeard | FramesHeard | UnreachableHeard) -> None:
        """Handle a relayed message from `peer`."""
        if isinstance(event, FramesHeard):
            peer.pair.crossed.received.relayed.add(sum(map(len, event.frames)), peer.heard_at)
        if isinstance(event, UnreachableHeard):
            self._on_unreachable(peer, event)
        elif event.target == self._own.member:
            self._arrive(peer, event)
        elif event.source == peer.member:
            self._pass_on(peer, event)
        else:
            route = f"{peer.member} sent a message of {event.source} for {event.target}"
            self._connections.refuse(peer, RefusalError("stranger", route))

    def _pass_on(self, peer: Peer, event: RelayHeard | FramesHeard) -> None:
        onward = self._near(event.target)
        if onward is not None and onward.session is not None:
            if isinstance(event, RelayHeard):
                fits = onward.session.relay(protocol_messages.RELAY, event.source, event.target, event.inner)
            else:
                fits = onward.session.forward(event.source, event.target, event.frames)
            self._wake(onward)
            self._counts["relayed"] += fits
            if fits:
                return
        self._tell_unreachable(peer, event.source, event.target)

    def _arrive(self, through: Peer, event: RelayHeard | FramesHeard) -> None:
        """Handle a message for this host."""
        peer = self._connections.peers.get(event.source)
        if peer is None or peer.route != through.member:
            self._tell_unreachable(through, event.source, event.target)
            return
        frames = [memoryview(event.inner)] if isinstance(event, RelayHeard) else event.frames
        connection = protocol_messages.connection_of(frames[0])
        session = peer.session
        # The lower of the two dials: a message of another connection that it gets is of one that it has given up.
        is_new = connection > peer.accepted and peer.member < self._own.member
        if session is not None and connection == session.connection:
            self._connections.receive(peer, session, "control" if isinstance(event, RelayHeard) else "data", frames)
        elif isinstance(event, RelayHeard) and is_new:
            self._greet(through, peer, connection, frames[0])
        elif is_new and len(frames) == 1 and len(frames[0]) <= protocol_messages.CONTROL_BYTES_MAX:
            peer.early = connection, frames
        else:
            self._counts["stale"] += 1
            if session is None:
                self._tell_unreachable(through, event.source, event.target)

    def _greet(self, through: Peer, peer: Peer, connection: int, frame: Bytes) -> None:
        """Handle the first message of a new connection."""
        assert through.session is not None
        try:
            connection, hello = read_hello(frame, self._own)
            if hello.source != peer.member or self._own.member < peer.member:
                raise RefusalError("stranger", f"{hello.source} dialled through {through.member}")
            self._connections.welcome(peer, self._connections.way_through(through, peer), connection, hello)
            early, peer.early = peer.early, None
            if early is not None and early[0] == connection and peer.session is not None:
                self._connections.receive(peer, peer.session, "data", early[1])
        except RefusalError as refusal:
            # Where a relay lost the HELLO, the message after it comes first.
            self._counts["stale" if refusal.reason == "state" else f"refused_{refusal.reason}"] += 1
            message = protocol_messages.seal(connection, protocol_messages.pack_refusal(refusal.reason, str(refusal)))
            through.session.relay(protocol_messages.RELAY, self._own.member, peer.member, message)
            self._wake(through)

    def _on_unreachable(self, peer: Peer, event: UnreachableHeard) -> None:
        if event.source == self._own.member:
            other = self._connections.peers.get(event.target)
            if other is not None and other.route == peer.member:
                self._connections.end(other, f"unreachable through {peer.member}")
        elif event.target == peer.member and (onward := self._near(event.source)) is not None:
            self._tell_unreachable(onward, event.source, event.target)

    def _tell_unreachable(self, peer: Peer, source: Member, target: Member) -> None:
        if peer.session is not None:
            peer.session.relay(protocol_messages.UNREACHABLE, source, target)
            self._wake(peer)

    def _near(self, member: Member) -> Peer | None:
        """A peer that is up, and not itself relayed."""
        peer = self._connections.peers.get(member)
        return peer if peer is not None and peer.is_up and not isinstance(peer.route, Member) else None


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
        watch: OnTransfer | None = None,
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
        self._desk = sockets.desk
        self._awake: dict[Peer, None] = {}
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
            self._connections.peers,
            clock,
            self._counts,
            self.wake,
            self._note_snapshot,
            holds_strangers=holds_strangers,
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
        transfer = shipment(parcel, self.snapshot, replaces)
        if peer.pair.outbound.put(transfer) is not None:
            self._counts["superseded"] += 1
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
        left count as dropped: a few small ones may have arrived within its last heartbeat. Where memory is shared
        with a peer, `items_lent` and `bytes_lent` went there, for which `bytes_copied` were copied there;
        `items_unlent` and `bytes_unlent` of that size did not;
        `desk_unreached` counts connections to peers of this machine with which none can be shared.
        """
        names = ("items_sent", "items_received", "bytes_sent", "bytes_received", "superseded", "dropped")
        counts = dict.fromkeys(names, 0) | self._counts
        if self._desk is not None:
            counts |= self._desk.counts
        for peer in self._connections.peers.values():
            counts["items_sent"] += peer.pair.outbound.items_begun
            counts["bytes_sent"] += peer.pair.outbound.bytes_begun
        return counts

    # -- connections ---------------------------------------------------------------------------------------------------

    def bind(self, endpoint: str) -> Endpoints:
        """Listen at `tcp://ADDRESS:PORT` and the port after it, at any two that are free where PORT is 0 or `A-B`.

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

    def reachability(self) -> PeerReachability:
        return self._connections.reachability()

    def crossed(self) -> list[tuple[Member, Member | None, Crossed]]:
        return self._connections.crossed()

    def under_way(self) -> list[tuple[Member, int, Instant]]:
        oldest = [
            (peer, peer.pair.outbound.kept[0]) for peer in self._connections.peers.values() if peer.pair.outbound.kept
        ]
        return [(peer.member, each.parcel.size_bytes, each.begun) for peer, each in oldest if peer.is_up]

    def accepted(self, peer: Member) -> int | None:
        """The number of the newest connection that a peer has made; 0 if it has made none, None if it is unknown."""
        peer_state = self._connections.peers.get(peer)
        return None if peer_state is None else peer_state.accepted

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
                crossing = [(parcel.edge, parcel.size_bytes) for _, parcel in event.parcels]
                peer.pair.crossed.received.items(crossing, peer.heard_at)
                self._delivery.hold(peer, HeldMessage(session, event.parcels, event.cost))
            elif isinstance(event, CreditHeard):
                self._delivery.credit(peer.member, event.edge, event.more)
            elif isinstance(event, ShipmentsEnded):
                self._shipments_ended(peer, event)
            elif isinstance(event, PeerUp):
                peer.is_up, peer.reason, peer.attempts = True, "", 0
                self._connections.greeted(peer)
                self._on_peer_up(peer.member)
                self._connections.dial_through(peer)
                self._connections.look_for_direct(peer)
            elif isinstance(event, PeerRefused):
                self._connections.end(peer, f"refused by the peer ({event.story})")
            else:
                self._relaying.heard(peer, event)

    def lost(self, member: Member, reason: str) -> None:
        self._on_peer_lost(member, reason)

    def _rouse(self, peer: Peer) -> None:
        """Schedule a peer for the end of this turn."""
        if not self._awake:
            self._clock.call_soon(self._turn)
        self._awake[peer] = None

    def _turn(self) -> None:
        """Send what is pending for all scheduled peers."""
        awake, self._awake = self._awake, {}
        for peer in awake:
            self._speak(peer)

    def _speak(self, peer: Peer) -> None:
        """Send a peer all pending control messages, and one data message."""
        session, link = peer.session, peer.link
        if session is None or link is None:
            return
        now = self._clock.now()
        while (message := session.next_control(now)) is not None:
            if not self._connections.send_control(peer, link, message):
                self._connections.end(peer, "disconnected")
                return
        frames = session.next_data(now)
        if frames is None:
            return
        if self._connections.send_data(peer, link, frames):
            self.wake(peer)
        else:
            self._connections.end(peer, "disconnected")

    def _shipments_ended(self, peer: Peer, event: ShipmentsEnded) -> None:
        if event.is_superseded:
            self._counts["superseded"] += len(event.shipments)
        elif self._watch is not None:
            now, watch, source, target = self._clock.now(), self._watch, self.member, peer.member
            for each, age in zip(event.shipments, event.ages, strict=True):
                parcel, begun, arrived = each.parcel, each.begun, now - age
                watch(parcel.edge, source, target, parcel.size_bytes, begun, Instant(max(begun, arrived)))

    def _note_snapshot(self, member: Member, number: int) -> None:
        if number > self.snapshot:
            self._on_snapshot(member, number)
