"""The two ends of a passage: what goes in at one comes out at the other, in order; and what may lie in a bucket."""

from __future__ import annotations

import os
import random
import struct

import pytest

from isthmus.programs.engine.machine import bucket_passage
from isthmus.programs.engine.machine.bucket_keys import BoxSeal, digest_of, hello_of, read_hello
from isthmus.programs.engine.machine.bucket_passage import (
    AHEAD_MAX,
    CONNECTIONS_MAX,
    OBJECT_BYTES_MAX,
    SEALED_BYTES_MAX,
    BucketPassage,
    Opened,
    PassageConnectionClosed,
    PassageEnded,
    PassageError,
    PassageEvent,
    Received,
    identity_of,
)
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.wire.security_keys import KeyPair

IDENTITY = bytes(range(16))
HOME, ISLAND, OTHER = (KeyPair.draw() for _ in range(3))


class Clear:
    """No seal, so that tests can forge what only the other end could send."""

    def seal(self, plain: bytes) -> bytes:
        return plain

    def open(self, sealed: bytes) -> bytes:
        return sealed


class Pair:
    """Both ends, and the bucket between them."""

    def __init__(self) -> None:
        self.island = BucketPassage(IDENTITY, Clear(), is_home=False)
        self.home = BucketPassage(IDENTITY, Clear(), is_home=True)
        self.bucket: dict[str, bytes] = {}

    def write(self, end: BucketPassage) -> str:
        name, data = end.pop()
        assert name not in self.bucket
        self.bucket[name] = data
        return name

    def read(self, end: BucketPassage) -> list[PassageEvent]:
        """The events of everything that is there for an end."""
        events: list[PassageEvent] = []
        while (data := self.bucket.pop(end.wanted(), None)) is not None:
            events += end.accept(data)
        return events

    def pass_all(self) -> list[list[PassageEvent]]:
        """What each end hears, island and home, until neither has anything to say."""
        heard: list[list[PassageEvent]] = [[], []]
        while self.island.has_news or self.home.has_news:
            for at, (end, other) in enumerate(((self.home, self.island), (self.island, self.home))):
                if end.has_news:
                    self.write(end)
                heard[at] += self.read(other)
        return heard


@pytest.fixture
def pair() -> Pair:
    return Pair()


def test_connections_are_opened_carried_and_closed(pair: Pair) -> None:
    first, second = pair.island.open(""), pair.island.open("127.0.0.1:4001")
    pair.island.send(first, b"to the daemon")
    pair.island.send(second, b"to a host")
    pair.island.close(second)
    _, home = pair.pass_all()
    assert home == [
        Opened(1, ""),
        Opened(2, "127.0.0.1:4001"),
        Received(1, b"to the daemon"),
        Received(2, b"to a host"),
        PassageConnectionClosed(2),
    ]
    pair.home.send(first, b"answer")
    pair.home.send(second, b"too late")
    pair.home.close(first)
    pair.home.end()
    assert pair.pass_all()[0] == [Received(1, b"answer"), PassageConnectionClosed(1), PassageEnded()]
    assert not pair.island.connections | pair.home.connections
    assert not pair.bucket


def test_large_items_go_in_several_objects_of_bounded_size(pair: Pair) -> None:
    data = os.urandom(3 * OBJECT_BYTES_MAX)
    connection = pair.island.open("x" * bucket_passage.TARGET_BYTES_MAX)
    pair.island.send(connection, data)
    assert pair.island.is_full
    names = [pair.write(pair.island) for _ in range(4)]
    assert not pair.island.has_news
    assert max(len(pair.bucket[name]) for name in names) <= SEALED_BYTES_MAX - bucket_passage.SEAL_BYTES_MAX
    received = [event for event in pair.read(pair.home) if isinstance(event, Received)]
    assert b"".join(event.data for event in received) == data


