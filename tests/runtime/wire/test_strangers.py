"""Strangers before a host and a daemon that have keys: they get nothing, cost little, and are counted by name."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
import zmq

from isthmus.runtime.channels.contract import Endpoints
from isthmus.runtime.clock import Instant
from isthmus.runtime.wire import security_curve
from isthmus.runtime.wire.control_client import ControlClient
from isthmus.runtime.wire.control_messages import Message, encode
from isthmus.runtime.wire.control_server import ControlServer
from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.procfs import open_files
from tests.runtime.wire.cables import LEARNERS, World
from tests.runtime.wire.key_rings import STRANGER, ring_of
from tests.runtime.wire.siege import MIB, Siege, Stranger, resident

STRANGERS = 100
HALVES = 300
GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE"


@pytest.fixture
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits as long for a handshake as in earnest."""
    monkeypatch.setattr(security_curve, "HANDSHAKE_MS_MAX", 800)


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


KINDS: dict[str, tuple[Keyring | None, str | None, set[str]]] = {
    "no keys": (None, None, {"keyless", "cut"}),
    "a wrong server key": (ring_of(LEARNERS[1]), KeyPair.draw().public, {"mistaken"}),
    "an unadmitted key": (Keyring(STRANGER), None, {"unadmitted"}),
}
"""What strangers show: their keys, the key of the machine that they expect, and how they are counted."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_does_not_hear_strangers(world: World, context: Any, kind: str) -> None:
    siege = Siege(world, context, has_keys=True)
    shown, expected, names = KINDS[kind]
    endpoints = siege.endpoints._replace(key=expected or siege.endpoints.key)
    strangers = [Stranger(context, endpoints, LEARNERS[1], shown) for _ in range(STRANGERS // 2)]
    for each in strangers:
        # libzmq may have given a connection up by now, and then has nowhere to send to.
        with suppress(zmq.Again):
            each.control.send(each.session.next_control(Instant(0)), zmq.NOBLOCK)
        with suppress(zmq.Again):
            each.data.send_multipart(each.session.next_data(Instant(0)), zmq.NOBLOCK)
            each.data.send(bytes(MIB), zmq.NOBLOCK)

    def refused() -> int:
        return sum(siege.syncer.count(f"refused_{name}") for name in names)

    world.until(lambda: refused() >= STRANGERS)
    siege.exchange()
    siege.growth = resident() - siege.memory
    assert not any(each.control.poll(0) for each in strangers)
    for each in strangers:
        each.close()
    heard = {name for name in siege.syncer.channel.statistics() if name.startswith("refused_")}
    assert heard <= {f"refused_{name}" for name in names}
    assert (siege.syncer.count("unheard"), len(siege.syncer.ups)) == (0, 1)
    siege.check()


def halves(open_socket: Callable[[], socket.socket]) -> None:
    """Connections that say nothing, too little, or nonsense, and stay."""
    for number in range(HALVES):
        raw = open_socket()
        if number % 4:
            raw.sendall((GREETING[:5], GREETING.ljust(64, b"\0"), os.urandom(64))[number % 4 - 1])


@pytest.mark.long
@pytest.mark.usefixtures("_impatience")
@pytest.mark.slow
def test_half_handshakes_end_and_cost_a_host_nothing_that_stays(world: World, context: Any) -> None:
    siege = Siege(world, context, has_keys=True)
    with ExitStack() as stack:
        port = int(siege.endpoints.control.rpartition(":")[2])
        halves(lambda: stack.enter_context(socket.create_connection(("127.0.0.1", port))))
        siege.exchange()
        siege.growth = resident() - siege.memory
        world.until(lambda: siege.syncer.count("refused_cut") >= HALVES // 2)
        world.until(lambda: ours(port) <= 1)
        siege.exchange()
    siege.check()


def ours(port: int) -> int:
    """Connections that whoever listens at a port still keeps."""
    inodes = {f"socket:[{row.split()[9]}]" for row in rows() if row.split()[1].endswith(f":{port:04X}")}
    return len(inodes & open_files()) - 1


def rows() -> list[str]:
    """TCP connections."""
    with open("/proc/self/net/tcp") as file:
        return file.read().splitlines()[1:]


class Post:
    """A daemon's end with keys, and an admitted client whose words it answers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.heard: list[Message] = []
        self.answers: list[Message] = []
        self.unknown: list[str] = []
        ring = ring_of(LEARNERS[0], LEARNERS[1])
        self.server = ControlServer(
            world.loop,
            "tcp://127.0.0.1:*",
            self.hear,
            keys=ring,
            on_unknown=lambda key, address: self.unknown.append(key),
        )
        self.where = Endpoints(self.server.endpoint, self.server.endpoint, ring.pair.public)
        mine = ring_of(LEARNERS[1])
        self.client = ControlClient(
            world.loop, self.server.endpoint, self.answers.append, keys=mine, server_key=ring.pair.public
        )
        self.exchange()

    def hear(self, peer: bytes, message: Message) -> None:
        self.heard.append(message)
        self.server.send(peer, message)

    def exchange(self) -> None:
        """A word of the admitted client, there and back."""
        count = len(self.answers)
        self.client.send({"type": "word", "number": count})
        self.world.until(lambda: len(self.answers) > count)

    def close(self) -> None:
        self.client.close()
        self.server.close()


