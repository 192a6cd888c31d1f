"""A host under siege: a healthy pair of peers, and strangers who know the protocol as well as we do."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import zmq

from isthmus.runtime.channels.contract import Endpoints, Parcel
from isthmus.runtime.clock import Instant, milliseconds
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.items.layout import REASONS
from isthmus.runtime.wire import protocol_messages
from isthmus.runtime.wire.peers import Limits
from isthmus.runtime.wire.protocol_credit import Intake
from isthmus.runtime.wire.protocol_session import Identity, Pair, Session
from isthmus.runtime.wire.protocol_transfers import shipment
from isthmus.runtime.wire.security_curve import secure_client
from isthmus.runtime.wire.security_keys import Keyring
from tests.runtime.wire.cables import LEARNERS, RUN, SYNCER, End, World
from tests.runtime.wire.key_rings import keyed

MIB = 1 << 20
MESSAGES = 10_000
GROWTH_MAX = 128 * MIB
"""Of memory while 10,000 messages come: 30 chunks, what libzmq holds for the connections of one volley, and slack."""
HASTY = Limits(retry_min=milliseconds(10), retry_max=milliseconds(50))
Bytes = bytes | bytearray


class Stranger:
    """Somebody with plain ZeroMQ sockets, who knows the protocol as well as we do; with `keys`, shown to whoever has
    the key of the endpoints."""

    def __init__(self, context: Any, endpoints: Endpoints, member: Member, keys: Keyring | None = None) -> None:
        self.control, self.data = context.socket(zmq.DEALER), context.socket(zmq.DEALER)
        for each, endpoint in zip((self.control, self.data), endpoints[:2], strict=True):
            each.linger = 0
            secure_client(each, keys, endpoints.key)
            each.connect(endpoint)
        self.member = member
        self.pair = Pair()
        self.token = os.urandom(16)
        own = Identity(member, RUN["run"], RUN["fingerprint"])
        self.session = Session.dial(own, SYNCER, self.pair, 1, self.token, Intake(8 * MIB))

    def greet(self, world: World, is_up: Callable[[], bool]) -> None:
        """Shake hands as we should."""
        self.control.send(self.session.next_control(Instant(0)))
        self.data.send_multipart(self.session.next_data(Instant(0)))

        def answered() -> bool:
            while self.control.poll(0):
                self.session.receive_control([memoryview(self.control.recv())])
            if self.session.phase == "live" and (said := self.session.next_control(Instant(0))) is not None:
                self.control.send(said)
            return is_up()

        world.until(answered)

    def batch(self, item: Any) -> list[bytes]:
        """A batch as we would send it."""
        self.pair.outbound.put(shipment(Parcel(1, None, item, {"k": 1}, 0, 8, encode(item)), 0, False))
        frames = self.session.next_data(Instant(0))
        assert frames is not None
        return [bytes(frame) for frame in frames]

    def close(self) -> None:
        self.control.close()
        self.data.close()


def stranger(slot: int) -> Member:
    """A member that nobody expects."""
    return Member(Replica("stranger", slot), 1)


def mutated(rng: random.Random, data: Bytes) -> bytes:
    """Some bits, a part cut out, a part repeated, or an end cut off."""
    copy = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(copy)) if copy else 0
        how = rng.randrange(5)
        if how <= 1 and copy:
            copy[at] = rng.randrange(256)
        elif how == 2:
            del copy[at : at + rng.randint(1, 8)]
        elif how == 3:
            copy[at:at] = copy[at : at + rng.randint(1, 8)]
        else:
            del copy[at + len(copy) // 2 :]
    return bytes(copy)


def resealed(rng: random.Random, frame: bytes) -> bytes:
    """A mutation with a digest that fits: only what it says is wrong."""
    return protocol_messages.seal(1, mutated(rng, frame[protocol_messages.PREFIX_BYTES :]))


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def rejected(end: End) -> int:
    """Messages that were not accepted."""
    statistics = end.channel.statistics()
    known = {f"refused_{reason}" for reason in REASONS}
    assert {name for name in statistics if name.startswith("refused_")} <= known
    return sum(count for name, count in statistics.items() if name in known or name == "unheard")


class Siege:
    """A host with a healthy peer, whose items go on while strangers send what they like."""

    def __init__(self, world: World, context: Any, *, has_keys: bool = False) -> None:
        self.world, self.context = world, context
        given = [keyed(each, (SYNCER, *LEARNERS[:2])) if has_keys else {} for each in (SYNCER, LEARNERS[0])]
        self.syncer, self.learner = world.end(SYNCER, HASTY, **given[0]), world.end(LEARNERS[0], HASTY, **given[1])
        self.endpoints = self.syncer.channel.bind("tcp://127.0.0.1:0")
        self.learner.channel.connect(SYNCER, self.endpoints)
        world.until(lambda: bool(self.learner.ups))
        self.sent = 0
        self.exchange()
        self.memory = resident()
        self.growth = 0

    def exchange(self) -> None:
        """An item of the healthy pair, there and back, while all else is under way."""
        self.sent += 1
        self.learner.send(SYNCER, 7, [self.sent, np.full(40_000, self.sent, np.int32)])
        self.syncer.send(LEARNERS[0], 7, self.sent)
        self.world.until(lambda: len(self.syncer.got(7)) == len(self.learner.got(7)) == self.sent)

    def volley(self, send: Callable[[Stranger], None], slots: range, *, expected: int, is_known: bool) -> None:
        """Each of some strangers sends; all of it arrives and is judged, and the healthy pair goes on."""
        before = rejected(self.syncer)
        strangers = [Stranger(self.context, self.endpoints, stranger(slot)) for slot in slots]
        for each in strangers:
            if is_known:
                each.greet(self.world, lambda each=each: each.member in self.syncer.ups)  # type: ignore[misc]
            send(each)
        self.exchange()
        self.world.until(lambda: rejected(self.syncer) - before >= expected)
        self.growth = max(self.growth, resident() - self.memory)
        for each in strangers:
            each.close()

    def check(self) -> None:
        """Nobody was harmed."""
        assert [item[0] for item in self.syncer.got(7)] == list(range(1, self.sent + 1))
        assert all(np.all(array == number) for number, array in self.syncer.got(7))
        assert self.learner.got(7) == list(range(1, self.sent + 1))
        assert (self.learner.losses, LEARNERS[0] in dict(self.syncer.losses)) == ([], False)
        assert self.growth < GROWTH_MAX


def record(sequence: int, spec: bytes) -> msgspec.Raw:
    said = bytes(msgpack.packb([1, 0, False, None, None, 0, 0]))
    return msgspec.Raw(b"\x93" + bytes(msgpack.packb(sequence)) + said + spec)
