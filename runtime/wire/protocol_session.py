"""One connection between two hosts, without any I/O: messages in, events out, and what to send next.

Decides which message is legal when, what each one means, and what this side has to send. Does not open sockets, measure
time, choose peers to dial, or decide when a silent peer is lost.

Theory of operation. The side that dials sends HELLO on its control socket and ATTACH on its data socket, the other side
WELCOME; the dialler answers with its first STATE, and only then does the other side send data, so that no item arrives
before the WELCOME that explains it. Then both send STATEs (how much was heard, taken, acknowledged and granted, as
totals) and batches. A STATE goes at once where the other side may wait for it; small items are acknowledged with the
next one, at the latest the heartbeat, because an acknowledgement costs as much to receive as an item to send. The STATE
then reports how long ago they came. A table lists which kind is legal in which phase. A connection that was used up is
never revived: the next one has a higher number, and starts from the deliveries reported in HELLO and WELCOME. Anything
illegal raises `RefusalError`, and the session is over.

Control messages are bounded like data: at most AHEAD_MAX that the other side has not heard, beside one per heartbeat,
which is never held back. Waiting loses nothing, since later totals include earlier ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from isthmus.runtime.channels.crossings import Crossed
from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.ids import Member
from isthmus.runtime.items.layout import CHUNK_BYTES, Bytes, RefusalError
from isthmus.runtime.wire import protocol_messages
from isthmus.runtime.wire.protocol_credit import LARGE_BYTES, WINDOW_BYTES_MAX, Grants, Intake, Window, charge
from isthmus.runtime.wire.protocol_messages import AGE_LAST, AGES_MAX, Hello, State
from isthmus.runtime.wire.protocol_transfers import (
    CreditHeard,
    Event,
    FramesHeard,
    Inbound,
    Incoming,
    Outbound,
    PeerRefused,
    PeerUp,
    RelayHeard,
    SharedMemory,
    ShipmentsEnded,
    UnreachableHeard,
    frames_of,
)

AHEAD_MAX: Final = 256
"""Control messages that the other side has not heard."""
FORWARDS_BYTES_MAX: Final = 64 << 20
"""Bytes of relayed messages that wait for one peer."""
FORWARDS_MAX: Final = 1024
"""Relayed control messages that wait for one peer."""

Phase: TypeAlias = Literal["dialled", "greeted", "attached", "confirmed", "live", "over"]

TRANSITIONS: Final[dict[tuple[Phase, int], Phase]] = {
    ("dialled", protocol_messages.WELCOME): "live",
    ("greeted", protocol_messages.ATTACH): "attached",
    ("greeted", protocol_messages.STATE): "confirmed",
    ("attached", protocol_messages.STATE): "live",
    ("attached", protocol_messages.BATCH): "live",
    ("attached", protocol_messages.RELAYED): "live",
    ("confirmed", protocol_messages.STATE): "confirmed",
    ("confirmed", protocol_messages.RELAY): "confirmed",
    ("confirmed", protocol_messages.UNREACHABLE): "confirmed",
    ("confirmed", protocol_messages.ATTACH): "live",
    ("live", protocol_messages.STATE): "live",
    ("live", protocol_messages.RELAY): "live",
    ("live", protocol_messages.UNREACHABLE): "live",
    ("live", protocol_messages.BATCH): "live",
    ("live", protocol_messages.RELAYED): "live",
}
"""(phase, kind of message) -> phase after it. A REFUSAL ends the connection in every phase; all else is illegal."""
DATA_KINDS: Final = frozenset({protocol_messages.ATTACH, protocol_messages.BATCH, protocol_messages.RELAYED})


class Identity(NamedTuple):
    """The identity of this host; peers of another run or fingerprint are refused."""

    member: Member
    run: str
    fingerprint: str


class Pair:
    """The state of two members that outlives a connection between them; `crossed` is what has crossed so far."""

    def __init__(self) -> None:
        self.crossed = Crossed()
        self.outbound = Outbound()
        self.inbound = Inbound()
        self.grants = Grants()


# -- the session -------------------------------------------------------------------------------------------------------


def read_hello(frame: Bytes, own: Identity) -> tuple[int, Hello]:
    """(connection number, HELLO) of the first message on a control socket; RefusalError if it is not for this host."""
    connection, kind, body = protocol_messages.unseal(frame, protocol_messages.CONTROL_BYTES_MAX)
    if kind != protocol_messages.HELLO:  # Before the body is decoded: that of another kind has other fields.
        raise RefusalError("state", f"a connection begins with HELLO, not with a message of kind {kind}")
    hello = protocol_messages.hello_of(body)
    check_hello(hello, own)
    return connection, hello


def check_hello(hello: Hello, own: Identity) -> None:
    """RefusalError for a peer of another run or fingerprint, or one that looks for another member."""
    if hello.run != own.run:  # The most telling reason first: a peer of another run has another fingerprint, too.
        raise RefusalError("run", f"{hello.source} is of run {hello.run!r}, this host of {own.run!r}")
    if hello.fingerprint != own.fingerprint:
        fingerprints = f"{hello.source} has {hello.fingerprint!r}, this host {own.fingerprint!r}"
        raise RefusalError("fingerprint", f"{fingerprints}: both need the same program, settings and sources")
    if hello.target != own.member or hello.source == own.member:
        raise RefusalError("stranger", f"{hello.source} looks for {hello.target}; this is {own.member}")


class Session:
    """One connection, from one side. Made by `dial` or `accept`."""

    def __init__(
        self,
        own: Identity,
        peer: Member,
        pair: Pair,
        *,
        phase: Phase,
        connection: int,
        token: bytes,
        intake: Intake,
        desk: str = "",
    ) -> None:
        self.peer = peer
        self.phase: Phase = phase
        self.connection = connection
        self.token = token
        self.desk_of_peer = ""
        self.lending: SharedMemory | None = None
        self._meet: Callable[[], SharedMemory | None] | None = None
        self._desk = desk
        self._own = own
        self._pair = pair
        self._intake = intake
        self._window = Window(0)
        self._owes_hello = True
        self._owes_attach = phase == "dialled"
        self._owes_state = False
        self._delivered_at: list[Instant] = []
        self._acknowledged = 0
        self._sent = self._sent_heard = self._heard = self._heard_reported = 0
        self._incoming = Incoming(pair.inbound, intake)
        self._relays: deque[bytes] = deque()
        self._forwards: deque[list[Any]] = deque()
        self._forwards_bytes = 0
        self._is_forward_next = False
        self._handlers: dict[int, Callable[[Bytes], list[Event]]] = {
            protocol_messages.WELCOME: self._welcomed,
            protocol_messages.STATE: self._state,
            protocol_messages.RELAY: lambda body: [RelayHeard(*protocol_messages.relay_of(body))],
            protocol_messages.UNREACHABLE: lambda body: [UnreachableHeard(*protocol_messages.relay_of(body)[:2])],
        }
        self._data_handlers: dict[int, Callable[[Bytes, Sequence[Bytes]], list[Event]]] = {
            protocol_messages.ATTACH: self._attached,
            protocol_messages.BATCH: self._incoming.read,
            protocol_messages.RELAYED: self._relayed,
        }

    @classmethod
    def dial(
        cls, own: Identity, peer: Member, pair: Pair, connection: int, token: bytes, intake: Intake, desk: str = ""
    ) -> Session:
        """The side that dials; `desk` is where this host hands over descriptors."""
        return cls(own, peer, pair, phase="dialled", connection=connection, token=token, intake=intake, desk=desk)

    @classmethod
    def accept(
        cls, own: Identity, hello: Hello, connection: int, pair: Pair, intake: Intake, desk: str = ""
    ) -> tuple[Session, list[Event]]:
        """The side that was dialled, with the events that follow from the HELLO."""
        peer, token = hello.source, hello.token
        session = cls(own, peer, pair, phase="greeted", connection=connection, token=token, intake=intake, desk=desk)
        return session, session._open(hello)

    def share_by(self, meet: Callable[[], SharedMemory | None]) -> None:
        """Have `share` call `meet`."""
        self._meet = meet
        self._incoming.lease_of = self._first_lease

    def share(self) -> None:
        """Send and receive by memory that both sides share, if there is any; it is closed with the session."""
        meet, self._meet = self._meet, None
        self.lending = self.lending if meet is None else meet()

    def _first_lease(self, segment: int) -> Bytes:
        """A segment of the peer. It is asked for one before this side has met it: data may come before the STATE."""
        self.share()
        if self.lending is None:
            raise RefusalError("segment", f"segment {segment} of a peer with which no memory is shared")
        self._incoming.lease_of = self.lending.lease_of
        return self.lending.lease_of(segment)

    # -- in ------------------------------------------------------------------------------------------------------------

    def receive_control(self, frames: Sequence[Bytes]) -> list[Event]:
        """Events of a message on the control socket; an illegal one raises RefusalError, and the session is over."""
        try:
            if len(frames) != 1:  # Before any frame is read: there may be none.
                raise RefusalError("message", f"a control message of {len(frames)} frames")
            kind, body = self._unsealed(frames[0], protocol_messages.CONTROL_BYTES_MAX)
            if kind == protocol_messages.REFUSAL:  # Before the table: it is legal in every phase.
                self.close()
                return [PeerRefused(*protocol_messages.refusal_of(body))]
            was = self._advance(kind, is_data=False)  # Before the content is read: what may not come is not decoded.
            if kind != protocol_messages.WELCOME:  # Its sender does not count it: it comes before the first STATE.
                self._heard += 1
                self._owes_state |= self._heard - self._heard_reported >= AHEAD_MAX // 4
            events = self._handlers[kind](body)
            return events if self.phase == was else self._entered(events)
        except RefusalError:
            self.close()
            raise

    def receive_data(self, frames: Sequence[Bytes]) -> list[Event]:
        """Events of a message on the data socket; an illegal one raises RefusalError, and the session is over."""
        try:
            if not 1 <= len(frames) <= protocol_messages.FRAMES_MAX + 2:  # Before any frame is read.
                reason = "oversized" if frames else "truncated"
                raise RefusalError(reason, f"a data message of {len(frames)} frames")
            kind, body = self._unsealed(frames[0], protocol_messages.HEADER_BYTES_MAX)
            was = self._advance(kind, is_data=True)
            events = self._data_handlers[kind](body, frames)
            self._pair.crossed.received.lent_bytes += self._incoming.pop_lent_bytes()
            return events if self.phase == was else self._entered(events)
        except RefusalError:
            self.close()
            raise

    def consume(self, cost: int) -> None:
        """Count a message of this cost as taken, of this connection or an earlier one."""
        if self._intake.consume(cost):
            self._owes_state = True

    def acknowledge(self, now: Instant, size_bytes: int) -> None:
        """Count the next item, of `size_bytes`, as given to the receiver."""
        self._acknowledged += 1
        count = len(self._delivered_at)
        if count < AGES_MAX:
            self._delivered_at.append(now)
        if size_bytes >= LARGE_BYTES or count + 1 >= AGES_MAX:
            self._owes_state = True

    def close(self) -> None:
        """End the session: it sends and accepts nothing more."""
        if self.phase != "over":
            self.phase = "over"
            if self._pair.outbound.window is self._window:  # The next session may have set its own.
                self._pair.outbound.suspend()
            self._relays.clear()
            self._forwards.clear()
            self._forwards_bytes = 0
            if self.lending is not None:
                self.lending.close()

    # -- out -----------------------------------------------------------------------------------------------------------

    def has_more(self) -> bool:
        """Whether there may be something to send before the next heartbeat."""
        pair = self._pair
        is_owing = self._owes_state or self._owes_hello or self._owes_attach or bool(pair.grants.news)
        return is_owing or bool(self._relays or self._forwards) or pair.outbound.has_more()

    def next_control(self, now: Instant, *, is_beat: bool = False) -> bytes | None:
        """The next message for the control socket, None if there is nothing to send; a heartbeat always has a STATE."""
        if self.phase == "over":  # First: a session that is over sends nothing, not even a HELLO that it owes.
            return None
        if self._owes_hello:  # Before everything else, heartbeats too: the other side refuses any other first message.
            self._owes_hello = False
            return protocol_messages.seal(self.connection, self._hello())
        if self.phase == "dialled":  # No STATE before the WELCOME: the numbers of the other side are unknown.
            return None
        if not is_beat:
            if self._sent - self._sent_heard >= AHEAD_MAX:  # It bounds STATEs and relayed messages alike.
                return None
            if not self._owes_state and not self._pair.grants.news:  # A STATE first: the other side may wait for it.
                if not self._relays:
                    return None
                self._sent += 1
                return protocol_messages.seal(self.connection, self._relays.popleft())
        self._sent += 1
        self._heard_reported = self._heard
        self._owes_state = False
        delivered_at, self._delivered_at = self._delivered_at, []
        ages = [min((now - at) // 1000, AGE_LAST) for at in delivered_at]
        granted, pace = self._pair.grants.tell(), self._pair.outbound.pace  # After the checks: `tell` clears the news.
        state = State(self._heard, self._intake.announce(), self._acknowledged, ages, granted, pace)
        return protocol_messages.seal(self.connection, protocol_messages.pack_state(state))

    def next_data(self, now: Instant) -> list[Any] | None:
        """The frames of the next message for the data socket, at most a chunk and a header; None if there is none."""
        # In phase 'dialled', too: the ATTACH does not wait for the WELCOME.
        if self._owes_attach and self.phase != "over":
            self._owes_attach = False
            return [protocol_messages.seal(self.connection, protocol_messages.pack_attach(self.token))]
        if self.phase != "live":
            return None
        if not self._forwards:
            return self._next_batch(now)
        self._is_forward_next = not self._is_forward_next  # Own and relayed messages take turns.
        if self._is_forward_next:
            return self._next_forward(now) or self._next_batch(now)
        return self._next_batch(now) or self._next_forward(now)

    def refusal(self, reason: str, story: str) -> bytes:
        """The message that refuses the other side, with the reason."""
        return protocol_messages.seal(self.connection, protocol_messages.pack_refusal(reason, story))

    def relay(self, kind: int, source: Member, target: Member, inner: bytes = b"") -> bool:
        """Queue a relayed control message, or the notice that it failed, for the peer; False if too many wait."""
        if self.phase == "over" or len(self._relays) >= FORWARDS_MAX:
            return False
        self._relays.append(protocol_messages.pack_relay(kind, source, target, inner))
        return True

    def forward(self, source: Member, target: Member, frames: Sequence[Any]) -> bool:
        """Queue a relayed data message for the peer; False if too many bytes wait."""
        outer = protocol_messages.seal(
            self.connection, protocol_messages.pack_relay(protocol_messages.RELAYED, source, target)
        )
        size_bytes = len(outer) + sum(map(len, frames))
        if self.phase == "over" or self._forwards_bytes + size_bytes > FORWARDS_BYTES_MAX:
            return False
        self._forwards.append([outer, *frames])
        self._forwards_bytes += size_bytes
        return True

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _unsealed(self, frame: Bytes, size_bytes_max: int) -> tuple[int, Bytes]:
        connection, kind, body = protocol_messages.unseal(frame, size_bytes_max)
        if connection != self.connection:
            raise RefusalError("connection", f"a message of connection {connection} on connection {self.connection}")
        return kind, body

    def _advance(self, kind: int, *, is_data: bool) -> Phase:
        """Take the transition; returns the phase before. RefusalError if there is none."""
        was = self.phase
        after = TRANSITIONS.get((was, kind))
        if after is None or (kind in DATA_KINDS) != is_data:
            raise RefusalError("state", f"a message of kind {kind} on a connection that is {was}")
        self.phase = after
        return was

    def _hello(self) -> bytes:
        kind = protocol_messages.HELLO if self.phase == "dialled" else protocol_messages.WELCOME
        delivered, granted = dict(self._pair.inbound.delivered), dict(self._pair.grants.totals)
        bytes_now = self._intake.size_bytes, self._intake.held
        own = self._own
        hello = Hello(
            own.run, own.fingerprint, own.member, self.peer, self.token, *bytes_now, delivered, granted, self._desk
        )
        return protocol_messages.pack_hello(kind, hello)

    def _open(self, hello: Hello) -> list[Event]:
        """Start from what the other side reports as delivered."""
        self.desk_of_peer = hello.desk
        self._window = Window(min(hello.window, WINDOW_BYTES_MAX), hello.held)
        credits = self._pair.grants.receive(hello.granted)  # It may refuse: before the line changes, which outlives us.
        done, superseded = self._pair.outbound.open(self._window, hello.delivered)
        unknown = [Duration(0)] * len(done)
        ended = ShipmentsEnded(done, unknown), ShipmentsEnded(superseded, [], is_superseded=True)
        return [*ended, *(CreditHeard(edge, count) for edge, count in credits)]

    def _entered(self, events: list[Event]) -> list[Event]:
        """The events, after a PeerUp if the connection has just become live."""
        if self.phase != "live":
            return events
        self._owes_state = True  # The side that was dialled sends no data before the dialler's first STATE.
        return [PeerUp(), *events]

    def _welcomed(self, body: Bytes) -> list[Event]:
        hello = protocol_messages.hello_of(body)
        check_hello(hello, self._own)
        if hello.source != self.peer or hello.token != self.token:  # Before `_open`, which changes the pair.
            raise RefusalError("stranger", f"{hello.source} answered instead of {self.peer}")
        return self._open(hello)

    def _state(self, body: Bytes) -> list[Event]:
        state = protocol_messages.state_of(body)
        if not self._sent_heard <= state.heard <= self._sent:
            counts = f"{state.heard} control messages heard, {self._sent_heard} before, {self._sent} were sent"
            raise RefusalError("credit", counts)
        ages = state.ages
        # Before the acknowledgement, which makes the difference 0.
        more = max(0, state.acknowledged - self._pair.outbound.acknowledged)
        if len(ages) != min(more, AGES_MAX):
            raise RefusalError("message", f"{len(ages)} ages of {more} items")
        self._window.acknowledge(state.taken)  # It may refuse: before the shipments, which outlive the session, end.
        done = self._pair.outbound.acknowledge(state.acknowledged)
        # After the acknowledgement, which may refuse: credit that was read once is not reported again.
        credits = self._pair.grants.receive(state.granted)
        self._sent_heard = state.heard
        self._intake.pace = state.pace
        events: list[Event] = [CreditHeard(edge, count) for edge, count in credits]
        if done:
            ages += ages[-1:] * (len(done) - len(ages))
            events.append(ShipmentsEnded(done, [Duration(1000 * age) for age in ages]))
        return events

    def _attached(self, body: Bytes, frames: Sequence[Bytes]) -> list[Event]:
        if protocol_messages.token_of(body) != self.token or len(frames) != 1:
            raise RefusalError("stranger", f"a data socket with another token than that of {self.peer}")
        return []

    def _relayed(self, body: Bytes, frames: Sequence[Bytes]) -> list[Event]:
        source, target, _ = protocol_messages.relay_of(body)
        if len(frames) < 2:
            raise RefusalError("message", "a relayed message without frames")
        cost = charge(sum(map(len, frames)), 0)
        self._intake.receive(cost)  # Checks the credit, and counts first: no more is consumed than was received.
        self.consume(cost)
        return [FramesHeard(source, target, frames[1:])]

    def _next_forward(self, now: Instant) -> list[Any] | None:
        if not self._forwards:
            return None
        size_bytes = sum(map(len, self._forwards[0]))
        cost = charge(size_bytes, 0)
        if not self._window.may_go(cost, self._pair.outbound.pace):
            return None
        self._window.spend(cost)
        self._forwards_bytes -= size_bytes
        self._pair.crossed.sent.relayed.add(size_bytes, now)
        return self._forwards.popleft()

    def _next_batch(self, now: Instant) -> list[Any] | None:
        limits = CHUNK_BYTES, protocol_messages.FRAMES_MAX, protocol_messages.RECORDS_MAX
        load = self._pair.outbound.load(*limits, self.lending)
        if load is None:
            return None
        frames, cost, lent_bytes = frames_of(load, self.connection, now)
        self._pair.crossed.sent.lent_bytes += lent_bytes
        if load.begun:
            self._pair.crossed.sent.items([(each.parcel.edge, each.parcel.size_bytes) for each in load.begun], now)
        self._window.spend(cost)
        return frames
