"""The proxy between hosts: what passes is whole and in order, as late as its conditions have it, and is counted."""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from isthmus.programs.wings.chaos.chaos_strikes import LinkProxy, WayConditions, comes_about
from tests.patience import PATIENCE

DATA = os.urandom(40_000)


class Echo:
    """A server on loopback that sends back what it hears."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            while data := client.recv(1 << 16):
                client.sendall(data)


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.socket.close()


@pytest.fixture
def links() -> Iterator[LinkProxy]:
    made = LinkProxy(lambda pid: "learner/0" if pid == os.getpid() else f"process {pid}", WayConditions())
    yield made
    made.close()


def dialled(links: LinkProxy, port: int) -> socket.socket:
    """A connection to a port, through the proxy."""
    address, _, own = links.address.rpartition(":")
    client = socket.create_connection((address, int(own)), timeout=PATIENCE)
    client.sendall(b"\x05\x01\x00")
    assert client.recv(2) == b"\x05\x00"
    client.sendall(b"\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
    assert client.recv(10)[:2] == b"\x05\x00"
    return client


def there_and_back(client: socket.socket, data: bytes) -> tuple[bytes, float]:
    begun, parts, size = time.monotonic(), [], 0
    client.sendall(data)
    while size < len(data):
        parts.append(client.recv(1 << 16))
        size += len(parts[-1])
    return b"".join(parts), time.monotonic() - begun


@pytest.mark.long
@pytest.mark.parametrize(
    ("conditions", "seconds_min"),
    [
        (WayConditions(), 0.0),
        (WayConditions(latency=0.2), 0.4),
        (WayConditions(kbits=1000.0), 0.6),  # 320 kbit there, and back while the last of it is still on its way there.
        (WayConditions(share=0.3), 0.2),
    ],
)
@pytest.mark.slow
def test_what_passes_is_whole_in_order_and_as_late_as_it_has_to_be(
    links: LinkProxy, echo: Echo, conditions: WayConditions, seconds_min: float
) -> None:
    way = links.way("learner/0")
    way.conditions = conditions
    with dialled(links, echo.port) as client:
        data, took = there_and_back(client, DATA)
    assert data == DATA
    assert took >= 0.5 * seconds_min if conditions.kbits else took >= seconds_min
    assert comes_about(lambda: way.passed_bytes == 2 * len(DATA))
    assert (way.held_bytes > 0) == (conditions != WayConditions())
    assert (way.lost_segments > 0) == (conditions.share > 0)


def test_of_a_mute_way_nothing_passes_and_nothing_is_missing(links: LinkProxy, echo: Echo) -> None:
    way = links.way("learner/0")
    with dialled(links, echo.port) as client:
        assert there_and_back(client, b"before")[0] == b"before"
        way.conditions = WayConditions(is_mute=True)
        client.sendall(DATA)
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        assert way.passed_bytes == 12
        way.conditions = WayConditions()
        client.settimeout(60)
        assert there_and_back(client, b"")[0] == b""
        found = b""
        while len(found) < len(DATA):
            found += client.recv(1 << 16)
        assert found == DATA
    assert way.held_bytes > 0


def left_open(links: LinkProxy) -> list[object]:
    """What is found unclosed after the proxy's end; of warnings that are errors."""
    found: list[object] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "unraisablehook", lambda told: found.append(told.exc_value))
        links.close()
        gc.collect()
    return found


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_closing_ends_a_connection_with_bytes_that_are_late(echo: Echo) -> None:
    links = LinkProxy(lambda pid: "learner/0", WayConditions(is_mute=True))
    with dialled(links, echo.port) as client:
        client.sendall(DATA)
        assert not left_open(links)
        client.settimeout(PATIENCE)
        with suppress(ConnectionError):
            assert client.recv(1) == b""
    assert links.way("learner/0").passed_bytes == 0


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_closing_hangs_up_on_a_connection_that_has_not_said_where_it_leads() -> None:
    links = LinkProxy(lambda pid: "learner/0", WayConditions())
    address, _, own = links.address.rpartition(":")
    with socket.create_connection((address, int(own)), timeout=PATIENCE) as client:
        client.sendall(b"\x05\x01\x00")
        assert client.recv(2) == b"\x05\x00"
        assert not left_open(links)
        assert client.recv(1) == b""


def test_what_is_no_connect_of_socks_is_hung_up_on(links: LinkProxy) -> None:
    address, _, own = links.address.rpartition(":")
    with socket.create_connection((address, int(own)), timeout=PATIENCE) as client:
        client.sendall(b"\x05\x01\x00" + b"\x05\x02\x00\x01" + bytes(6))
        answer = b""
        with suppress(ConnectionError):  # Where it is closed with bytes of ours unread.
            while data := client.recv(64):
                answer += data
        assert answer[:2] == b"\x05\x00"
        assert answer[2:4] != b"\x05\x00"


def test_who_leads_nowhere_is_told_so(links: LinkProxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address, _, own = links.address.rpartition(":")
    with socket.create_connection((address, int(own)), timeout=PATIENCE) as client:
        client.sendall(b"\x05\x01\x00\x05\x01\x00\x01" + socket.inet_aton("127.0.0.1") + port.to_bytes(2, "big"))
        answer = b""
        while data := client.recv(64):
            answer += data
        assert answer[:4] == b"\x05\x00\x05\x05"
