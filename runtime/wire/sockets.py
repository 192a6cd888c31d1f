"""The socket interface of a channel: `zmq_sockets` implement it on a network, `sim.network` in a simulated world.

A socket dials once in its life, or is bound and outlives those that dial it. Messages of one side arrive complete and
in order, as long as the connection lasts; two sockets overtake each other. Messages are lists of frames. All calls and
callbacks are on the loop of the channel.
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
whose key the sender has proved (None without keys, and on a dialled one)."""

Gone: TypeAlias = Callable[[str], None]
"""Called once with the reason, when the connection of a socket that has dialled has ended."""


class Socket(Protocol):
    """One socket."""

    def bind(self, endpoint: str) -> str:
        """Listen; returns the endpoint with its actual port. Raises OSError."""

    def connect(self, endpoint: str, server_key: str) -> None:
        """Dial; with keys only the machine that has `server_key`. Raises OSError for an invalid endpoint."""

    def send(self, frames: Sequence[Any]) -> bool:
        """Send a message, on a bound socket with the address first; False if it has no peer."""

    def close(self) -> None:
        """Close at once, and drop everything."""


class Sockets(Protocol):
    """Makes the sockets of one host."""

    @property
    def keys(self) -> Keyring | None:
        """The keys that encrypt the sockets; None if they are not encrypted."""

    def dealer(self, purpose: Purpose, hear: Hear, gone: Gone) -> Socket:
        """A socket that dials."""

    def router(self, purpose: Purpose, hear: Hear, counts: Counter[str]) -> Socket:
        """A socket to bind; `counts` gets the reasons of refusals."""

    def token(self) -> bytes:
        """Bytes that prove that a data connection belongs to a control connection."""

    def close(self) -> None:
        """Release what the sockets share; all are closed."""
