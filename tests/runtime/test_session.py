"""One connection after another between two hosts, without sockets."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from isthmus.runtime import frames, messages, session
from isthmus.runtime.batches import shipment
from isthmus.runtime.channel import Parcel
from isthmus.runtime.clock import Instant
from isthmus.runtime.frames import Encoder
from isthmus.runtime.heard import (
    CreditHeard,
    FramesHeard,
    ParcelsArrived,
    PeerUp,
    Refused,
    RelayHeard,
    ShipmentsEnded,
    UnreachableHeard,
)
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.messages import Hello
from isthmus.runtime.refusal import REASONS, RefusalError
from isthmus.runtime.session import AHEAD_MAX, TRANSITIONS, Identity, Pair, Session, read_hello

A, B, C = (Member(Replica("learner", slot), 1) for slot in range(3))
RUN = ("run-1", "fingerprint-1")
TOKEN = b"t" * 16
WINDOW = 1 << 20
NOW = Instant(5)


def frame_of(frame: Any) -> list[Any]:
    return [array(frame)]


def array(frame: Any) -> Any:
    return np.frombuffer(bytes(frame), np.uint8)


class End:
    """One host's end: what it has sent waits in `control` and `data`."""

    def __init__(self, member: Member, peer: Member, window_bytes: int = WINDOW) -> None:
        self.own = Identity(member, *RUN)
        self.peer = peer
        self.window_bytes = window_bytes
        self.encoder = Encoder()
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
        self.superseded = 0

    def send(self, edge: int, item: Any, *, key: Any = None, replaces: bool = False, size_bytes: int = 0) -> None:
        parcel = Parcel(edge, key, item, None, 0, size_bytes)
        made = shipment(self.encoder, self.encoder.encode(item), parcel, 0, replaces)
        self.superseded += self.pair.outbound.put(made) is not None

    def dial(self, connection: int) -> None:
        self.drop()
        self.session = Session.dial(self.own, self.peer, self.pair, connection, TOKEN, self.window_bytes)

    def accept(self, frame: Any) -> None:
        connection, hello = read_hello(frame, self.own)
        self.drop()
        self.session, events = Session.accept(self.own, hello, connection, self.pair, self.window_bytes)
        self.take(events)

    def drop(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None
        self.control.clear()
        self.data.clear()

    def pump(self) -> bool:
        """Say what there is to say; whether there was anything."""
        if self.session is None:
            return False
        was = len(self.control) + len(self.data)
        while (message := self.session.next_control()) is not None:
            self.control.append(message)
        while (parts := self.session.next_data(NOW)) is not None:
            self.data.append(parts)
        return len(self.control) + len(self.data) > was

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
            else:
                self.events.append(event)
        self.deliver()

    def deliver(self) -> None:
        while self.held and not self.is_paused:
            source, event = self.held.popleft()
            for _, parcel in event.parcels:
                self.got.append(parcel)
                source.acknowledge()
            source.take(event.cost)

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


# -- a connection ------------------------------------------------------------------------------------------------------


def test_items_arrive_with_everything_that_was_said_of_them() -> None:
    a, b = connected()
    item = {"x": np.arange(2_000_000, dtype=np.float32), "y": [1, (2, None)], "z": np.int64(3)}
    parcel = Parcel(7, "key", item, {"key": "key", "n": [1]}, 2**64 - 1, 8_000_100)
    a.pair.outbound.put(shipment(a.encoder, a.encoder.encode(item), parcel, 9, True))
    settle(a, b)
    (got,) = b.got
    assert got._replace(item=None) == parcel._replace(item=None)
    assert np.array_equal(got.item["x"], item["x"])
    assert got.item["y"] == [1, (2, None)]
    assert a.ended == [item]


def test_both_sides_send() -> None:
    a, b = connected()
    for i in range(100):
        a.send(1, i)
        b.send(2, i)
    settle(a, b)
    assert [p.item for p in b.got] == [p.item for p in a.got] == list(range(100))


def test_no_item_comes_before_the_welcome_that_explains_it() -> None:
    a, b = End(A, B), End(B, A)
    b.send(1, "early")
    a.dial(1)
    a.pump()
    b.hear_control(a.control.popleft())
    b.hear_data(a.data.popleft())
    b.pump()
    assert (b.session and b.session.phase, list(b.data)) == ("attached", [])
    settle(a, b)
    assert [p.item for p in a.got] == ["early"]


def test_data_that_overtakes_the_first_state_is_understood() -> None:
    a, b = End(A, B), End(B, A)
    a.send(1, "x")
    a.dial(1)
    a.pump()
    b.hear_control(a.control.popleft())
    b.pump()
    a.hear_control(b.control.popleft())
    a.pump()
    b.hear_data(a.data.popleft())
    b.hear_data(a.data.popleft())
    assert [p.item for p in b.got] == ["x"]
    assert b.events == [PeerUp()]
    settle(a, b)
    assert a.ended == ["x"]


def test_the_dialler_says_first_where_it_is_and_then_what_it_relays() -> None:
    a, b = End(A, B), End(B, A)
    a.dial(1)
    a.pump()
    b.hear_control(a.control.popleft())
    b.pump()
    a.hear_control(b.control.popleft())
    assert a.session is not None
    assert a.session.relay(messages.RELAY, A, C, b"inner")
    settle(a, b)
    assert b.events == [PeerUp(), RelayHeard(A, C, b"inner")] or b.events == [RelayHeard(A, C, b"inner"), PeerUp()]


def test_a_heartbeat_is_sent_whenever_it_is_asked_for() -> None:
    a, b = connected()
    assert a.session is not None
    assert a.session.next_control() is None
    for _ in range(2):
        message = a.session.next_control(is_beat=True)
        assert message is not None
        b.hear_control(message)


def test_control_messages_stop_when_the_peer_hears_none_and_go_on_when_it_does() -> None:
    a, b = connected()
    said = 0
    for _ in range(2 * AHEAD_MAX):
        a.pair.grants.give(1, 1)
        a.pump()
        said = len(a.control)
    assert said == AHEAD_MAX
    settle(a, b)
    assert b.credit[1] == 2 * AHEAD_MAX


def test_a_receiver_that_takes_nothing_stops_the_sender_at_the_window() -> None:
    a, b = connected(window_bytes=100_000)
    b.is_paused = True
    for i in range(10):
        a.send(1, np.full(30_000, i, np.uint8))
    settle(a, b)
    assert sum(len(event.parcels) for _, event in b.held) == 3
    b.is_paused = False
    b.deliver()
    settle(a, b)
    assert [int(p.item[0]) for p in b.got] == list(range(10))


# -- connections end ---------------------------------------------------------------------------------------------------


def test_a_new_connection_continues_where_the_old_one_ended() -> None:
    a, b = connected()
    for i in range(3):
        a.send(1, i)
    a.send(2, "old", key="k", replaces=True)
    a.pump()
    b.hear_data(a.data.popleft())
    b.pair.grants.give(1, 2)
    b.pump()
    a.send(1, 3)
    a.send(2, "new", key="k", replaces=True)
    b.drop()
    a.dial(2)
    settle(a, b)
    assert [p.item for p in b.got] == [0, 1, 2, "old", 3, "new"]
    assert a.ended == [0, 1, 2, "old", 3, "new"]
    assert a.credit == {1: 2}
    assert a.superseded == 0


def test_a_session_that_is_over_says_nothing_more() -> None:
    a, _ = connected()
    assert a.session is not None
    a.send(1, "x")
    a.pair.grants.give(1, 1)
    a.session.close()
    assert (a.session.next_control(is_beat=True), a.session.next_data(NOW)) == (None, None)
    assert not a.session.relay(messages.RELAY, A, C)
    assert not a.session.forward(A, C, [b"x"])
    with pytest.raises(RefusalError, match="state"):
        a.session.receive_control(frame_of(messages.seal(1, messages.pack_relay(messages.UNREACHABLE, A, C))))


def test_a_refusal_ends_the_connection_and_says_why() -> None:
    a, b = connected()
    assert a.session is not None
    assert b.session is not None
    a.hear_control(b.session.refusal("digest", "it was damaged"))
    assert a.events[-1] == Refused("digest", "it was damaged")
    assert a.session.phase == "over"


# -- relayed messages --------------------------------------------------------------------------------------------------


def test_relayed_messages_pass_by_what_this_pair_has_to_say() -> None:
    a, b = connected()
    assert a.session is not None
    frame = np.arange(5000, dtype=np.uint8)
    a.send(1, "own")
    assert a.session.relay(messages.RELAY, A, C, b"inner")
    assert a.session.relay(messages.UNREACHABLE, A, C)
    assert a.session.forward(A, C, [b"header", frame])
    settle(a, b)
    relayed = [event for event in b.events if isinstance(event, FramesHeard)]
    assert [(e.source, e.target, list(map(bytes, e.frames))) for e in relayed] == [(A, C, [b"header", frame.tobytes()])]
    assert RelayHeard(A, C, b"inner") in b.events
    assert UnreachableHeard(A, C) in b.events
    assert [p.item for p in b.got] == ["own"]


def test_what_waits_to_be_relayed_is_bounded() -> None:
    a, _ = connected()
    assert a.session is not None
    count = 0
    while a.session.forward(A, C, [np.zeros(1 << 22, np.uint8)]):
        count += 1
    assert 1 <= count <= session.FORWARDS_BYTES_MAX >> 22
    assert sum(a.session.relay(messages.RELAY, A, C, b"x") for _ in range(5000)) == session.FORWARDS_MAX


# -- what is refused ---------------------------------------------------------------------------------------------------


def hello(**changes: Any) -> Hello:
    whole = Hello(*RUN, A, B, TOKEN, WINDOW, {}, {})
    return whole._replace(**changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"run": "another"}, "run"),
        ({"fingerprint": "another"}, "fingerprint"),
        ({"target": C}, "stranger"),
        ({"source": B}, "stranger"),
        ({"target": Member(B.replica, 2)}, "stranger"),
        ({"token": b"short"}, "message"),
        ({"window": -1}, "message"),
        ({"delivered": {1 << 16: 1}}, "message"),
        ({"granted": {1: -1}}, "message"),
        ({"granted": dict.fromkeys(range(5000), 1)}, "message"),
        ({"run": "x" * 300}, "message"),
    ],
)
def test_a_hello_that_is_not_for_us_is_refused(changes: dict[str, Any], reason: str) -> None:
    frame = messages.seal(1, messages.pack_hello(messages.HELLO, hello(**changes)))
    with pytest.raises(RefusalError) as caught:
        read_hello(array(frame), Identity(B, *RUN))
    assert caught.value.reason == reason


