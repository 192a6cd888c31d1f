"""Ways: pairs of sockets between which bytes are passed on, by one thread with one epoll.

It decides when a socket is read, what waits, and when a way ends; it reads nothing of what it passes on, and does not
decide where a way leads (`porter_process`, `porter_relay`). Every relay of bytes between two sockets is one of these.
What is put into objects of a store instead (`bucket_passage`), or passed on as whole messages of sessions
(`channel.Relaying`), has its own order and bounds, and is none.

Theory of operation. A turn reads at most PIECE_BYTES of each socket that has some, and writes them to the other one;
what that does not take waits here, and nothing more is read until it is gone. So TCP slows the sender down, the credit
of sessions counts end to end, and a heartbeat waits for one piece of each other way at most. When an end closes, the
way ends once the other end has taken what was read for it.

A way may have a `Gate` in each direction, which makes its bytes late: pieces wait here for their time, in order, and
up to a bound of the gate's; beyond it nothing is read.
"""

from __future__ import annotations

import selectors
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, NamedTuple, final

from isthmus.runtime.system.addresses import PROBE_SECONDS, PROBED_AFTER_SECONDS, PROBES_MAX, UNHEARD_MS_MAX

PIECE_BYTES: Final = 512 << 10
"""Read at once: 0.3 ms of a core. Smaller ones carry less, larger no more (tests/bench/long/bench_porter.py)."""
LOOK_SECONDS: Final = 0.01
"""Between two looks at a gate that is shut, or does not say when a piece may pass."""


class Gate(ABC):
    """Makes the bytes of one direction of a way late. The thread of the ways asks it, and does not wait for it."""

    piece_bytes: int = PIECE_BYTES
    """Read at once."""
    waiting_bytes_max: int = 0
    """Beyond so many that wait for their time, nothing is read."""

    @property
    @abstractmethod
    def is_shut(self) -> bool:
        """Whether nothing passes now, whatever is due."""

    @abstractmethod
    def due(self, size_bytes: int) -> float | None:
        """When a piece may pass that has been read now, by the monotonic clock. None if it has to wait until that can
        be said: the gate is asked again."""

    @abstractmethod
    def passed(self, size_bytes: int, *, has_waited: bool) -> None:
        """A piece has passed."""


class LatePiece:
    """Bytes that wait for their time; `due` as a gate has it."""

    __slots__ = ("data", "due", "has_waited")

    def __init__(self, data: bytes, due: float | None) -> None:
        self.data, self.due = data, due
        self.has_waited = False


class WaySocket:
    """One end of a way: `held` are bytes for it that it has not taken; `other` is the far end; `peer` has dialled."""

    __slots__ = ("connecting", "gate", "held", "is_closing", "late", "other", "peer", "socket", "watched")

    def __init__(self, made: socket.socket, peer: str = "") -> None:
        self.socket, self.peer = made, peer
        self.other: WaySocket | None = None
        self.held = memoryview(b"")
        self.gate: Gate | None = None
        """Of what passes to it."""
        self.late: deque[LatePiece] = deque()
        """What is read for it, and not due."""
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
        self._late: dict[WaySocket, None] = {}
        """The ends with late pieces."""

    def join(self, one: WaySocket, other: WaySocket) -> None:
        """Make two sockets a way."""
        one.other, other.other = other, one
        self._open |= {one: None, other: None}

    def close_all(self) -> None:
        """Close all ways, and drop what waits."""
        for end in self._open:
            end.socket.close()
        self._open.clear()
        self._late.clear()

    def turn(self, end: WaySocket, ready: int) -> None:
        """Pass bytes on, as the selector has reported of an end."""
        if ready & selectors.EVENT_WRITE:
            self.flush(end)
        if ready & selectors.EVENT_READ and end.watched & selectors.EVENT_READ:
            self._pass_on(end)

    def look(self) -> float | None:
        """Pass on what is late and due by now; the seconds until the next look, None if nothing waits for its time."""
        for end in [*self._late]:
            if end in self._late:  # Not closed in this look.
                self._go_on(end)
        now = time.monotonic()
        waits = [LOOK_SECONDS if (due := end.late[0].due) is None or due <= now else due - now for end in self._late]
        return min(waits, default=None)

    def _pass_on(self, end: WaySocket) -> None:
        """Read a piece, and write it to the other end, or have it wait for its time."""
        other = end.other
        assert other is not None
        gate = other.gate
        try:
            count = end.socket.recv_into(self._piece if gate is None else self._piece[: gate.piece_bytes])
        except BlockingIOError:
            return
        except OSError:
            count = 0
        if not count:
            self.close(end)
            return
        if gate is not None:
            other.late.append(LatePiece(bytes(self._piece[:count]), gate.due(count)))
            self._go_on(other)
            return
        taken = taken_by(other.socket, self._piece[:count])
        if taken is None:
            self.close(end)
        elif taken < count:
            other.held = memoryview(bytes(self._piece[taken:count]))
            self._go_on(other)

    def flush(self, end: WaySocket) -> None:
        """Write what waits for an end; then the other one is read again."""
        if not end.held:
            return
        taken = taken_by(end.socket, end.held)
        if taken is None:
            self.close(end)
            return
        end.held = end.held[taken:]
        self._go_on(end)

    def _go_on(self, end: WaySocket) -> None:
        """Write to an end what is due for it, and watch both ends for what may come next."""
        gate = end.gate
        while gate is not None and not end.held and _is_due(end.late, gate):
            piece = end.late.popleft()
            taken = taken_by(end.socket, memoryview(piece.data))
            if taken is None:
                self.close(end)
                return
            gate.passed(len(piece.data), has_waited=piece.has_waited)
            end.held = memoryview(piece.data)[taken:]
        if end.late:
            self._late[end] = None
        else:
            self._late.pop(end, None)
        self.watch(end, end.watched | selectors.EVENT_WRITE if end.held else end.watched & ~selectors.EVENT_WRITE)
        waiting = len(end.held) + sum(len(piece.data) for piece in end.late)
        if end.other is None:
            if not waiting and end.is_closing:
                self.close(end)
        elif waiting > (0 if gate is None else gate.waiting_bytes_max):
            self.watch(end.other, end.other.watched & ~selectors.EVENT_READ)
        else:
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
        self._late.pop(end, None)
        self.watch(end, 0)
        end.socket.close()
        if other is None:
            self._ended(end)
            return
        other.other = None
        if (other.held or other.late) and not other.connecting:
            other.is_closing = True
            self.watch(other, selectors.EVENT_WRITE if other.held else 0)
        else:
            self.close(other)