@pytest.fixture
def post(world: World) -> Iterator[Post]:
    post = Post(world)
    yield post
    post.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_daemon_does_not_hear_strangers(world: World, post: Post, context: Any, kind: str) -> None:
    shown, expected, names = KINDS[kind]
    memory = resident()
    strangers = []
    for _ in range(STRANGERS):
        each = dealer(context, post, shown, expected)
        with suppress(zmq.Again):
            each.send(encode({"type": "end", "padding": "x" * 100_000}), zmq.NOBLOCK)
        strangers.append(each)
    world.until(lambda: sum(post.server.refused[name] for name in names) >= STRANGERS)
    post.exchange()
    assert resident() - memory < 32 * MIB
    assert set(post.server.refused) <= names
    assert [message["type"] for message in post.heard] == ["word", "word"]
    assert post.unknown == ([STRANGER.public] if kind == "an unadmitted key" else [])
    assert not any(each.poll(0) for each in strangers)
    for each in strangers:
        each.close()


def dealer(context: Any, post: Post, keys: Keyring | None, expected: str | None = None) -> Any:
    """A socket that dials a daemon with some keys."""
    made = context.socket(zmq.DEALER)
    made.linger = 0
    security_curve.secure_client(made, keys, expected or post.where.key)
    made.connect(post.where.control)
    return made


@pytest.mark.usefixtures("_impatience")
@pytest.mark.slow
def test_half_handshakes_end_and_cost_a_daemon_nothing_that_stays(world: World, post: Post) -> None:
    memory = resident()
    port = int(post.server.endpoint.rpartition(":")[2])
    with ExitStack() as stack:
        halves(lambda: stack.enter_context(socket.create_connection(("127.0.0.1", port))))
        post.exchange()
        assert resident() - memory < 64 * MIB
        world.until(lambda: post.server.refused["cut"] >= HALVES // 2)
        world.until(lambda: ours(port) <= 1)
    post.exchange()
    assert len(post.heard) == 3


def test_a_flood_of_keys_is_remembered_and_told_within_bounds(world: World, post: Post, context: Any) -> None:
    from isthmus.runtime.wire.security_curve import STRANGERS_MAX

    count = STRANGERS_MAX + 20
    pairs = [KeyPair(*(half.decode() for half in zmq.curve_keypair())) for _ in range(count)]
    strangers = [dealer(context, post, Keyring(pair)) for pair in pairs]
    world.until(lambda: post.server.refused["unadmitted"] == count)
    assert 1 <= len(post.unknown) < STRANGERS_MAX
    assert post.server._zap is not None
    assert len(post.server._zap.strangers) == STRANGERS_MAX
    post.exchange()
    for each in strangers:
        each.close()