def packed(*fields: Any) -> bytes:
    return bytes(msgpack.packb(list(fields)))


def sealed(body: bytes, connection: int = 1) -> bytes:
    return messages.seal(connection, body)


def record(sequence: Any = 1, edge: Any = 1, replaces: Any = False, key: Any = None, spec: bytes = b"\x01") -> bytes:
    said = packed(edge, 0, replaces, key, None, 0, 0)
    return b"\x93" + bytes(msgpack.packb(sequence)) + said + spec


def batch(*records: bytes, transfer: int = 0, piece: int = 0, digests: Sequence[int] = ()) -> bytes:
    return messages.pack_batch(transfer, piece, list(digests), records)


LARGE = Encoder().encode(np.zeros(20_000, np.uint8)).spec

CONTROL: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "truncated"),
    "truncated": (sealed(packed(3, 0, 0, 0, {}))[:12], "truncated"),
    "oversized": (sealed(b"\xc4" * (1 << 20)), "oversized"),
    "random": (b"\x93\x11" * 50, "magic"),
    "version": (b"is\x09\x00" + sealed(packed(3, 0, 0, 0, {}))[4:], "version"),
    "damaged": (sealed(packed(3, 0, 0, 0, {}))[:-1] + b"\x81", "digest"),
    "another connection": (sealed(packed(3, 0, 0, 0, {}), 2), "connection"),
    "no list": (sealed(b"\x01"), "message"),
    "empty list": (sealed(b"\x90"), "message"),
    "no kind": (sealed(packed("x")), "message"),
    "unknown kind": (sealed(packed(77)), "state"),
    "HELLO again": (sealed(messages.pack_hello(messages.HELLO, hello())), "state"),
    "WELCOME again": (sealed(messages.pack_hello(messages.WELCOME, hello())), "state"),
    "data on control": (sealed(batch(record())), "state"),
    "short STATE": (sealed(packed(3, 0)), "message"),
    "STATE with a text": (sealed(packed(3, 0, "x", 0, {})), "message"),
    "STATE below zero": (sealed(packed(3, 0, -1, 0, {})), "message"),
    "too much heard": (sealed(packed(3, 99, 0, 0, {})), "credit"),
    "too much taken": (sealed(packed(3, 0, 1 << 40, 0, {})), "credit"),
    "too much acknowledged": (sealed(packed(3, 0, 0, 5, {})), "credit"),
    "RELAY without message": (sealed(packed(5, ["learner", 1, 1], ["learner", 2, 1], 7)), "message"),
    "RELAY without member": (sealed(packed(5, ["learner", 1, 1], ["learner", 1], b"")), "message"),
    "REFUSAL of nothing": (sealed(packed(4)), "message"),
}