@pytest.mark.slow
def test_many_small_pieces_do_not_make_an_object_larger(pair: Pair) -> None:
    connection = pair.island.open("")
    for _ in range(OBJECT_BYTES_MAX // 10):
        pair.island.send(connection, b"x")
    while pair.island.has_news:
        pair.write(pair.island)
    assert max(map(len, pair.bucket.values())) <= SEALED_BYTES_MAX - bucket_passage.SEAL_BYTES_MAX
    assert (
        sum(len(event.data) for event in pair.read(pair.home) if isinstance(event, Received)) == OBJECT_BYTES_MAX // 10
    )


def test_an_end_that_nobody_reads_writes_so_many_objects_and_no_more(pair: Pair) -> None:
    connection = pair.island.open("")
    for _ in range(AHEAD_MAX):
        pair.island.send(connection, b"x")
        assert pair.island.has_news
        pair.write(pair.island)
    pair.island.send(connection, b"x")
    assert not pair.island.may_write
    assert not pair.island.has_news
    assert not pair.island.is_full


def test_two_ends_that_are_both_ahead_do_not_wait_for_each_other(pair: Pair) -> None:
    connection = pair.island.open("")
    pair.pass_all()
    for end in (pair.island, pair.home):
        while end.may_write:
            end.send(connection, b"x")
            pair.write(end)
        end.send(connection, b"last")
    heard = [pair.read(pair.island), pair.read(pair.home)]
    assert pair.island.has_news
    assert pair.home.has_news
    more = pair.pass_all()
    assert heard[0][-1] == Received(connection, b"x")
    assert [events[-1] for events in more] == [Received(connection, b"last")] * 2


def test_whatever_is_written_in_any_order_arrives_in_that_order() -> None:
    rng = random.Random(0)
    for _ in range(50):
        pair, sent = Pair(), dict[int, bytes]()
        heard: dict[int, bytes] = {}
        for _ in range(60):
            if rng.random() < 0.2:
                sent[pair.island.open("")] = b""
            elif sent:
                connection, data = rng.choice(list(sent)), rng.randbytes(rng.randrange(1, 2000))
                pair.island.send(connection, data)
                sent[connection] += data
            if rng.random() < 0.3 and pair.island.has_news:
                pair.write(pair.island)
            if rng.random() < 0.3:
                for event in pair.read(pair.home):
                    assert isinstance(event, Opened | Received)
                    heard[event.connection] = heard.get(event.connection, b"") + getattr(event, "data", b"")
        for event in pair.pass_all()[1]:
            assert isinstance(event, Opened | Received)
            heard[event.connection] = heard.get(event.connection, b"") + getattr(event, "data", b"")
        assert heard == sent


# -- what somebody else may have put there -----------------------------------------------------------------------------


def header(**other: object) -> bytes:
    fields = {"magic": b"isb1", "by_home": 0, "identity": IDENTITY, "number": 0, "read": 0} | other
    return struct.pack("<4sB16sQQ", *fields.values())


def frame(kind: int, connection: int, data: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack("<BII", kind, connection, len(data) if size is None else size) + data


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "not sealed"),
        (header()[:-1], "not sealed"),
        (header(magic=b"isb2"), "another one"),
        (header(by_home=1), "another one"),
        (header(identity=bytes(16)), "another one"),
        (header(number=1), "another one, number 1"),
        (header(read=1), "1 of 0 objects were read"),
        (header() + frame(1, 1)[:-1], "cut off"),
        (header() + frame(1, 1, b"x", 2), "cut off"),
        (header() + frame(1, 1, b"x", (1 << 32) - 1), "cut off"),
        (header() + frame(1, 2), "kind 1 for connection 2"),
        (header() + frame(1, 1, bytes(301)), "kind 1"),
        (header() + frame(2, 1, b"x"), "kind 2 for connection 1"),
        (header() + frame(1, 1) + frame(2, 1), "kind 2"),
        (header() + frame(1, 1) + frame(3, 1, b"x"), "kind 3"),
        (header() + frame(9, 1), "kind 9"),
        (header() + frame(4, 1), "kind 4"),
        (header() + b"".join(frame(1, n + 1) for n in range(CONNECTIONS_MAX + 1)), "more than 256"),
    ],
)  # fmt: skip
def test_an_object_that_the_other_end_cannot_have_written_is_refused(pair: Pair, data: bytes, told: str) -> None:
    with pytest.raises(PassageError, match=told):
        pair.home.accept(data)
    assert pair.home.taken == 0


