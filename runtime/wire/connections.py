"""Connections with the peers of one host: made, kept, given up, and made again; and the sockets that it has bound.

It decides which peers to dial and when, which to accept, which session a message belongs to, and when a silent peer is
lost. It does not decide what is sent, nor what follows from received messages; the owner decides that a member has gone
for good.

Theory of operation. A peer has a *route*: its endpoints, the peer that relays, or none, if it dials us. There is at
most one session with a peer. A peer that dials us is known from then on, if it was not before. When a session ends, the
side that dialled begins another after a back-off that doubles until one succeeds. Of two members that dial each other,
the connection of the lower one stays; of two that are relayed by a third, the lower one dials. Where the machine of a
peer has a porter, a `Detour` chooses whether it is dialled straight or through that. A member that has gone is refused
for ever, as are its earlier incarnations. Every heartbeat sends a STATE, and ends the sessions of peers that were
silent for too long.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

from isthmus.runtime.channels.contract import Endpoints, PeerReachability
from isthmus.runtime.channels.crossings import Crossed
from isthmus.runtime.clock import Clock, Duration, Instant
from isthmus.runtime.errors import ConfigError, LocalProtocolError
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.layout import Bytes, RefusalError
from isthmus.runtime.wire import protocol_messages
from isthmus.runtime.wire.peers import (
    AcceptedLink,
    Detour,
    DialledLink,
    Limits,
    Peer,
    Probe,
    Purpose,
    RelayedLink,
    Route,
    SessionLink,
    Socket,
    Sockets,
)
from isthmus.runtime.wire.protocol_messages import Hello
from isthmus.runtime.wire.protocol_session import Identity, Session, read_hello
from isthmus.runtime.wire.protocol_transfers import Event
from isthmus.runtime.wire.security_keys import check_open, check_server
from isthmus.runtime.wire.segment_links import SegmentDesk, SegmentLink
from isthmus.runtime.wire.zmtp_sizes import greeting_bytes, message_bytes

REFUSED_MAX: Final = 4096
"""Addresses that are remembered as refused."""
DEPARTED_MAX: Final = 4096
"""Members that have gone, and of which it is known what has crossed: the oldest are forgotten."""
EARLY_MIN: Final = 64
"""Data connections whose control connection has not sent its HELLO yet, and at least as many as there may be peers:
they differ by less than a round trip, but where a host comes back, all its peers dial within one."""
UNSHARED: Final = frozenset({"segment", "memory"})
"""Reasons of refusals after which a peer and this host share no memory: what could not be mapped or read once would be
lent, and refused, in every session."""


class SessionReceiver:
    """Handlers for the messages of one peer in one session."""

    def __init__(self, connections: Connections, peer: Peer, session: Session) -> None:
        self._connections, self._peer, self._session = connections, peer, session

    def on_control(self, frames: list[Bytes]) -> None:
        self._connections.receive(self._peer, self._session, "control", frames)

    def on_data(self, frames: list[Bytes]) -> None:
        self._connections.receive(self._peer, self._session, "data", frames)

    def gone(self, reason: str) -> None:
        """A socket has lost its connection."""
        if self._peer.session is self._session:
            self._connections.end(self._peer, reason)


KnownPeer: TypeAlias = tuple[AcceptedLink, SessionReceiver]
MachineOf: TypeAlias = Callable[[Member], str | None]


class Reception:
    """A bound pair of sockets. `accept(link, connection, hello)` takes a peer whose first message is valid, or raises
    RefusalError; `counts` gets the reasons of refusals, `machine_of(member)` is the member's machine.

    ZeroMQ gives each connection to a ROUTER an address that no other one has. A peer may choose a free one; with keys
    an address therefore counts together with its machine. An address is unknown, known, or refused. The first message
    of an unknown one must be a HELLO on the control socket, or an ATTACH with the token of a HELLO on the data socket
    (either may come first). Anything else, and anything that a session does not accept, makes it refused: it gets the
    reason, once, and its messages are dropped by their address. The tables are bounded; a refused address that was
    forgotten is unknown again, and costs one more check.
    """

    def __init__(
        self,
        sockets: Sockets,
        own: Identity,
        accept: Callable[[AcceptedLink, int, Hello], SessionReceiver],
        counts: Counter[str],
        machine_of: MachineOf,
        early_max: int = EARLY_MIN,
    ) -> None:
        self._own, self._accept, self._counts = own, accept, counts
        self._early_max = early_max
        self._keys, self._machine_of = sockets.keys, machine_of
        self._control = sockets.router("control", self._control_came, counts)
        self._data = sockets.router("data", self._data_came, counts)
        self._controls: dict[bytes, KnownPeer] = {}
        self._datas: dict[bytes, KnownPeer] = {}
        self._awaited: dict[bytes, KnownPeer] = {}
        self._tokens: dict[AcceptedLink, bytes] = {}
        self._tokens_in_use: set[bytes] = set()
        self._early_addresses: set[bytes] = set()
        self._early: OrderedDict[bytes, tuple[bytes, list[Bytes], str | None]] = OrderedDict()
        self._refused: OrderedDict[bytes, None] = OrderedDict()

    def bind(self, endpoint: str) -> Endpoints:
        """Listen at `tcp://ADDRESS:PORT` and the port after it, at two free ports where PORT is 0, or at two free ones
        of A to B where PORT is `A-B`.

        Raises ConfigError where that is not possible, and for an address that others can reach where there are no keys.
        """
        doing = f"listening at {endpoint} for {self._own.member}"
        address, _, port = endpoint.rpartition(":")
        first, _, last = port.partition("-")
        check_open(f"{address}:{first}", self._keys, doing)
        try:
            if last:
                ports = list(range(int(first), int(last) + 1))
                control, data = (_bind_one(each, address, ports) for each in (self._control, self._data))
            else:
                control = self._control.bind(endpoint)
                data = self._data.bind(f"{address}:{int(port) + 1 if int(port) else 0}")
        except (OSError, ValueError) as error:
            raise ConfigError(
                doing,
                "an endpoint tcp://ADDRESS:PORT of this machine, whose port and the next one are free",
                str(error),
                "Choose another port, or 0 for any that is free; --ports A-B needs two for each host that listens.",
            ) from error
        return Endpoints(control, data, "" if self._keys is None else self._keys.pair.public)

    def close(self) -> None:
        """Close both sockets."""
        self._control.close()
        self._data.close()

    def _control_came(self, address: bytes, frames: list[Bytes], machine: str | None) -> None:
        session = self._controls.get(address)
        if session is not None:
            self._pass_on(session, machine, session[1].on_control, frames)
        elif address in self._refused:
            self._counts["unheard"] += 1
        else:
            try:
                self._greet(address, frames, machine)
            except RefusalError as refusal:
                self._refuse(address, refusal)
                connection = protocol_messages.connection_of(frames[0])
                message = protocol_messages.seal(
                    connection, protocol_messages.pack_refusal(refusal.reason, str(refusal))
                )
                self._control.send([address, message])

    def _pass_on(
        self, session: KnownPeer, machine: str | None, handler: Callable[[list[Bytes]], None], frames: list[Bytes]
    ) -> None:
        """Handle a message from a known address. A peer may choose its ZeroMQ address; its key proves the machine."""
        if session[0].machine == machine:
            handler(frames)
        else:
            self._counts["refused_machine"] += 1

    def _greet(self, address: bytes, frames: list[Bytes], machine: str | None) -> None:
        if len(frames) != 1:
            raise RefusalError("message", f"a HELLO of {len(frames)} frames")
        connection, hello = read_hello(frames[0], self._own)
        if hello.token in self._tokens_in_use:
            raise RefusalError("stranger", f"the token of {hello.source} is in use")
        home = self._machine_of(hello.source)
        if machine is not None and home != machine:
            lives = "is not known here yet" if home is None else f"lives on {home!r}"
            raise RefusalError("machine", f"{hello.source} {lives}, and machine {machine!r} speaks for it")
        size_bytes = message_bytes(frames, is_encrypted=machine is not None)
        link = AcceptedLink((self._control, self._data), address, self._forget, machine, size_bytes)
        receiver = self._accept(link, connection, hello)
        self._controls[address] = link, receiver
        self._tokens[link] = hello.token
        self._tokens_in_use.add(hello.token)
        self._awaited[hello.token] = link, receiver
        early = self._early.pop(hello.token, None)
        if early is not None:
            self._early_addresses.discard(early[0])
            self._attach(hello.token, *early)

    def _data_came(self, address: bytes, frames: list[Bytes], machine: str | None) -> None:
        session = self._datas.get(address)
        if session is not None:
            self._pass_on(session, machine, session[1].on_data, frames)
        elif address in self._refused or self._is_early(address):
            self._counts["unheard"] += 1
        else:
            try:
                if len(frames) != 1:
                    raise RefusalError("message", f"an ATTACH of {len(frames)} frames")
                _, kind, body = protocol_messages.unseal(frames[0], protocol_messages.CONTROL_BYTES_MAX)
                if kind != protocol_messages.ATTACH:
                    raise RefusalError("state", f"a data connection begins with ATTACH, not with kind {kind}")
                self._attach(protocol_messages.token_of(body), address, frames, machine)
            except RefusalError as refusal:
                self._refuse(address, refusal)

    def _attach(self, token: bytes, address: bytes, frames: list[Bytes], machine: str | None) -> None:
        awaited = self._awaited.get(token)
        if awaited is not None:
            link, receiver = awaited
            if link.machine != machine:
                raise RefusalError("machine", f"a token of {link.machine}, shown by {machine}")
            del self._awaited[token]
            link.data = address
            self._datas[address] = awaited
            receiver.on_data(frames)
        elif token in self._early:
            raise RefusalError("stranger", "a second data connection with one token")
        else:
            self._early[token] = address, frames, machine
            self._early_addresses.add(address)
            if len(self._early) > self._early_max:
                _, (oldest, _, _) = self._early.popitem(last=False)
                self._early_addresses.discard(oldest)
                self._refuse(oldest, RefusalError("crowd", "too many data connections wait for a HELLO"))

    def _is_early(self, address: bytes) -> bool:
        """Whether a data connection waits for its HELLO, or in vain: its control connection may have ended first."""
        return address in self._early_addresses

    def _forget(self, link: AcceptedLink) -> None:
        """Forget the addresses of a link whose session is over."""
        token = self._tokens.pop(link, None)
        if token is None:
            return
        self._tokens_in_use.discard(token)
        self._awaited.pop(token, None)
        for addresses, address in ((self._controls, link.control), (self._datas, link.data)):
            if address is not None:
                addresses.pop(address, None)
                self._bar(address)

    def _refuse(self, address: bytes, refusal: RefusalError) -> None:
        self._counts[f"refused_{refusal.reason}"] += 1
        self._bar(address)

    def _bar(self, address: bytes) -> None:
        self._refused[address] = None
        if len(self._refused) > REFUSED_MAX:
            self._refused.popitem(last=False)


def _bind_one(socket: Socket, address: str, ports: list[int]) -> str:
    """Bind a socket to the first free one of `ports`, and remove those that were tried. OSError if none is free."""
    fault = OSError(f"no free port at {address}")
    while ports:
        try:
            return socket.bind(f"{address}:{ports.pop(0)}")
        except OSError as error:
            fault = error
    raise fault


def through_of(peer: Peer) -> Member | None:
    """The peer that relays another one, None for one that is reached directly."""
    return peer.route if isinstance(peer.route, Member) else None


class Owner(Protocol):
    """The callbacks of connections to their channel."""

    def act_on(self, peer: Peer, session: Session, events: list[Event]) -> None:
        """Events of a session."""

    def wake(self, peer: Peer) -> None:
        """A peer may have pending messages."""

    def lost(self, member: Member, reason: str) -> None:
        """A connection ended, or could not be made."""


class Connections:
    """The connections of one host. `counts` gets the reasons of refusals."""

    def __init__(
        self,
        own: Identity,
        owner: Owner,
        *,
        clock: Clock,
        sockets: Sockets,
        limits: Limits,
        counts: Counter[str],
        machine_of: MachineOf,
    ) -> None:
        self.own = own
        self.peers: dict[Member, Peer] = {}
        self._owner, self._clock, self._sockets, self._limits, self._counts = owner, clock, sockets, limits, counts
        self._machine_of = machine_of
        self._gone: dict[Replica, int] = {}
        self._is_encrypted = sockets.keys is not None
        self._desk = sockets.desk
        self._is_copied = False
        """Whether the loop is to look for more of lent items soon."""
        if self._desk is not None:
            self._desk.notify(self._copied)
        self._departed: dict[Member, tuple[Member, Member | None, Crossed]] = {}
        self._reception: Reception | None = None
        self._is_closed = False
        self._cancel_beat = self._beat_later()

    def close(self) -> None:
        self._is_closed = True
        self._cancel_beat()
        for peer in list(self.peers.values()):
            self.discard(peer)
        if self._reception is not None:
            self._reception.close()
        self._sockets.close()

    # -- peers ---------------------------------------------------------------------------------------------------------

    def expect(self, member: Member, route: Route = None) -> None:
        """Know a member from now on, and its route. ConfigError for invalid endpoints.

        LocalProtocolError for this host itself, for one that has gone, and for one too many.
        """
        peer = self.peers.get(member)
        if self._is_closed or self._has_gone(member) or member == self.own.member:
            raise LocalProtocolError(f"{self.own.member} cannot know {member}: it has gone, or is itself")
        if peer is None:
            if len(self.peers) >= self._limits.peers_max:
                raise LocalProtocolError(f"{self.own.member} cannot know {member}: {len(self.peers)} peers are known")
            peer = self.peers[member] = Peer(member)
        peer.is_expected = True
        if isinstance(route, Endpoints):
            for endpoint in route[:2]:
                check_server(endpoint, self._sockets.keys, route.key, f"dialling {member}")
        if route is not None and peer.route != route:
            peer.route = route
            self._leave_detour(peer)
            if isinstance(route, Endpoints) and route.porter:
                peer.detour = Detour(is_inside=route.is_inside)
            self._dial(peer)

    def _has_gone(self, member: Member) -> bool:
        """Whether this member, or a later incarnation of it, was forgotten."""
        return member.incarnation <= self._gone.get(member.replica, 0)

    def forget(self, member: Member) -> None:
        """A member has gone for good, and so have its earlier incarnations."""
        self._gone[member.replica] = max(self._gone.get(member.replica, 0), member.incarnation)
        peer = self.peers.get(member)
        if peer is not None:
            self.discard(peer)

    def discard(self, peer: Peer) -> None:
        """Drop everything from and to a peer."""
        self.peers.pop(peer.member, None)
        self._departed[peer.member] = peer.member, through_of(peer), peer.pair.crossed
        if len(self._departed) > DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]
        peer.route = None
        peer.is_expected = False
        self._leave_detour(peer)
        self._cancel_retry(peer)
        outbound = peer.pair.outbound
        self._counts["items_sent"] += outbound.items_begun
        self._counts["bytes_sent"] += outbound.bytes_begun
        self._counts["dropped"] += outbound.close() + sum(len(held.parcels) for held in peer.held)
        peer.held.clear()
        self._close_session(peer)

    def reachability(self) -> PeerReachability:
        now, named = self._clock.now(), [peer for peer in self.peers.values() if peer.is_expected]
        down = [peer for peer in named if not peer.is_up]
        silences = [(peer.member, Duration(0 if peer.word_at is None else now - peer.word_at)) for peer in down]
        relayed = [peer.member for peer in named if peer.is_up and peer.detour is not None and peer.detour.is_relayed]
        return PeerReachability(len(named), silences, relayed)

    # -- dialling ------------------------------------------------------------------------------------------------------

    def dial_through(self, through: Peer) -> None:
        """Dial the peers that a peer relays; it is up."""
        for peer in [peer for peer in self.peers.values() if peer.route == through.member]:
            self._dial(peer)

    def way_through(self, through: Peer, peer: Peer) -> SessionLink:
        """A link through another peer, which is up."""
        assert through.session is not None
        return RelayedLink(through.session, self.own.member, peer.member, partial(self._owner.wake, through))

    def _dial(self, peer: Peer) -> None:
        """Begin a connection, unless there is one, the other side begins, or there is no route at present."""
        self._cancel_retry(peer)
        if peer.session is not None:
            return
        through = self.peers.get(peer.route) if isinstance(peer.route, Member) else None
        if isinstance(peer.route, Member) and (through is None or not through.is_up or peer.member < self.own.member):
            return
        peer.dialled += 1
        token, intake = self._sockets.token(), peer.intake(self._limits)
        desk = self._desk_for(peer, is_direct=through is None)
        address = "" if desk is None else desk.address
        session = Session.dial(self.own, peer.member, peer.pair, peer.dialled, token, intake, address)
        if desk is not None:
            self._meet_at(desk.call, session)
        self._start(peer, session, self._way_to(peer, session) if through is None else self.way_through(through, peer))

    def _way_to(self, peer: Peer, session: Session) -> SessionLink:
        """New sockets to a peer that listens."""
        route, detour = peer.route, peer.detour
        assert isinstance(route, Endpoints)
        receiver = SessionReceiver(self, peer, session)
        is_straight = detour is not None and not detour.is_relayed
        missing: set[Purpose] = {"control", "data"}

        def dealer(purpose: Purpose, on_message: Callable[[list[Bytes]], None]) -> Socket:
            def reached(progress: str) -> None:
                missing.discard(purpose)

            return self._sockets.dealer(
                purpose,
                lambda address, frames, machine: on_message(frames),
                receiver.gone,
                porter="" if detour is None or is_straight else route.porter,
                reached=reached if is_straight else None,
            )

        control, data = dealer("control", receiver.on_control), dealer("data", receiver.on_data)
        try:
            control.connect(route.control, route.key)
            data.connect(route.data, route.key)
        except OSError as error:
            control.close()
            data.close()
            expected, endpoints = "two endpoints such as tcp://127.0.0.1:4001", f"{tuple(route)}: {error}"
            raise ConfigError(f"dialling {peer.member}", expected, endpoints, "Correct them.") from error
        if detour is not None and is_straight:
            at = Instant(self._clock.now() + self._limits.direct_max)
            detour.cancel = self._clock.call_at(at, partial(self._go_round, peer, session, missing))
        return DialledLink(control, data)

    def _go_round(self, peer: Peer, session: Session, missing: set[Purpose]) -> None:
        """Dial a peer through its porter at once if `missing` connections that were dialled straight are not there."""
        if missing and peer.session is session and peer.detour is not None:
            peer.detour.turn(was_up=False)
            self._close_session(peer)
            self._dial(peer)

    def look_for_direct(self, peer: Peer) -> None:
        """A session is up: while it is relayed, see whether the peer can be dialled straight after all."""
        detour, route = peer.detour, peer.route
        if detour is None or not detour.is_relayed or detour.is_tried:
            if detour is not None and not detour.is_relayed:
                detour.is_tried = False
            return
        assert isinstance(route, Endpoints)
        detour.is_tried = True
        detour.probe = Probe(self._sockets, route, lambda: self.end(peer, "moved to a direct connection"))
        detour.cancel = self._clock.call_at(Instant(self._clock.now() + self._limits.handshake_max), detour.stop)

    def _leave_detour(self, peer: Peer) -> None:
        if peer.detour is not None:
            peer.detour.stop()
            peer.detour = None

    # -- being dialled -------------------------------------------------------------------------------------------------

    def bind(self, endpoint: str) -> Endpoints:
        """Listen. ConfigError where that is not possible."""
        if self._reception is None:
            early_max = max(EARLY_MIN, self._limits.peers_max)
            parts = self._sockets, self.own, self.accept, self._counts, self._machine_of
            self._reception = Reception(*parts, early_max=early_max)
        return self._reception.bind(endpoint)

    def accept(self, link: AcceptedLink, connection: int, hello: Hello) -> SessionReceiver:
        """Accept a peer that has dialled one of our bound sockets, or raise RefusalError."""
        peer = self.peers.get(hello.source)
        if self._has_gone(hello.source):
            raise RefusalError("stranger", f"{hello.source} has left; only a later incarnation may come")
        if peer is None and len(self.peers) >= self._limits.peers_max:
            raise RefusalError("crowd", f"{self._limits.peers_max} peers are known already")
        peer = peer or Peer(hello.source)
        receiver = self.welcome(peer, link, connection, hello)
        peer.pair.crossed.received.control.add(link.hello_bytes, self._clock.now())
        return receiver

    def welcome(self, peer: Peer, link: SessionLink, connection: int, hello: Hello) -> SessionReceiver:
        """Begin the session that a peer requests, or raise RefusalError."""
        if connection <= peer.accepted:
            raise RefusalError("connection", f"connection {connection} of {peer.member} comes after {peer.accepted}")
        if isinstance(peer.route, Endpoints) and peer.session is not None and self.own.member < peer.member:
            raise RefusalError("crossed", f"{self.own.member} has dialled {peer.member}, too, and comes first")
        peer.accepted = connection
        if peer.session is not None:
            self.end(peer, "replaced by a newer connection")
        desk = self._desk_for(peer, is_direct=not isinstance(link, RelayedLink))
        address, intake = "" if desk is None else desk.address, peer.intake(self._limits)
        session, events = Session.accept(self.own, hello, connection, peer.pair, intake, address)
        if desk is not None:
            self._meet_at(desk.answer, session)
        self._start(peer, session, link)
        self._owner.act_on(peer, session, events)
        return SessionReceiver(self, peer, session)

    # -- sessions ------------------------------------------------------------------------------------------------------

    def send_control(self, peer: Peer, link: SessionLink, message: bytes) -> bool:
        """Send a control message on the link of a peer; False if that is broken."""
        if not link.send_control(message):
            return False
        if not isinstance(link, RelayedLink):
            size_bytes = message_bytes((message,), is_encrypted=self._is_encrypted)
            peer.pair.crossed.sent.control.add(size_bytes, self._clock.now())
        return True

    def send_data(self, peer: Peer, link: SessionLink, frames: Sequence[Any]) -> bool:
        """Send a data message on the link of a peer; False if that is broken."""
        if not link.send_data(frames):
            return False
        if not isinstance(link, RelayedLink):
            peer.pair.crossed.sent.whole_bytes += message_bytes(frames, is_encrypted=self._is_encrypted)
        return True

    def greeted(self, peer: Peer) -> None:
        """A session has become live: its two connections were made."""
        if not isinstance(peer.link, RelayedLink):
            dials = isinstance(peer.link, DialledLink)
            sent, received = greeting_bytes(dials=dials, is_encrypted=self._is_encrypted)
            peer.pair.crossed.sent.greeting_bytes += 2 * sent
            peer.pair.crossed.received.greeting_bytes += 2 * received
            if peer.session is not None:
                peer.session.share()  # Before this side's first STATE, which the peer waits for.

    def _desk_for(self, peer: Peer, *, is_direct: bool) -> SegmentDesk | None:
        """Where a session with a peer meets it; None where they share no memory, wherever the peer is."""
        return self._desk if is_direct and peer.is_sharing else None

    def _meet_at(self, meet: Callable[[str, bytes], SegmentLink | None], session: Session) -> None:
        """Have a session share memory, where the peer is of this machine."""
        session.share_by(lambda: meet(session.desk_of_peer, session.token) if session.desk_of_peer else None)

    def _copied(self) -> None:
        """In another thread: more of an item lies in shared memory."""
        if not self._is_copied:
            self._is_copied = True
            self._clock.post(self._send_copied)

    def _send_copied(self) -> None:
        self._is_copied = False  # First: what is copied from now on is told again.
        for peer in self.peers.values():
            if peer.session is not None and peer.session.lending is not None:
                self._owner.wake(peer)

    def crossed(self) -> list[tuple[Member, Member | None, Crossed]]:
        """What has crossed to and from each peer that was ever up, and the peer that relays, None if none does."""
        present = [(peer.member, through_of(peer), peer.pair.crossed) for peer in self.peers.values()]
        return [*self._departed.values(), *present]

    def receive(self, peer: Peer, session: Session, purpose: Purpose, frames: Sequence[Bytes]) -> None:
        """Handle a message that came on the socket for `purpose`: act on its events, or end the session."""
        if peer.session is not session:
            self._counts["stale"] += 1
            return
        peer.heard_at = peer.word_at = self._clock.now()
        if not isinstance(peer.link, RelayedLink):
            received, size_bytes = peer.pair.crossed.received, message_bytes(frames, is_encrypted=self._is_encrypted)
            if purpose == "data":
                received.whole_bytes += size_bytes
            else:
                received.control.add(size_bytes, peer.heard_at)
        try:
            events = session.receive_data(frames) if purpose == "data" else session.receive_control(frames)
        except RefusalError as refusal:
            self.refuse(peer, refusal)
        else:
            self._owner.act_on(peer, session, events)
            if session.lending is not None and session.lending.has_ended_leases:
                self._settle(peer, session)
            self._owner.wake(peer)

    def _settle(self, peer: Peer, session: Session) -> None:
        """Give back memory to a peer, and hear what it gives back; or end the session."""
        try:
            if session.lending is not None and peer.session is session:
                session.lending.settle()
        except RefusalError as refusal:
            self.refuse(peer, refusal)

    def refuse(self, peer: Peer, refusal: RefusalError) -> None:
        """End a session because of an illegal message, and send the peer the reason."""
        self._counts[f"refused_{refusal.reason}"] += 1
        peer.is_sharing &= refusal.reason not in UNSHARED
        if peer.session is not None and peer.link is not None:
            self.send_control(peer, peer.link, peer.session.refusal(refusal.reason, str(refusal)))
        self.end(peer, f"refused ({refusal})")

    def end(self, peer: Peer, reason: str, *, was_silent: bool = False) -> None:
        """End the session of a peer, if there is one; the side that dialled begins another one later."""
        if peer.session is None:
            return
        was_up = peer.is_up
        if peer.detour is not None:
            peer.detour.turn(was_up=was_up)
        if peer.route is not None:
            delay = peer.delay(self._limits, self.own.member, was_silent=was_silent)
            at = Instant(self._clock.now() + delay)
            self._cancel_retry(peer)
            peer.cancel_retry = self._clock.call_at(at, partial(self._dial, peer))
        self._close_session(peer)
        if peer.is_idle():
            self.peers.pop(peer.member, None)
        if was_up or reason != peer.reason:
            peer.reason = reason
            self._owner.lost(peer.member, reason)

    def _start(self, peer: Peer, session: Session, link: SessionLink) -> None:
        self._cancel_retry(peer)
        self.peers[peer.member] = peer
        peer.session, peer.link = session, link
        peer.began_at = peer.heard_at = self._clock.now()
        self._owner.wake(peer)

    def _close_session(self, peer: Peer) -> None:
        """Close the session of a peer, if there is one, and of all that it relays."""
        was_up, peer.is_up = peer.is_up, False
        if peer.session is not None and peer.link is not None:
            peer.session.close()
            peer.link.close()
        peer.session = peer.link = None
        if was_up:
            for other in [other for other in self.peers.values() if other.route == peer.member]:
                self.end(other, f"{peer.member}, which relays, was lost")

    def _cancel_retry(self, peer: Peer) -> None:
        if peer.cancel_retry is not None:
            peer.cancel_retry()
            peer.cancel_retry = None

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def _beat_later(self) -> Callable[[], None]:
        self._beat_at = Instant(self._clock.now() + self._limits.heartbeat)
        return self._clock.call_at(self._beat_at, self._beat)

    def _beat(self) -> None:
        """Send every peer a heartbeat, and give up those that have been silent for too long.

        A late beat judges no peer: this process was suspended, and messages of its peers are still unread.
        """
        now = self._clock.now()
        is_late = now - self._beat_at > self._limits.heartbeat
        self._cancel_beat = self._beat_later()
        if self._desk is not None:
            self._desk.tidy()
        for peer in list(self.peers.values()):
            session, link = peer.session, peer.link
            if session is None or link is None:
                continue
            if self._is_expelled(link):
                self.refuse(peer, RefusalError("expelled", f"the machine of {peer.member} is not admitted any more"))
                continue
            self._settle(peer, session)
            if peer.session is not session:
                continue
            message = session.next_control(now, is_beat=True)
            # A peer that sends heartbeats without completing its handshake has lost a part of it.
            since = peer.heard_at if peer.is_up else peer.began_at
            silent_max = self._limits.silence_max if peer.is_up else self._limits.handshake_max
            if message is not None and not self.send_control(peer, link, message):
                self.end(peer, "disconnected")
            elif now - since > silent_max and not is_late:
                reason = f"{'silent' if peer.is_up else 'no connection'} for {silent_max / 1e9:g} s"
                # A peer that was only suspended reads this first, and dials at once.
                self.send_control(peer, link, session.refusal("silence", reason))
                self.end(peer, reason, was_silent=True)

    def _is_expelled(self, link: SessionLink) -> bool:
        """Whether the machine that dialled is no longer admitted; its messages are dropped in any case."""
        machine = link.machine if isinstance(link, AcceptedLink) else None
        keys = self._sockets.keys
        return machine is not None and keys is not None and not keys.admits(machine)