DATA: dict[str, tuple[list[bytes], str]] = {
    "nothing": ([b""], "truncated"),
    "oversized": ([sealed(b"\xc4" * (2 << 20))], "oversized"),
    "many frames": ([sealed(batch(record()))] + [b""] * 300, "oversized"),
    "random": ([b"\x11\x93" * 20, b"x"], "magic"),
    "control on data": ([sealed(packed(3, 0, 0, 0, {}))], "state"),
    "ATTACH again": ([sealed(messages.pack_attach(TOKEN))], "state"),
    "empty batch": ([sealed(batch())], "message"),
    "frames without digests": ([sealed(batch(record())), b"x"], "message"),
    "digests without frames": ([sealed(batch(record(), digests=[1]))], "message"),
    "a frame of no item": ([sealed(batch(record(), digests=[1])), b"x"], "message"),
    "a damaged frame": ([sealed(batch(record(spec=LARGE), digests=[1])), b"\x00" * 20_000], "digest"),
    "a short frame": ([sealed(batch(record(spec=LARGE), digests=[1])), b"\x00" * 19_999], "size"),
    "an item inside another": ([sealed(batch(record(spec=LARGE), record(2)))], "message"),
    "not the next item": ([sealed(batch(record(), transfer=1))], "sequence"),
    "not the next piece": ([sealed(batch(record(), piece=1))], "sequence"),
    "a gap": ([sealed(batch(record(2)))], "sequence"),
    "twice": ([sealed(batch(record(1), record(1)))], "sequence"),
    "no edge": ([sealed(batch(record(edge=1 << 16)))], "message"),
    "no policy": ([sealed(batch(record(replaces=0)))], "message"),
    "no key": ([sealed(batch(record(key=1.5)))], "message"),
    "no item": ([sealed(batch(record(spec=b"\xc7\x00\x05")))], "encoding"),
    "no record": ([sealed(batch(b"\x01"))], "message"),
    "RELAYED without frames": ([sealed(messages.pack_relay(messages.RELAYED, A, C))], "message"),
}


