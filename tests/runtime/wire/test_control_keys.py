"""Control messages with keys: who is heard and as whom, and what the others are told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import uvloop

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system import addresses
from isthmus.runtime.wire import security_curve
from isthmus.runtime.wire.control_client import ControlClient, ask
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.control_server import ControlServer
from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.loops import run_until
from tests.patience import PATIENCE
from tests.procfs import has_ipv6

LOOPBACK = "tcp://127.0.0.1:*"
ALPHA, BETA, GAMMA = (KeyPair.draw() for _ in range(3))
STRANGER = KeyPair.make()  # It is told in a command.


class Place:
    """A loop with a daemon's end on it, which answers every message with who it thinks has sent it."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.ring = Keyring(ALPHA, {BETA.public: "beta", GAMMA.public: "gamma"}, "alpha")
        self.heard: list[tuple[str | None, Any]] = []
        self.unknown: list[tuple[str, str]] = []
        self.open: list[Any] = []
        self.server = self.listen(self.ring)

    def listen(self, ring: Keyring | None, endpoint: str = LOOPBACK) -> ControlServer:
        server = ControlServer(
            self.loop,
            endpoint,
            lambda peer, message: self.hear(server, peer, message),
            keys=ring,
            on_unknown=lambda key, address: self.unknown.append((key, address)),
        )
        self.open.append(server)
        return server

    def hear(self, server: ControlServer, peer: bytes, message: Message) -> None:
        self.heard.append((server.caller, message.get("word")))
        server.send(peer, {"type": "answer", "caller": server.caller})

    def client(self, pair: KeyPair, server_key: str = ALPHA.public) -> Client:
        client = Client(self, pair, server_key)
        self.open.append(client.client)
        return client

    def until(self, holds: Callable[[], bool], seconds_max: float = PATIENCE) -> None:
        run_until(self.loop, holds, seconds_max)

    def ask(self, server: ControlServer, keys: Keyring | None, server_key: str = "") -> Any:
        """What a command is told, which asks from another thread; its ConfigError is raised."""
        return self.ask_at(server.endpoint, keys, server_key)

    def ask_at(self, endpoint: str, keys: Keyring | None, server_key: str = "") -> Any:
        told: Future[Any] = Future()

        def run() -> None:
            try:
                told.set_result(ask(endpoint, {"type": "word"}, 10.0, keys=keys, server_key=server_key))
            except ConfigError as error:
                told.set_exception(error)

        thread = threading.Thread(target=run)
        thread.start()
        self.until(told.done)
        thread.join()
        return told.result()

    def close(self) -> None:
        for each in self.open:
            each.close()
        self.loop.close()


class Client:
    """A host's end that notes its answers, and why attempts failed."""

    def __init__(self, place: Place, pair: KeyPair, server_key: str) -> None:
        self.answers: list[Message] = []
        self.refused: list[str] = []
        self.client = ControlClient(
            place.loop,
            place.server.endpoint,
            self.answers.append,
            keys=Keyring(pair),
            server_key=server_key,
            on_refused=self.refused.append,
        )

    def say(self, word: Any) -> None:
        self.client.send({"type": "word", "word": word})


@pytest.fixture
def place() -> Iterator[Place]:
    place = Place()
    yield place
    place.close()


def test_the_caller_is_the_machine_whose_key_it_is(place: Place) -> None:
    clients = {"alpha": place.client(ALPHA), "beta": place.client(BETA), "gamma": place.client(GAMMA)}
    for name, client in clients.items():
        client.say(name)
    place.until(lambda: all(client.answers for client in clients.values()))
    assert sorted(place.heard) == [("alpha", "alpha"), ("beta", "beta"), ("gamma", "gamma")]
    assert [client.answers[0]["caller"] for client in clients.values()] == list(clients)
    assert place.server.caller is None


@pytest.mark.long
@pytest.mark.slow
def test_who_is_not_admitted_waits_until_it_is(place: Place) -> None:
    client = place.client(STRANGER)
    client.say("early")
    place.until(lambda: len(client.refused) >= 2)
    assert (set(client.refused), place.heard) == ({security_curve.UNADMITTED}, [])
    assert place.unknown == [(STRANGER.public, "127.0.0.1")]
    assert place.server.refused["unadmitted"] >= 2
    place.ring.admit("delta", STRANGER.public)

    def answered() -> bool:
        client.say("again")
        return bool(client.answers)

    place.until(answered)
    assert place.heard[0] == ("delta", "again")


