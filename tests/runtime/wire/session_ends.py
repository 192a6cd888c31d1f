"""Two ends of a connection without sockets: what one says waits until the test lets the other hear it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.wire.protocol_credit import Intake
from isthmus.runtime.wire.protocol_session import Identity, Pair, Session, read_hello
from isthmus.runtime.wire.protocol_transfers import CreditHeard, ParcelsArrived, PeerUp, ShipmentsEnded, shipment

A, B, C = (Member(Replica("learner", slot), 1) for slot in range(3))
RUN = ("run-1", "fingerprint-1")
TOKEN = b"t" * 16
WINDOW = 1 << 20
NOW = Instant(5)


def frame_of(frame: Any) -> list[Any]:
    return [array(frame)]


def array(frame: Any) -> Any:
    return memoryview(bytes(frame))


class End:
    """One host's end: what it has sent waits in `control` and `data`."""

    def __init__(self, member: Member, peer: Member, window_bytes: int = WINDOW) -> None:
        self.own = Identity(member, *RUN)
        self.peer = peer
        self.window_bytes = window_bytes
        self.pair = Pair()
        self.session: Session | None = None
        self.control: deque[Any] = deque()
        self.data: deque[list[Any]] = deque()
        self.events: list[Any] = []
        self.is_paused = False
        self.held: deque[tuple[Session, ParcelsArrived]] = deque()
        self.got: list[Parcel] = []
        self.credit: Counter[int] = Counter()
        self.ended: list[Any] = []
        self.ages: list[int] = []
        self.now = NOW
        self.superseded = 0

    def send(self, edge: int, item: Any, *, key: Any = None, replaces: bool = False, size_bytes: int = 0) -> None:
        parcel = Parcel(edge, key, item, None, 0, size_bytes, encode(item))
        made = shipment(parcel, 0, replaces)
        self.superseded += self.pair.outbound.put(made) is not None

    def dial(self, connection: int) -> None:
        self.drop()
        self.session = Session.dial(self.own, self.peer, self.pair, connection, TOKEN, self.intake())

    def accept(self, frame: Any) -> None:
        connection, hello = read_hello(frame, self.own)
        self.drop()
        self.session, events = Session.accept(self.own, hello, connection, self.pair, self.intake())
        self.take(events)

    def intake(self) -> Intake:
        return Intake(self.window_bytes, sum(event.cost for _, event in self.held))

    def drop(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None
        self.control.clear()
        self.data.clear()

    def pump(self) -> bool:
        """Say what there is to say; whether there was anything. Whatever there is, the session has announced it."""
        if self.session is None:
            return False
        was = len(self.control) + len(self.data)
        is_announced = self.session.has_more()
        while (message := self.session.next_control(self.now)) is not None:
            self.control.append(message)
        while (parts := self.session.next_data(self.now)) is not None:
            self.data.append(parts)
        is_more = len(self.control) + len(self.data) > was
        assert is_announced or not is_more
        return is_more

    def beat(self) -> None:
        """Say where we are, as at every heartbeat."""
        assert self.session is not None
        self.control.append(self.session.next_control(self.now, is_beat=True))

    def take(self, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, ParcelsArrived):
                assert self.session is not None
                self.held.append((self.session, event))
            elif isinstance(event, CreditHeard):
                self.credit[event.edge] += event.more
            elif isinstance(event, ShipmentsEnded):
                self.superseded += len(event.shipments) if event.is_superseded else 0
                self.ended += [] if event.is_superseded else [each.parcel.item for each in event.shipments]
                self.ages += [] if event.is_superseded else event.ages
            else:
                self.events.append(event)
        self.deliver()

    def deliver(self) -> None:
        while self.held and not self.is_paused:
            source, event = self.held.popleft()
            for _, parcel in event.parcels:
                self.got.append(parcel)
                source.acknowledge(self.now, parcel.size_bytes)
            if self.session is not None:
                self.session.consume(event.cost)

    def hear_control(self, frame: Any) -> None:
        if self.session is None:
            self.accept(array(frame))
        else:
            self.take(self.session.receive_control(frame_of(frame)))

    def hear_data(self, parts: list[Any]) -> None:
        assert self.session is not None
        self.take(self.session.receive_data(list(map(array, parts))))


def settle(a: End, b: End) -> None:
    """Let everything that is under way arrive."""
    moved = True
    while moved:
        moved = a.pump() | b.pump()
        for one, other in ((a, b), (b, a)):
            while one.control:
                other.hear_control(one.control.popleft())
                moved = True
            while one.data:
                other.hear_data(one.data.popleft())
                moved = True


def connected(window_bytes: int = WINDOW) -> tuple[End, End]:
    a, b = End(A, B, window_bytes), End(B, A, window_bytes)
    a.dial(1)
    settle(a, b)
    assert (a.events, b.events) == ([PeerUp()], [PeerUp()])
    return a, b