@pytest.mark.parametrize("name", CONTROL)
def test_an_illegal_control_message_ends_the_session_with_a_named_reason(name: str) -> None:
    frame, reason = CONTROL[name]
    refused(lambda session: session.receive_control(frame_of(frame)), reason)


@pytest.mark.parametrize("name", DATA)
def test_an_illegal_data_message_ends_the_session_with_a_named_reason(name: str) -> None:
    parts, reason = DATA[name]
    refused(lambda session: session.receive_data(list(map(array, parts))), reason)


def refused(receive: Callable[[Session], Any], reason: str) -> None:
    _, b = connected()
    assert b.session is not None
    delivered = dict(b.pair.inbound.delivered)
    with pytest.raises(RefusalError) as caught:
        receive(b.session)
    assert caught.value.reason == reason
    assert caught.value.reason in REASONS
    assert b.session.phase == "over"
    assert b.pair.inbound.delivered == delivered


def test_a_message_without_credit_is_refused() -> None:
    _, b = connected(window_bytes=40_000)
    b.is_paused = True
    for i in (1, 2):
        b.hear_data([sealed(batch(record(i), transfer=i - 1))])
    with pytest.raises(RefusalError, match="credit"):
        b.hear_data([sealed(batch(record(3), transfer=2))])


def test_a_welcome_from_somebody_else_is_refused() -> None:
    for changes in ({"source": C}, {"token": b"u" * 16}):
        a = End(A, B)
        a.dial(1)
        a.pump()
        answer = hello(**({"source": B, "target": A} | changes))
        with pytest.raises(RefusalError, match="stranger"):
            a.hear_control(sealed(messages.pack_hello(messages.WELCOME, answer)))


def test_every_kind_in_every_phase_does_what_the_table_says() -> None:
    """What the table does not list is refused; nothing is legal once a connection is over."""
    phases = {phase for phase, _ in TRANSITIONS} | {"over"}
    for phase in phases:
        for kind in range(1, 10):
            if (phase, kind) not in TRANSITIONS and kind != messages.REFUSAL:
                one = Session(Identity(B, *RUN), A, Pair(), phase=phase, connection=1, token=TOKEN, window_bytes=WINDOW)
                with pytest.raises(RefusalError, match="state: a message of kind"):
                    one.receive_control(frame_of(sealed(packed(kind))))
    assert set(TRANSITIONS.values()) | {"dialled", "greeted", "over"} == phases


# -- everything at once ------------------------------------------------------------------------------------------------


