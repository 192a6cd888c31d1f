"""The porter: the process that accepts connections at the port of a daemon, and passes bytes on.

`python -m isthmus.runtime.wire.porter_process LISTENER LINE PORT`: the descriptors of the daemon's listening socket
and of a line to the daemon, and the port on loopback at which the daemon itself listens. Started by a daemon, never by
hand.

It decides how many connections there may be, and whose turn it is; `porter_greeting` decides where each leads. It has
no keys, and reads nothing of what it passes on.

Theory of operation. One thread, one epoll. A *way* is a pair of sockets. A turn reads at most PIECE_BYTES of each
socket that has some, and writes them to the other one; what that does not take waits here, and nothing more is read
until it is gone. So TCP slows the sender down, the credit of sessions counts end to end, and a heartbeat waits for one
piece of each other way at most. The daemon sends the endpoints of its hosts whenever they change, all of them each
time; of connections to itself it learns the real address of the peer, because it sees them come from loopback. When the
daemon has gone, so has the porter.
"""

from __future__ import annotations

import errno
import json
import resource
import selectors
import signal
import socket
import sys
import time
from collections import OrderedDict
from contextlib import suppress
from typing import Final

from isthmus.runtime.system.addresses import PROBE_SECONDS, PROBED_AFTER_SECONDS, PROBES_MAX, UNHEARD_MS_MAX, is_literal
from isthmus.runtime.system.processes import die_with_parent
from isthmus.runtime.wire.porter_greeting import (
    CONNECTED,
    FORBIDDEN,
    GREETING_BYTES_MAX,
    UNREACHABLE,
    AskMore,
    SocksGreeting,
    ToDaemon,
    ToHost,
    TurnDown,
)

PIECE_BYTES: Final = 512 << 10
"""Read at once: 0.3 ms of a core. Smaller ones carry less, larger no more (tests/bench/long/bench_porter.py)."""
WAYS_MAX: Final = 4096
"""Two for each pair of hosts: four times the peers of one host, and twice the file descriptors."""
GREETINGS_MAX: Final = 256
"""Connections that have not said yet where they lead; the oldest gives way."""
GREETING_SECONDS_MAX: Final = 5.0
CROWDED_SECONDS: Final = 0.2
"""Time without accepting after descriptors have run out."""
LINE_BYTES_MAX: Final = 1 << 20
SOURCES: Final = 1 << 16
"""Addresses 127.1.0.0 to 127.1.255.255, from which connections reach the daemon, in turns."""


class RelaySocket:
    """One socket of a way: `held` are bytes for it that it has not taken; `other` is the far end."""

    __slots__ = ("connecting", "greeting", "greeting_until", "held", "is_closing", "other", "peer", "socket", "watched")

    def __init__(self, made: socket.socket, peer: str = "") -> None:
        self.socket, self.peer = made, peer
        self.other: RelaySocket | None = None
        self.greeting: SocksGreeting | None = None
        self.greeting_until = 0.0
        self.held = memoryview(b"")
        self.connecting = b""
        """On the far end, until it is connected: the bytes that tell the dialler so."""
        self.is_closing = False
        self.watched = 0


