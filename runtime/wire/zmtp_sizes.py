"""How many bytes of TCP's payload the frames of a message are, by ZMTP 3.1 as libzmq speaks it.

A frame has a flag, and its length in one byte, or in eight where it is longer than 255. With CURVE it travels in a
command MESSAGE: eight bytes of name, eight of a nonce, sixteen of a tag, and its flag. The greeting is 64 bytes of each
side; after it they exchange READY, or with CURVE HELLO and INITIATE against WELCOME and READY, which name the kinds of
their sockets. Nothing else is on a connection: heartbeats of libzmq are off.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

CURVE_BYTES: Final = 33
SHORT_BYTES_MAX: Final = 255
_GREETINGS: Final = {False: (107, 107), True: (567, 301)}
"""With keys or not: bytes of the side that dials and of the side that listens, until the first message. DEALER and
ROUTER, their kinds of sockets, have names of one length."""


def greeting_bytes(*, dials: bool, is_encrypted: bool) -> tuple[int, int]:
    """The bytes that one side of a new connection sends before any message, and those that it gets."""
    dialled, accepted = _GREETINGS[is_encrypted]
    return (dialled, accepted) if dials else (accepted, dialled)


def message_bytes(frames: Iterable[Any], *, is_encrypted: bool) -> int:
    """The bytes of a message of these frames."""
    extra = CURVE_BYTES if is_encrypted else 0
    total = 0
    for frame in frames:
        body = len(frame) + extra
        total += body + (2 if body <= SHORT_BYTES_MAX else 9)
    return total
