"""Marks of hosts that listen on loopback: by them a host that dials one knows whether its own loopback is the same.

An address such as tcp://127.0.0.1:4001 says nothing about whose loopback it is of: a peer may be on this machine, or
in another container, or at the far end of a tunnel, where that port is nothing, or a stranger's. A mark is a Unix
socket with an abstract name, which the kernel keeps by network namespace, as it does loopback. It carries nothing.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Final

import xxhash

from isthmus.runtime.wire.security_keys import is_loopback

_PREFIX: Final = "\0isthmus-at-"


def mark(run: str, endpoint: str) -> socket.socket | None:
    """What says, until it is closed, that a host of `run` listens at `endpoint` here; None off loopback, and where
    there can be none: its peers then go through its porter."""
    if is_loopback(endpoint):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with suppress(OSError):
            made.bind(_name(run, endpoint))
            return made
        made.close()
    return None


def is_here(run: str, endpoint: str) -> bool:
    """Whether a host of `run` that listens at `endpoint`, on loopback, does so where this process can dial it."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        probe.connect(_name(run, endpoint))
        return True
    return False


def _name(run: str, endpoint: str) -> str:
    return _PREFIX + xxhash.xxh3_128_hexdigest(f"{run} {endpoint}".encode())