class PorterProcess:
    """Serves `listener`; the daemon listens at `port` on loopback, and has the other end of `line`."""

    def __init__(self, listener: socket.socket, line: socket.socket, port: int) -> None:
        self._listener, self._line, self._port = listener, line, port
        self._selector = selectors.DefaultSelector()
        self._open: set[tuple[str, int]] = set()
        self._greeting: OrderedDict[RelaySocket, None] = OrderedDict()
        self._piece = memoryview(bytearray(PIECE_BYTES))
        self._ways = self._sources = 0
        self._crowded_until = 0.0
        self._is_over = False
        for each in (listener, line):
            each.setblocking(False)
            self._selector.register(each, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the daemon has gone."""
        while not self._is_over:
            for key, ready in self._selector.select(self._wait()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._line:
                    self._hear()
                elif key.data.watched:  # Not closed in this turn.
                    self._turn(key.data, ready)
            self._look_at_time()
        self._selector.close()

    # -- connections ---------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            made, address = self._listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._crowded_until = time.monotonic() + CROWDED_SECONDS
                self._selector.unregister(self._listener)
            return
        end = RelaySocket(_prepared(made), address[0].removeprefix("::ffff:"))
        end.greeting = SocksGreeting(lambda host, port: (host, port) in self._open)
        end.greeting_until = time.monotonic() + GREETING_SECONDS_MAX
        self._greeting[end] = None
        self._watch(end, selectors.EVENT_READ)
        if len(self._greeting) > GREETINGS_MAX:
            self._close(next(iter(self._greeting)))

    def _greet(self, end: RelaySocket) -> None:
        """Bytes of a connection that has not said yet where it leads."""
        assert end.greeting is not None
        try:
            data = end.socket.recv(GREETING_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close(end)
            return
        verdict = end.greeting.receive(data)
        if isinstance(verdict, ToDaemon):
            self._lead(end, "127.0.0.1", self._port, b"", verdict.received)
        elif not _sent(end.socket, verdict.answer) or isinstance(verdict, TurnDown):
            self._close(end)
        elif isinstance(verdict, ToHost):
            # A host whose machine has a name listens at all addresses; resolving it would hold everybody up.
            host = verdict.host if is_literal(verdict.host) else "127.0.0.1"
            self._lead(end, host, verdict.port, CONNECTED, verdict.received)
        else:
            assert isinstance(verdict, AskMore)

    def _lead(self, end: RelaySocket, host: str, port: int, word: bytes, received: bytes) -> None:
        """Dial for a connection; `word` tells it that its far end is there."""
        del self._greeting[end]
        end.greeting = None
        if self._ways >= WAYS_MAX:
            _sent(end.socket, FORBIDDEN if word else b"")
            self._close(end)
            return
        try:
            far = RelaySocket(_prepared(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)))
        except OSError:
            self._close(end)
            return
        self._ways += 1
        end.other, far.other = far, end
        far.connecting, far.held = word or b"\0", memoryview(received)
        if not word:
            self._tell_source(far.socket, end.peer)
        self._watch(end, 0)
        if far.socket.connect_ex((host, port)) not in (0, errno.EINPROGRESS):
            self._fail(far)
            return
        self._watch(far, selectors.EVENT_WRITE)

    def _tell_source(self, made: socket.socket, peer: str) -> None:
        """Bind a socket that dials the daemon to an address of its own, and tell the daemon whose it is."""
        source = f"127.1.{self._sources >> 8}.{self._sources & 255}"
        self._sources = (self._sources + 1) % SOURCES
        # Neither is needed to serve: the daemon then names the address on loopback.
        with suppress(OSError):
            made.bind((source, 0))
            self._line.send(f"{source} {peer}".encode())

    def _fail(self, far: RelaySocket) -> None:
        """The far end cannot be reached."""
        assert far.other is not None
        if far.connecting == CONNECTED:
            _sent(far.other.socket, UNREACHABLE)
        self._close(far)

    def _connected(self, far: RelaySocket) -> None:
        assert far.other is not None
        if far.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(far)
            return
        word, far.connecting = far.connecting, b""
        if word == CONNECTED and not _sent(far.other.socket, word):
            self._close(far)
            return
        self._watch(far.other, selectors.EVENT_READ)
        self._watch(far, selectors.EVENT_READ)
        self._flush(far)

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _turn(self, end: RelaySocket, ready: int) -> None:
        if end.greeting is not None:
            self._greet(end)
        elif end.connecting:
            self._connected(end)
        else:
            if ready & selectors.EVENT_WRITE:
                self._flush(end)
            if ready & selectors.EVENT_READ and end.watched & selectors.EVENT_READ:
                self._pass_on(end)

    def _pass_on(self, end: RelaySocket) -> None:
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
            self._close(end)
            return
        taken = _taken(other.socket, self._piece[:count])
        if taken is None:
            self._close(end)
        elif taken < count:
            other.held = memoryview(bytes(self._piece[taken:count]))
            self._watch(end, end.watched & ~selectors.EVENT_READ)
            self._watch(other, other.watched | selectors.EVENT_WRITE)

    def _flush(self, end: RelaySocket) -> None:
        """Write what waits for an end; then the other one is read again."""
        if not end.held:
            return
        taken = _taken(end.socket, end.held)
        if taken is None:
            self._close(end)
            return
        end.held = end.held[taken:]
        if end.held:
            self._watch(end, end.watched | selectors.EVENT_WRITE)
            return
        self._watch(end, end.watched & ~selectors.EVENT_WRITE)
        if end.is_closing:
            self._close(end)
        elif end.other is not None:
            self._watch(end.other, end.other.watched | selectors.EVENT_READ)

    def _watch(self, end: RelaySocket, events: int) -> None:
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

    def _close(self, end: RelaySocket) -> None:
        """An end has gone: so does the way, once the other end has what was read for it."""
        other, end.other = end.other, None
        self._greeting.pop(end, None)
        self._watch(end, 0)
        end.socket.close()
        if other is None:
            return
        other.other = None
        self._ways -= 1
        if other.held and not other.connecting:
            other.is_closing = True
            self._watch(other, selectors.EVENT_WRITE)
        else:
            self._watch(other, 0)
            other.socket.close()

    # -- the daemon, and time ------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """The endpoints of the hosts of this machine, all of them: [[host, port], ...]."""
        try:
            data = self._line.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._is_over = True
            return
        self._open = {(str(host), int(port)) for host, port in json.loads(data)}

    def _wait(self) -> float | None:
        """Seconds until the next moment at which something is due; None if there is none."""
        due = [each.greeting_until for each in list(self._greeting)[:1]]
        due += [self._crowded_until] if self._crowded_until else []
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _look_at_time(self) -> None:
        now = time.monotonic()
        while self._greeting and (oldest := next(iter(self._greeting))).greeting_until <= now:
            self._close(oldest)
        if self._crowded_until and self._crowded_until <= now:
            self._crowded_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)


def _prepared(made: socket.socket) -> socket.socket:
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


def _taken(there: socket.socket, data: memoryview) -> int | None:
    """How many bytes a socket has taken; None if its connection has ended."""
    try:
        return there.send(data)
    except BlockingIOError:
        return 0
    except OSError:
        return None


def _sent(there: socket.socket, data: bytes) -> bool:
    """Send a few bytes on a connection that has sent nothing else yet; whether they were taken."""
    return not data or _taken(there, memoryview(data)) == len(data)


def main(arguments: list[str]) -> None:
    """Serve until the daemon has gone."""
    die_with_parent()
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, frame: None)  # It follows its daemon, which gets the same signal.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * WAYS_MAX + 2 * GREETINGS_MAX)), hard))
    listener, line = (socket.socket(fileno=int(number)) for number in arguments[:2])
    PorterProcess(listener, line, int(arguments[2])).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