def test_who_is_expelled_is_not_heard_again_even_if_another_takes_the_name(place: Place) -> None:
    client, other = place.client(BETA), place.client(GAMMA)
    client.say(1)
    place.until(lambda: bool(client.answers))
    place.ring.expel("beta")
    client.say(2)
    place.until(lambda: place.server.refused["expelled"] == 1)
    place.ring.admit("beta", STRANGER.public)
    client.say(3)
    place.until(lambda: place.server.refused["expelled"] == 2)
    other.say(4)
    place.until(lambda: bool(other.answers))
    assert place.heard == [("beta", 1), ("gamma", 4)]
    place.ring.expel("beta")
    place.ring.admit("beta", BETA.public)
    client.say(5)
    place.until(lambda: len(client.answers) == 2)


@pytest.mark.long
@pytest.mark.slow
def test_a_command_is_told_what_is_wrong_with_keys(place: Place) -> None:
    plain = place.listen(None)
    mine, other = Keyring(BETA), Keyring(STRANGER)
    assert place.ask(place.server, mine, ALPHA.public)["caller"] == "beta"
    assert place.ask(plain, None)["caller"] is None
    for server, keys, server_key, told in (
        (place.server, None, "", "expected a daemon without keys, found one that has keys"),
        (place.server, other, ALPHA.public, f"isthmus admit NAME {STRANGER.public}"),
        (place.server, mine, GAMMA.public, "found one that has another key"),
    ):
        with pytest.raises(ConfigError) as error:
            place.ask(server, keys, server_key)
        assert told in str(error.value)
    # libzmq may close this connection before it has heard that there are no keys, and then a wrong one is as likely.
    with pytest.raises(ConfigError, match=r"found one without|found one that has another key, or none"):
        place.ask(plain, mine, ALPHA.public)


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_daemon_is_asked_over_ipv6(place: Place) -> None:
    server = place.listen(place.ring, "tcp://[::1]:*")
    assert server.endpoint.startswith("tcp://[::1]:")
    assert place.ask(server, Keyring(BETA), ALPHA.public)["caller"] == "beta"


FAMILIES = {socket.AF_INET: "127.0.0.1", **({socket.AF_INET6: "::1"} if has_ipv6() else {})}


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> str:
    """A name that Python resolves to all loopback addresses."""
    real = socket.getaddrinfo

    def resolve(host: Any, port: Any, *more: Any, **options: Any) -> list[Any]:
        hosts = FAMILIES.values() if host == "home.example" else [host]
        return [one for each in reversed(list(hosts)) for one in real(each, port, *more, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return "home.example"


@pytest.mark.parametrize("host", [f"[{host}]" if ":" in host else host for host in FAMILIES.values()])
def test_of_a_name_the_address_that_answers_is_asked(place: Place, named: str, host: str) -> None:
    """A name may have addresses of both kinds, of which the daemon listens at one."""
    server = place.listen(place.ring, f"tcp://{host}:*")
    endpoint = f"tcp://{named}:{server.endpoint.rpartition(':')[2]}"
    assert place.ask_at(endpoint, Keyring(BETA), ALPHA.public)["caller"] == "beta"


@pytest.mark.parametrize("host", FAMILIES.values())
def test_a_daemon_that_listens_by_name_is_there_at_all_addresses(place: Place, host: str) -> None:
    server = place.listen(place.ring, "tcp://home.example:*")
    name, port = addresses.host_and_port(server.endpoint)
    assert name == "home.example"
    endpoint = f"tcp://{addresses.text_of(host, port)}"
    assert place.ask_at(endpoint, Keyring(BETA), ALPHA.public)["caller"] == "beta"


def test_localhost_is_no_name_for_all_addresses(place: Place) -> None:
    server = place.listen(None, "tcp://localhost:*")
    assert addresses.host_and_port(server.endpoint)[0] in ("127.0.0.1", "::1", "::ffff:127.0.0.1")


def test_nothing_leaves_the_machine_without_keys(place: Place) -> None:
    away = "tcp://192.0.2.1:7400"
    with pytest.raises(ConfigError, match=r"Listening at tcp://0\.0\.0\.0:0: expected keys"):
        ControlServer(place.loop, "tcp://0.0.0.0:0", lambda peer, message: None)
    with pytest.raises(ConfigError, match="expected keys"):
        ControlClient(place.loop, away, lambda message: None)
    with pytest.raises(ConfigError, match="expected keys"):
        ask(away, {"type": "word"})
    with pytest.raises(ConfigError, match="public key of the machine that listens"):
        ControlClient(place.loop, away, lambda message: None, keys=place.ring)
