"""Control messages between daemons, their hosts and commands: small msgpack maps over ZeroMQ.

Decides the form of such a message; its meaning is the daemon's or the host's business. Each message is one frame, a map
with a text `type`. It carries no payloads: a message larger than MESSAGE_BYTES_MAX, or one that is no such map, is
dropped and counted.

Every message names its sender's version of isthmus. One of another version has no effect: a daemon counts it and
answers with its own version, a host drops it, a command reports it to its user.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

TURN_MESSAGES_MAX: Final = 64
"""Messages that either end handles in one turn of its loop, some .2 ms each; the rest wait for the next. Where more is
said than there is time for, timers would otherwise never come to their turn."""
MESSAGE_BYTES_MAX: Final = 4 << 20
"""A status with the accounts of 64 learners and 64 fragments takes a quarter of this."""
PROTOCOL: Final = 2
SCRIPT_GOES_ON: Final = "script-goes-on"
"""The script of a life makes steps though its run is over."""
LEAVE_RUN: Final = "leave-run"
"""A request to a home to have a machine leave a run, and of a home to that machine."""
SET_ASIDE: Final = "set-aside"
"""A request to set a run aside."""

Message = dict[str, Any]
_LIMITS: Final = {"max_str_len": 1 << 20, "max_bin_len": 0, "max_array_len": 1 << 16, "max_map_len": 1 << 14}


@cache
def _mark() -> Message:
    """The sender's protocol and version, in every message."""
    from importlib import metadata  # It takes longer to import than this module, and commands are waited for.

    return {"protocol": PROTOCOL, "version": metadata.version("isthmus")}


def encode(message: Message) -> bytes:
    data: bytes = msgpack.packb({**message, **_mark()}, use_bin_type=True)
    return data


def is_of_this_version(message: Message) -> bool:
    """Whether the sender speaks this control protocol, and is this version of isthmus."""
    return {name: message.get(name) for name in _mark()} == _mark()


def version_of(message: Message | None = None) -> str:
    """The version of a message's sender in words, or our own."""
    mark = _mark() if message is None else message
    return f"isthmus {mark.get('version', 'of an unknown version')} with control protocol {mark.get('protocol')}"


def without_mark(message: Message) -> Message:
    """The fields of a message except its type and its sender's version."""
    return {name: value for name, value in message.items() if name not in ("type", *_mark())}


def decode(data: bytes) -> Message:
    """The message in a frame; ValueError if it is not one."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a control message of {len(data)} bytes, {MESSAGE_BYTES_MAX} are allowed")
    try:
        message = msgpack.unpackb(data, raw=False, strict_map_key=False, **_LIMITS)
    except Exception as error:
        raise ValueError(f"not a control message: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError("not a control message: no map with a type")
    return message