class Connections(RuleBasedStateMachine):
    """Two hosts that send, grant, pause and lose connections at any point, against what must come of it."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        for module in (frames, session):
            self.patch.setattr(module, "CHUNK_BYTES", 4096)
        self.patch.setattr(frames, "INLINE_BYTES_MAX", 64)
        self.ends = End(A, B, 50_000), End(B, A, 60_000)
        self.connection = 0
        self.number = 0
        self.sent: dict[int, dict[int, list[int]]] = {0: {1: [], 2: []}, 1: {1: [], 2: []}}
        self.newest: dict[int, dict[tuple[int, int], int]] = {0: {}, 1: {}}
        self.latest_count: Counter[int] = Counter()
        self.granted: dict[int, Counter[int]] = {0: Counter(), 1: Counter()}

    def teardown(self) -> None:
        try:
            for end in self.ends:
                end.is_paused = False
                end.deliver()
            self.dial()
            settle(*self.ends)
            for here, there in ((0, 1), (1, 0)):
                got = self.ends[there].got
                queues = {edge: [_number(p.item) for p in got if p.edge == edge] for edge in (1, 2)}
                assert queues == self.sent[here]
                assert {(p.edge, p.key): _number(p.item) for p in got if p.edge > 2} == self.newest[here]
                assert self.ends[here].credit == self.granted[there]
                assert len(self.ends[here].ended) + self.ends[here].superseded == self.count(here)
                assert not self.ends[here].pair.outbound.kept
        finally:
            self.patch.undo()

    def count(self, here: int) -> int:
        return sum(map(len, self.sent[here].values())) + self.latest_count[here]

    @rule(here=st.integers(0, 1), edge=st.integers(1, 2), size=st.integers(0, 20_000))
    def send_queued(self, here: int, edge: int, size: int) -> None:
        self.number += 1
        self.sent[here][edge].append(self.number)
        self.ends[here].send(edge, _item(self.number, size), size_bytes=size)

    @rule(here=st.integers(0, 1), edge=st.integers(3, 4), key=st.integers(0, 2), size=st.integers(0, 20_000))
    def send_latest(self, here: int, edge: int, key: int, size: int) -> None:
        self.number += 1
        self.newest[here][edge, key] = self.number
        self.latest_count[here] += 1
        self.ends[here].send(edge, _item(self.number, size), key=key, replaces=True, size_bytes=size)

    @rule(here=st.integers(0, 1), edge=st.integers(1, 2), count=st.integers(1, 3))
    def grant(self, here: int, edge: int, count: int) -> None:
        self.granted[here][edge] += count
        self.ends[here].pair.grants.give(edge, count)

    @rule(here=st.integers(0, 1))
    def pump(self, here: int) -> None:
        self.ends[here].pump()

    @rule(here=st.integers(0, 1), count=st.integers(1, 5), is_control=st.booleans())
    def deliver(self, here: int, count: int, is_control: bool) -> None:
        one, other = self.ends[here], self.ends[1 - here]
        for _ in range(count):
            if is_control and one.control:
                other.hear_control(one.control.popleft())
            elif not is_control and one.data and (here == 1 or other.session is not None):
                other.hear_data(one.data.popleft())

    @rule(here=st.integers(0, 1), is_paused=st.booleans())
    def pause(self, here: int, is_paused: bool) -> None:
        self.ends[here].is_paused = is_paused
        self.ends[here].deliver()

    @rule(here=st.integers(0, 1))
    def beat(self, here: int) -> None:
        end = self.ends[here]
        message = end.session.next_control(is_beat=True) if end.session is not None else None
        if message is not None:
            end.control.append(message)

    @rule()
    def dial(self) -> None:
        self.connection += 1
        self.ends[1].drop()
        self.ends[0].dial(self.connection)

    @invariant()
    @precondition(lambda self: hasattr(self, "ends"))
    def nothing_is_beyond_the_window(self) -> None:
        for one, other in ((self.ends[0], self.ends[1]), (self.ends[1], self.ends[0])):
            under_way = [sum(map(len, parts)) for parts in one.data if len(parts) > 1 or len(parts[0]) > 60]
            assert sum(under_way) <= other.window_bytes or len(under_way) == 1


def _item(number: int, size: int) -> Any:
    return [number, np.full(size, number % 251, np.uint8), np.arange(7)]


def _number(item: Any) -> int:
    number, values, seven = item
    assert np.all(values == number % 251)
    assert np.array_equal(seven, np.arange(7))
    return int(number)


Connections.TestCase.settings = settings(max_examples=60, stateful_step_count=60)
TestConnections = Connections.TestCase
