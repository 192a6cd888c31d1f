"""Ways: pairs of sockets between which bytes are passed on, by one thread with one epoll.

It decides when a socket is read, what waits, and when a way ends; it reads nothing of what it passes on, and does not
decide where a way leads (`porter_process`, `porter_relay`).

Theory of operation. A turn reads at most PIECE_BYTES of each socket that has some, and writes them to the other one;
what that does not take waits here, and nothing more is read until it is gone. So TCP slows the sender down, the credit
of sessions counts end to end, and a heartbeat waits for one piece of each other way at most. When an end closes, the
way ends once the other end has taken what was read for it.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable
from typing import Final, final

from isthmus.runtime.system.addresses import PROBE_SECONDS, PROBED_AFTER_SECONDS, PROBES_MAX, UNHEARD_MS_MAX

PIECE_BYTES: Final = 512 << 10
"""Read at once: 0.3 ms of a core. Smaller ones carry less, larger no more (tests/bench/long/bench_porter.py)."""


class WaySocket:
    """One end of a way: `held` are bytes for it that it has not taken; `other` is the far end; `peer` has dialled."""

    __slots__ = ("connecting", "held", "is_closing", "other", "peer", "socket", "watched")

    def __init__(self, made: socket.socket, peer: str = "") -> None:
        self.socket, self.peer = made, peer
        self.other: WaySocket | None = None
        self.held = memoryview(b"")
        self.connecting = b""
        """On the far end, until it is connected: the bytes that tell the dialler so."""
        self.is_closing = False
        self.watched = 0


@final
class Ways:
    """The ways of one thread. `selector` reports a WaySocket as the `data` of its key; `ended(end)` is called when both
    ends of a way are closed, with the last one."""

    def __init__(self, selector: selectors.BaseSelector, ended: Callable[[WaySocket], None] = lambda end: None) -> None:
        self._selector, self._ended = selector, ended
        self._piece = memoryview(bytearray(PIECE_BYTES))
        self._open: dict[WaySocket, None] = {}

    def join(self, one: WaySocket, other: WaySocket) -> None:
        """Make two sockets a way."""
        one.other, other.other = other, one
        self._open |= {one: None, other: None}

    def close_all(self) -> None:
        """Close all ways, and drop what waits."""
        for end in self._open:
            end.socket.close()
        self._open.clear()

    def turn(self, end: WaySocket, ready: int) -> None:
        """Pass bytes on, as the selector has reported of an end."""
        if ready & selectors.EVENT_WRITE:
            self.flush(end)
        if ready & selectors.EVENT_READ and end.watched & selectors.EVENT_READ:
            self._pass_on(end)

    def _pass_on(self, end: WaySocket) -> None:
        """Read a piece, and write it to the other end."""
        other = end.other
        assert other is not None
        try:
            count = end.socket.recv_into(self._piece)
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close(end)
            return
        taken = taken_by(other.socket, self._piece[:count])
        if taken is None:
            self.close(end)
        elif taken < count:
            other.held = memoryview(bytes(self._piece[taken:count]))
            self.watch(end, end.watched & ~selectors.EVENT_READ)
            self.watch(other, other.watched | selectors.EVENT_WRITE)

    def flush(self, end: WaySocket) -> None:
        """Write what waits for an end; then the other one is read again."""
        if not end.held:
            return
        taken = taken_by(end.socket, end.held)
        if taken is None:
            self.close(end)
            return
        end.held = end.held[taken:]
        if end.held:
            self.watch(end, end.watched | selectors.EVENT_WRITE)
            return
        self.watch(end, end.watched & ~selectors.EVENT_WRITE)
        if end.is_closing:
            self.close(end)
        elif end.other is not None:
            self.watch(end.other, end.other.watched | selectors.EVENT_READ)

    def watch(self, end: WaySocket, events: int) -> None:
        """Have the selector report these events of an end; 0 for none."""
        if events == end.watched:
            return
        if not events:
            self._selector.unregister(end.socket)
        elif end.watched:
            self._selector.modify(end.socket, events, end)
        else:
            self._selector.register(end.socket, events, end)
        end.watched = events

    def close(self, end: WaySocket) -> None:
        """An end has gone: so does the way, once the other end has what was read for it."""
        other, end.other = end.other, None
        self._open.pop(end, None)
        self.watch(end, 0)
        end.socket.close()
        if other is None:
            self._ended(end)
            return
        other.other = None
        if other.held and not other.connecting:
            other.is_closing = True
            self.watch(other, selectors.EVENT_WRITE)
        else:
            self.close(other)


def prepared(made: socket.socket) -> socket.socket:
    """A socket that does not block, and gives up a silent peer as those of hosts do."""
    made.setblocking(False)
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNHEARD_MS_MAX),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBED_AFTER_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, PROBE_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES_MAX),
    ):
        made.setsockopt(level, option, value)
    return made


def taken_by(there: socket.socket, data: memoryview) -> int | None:
    """How many bytes a socket has taken; None if its connection has ended."""
    try:
        return there.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return None


def sent(there: socket.socket, data: bytes) -> bool:
    """Send a few bytes on a connection that has sent nothing else yet; whether they were taken."""
    return not data or taken_by(there, memoryview(data)) == len(data)
