"""The first bytes of a connection at the port of a daemon: for the daemon itself, or for a host behind it.

It decides, from received bytes alone, what becomes of a connection; who accepts it performs that. Who dials a daemon
speaks ZMTP, which begins with 0xFF; who asks for a host speaks SOCKS5 (RFC 1928), which begins with 0x05: a greeting
without a password, and a CONNECT to an endpoint at which a host of this machine listens. There is no way to any other
endpoint. What follows is opaque: both ends encrypt it with their own keys.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from isthmus.runtime.wire.porter_greeting import FORBIDDEN, GREETED, UNACCEPTABLE, VERSION

_CONNECT: Final = b"\x05\x01\x00"
_ADDRESS_BYTES: Final = {1: 4, 4: 16}
_NAME: Final = 3
GREETING_BYTES_MAX: Final = 2 + 255 + 4 + 1 + 255 + 2
"""The longest greeting and request."""


class AskMore(NamedTuple):
    """Send `answer`, which may be empty, and wait for more bytes."""

    answer: bytes


class ToDaemon(NamedTuple):
    """Connect to the daemon, and pass on what was `received`."""

    received: bytes


class ToHost(NamedTuple):
    """Send `answer`, connect to the endpoint, and send CONNECTED or UNREACHABLE; then pass on what was `received`."""

    answer: bytes
    host: str
    port: int
    received: bytes


class TurnDown(NamedTuple):
    """Send `answer`, and close."""

    answer: bytes


Verdict: TypeAlias = AskMore | ToDaemon | ToHost | TurnDown


class SocksGreeting:
    """The beginning of one connection. `permits(host, port)`: whether a host of this machine listens there."""

    def __init__(self, permits: Callable[[str, int], bool]) -> None:
        self._permits = permits
        self._received = b""
        self._is_greeted = False

    def receive(self, data: bytes) -> Verdict:
        """What becomes of the connection after these bytes, which are not empty."""
        self._received += data
        if not self._is_greeted and self._received[0] != VERSION:
            return ToDaemon(self._received)
        answer = b""
        if not self._is_greeted:
            count = self._received[1] if len(self._received) > 1 else 255
            if len(self._received) < 2 + count:
                return AskMore(b"")
            methods, self._received = self._received[2 : 2 + count], self._received[2 + count :]
            if 0 not in methods:
                return TurnDown(UNACCEPTABLE)
            self._is_greeted, answer = True, GREETED
        return self._request(answer)

    def _request(self, answer: bytes) -> Verdict:
        """CONNECT, RSV, kind of address, address, port."""
        request = self._received
        if not _CONNECT.startswith(request[:3]):
            return TurnDown(answer + FORBIDDEN)
        if len(request) < 5:
            return AskMore(answer)
        kind = request[3]
        begin = 5 if kind == _NAME else 4
        size = request[4] if kind == _NAME else _ADDRESS_BYTES.get(kind, 0)
        if not size:
            return TurnDown(answer + FORBIDDEN)
        if len(request) < begin + size + 2:
            return AskMore(answer)
        address, port = request[begin : begin + size], int.from_bytes(request[begin + size : begin + size + 2], "big")
        host = address.decode("ascii", "replace") if kind == _NAME else str(ipaddress.ip_address(address))
        if not self._permits(host, port):
            return TurnDown(answer + FORBIDDEN)
        return ToHost(answer, host, port, request[begin + size + 2 :])
