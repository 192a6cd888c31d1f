"""One connection after another between two hosts, without sockets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.ids import Member
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.items.layout import REASONS, RefusalError
from isthmus.runtime.wire import protocol_messages, protocol_session
from isthmus.runtime.wire.protocol_credit import WINDOW_BYTES_MAX, Intake
from isthmus.runtime.wire.protocol_messages import Hello
from isthmus.runtime.wire.protocol_session import AHEAD_MAX, TRANSITIONS, Identity, Pair, Session, read_hello
from isthmus.runtime.wire.protocol_transfers import (
    FramesHeard,
    PeerRefused,
    PeerUp,
    RelayHeard,
    UnreachableHeard,
    shipment,
)
from tests.runtime.wire.session_ends import NOW, RUN, TOKEN, WINDOW, A, B, C, End, array, connected, frame_of, settle

# -- a connection ------------------------------------------------------------------------------------------------------


def test_items_arrive_with_everything_that_was_said_of_them() -> None:
    a, b = connected()
    item = {"x": np.arange(2_000_000, dtype=np.float32), "y": [1, (2, None)], "z": np.int64(3)}
    parcel = Parcel(7, "key", item, {"key": "key", "n": [1]}, 2**64 - 1, 8_000_100, encode(item))
    a.pair.outbound.put(shipment(parcel, 9, True))
    settle(a, b)
    (got,) = b.got
    assert msgspec.structs.replace(got, item=None) == msgspec.structs.replace(parcel, item=None, encoded=None)
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
    assert a.session.relay(protocol_messages.RELAY, A, C, b"inner")
    settle(a, b)
    assert b.events == [RelayHeard(A, C, b"inner"), PeerUp()]


def test_a_heartbeat_is_sent_whenever_it_is_asked_for() -> None:
    a, b = connected()
    assert a.session is not None
    assert a.session.next_control(NOW) is None
    for _ in range(2):
        message = a.session.next_control(NOW, is_beat=True)
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
    assert (a.session.next_control(NOW, is_beat=True), a.session.next_data(NOW)) == (None, None)
    assert not a.session.relay(protocol_messages.RELAY, A, C)
    assert not a.session.forward(A, C, [b"x"])
    with pytest.raises(RefusalError, match="state"):
        a.session.receive_control(
            frame_of(protocol_messages.seal(1, protocol_messages.pack_relay(protocol_messages.UNREACHABLE, A, C)))
        )


def test_a_refusal_ends_the_connection_and_says_why() -> None:
    a, b = connected()
    assert a.session is not None
    assert b.session is not None
    a.hear_control(b.session.refusal("digest", "it was damaged"))
    assert a.events[-1] == PeerRefused("digest", "it was damaged")
    assert a.session.phase == "over"


# -- relayed messages --------------------------------------------------------------------------------------------------


def test_relayed_messages_pass_by_what_this_pair_has_to_say() -> None:
    a, b = connected()
    assert a.session is not None
    frame = np.arange(5000, dtype=np.uint8)
    a.send(1, "own")
    assert a.session.relay(protocol_messages.RELAY, A, C, b"inner")
    assert a.session.relay(protocol_messages.UNREACHABLE, A, C)
    assert a.session.forward(A, C, [b"header", frame])
    settle(a, b)
    relayed = [event for event in b.events if isinstance(event, FramesHeard)]
    assert [(e.source, e.target, list(map(bytes, e.frames))) for e in relayed] == [(A, C, [b"header", frame.tobytes()])]
    assert RelayHeard(A, C, b"inner") in b.events
    assert UnreachableHeard(A, C) in b.events
    assert [p.item for p in b.got] == ["own"]


def test_what_waits_to_be_relayed_is_bounded_and_what_finds_no_room_is_not_sent() -> None:
    a, b = connected()
    assert a.session is not None
    count = 0
    while a.session.forward(A, C, [np.zeros(1 << 22, np.uint8)]):
        count += 1
    assert 1 <= count <= protocol_session.FORWARDS_BYTES_MAX >> 22
    settle(a, b)
    assert sum(isinstance(event, FramesHeard) for event in b.events) == count
    assert (
        sum(a.session.relay(protocol_messages.RELAY, A, C, b"x") for _ in range(5000)) == protocol_session.FORWARDS_MAX
    )


# -- what is refused ---------------------------------------------------------------------------------------------------


def hello(**changes: Any) -> Hello:
    whole = Hello(*RUN, A, B, TOKEN, WINDOW, 0, {}, {})
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
    frame = protocol_messages.seal(1, protocol_messages.pack_hello(protocol_messages.HELLO, hello(**changes)))
    with pytest.raises(RefusalError) as caught:
        read_hello(array(frame), Identity(B, *RUN))
    assert caught.value.reason == reason


def test_whatever_a_peer_grants_only_so_much_is_handed_to_zeromq() -> None:
    b = End(B, A)
    b.accept(
        array(protocol_messages.seal(1, protocol_messages.pack_hello(protocol_messages.HELLO, hello(window=1 << 50))))
    )
    window = b.pair.outbound.window
    assert window is not None
    window.spend(1)
    assert window.may_go(WINDOW_BYTES_MAX - 1, b.pair.outbound.pace)
    assert not window.may_go(WINDOW_BYTES_MAX, b.pair.outbound.pace)


def packed(*fields: Any) -> bytes:
    return bytes(msgpack.packb(list(fields)))


def sealed(body: bytes, connection: int = 1) -> bytes:
    return protocol_messages.seal(connection, body)


def record(
    sequence: Any = 1, edge: Any = 1, replaces: Any = False, key: Any = None, fields: Any = None, spec: bytes = b"\x01"
) -> bytes:
    said = packed(edge, 0, replaces, key, fields, 0, 0)
    return b"\x93" + bytes(msgpack.packb(sequence)) + said + spec


def batch(*records: bytes, transfer: int = 0, piece: int = 0, digests: Sequence[int] = ()) -> bytes:
    return protocol_messages.pack_batch(transfer, piece, list(digests), list(map(msgspec.Raw, records)))


LARGE = encode(np.zeros(20_000, np.uint8)).spec
ARRAY = msgpack.unpackb(encode(np.zeros(3)).spec)

CONTROL: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "truncated"),
    "truncated": (sealed(packed(3, 0, 0, 0, [], {}, 0))[:12], "truncated"),
    "oversized": (sealed(b"\xc4" * (1 << 20)), "oversized"),
    "random": (b"\x93\x11" * 50, "magic"),
    "version": (b"is\x09\x00" + sealed(packed(3, 0, 0, 0, [], {}, 0))[4:], "version"),
    "damaged": (sealed(packed(3, 0, 0, 0, [], {}, 0))[:-1] + b"\x81", "digest"),
    "another connection": (sealed(packed(3, 0, 0, 0, [], {}, 0), 2), "connection"),
    "no list": (sealed(b"\x01"), "message"),
    "empty list": (sealed(b"\x90"), "message"),
    "no kind": (sealed(packed("x")), "message"),
    "unknown kind": (sealed(packed(77)), "state"),
    "HELLO again": (sealed(protocol_messages.pack_hello(protocol_messages.HELLO, hello())), "state"),
    "WELCOME again": (sealed(protocol_messages.pack_hello(protocol_messages.WELCOME, hello())), "state"),
    "data on control": (sealed(batch(record())), "state"),
    "short STATE": (sealed(packed(3, 0)), "message"),
    "STATE with a text": (sealed(packed(3, 0, "x", 0, [], {}, 0)), "message"),
    "STATE below zero": (sealed(packed(3, 0, -1, 0, [], {}, 0)), "message"),
    "a pace below zero": (sealed(packed(3, 0, 0, 0, [], {}, -1)), "message"),
    "too much heard": (sealed(packed(3, 99, 0, 0, [], {}, 0)), "credit"),
    "too much taken": (sealed(packed(3, 0, 1 << 40, 0, [], {}, 0)), "credit"),
    "too much acknowledged": (sealed(packed(3, 0, 0, 5, [0] * 5, {}, 0)), "credit"),
    "ages of nothing": (sealed(packed(3, 0, 0, 0, [1], {}, 0)), "message"),
    "no ages": (sealed(packed(3, 0, 0, 5, [], {}, 0)), "message"),
    "ages that are no list": (sealed(packed(3, 0, 0, 1, 7, {}, 0)), "message"),
    "an age that is no number": (sealed(packed(3, 0, 0, 1, [True], {}, 0)), "message"),
    "an age below zero": (sealed(packed(3, 0, 0, 1, [-1], {}, 0)), "message"),
    "an age beyond reason": (sealed(packed(3, 0, 0, 1, [1 << 32], {}, 0)), "message"),
    "too many ages": (sealed(packed(3, 0, 0, 257, [0] * 257, {}, 0)), "message"),
    "RELAY without message": (sealed(packed(5, ["learner", 1, 1], ["learner", 2, 1], 7)), "message"),
    "RELAY without member": (sealed(packed(5, ["learner", 1, 1], ["learner", 1], b"")), "message"),
    "REFUSAL of nothing": (sealed(packed(4)), "message"),
}

DATA: dict[str, tuple[list[bytes], str]] = {
    "nothing": ([b""], "truncated"),
    "oversized": ([sealed(b"\xc4" * (2 << 20))], "oversized"),
    "many frames": ([sealed(batch(record()))] + [b""] * 300, "oversized"),
    "random": ([b"\x11\x93" * 20, b"x"], "magic"),
    "control on data": ([sealed(packed(3, 0, 0, 0, [], {}, 0))], "state"),
    "ATTACH again": ([sealed(protocol_messages.pack_attach(TOKEN))], "state"),
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
    "fields that are a list": ([sealed(batch(record(fields=[1])))], "message"),
    "fields that are an array": ([sealed(batch(record(fields=ARRAY)))], "message"),
    "fields with a large array": ([sealed(batch(record(fields={"x": msgpack.unpackb(LARGE)})))], "message"),
    "an array for a number": ([sealed(batch(record(edge=ARRAY)))], "message"),
    "an array for a record": ([sealed(batch(bytes(msgpack.packb(ARRAY))))], "message"),
    "an array for all records": ([sealed(packed(8, 0, 0, [], ARRAY))], "message"),
    "digests that are no numbers": ([sealed(packed(8, 0, 0, [True], []))], "message"),
    "no item": ([sealed(batch(record(spec=b"\xc7\x00\x05")))], "encoding"),
    "no record": ([sealed(batch(b"\x01"))], "message"),
    "RELAYED without frames": ([sealed(protocol_messages.pack_relay(protocol_messages.RELAYED, A, C))], "message"),
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
            a.hear_control(sealed(protocol_messages.pack_hello(protocol_messages.WELCOME, answer)))


def test_every_kind_in_every_phase_does_what_the_table_says() -> None:
    """What the table does not list is refused; nothing is legal once a connection is over."""
    phases = {phase for phase, _ in TRANSITIONS} | {"over"}
    for phase in phases:
        for kind in range(1, 10):
            if (phase, kind) not in TRANSITIONS and kind != protocol_messages.REFUSAL:
                one = Session(
                    Identity(B, *RUN), A, Pair(), phase=phase, connection=1, token=TOKEN, intake=Intake(WINDOW)
                )
                with pytest.raises(RefusalError, match="state: a message of kind"):
                    one.receive_control(frame_of(sealed(packed(kind))))
    assert set(TRANSITIONS.values()) | {"dialled", "greeted", "over"} == phases
