"""Links to a peer: sockets of our own, an address on sockets that we have bound, or through another peer.

Decides nothing; a channel uses a link without knowing its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from isthmus.runtime.ids import Member
from isthmus.runtime.protocol.messages import RELAY
from isthmus.runtime.protocol.session import Session
from isthmus.runtime.wire.sockets import Socket


class Link(Protocol):
    """The connection that carries the messages of one session; False means that it is broken."""

    def send_control(self, message: bytes) -> bool:
        """Send a control message."""

    def send_data(self, frames: Sequence[Any]) -> bool:
        """Send a data message."""

    def close(self) -> None:
        """Give up the link."""


class DialledLink:
    """A control and a data socket that were made for one connection."""

    def __init__(self, control: Socket, data: Socket) -> None:
        self._control, self._data = control, data

    def send_control(self, message: bytes) -> bool:
        return self._control.send([message])

    def send_data(self, frames: Sequence[Any]) -> bool:
        return self._data.send(frames)

    def close(self) -> None:
        """Close both sockets."""
        self._control.close()
        self._data.close()


class AcceptedLink:
    """Two addresses on the bound sockets: `control`, and `data` once the peer has attached it.

    `on_close` is called once. Both are of `machine`, where there are keys.
    """

    def __init__(
        self,
        sockets: tuple[Socket, Socket],
        control: bytes,
        on_close: Callable[[AcceptedLink], None],
        machine: str | None = None,
    ) -> None:
        self.control = control
        self.data: bytes | None = None
        self.machine = machine
        self._sockets = sockets
        self._on_close = on_close

    def send_control(self, message: bytes) -> bool:
        return self._sockets[0].send([self.control, message])

    def send_data(self, frames: Sequence[Any]) -> bool:
        assert self.data is not None
        return self._sockets[1].send([self.data, *frames])

    def close(self) -> None:
        """Stop accepting messages from these addresses."""
        self._on_close(self)


class RelayedLink:
    """A link through the session with another peer; `wake` sends that session's pending messages."""

    def __init__(self, through: Session, own: Member, peer: Member, wake: Callable[[], None]) -> None:
        self._through, self._own, self._peer, self._wake = through, own, peer, wake

    def send_control(self, message: bytes) -> bool:
        is_taken = self._through.relay(RELAY, self._own, self._peer, message)
        self._wake()
        return is_taken

    def send_data(self, frames: Sequence[Any]) -> bool:
        is_taken = self._through.forward(self._own, self._peer, frames)
        self._wake()
        return is_taken

    def close(self) -> None:
        """There is nothing to close."""
