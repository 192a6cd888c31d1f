"""Hosts and ports in texts: addresses of IPv4 and, in brackets, of IPv6, and names, as sockets of Python take them."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress
from typing import Final

LOOPBACK: Final = "127.0.0.1"
"""Where only processes of this machine come."""
UNHEARD_MS_MAX: Final = 5_000
"""Between hosts, TCP gives a connection up when what was sent is not acknowledged for so long."""
BACKLOG: Final = 4096
"""Connections that the kernel has made and their listener has not taken yet, as many as it allows (somaxconn): what
comes back is dialled by a whole run at once. Of 100, libzmq's default, the others would dial again a second later."""
PROBED_AFTER_SECONDS, PROBE_SECONDS, PROBES_MAX = 5, 2, 3
"""It probes one that is silent for so long, so often, and gives it up after so many probes without an answer."""
_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?")


def host_and_port(text: str) -> tuple[str, str]:
    """The host, without brackets, and the port of `HOST:PORT` or `tcp://HOST:PORT`."""
    host, _, port = text.removeprefix("tcp://").rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def is_literal(host: str) -> bool:
    """Whether a host, without brackets, is an address of IPv4 or IPv6."""
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


def is_name(host: str) -> bool:
    """Whether a host is a name that may be resolved: no address, nor what looks like a mistyped one."""
    return _NAME.fullmatch(host) is not None and not host.rpartition(".")[2].isdigit()


def text_of(host: str, port: int | str) -> str:
    """`HOST:PORT`, with an address of IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def serve(host: str, port: int, backlog: int) -> socket.socket:
    """A socket that listens at a host, in brackets or not; OSError if it cannot."""
    bare = host.removeprefix("[").removesuffix("]")
    family = socket.AF_INET6 if ":" in bare else socket.AF_INET
    return socket.create_server((bare, port), family=family, backlog=backlog)


def connect(text: str, seconds_max: float) -> socket.socket:
    """A connection to `HOST:PORT`, at the first of its addresses that accepts one; OSError if none does."""
    host, port = host_and_port(text)
    return socket.create_connection((host, int(port)), timeout=seconds_max)