def test_one_that_was_read_is_not_read_again_and_what_it_told_is_not_taken_back(pair: Pair) -> None:
    pair.island.open("")
    _, data = pair.island.pop()
    assert pair.home.accept(data) == [Opened(1, "")]
    with pytest.raises(PassageError, match="another one, number 0"):
        pair.home.accept(data)
    pair.write(pair.home)
    pair.read(pair.island)
    pair.home.accept(header(number=1, read=1))
    with pytest.raises(PassageError, match="and 1 before"):
        pair.home.accept(header(number=2, read=0))


def test_only_the_island_opens_and_no_more_than_so_many(pair: Pair) -> None:
    with pytest.raises(LocalProtocolError):
        pair.home.open("")
    with pytest.raises(PassageError, match="kind 1"):
        pair.island.accept(header(by_home=1) + frame(1, 1))
    for _ in range(CONNECTIONS_MAX):
        pair.island.open("")
    with pytest.raises(LocalProtocolError):
        pair.island.open("")


def test_nothing_follows_the_end(pair: Pair) -> None:
    assert pair.home.accept(header() + frame(4, 0)) == [PassageEnded()]
    with pytest.raises(PassageError, match="ended"):
        pair.home.accept(header(number=1))


def test_names_tell_the_passage_and_nothing_else_does() -> None:
    passage = BucketPassage(IDENTITY, Clear(), is_home=False)
    name, _ = passage.pop()
    assert identity_of(name) == identity_of(f"hello-{IDENTITY.hex()}") == identity_of(passage.wanted()) == IDENTITY
    for other in ("", "hello-", "hello-00", f"{IDENTITY.hex().upper()}-up-0", "probe-0011", "x" * 32, "ü" * 16):
        assert identity_of(other) is None
    assert name in passage.names_left()
    assert passage.wanted() in passage.names_left()


# -- seals -------------------------------------------------------------------------------------------------------------


def test_what_is_sealed_is_read_by_the_other_end_alone() -> None:
    sealed = BoxSeal(ISLAND.secret, HOME.public).seal(b"secret" * 9)
    assert b"secret" not in sealed
    assert len(sealed) <= 54 + bucket_passage.SEAL_BYTES_MAX
    assert BoxSeal(HOME.secret, ISLAND.public).open(sealed) == b"secret" * 9
    for secret, public in ((OTHER.secret, ISLAND.public), (HOME.secret, OTHER.public)):
        with pytest.raises(ValueError, match=r"."):
            BoxSeal(secret, public).open(sealed)
    for damaged in (b"", sealed[:-1], bytes([sealed[0] ^ 1]) + sealed[1:], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        with pytest.raises(ValueError, match=r"."):
            BoxSeal(HOME.secret, ISLAND.public).open(damaged)


def test_a_hello_is_of_its_passage_and_of_its_sender() -> None:
    data = hello_of(IDENTITY, ISLAND, HOME.public, OTHER.public)
    assert read_hello(IDENTITY, data, HOME.secret) == (ISLAND.public, OTHER.public)
    for identity, damaged, secret in (
        (bytes(16), data, HOME.secret),
        (IDENTITY, data, OTHER.secret),
        (IDENTITY, data[:-1], HOME.secret),
        (IDENTITY, data[:32], HOME.secret),
        (IDENTITY, data + bytes(1000), HOME.secret),
        (IDENTITY, hello_of(IDENTITY, OTHER, HOME.public, OTHER.public)[:32] + data[32:], HOME.secret),
    ):
        with pytest.raises(ValueError, match=r"."):
            read_hello(identity, damaged, secret)


def test_homes_that_share_a_store_have_parts_of_their_own() -> None:
    assert digest_of(HOME.public) != digest_of(OTHER.public)
    assert len(digest_of(HOME.public)) == 16
    assert digest_of(HOME.public).isalnum()