def _is_due(late: deque[LatePiece], gate: Gate) -> bool:
    """Whether the first of the pieces may pass now."""
    if not late:
        return False
    piece = late[0]
    if piece.due is None:
        piece.due = gate.due(len(piece.data))
    is_due = piece.due is not None and piece.due <= time.monotonic() and not gate.is_shut
    piece.has_waited |= not is_due
    return is_due


class MadeWay(NamedTuple):
    """Both ends of a way that a thread does not know yet, and the gates of what passes there and back."""

    near: socket.socket
    far: socket.socket
    there: Gate | None
    back: Gate | None


@final
class WayThread:
    """A thread that passes bytes on the ways that it is given, from any thread."""

    def __init__(self, name: str) -> None:
        self._selector = selectors.DefaultSelector()
        self._ways = Ways(self._selector)
        self._bell, self._bell_here = socket.socketpair()
        self._made: deque[MadeWay] = deque()
        self._is_closed = False
        self._lock = threading.Lock()
        for each in (self._bell, self._bell_here):
            each.setblocking(False)
        self._selector.register(self._bell_here, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def give(
        self, near: socket.socket, far: socket.socket, there: Gate | None = None, back: Gate | None = None
    ) -> bool:
        """Hand over two connections, `near` of the one that has dialled, and the gates of both directions; False, and
        they stay the caller's, once this is closed."""
        with self._lock:
            if self._is_closed:
                return False
            self._made.append(MadeWay(near, far, there, back))
            self._ring()
        return True

    def close(self) -> None:
        """End all ways."""
        with self._lock:
            self._is_closed = True  # From now on none is handed over.
            self._ring()
        self._thread.join()

    def _ring(self) -> None:
        with suppress(OSError):  # It rings already, or the thread has ended.
            self._bell.send(b"\0")

    def _serve(self) -> None:
        defer_pipe_signals()
        while not self._is_closed:
            for key, ready in self._selector.select(self._ways.look()):
                if key.fileobj is self._bell_here:
                    self._bell_here.recv(4096)
                    self._begin_made()
                elif key.data.watched:  # Not closed in this turn.
                    self._ways.turn(key.data, ready)
        self._ways.close_all()
        while self._made:
            made = self._made.popleft()
            made.near.close()
            made.far.close()
        self._selector.close()
        self._bell.close()
        self._bell_here.close()

    def _begin_made(self) -> None:
        while self._made:
            made = self._made.popleft()
            near, far = WaySocket(made.near), WaySocket(made.far)
            near.gate, far.gate = made.back, made.there
            self._ways.join(near, far)
            for each in (near, far):
                each.socket.setblocking(False)
                self._ways.watch(each, selectors.EVENT_READ)


def defer_pipe_signals() -> None:
    """Have this thread's writes to closed connections fail alone: a script may have SIGPIPE end its process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})


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
