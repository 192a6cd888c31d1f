"""Whatever comes over the wire, a host goes on: bytes that are none of ours, and messages that nearly are."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from isthmus.runtime.channels.contract import Endpoints, Parcel
from isthmus.runtime.clock import Instant
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.items.layout import CHUNK_BYTES, RefusalError
from isthmus.runtime.wire import protocol_messages
from isthmus.runtime.wire.protocol_messages import Hello
from isthmus.runtime.wire.protocol_session import Identity
from isthmus.runtime.wire.protocol_transfers import shipment
from isthmus.runtime.wire.zmq_sockets import FRAME_BYTES_MAX
from tests.runtime.wire.cables import LEARNERS, RUN, SYNCER, World
from tests.runtime.wire.session_ends import connected as session_pair
from tests.runtime.wire.siege import (
    HASTY,
    MESSAGES,
    MIB,
    Siege,
    Stranger,
    mutated,
    record,
    rejected,
    resealed,
    resident,
    stranger,
)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def context() -> Iterator[Any]:
    context = zmq.Context()
    context.set(zmq.MAX_SOCKETS, 4000)
    yield context
    context.destroy(linger=0)


@pytest.mark.slow
def test_a_host_outlives_ten_thousand_hostile_messages(world: World, context: Any) -> None:
    siege = Siege(world, context)
    rng = random.Random(20261120)
    sent = 0

    def random_first(each: Stranger) -> None:
        """Bytes that are nothing, from an address that is nobody."""
        nonlocal sent
        for side in (each.control, each.data):
            for _ in range(20):
                side.send_multipart([rng.randbytes(rng.randrange(1, 300)) for _ in range(rng.randint(1, 3))])
                sent += 1

    def mutated_first(each: Stranger) -> None:
        """A HELLO and an ATTACH that nearly are one."""
        nonlocal sent
        hello = each.session.next_control(Instant(0))
        (attach,) = each.session.next_data(Instant(0)) or [b""]
        assert hello is not None
        for side, first in ((each.control, hello), (each.data, attach)):
            side.send(protocol_messages.seal(1, b"\x91") + first[: rng.randrange(20)])
            for _ in range(20):
                side.send(rng.choice([mutated, resealed])(rng, first))
            sent += 21

    def mutated_later(each: Stranger) -> None:
        """A peer whose messages go bad."""
        nonlocal sent
        item = {"x": np.arange(rng.randrange(1, 30_000)), "y": [1, (2.5, None)], "z": "text"}
        frames = each.batch(item)
        state = protocol_messages.seal(1, protocol_messages.pack_state(protocol_messages.State(0, 0, 0, [], {1: 2}, 0)))
        spoil = rng.choice([mutated, resealed])
        if rng.random() < 0.5:
            each.control.send(spoil(rng, state))
            each.control.send(b"")
        else:
            each.data.send_multipart([spoil(rng, frames[0]), *frames[1:]])
            each.data.send(b"")
        for side in (each.control, each.data):
            for _ in range(14):
                side.send(rng.randbytes(100))
        sent += 30

    slots = iter(range(100_000))

    def some(count: int) -> range:
        first = next(slots)
        for _ in range(count - 1):
            next(slots)
        return range(first, first + count)

    for _ in range(5):
        siege.volley(random_first, some(20), expected=800, is_known=False)
        siege.volley(mutated_first, some(15), expected=500, is_known=False)
        siege.volley(mutated_later, some(20), expected=500, is_known=True)
    assert sent >= MESSAGES
    assert rejected(siege.syncer) > 0.9 * MESSAGES
    siege.check()


@given(st.randoms(use_true_random=False), st.booleans())
def test_a_session_refuses_or_understands_whatever_comes(rng: random.Random, is_data: bool) -> None:
    """Any other exception fails the test; and of what was refused nothing counts as delivered."""
    _, end = session_pair()
    assert end.session is not None
    item = [rng.randrange(1 << 40), {"x": np.arange(rng.randrange(9)), "y": (None, "z", b"b")}]
    made = shipment(Parcel(1, "k", item, {"n": [1]}, 5, 6, encode(item)), 0, True)
    envelope, encoded = made.cargo  # type: ignore[misc]
    batch = protocol_messages.pack_batch(0, 0, [], [(1, msgspec.Raw(envelope), msgspec.Raw(encoded.spec))])
    state = protocol_messages.pack_state(protocol_messages.State(1, 0, 0, [], {1: 2}, 0))
    relay = protocol_messages.pack_relay(protocol_messages.RELAY, stranger(1), stranger(2), b"inner")
    frame = resealed(rng, protocol_messages.seal(1, batch if is_data else rng.choice([state, relay])))
    frames = [memoryview(frame)]
    receive = end.session.receive_data if is_data else end.session.receive_control
    try:
        receive(frames)
    except RefusalError:
        assert end.session.phase == "over"
        assert end.pair.inbound.delivered == {}


KNOWN_AS = {
    "truncated": lambda frame: frame[:10],
    "magic": lambda frame: b"xx" + frame[2:],
    "version": lambda frame: frame[:2] + bytes([protocol_messages.VERSION + 1, 0]) + frame[4:],
    "digest": lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]),
    "oversized": lambda frame: frame + bytes(CHUNK_BYTES - len(frame)),
}


@pytest.mark.parametrize("reason", KNOWN_AS)
@pytest.mark.parametrize("is_known", [False, True])
def test_each_fault_has_its_name_and_costs_only_that_peer(
    world: World, context: Any, reason: str, is_known: bool
) -> None:
    siege = Siege(world, context)

    def send(each: Stranger) -> None:
        if is_known:
            frames = each.batch([1, 2])
            each.data.send_multipart([KNOWN_AS[reason](frames[0])])
        else:
            hello = each.session.next_control(Instant(0))
            assert hello is not None
            each.control.send(KNOWN_AS[reason](hello))

    siege.volley(send, range(1), expected=1, is_known=is_known)
    assert siege.syncer.count(f"refused_{reason}") == 1
    if is_known:
        ((peer, why),) = siege.syncer.losses
        assert (peer, why.startswith(f"refused ({reason}: ")) == (stranger(0), True)
    siege.check()


def test_a_connection_that_is_not_newer_does_not_replace_one(world: World, context: Any) -> None:
    siege = Siege(world, context)
    first, second = (Stranger(context, siege.endpoints, stranger(0)) for _ in range(2))
    first.greet(world, lambda: first.member in siege.syncer.ups)
    hello = second.session.next_control(Instant(0))
    assert hello is not None
    second.control.send(hello)
    world.until(lambda: siege.syncer.count("refused_connection") == 1)
    first.data.send_multipart(first.batch("still here"))
    world.until(lambda: siege.syncer.got(1) == ["still here"])
    for each in (first, second):
        each.close()
    siege.check()


def test_a_refused_stranger_is_told_why_once(world: World, context: Any) -> None:
    siege = Siege(world, context)
    each = Stranger(context, siege.endpoints, stranger(0))
    for _ in range(10):
        each.control.send(b"x" * 50)
    world.until(lambda: rejected(siege.syncer) == 10)
    world.until(lambda: bool(each.control.poll(0)))
    _, _, body = protocol_messages.unseal(memoryview(each.control.recv()), 1000)
    assert protocol_messages.refusal_of(body)[0] == "magic"
    assert not each.control.poll(0)
    assert siege.syncer.count("refused_magic") == 1
    assert siege.syncer.count("unheard") == 9
    each.close()
    siege.check()


def test_what_follows_the_attach_of_a_peer_whose_other_half_has_ended_is_no_fault(world: World, context: Any) -> None:
    siege = Siege(world, context)
    each = Stranger(context, siege.endpoints, stranger(0))
    each.data.send_multipart(each.session.next_data(Instant(0)))
    each.data.send_multipart([protocol_messages.seal(1, protocol_messages.pack_batch(0, 0, [], []))])
    world.until(lambda: siege.syncer.count("unheard") == 1)
    assert rejected(siege.syncer) == 1  # All that is refused or unheard.
    each.close()
    siege.check()


def test_a_frame_too_large_for_libzmq_ends_its_connection_before_it_takes_memory(world: World, context: Any) -> None:
    siege = Siege(world, context)
    each = Stranger(context, siege.endpoints, stranger(0))
    each.greet(world, lambda: each.member in siege.syncer.ups)
    monitor = each.data.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    each.data.send(bytes(FRAME_BYTES_MAX + 1))
    world.until(lambda: bool(monitor.poll(0)))
    siege.exchange()
    monitor.close()
    each.data.disable_monitor()
    each.close()
    world.until(lambda: stranger(0) in dict(siege.syncer.losses))
    siege.check()


def test_what_is_announced_takes_no_memory_before_it_comes(world: World, context: Any) -> None:
    """Arrays of 4 GiB, lists of millions, and frames that never come."""
    siege = Siege(world, context)

    def send(each: Stranger) -> None:
        large = protocol_messages.seal(1, protocol_messages.pack_batch(0, 0, [], [record(1, huge)]))
        lists = protocol_messages.seal(
            1, protocol_messages.pack_batch(0, 0, [], [record(1, b"\xdd\x00\xff\xff\xff" * 1000)])
        )
        each.data.send(large if each.member.replica.slot % 2 else lists)

    shape = (4 << 30).to_bytes(8, "little")
    huge = bytes(msgpack.packb(msgpack.ExtType(2, bytes([5, 0, 1, 0, 0, 0, 0, 0]) + shape)))
    siege.volley(send, range(10), expected=5, is_known=True)
    assert siege.syncer.count("refused_encoding") == 5
    assert siege.growth < 32 * MIB
    siege.check()


def test_who_sends_more_than_was_granted_is_refused(world: World, context: Any) -> None:
    siege = Siege(world, context)
    siege.syncer.channel.pause()
    chunk = encode(np.zeros(CHUNK_BYTES, np.uint8))
    each = Stranger(context, siege.endpoints, stranger(0))
    each.greet(world, lambda: each.member in siege.syncer.ups)
    memory = resident()
    for sequence in range(1, 30):
        head = protocol_messages.pack_batch(sequence - 1, 0, [chunk.digests[0]], [record(sequence, chunk.spec)])
        each.data.send_multipart([protocol_messages.seal(1, head), chunk.pieces[0]])
    world.until(lambda: siege.syncer.count("refused_credit") == 1)
    assert resident() - memory < 40 * CHUNK_BYTES
    siege.syncer.channel.resume()
    siege.exchange()
    each.close()
    siege.check()


def test_bytes_that_are_not_even_zeromq_are_ignored(world: World, context: Any) -> None:
    siege = Siege(world, context)
    rng = random.Random(7)
    for endpoint in siege.endpoints[:2]:
        port = int(endpoint.rpartition(":")[2])
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port)) as raw:
                raw.sendall(
                    rng.choice([b"GET / HTTP/1.1\r\n\r\n", rng.randbytes(500), b"\xff" + bytes(8) + b"\x7f\x03"])
                )
    siege.exchange()
    siege.check()


@pytest.mark.long
@pytest.mark.slow
def test_a_host_that_answers_nonsense_is_dialled_again_and_harms_nobody(world: World, context: Any) -> None:
    """The side that dials is as careful as the side that listens."""
    siege = Siege(world, context)
    rng = random.Random(11)
    routers = [context.socket(zmq.ROUTER) for _ in range(2)]
    for router in routers:
        router.linger = 0
        router.bind("tcp://127.0.0.1:0")
    ghost = Member(Replica("ghost", 0), 1)
    victim = world.end(LEARNERS[1], HASTY)
    victim.channel.connect(SYNCER, siege.endpoints)
    victim.channel.connect(ghost, Endpoints(*(router.last_endpoint.decode() for router in routers)))
    own = Identity(ghost, **RUN)

    def answer() -> bool:
        for router in routers:
            while router.poll(0):
                address, *frames = router.recv_multipart()
                if router is routers[0] and len(frames) == 1:
                    router.send_multipart([address, nonsense(frames[0])])
        return rejected(victim) >= 60

    def nonsense(frame: bytes) -> bytes:
        connection, kind, said = protocol_messages.unseal(memoryview(frame), 1 << 20)
        if kind != protocol_messages.HELLO or rng.random() < 0.2:
            return rng.randbytes(60)
        hello = protocol_messages.hello_of(said)
        welcome = Hello(own.run, own.fingerprint, ghost, LEARNERS[1], hello.token, 1 << 20, 0, {}, {})
        body = protocol_messages.pack_hello(protocol_messages.WELCOME, welcome)
        return protocol_messages.seal(connection, body if rng.random() < 0.3 else mutated(rng, body))

    victim.send(SYNCER, 1, "unharmed")
    world.until(answer)
    assert siege.syncer.got(1) == ["unharmed"]
    assert len({reason for peer, reason in victim.losses if peer == ghost}) >= 4
    siege.exchange()
    siege.check()
