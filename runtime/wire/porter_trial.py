"""Whether a SOCKS5 proxy, such as a porter, leads to an endpoint: asked before libzmq is let dial through it.

libzmq 4.3.5 ends the process where SOCKS fails: `socks_connecter_t::error` removes its descriptor from the epoll, keeps
the handle, and the end of the socket removes it again ("Bad file descriptor (src/epoll.cpp:86)"). A home that goes away
would take the learners of all other machines along. Between the trial and libzmq's own request some hundred
microseconds remain.
"""

from __future__ import annotations

import ipaddress
import socket

from isthmus.runtime.system import addresses
from isthmus.runtime.wire.porter_greeting import CONNECTED, GREETED

_GREETING = b"\x05\x01\x00"


def leads(proxy: str, endpoint: str, seconds_max: float) -> bool:
    """Whether the proxy at ADDRESS:PORT connects to an endpoint; blocks, each step for so long at most."""
    try:
        with addresses.connect(f"tcp://{proxy}", seconds_max) as way:
            way.settimeout(seconds_max)
            way.sendall(_GREETING)
            if _read(way, len(GREETED)) != GREETED:
                return False
            way.sendall(_request(*addresses.host_and_port(endpoint)))
            return _read(way, 2) == CONNECTED[:2]
    except OSError:
        return False


def _request(host: str, port: str) -> bytes:
    """CONNECT to a host by its address or its name."""
    number = int(port).to_bytes(2, "big")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        name = host.encode("ascii")
        return b"\x05\x01\x00\x03" + bytes([len(name)]) + name + number
    return b"\x05\x01\x00" + (b"\x01" if address.version == 4 else b"\x04") + address.packed + number


def _read(way: socket.socket, count: int) -> bytes:
    """So many bytes; fewer where the other side hangs up."""
    data = b""
    while len(data) < count and (more := way.recv(count - len(data))):
        data += more
    return data
