"""What a channel needs of sockets, whoever makes them: `zmq_sockets` on a network, `ether` in a simulated world.

A socket dials once in its life, or is bound and outlives those that dial it. What one side sends arrives complete and
in order, as long as the connection lasts; two sockets overtake each other. Messages are lists of frames. Everything is
called, and calls back, on the loop of the channel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, TypeAlias

from isthmus.runtime.items.layout import Bytes
from isthmus.runtime.security.keys import Keyring

Purpose: TypeAlias = Literal["control", "data"]

Hear: TypeAlias = Callable[[bytes, list[Bytes], str | None], None]
"""Called with the address that a bound socket gave the sender (empty on a dialled one), the frames, and the machine
whose key the sender has shown (None without keys, and on a dialled one)."""

Gone: TypeAlias = Callable[[str], None]
"""Called once with the reason, when the connection of a socket that has dialled is no more."""


class Socket(Protocol):
    """One socket."""

    def bind(self, endpoint: str) -> str:
        """Listen; the endpoint with its actual port. Raises OSError."""

    def connect(self, endpoint: str, server_key: str) -> None:
        """Dial, with keys the machine that has `server_key` only. Raises OSError for an endpoint that is none."""

    def send(self, frames: Sequence[Any]) -> bool:
        """Hand a message over, to a bound socket with the address first; False if there is nobody to send it to."""

    def close(self) -> None:
        """Drop everything, at once."""


class Sockets(Protocol):
    """Makes the sockets of one host."""

    @property
    def keys(self) -> Keyring | None:
        """By which they are encrypted; None if they are not."""

    def dealer(self, purpose: Purpose, hear: Hear, gone: Gone) -> Socket:
        """A socket that dials."""

    def router(self, purpose: Purpose, hear: Hear, counts: Counter[str]) -> Socket:
        """A socket to bind; `counts` gets what it refuses."""

    def token(self) -> bytes:
        """Bytes by which a data connection shows that it belongs to a control connection."""

    def close(self) -> None:
        """Let go of what the sockets share; all are closed."""
