"""The porter: the process that accepts connections at the port of a daemon, and passes bytes on.

`python -m isthmus.programs.wings.one_port.porter_process PORT LISTENER LINE`: the port on loopback at which the daemon
itself listens, and the descriptors of its listening socket and of the line to it. Started by a daemon, never by hand.

It decides how many connections there may be, of all and of one site; `socks_greeting` decides where each leads, and
`ways` pass bytes on. It has no keys, and reads nothing of what it passes on.

Theory of operation. One thread, one epoll. A *site* is an address, or a network of IPv6 of 64 bits, as one party has
it; it has bounds of its own, so that none takes what the others need. Loopback is none: from there come the connections
of this machine's bucket, whose passages have bounds of their own. A bound that is reached is told to the daemon, once a
minute. The daemon sends the endpoints of its hosts whenever they change, all of them each time; of connections to
itself it learns the real address of the peer, because it sees them come from loopback. When the daemon has gone, so has
the porter.
"""

from __future__ import annotations

import errno
import ipaddress
import resource
import selectors
import socket
import sys
import time
from collections import Counter, OrderedDict
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeAlias

from isthmus.programs.engine.machine.socks_greeting import (
    GREETING_BYTES_MAX,
    AskMore,
    SocksGreeting,
    ToDaemon,
    ToHost,
    TurnDown,
)
from isthmus.runtime.system.addresses import is_literal
from isthmus.runtime.system.children import serve_line
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.wire.porter_greeting import CONNECTED, FORBIDDEN, UNREACHABLE
from isthmus.runtime.wire.ways import Ways, WaySocket, prepared, sent

WAYS_MAX: Final = 4096
"""Two for each pair of hosts: four times the peers of one host, and twice the file descriptors."""
WAYS_OF_SITE_MAX: Final = 1024
"""512 pairs of hosts: 64 machines behind one address, with eight of each."""
GREETINGS_MAX: Final = 256
"""Connections that have not said yet where they lead; the oldest gives way."""
GREETINGS_OF_SITE_MAX: Final = 64
"""Likewise: as many begin at once where 32 hosts behind one address dial one of this machine."""
GREETING_SECONDS_MAX: Final = 5.0
CROWDED_SECONDS: Final = 0.2
"""Time without accepting after descriptors have run out."""
SOURCES: Final = 1 << 16
"""Addresses 127.1.0.0 to 127.1.255.255, from which connections reach the daemon, in turns."""
TELL_SECONDS: Final = 60.0
BoundKind: TypeAlias = Literal["ways", "greetings"]


class PendingGreeting(NamedTuple):
    """A connection that has not said yet where it leads, until when it may, and what of it has come."""

    until: float
    greeting: SocksGreeting


class PorterProcess:
    """Serves `listener`; the daemon listens at `port` on loopback, and has the other end of `line`."""

    def __init__(self, listener: socket.socket, line: ProcessLine, port: int) -> None:
        self._listener, self._line, self._port = listener, line, port
        self._selector = selectors.DefaultSelector()
        self._open: set[tuple[str, int]] = set()
        self._greeting: OrderedDict[WaySocket, PendingGreeting] = OrderedDict()
        self._ways = Ways(self._selector, self._ended)
        self._counts: Counter[str] = Counter()
        """Ways by site."""
        self._told: dict[BoundKind, float] = {}
        self._sources = 0
        self._crowded_until = 0.0
        self._is_over = False
        listener.setblocking(False)
        for each in (listener, line):
            self._selector.register(each, selectors.EVENT_READ)

    def serve(self) -> None:
        """Until the daemon has gone."""
        while not self._is_over:
            for key, ready in self._selector.select(self._wait()):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._line:
                    self._hear()
                elif not key.data.watched:  # Closed in this turn.
                    continue
                elif key.data in self._greeting:
                    self._greet(key.data)
                elif key.data.connecting:
                    self._connected(key.data)
                else:
                    self._ways.turn(key.data, ready)
            self._look_at_time()
        self._ways.close_all()
        for each in self._greeting:
            each.socket.close()
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
        end = WaySocket(prepared(made), address[0].removeprefix("::ffff:"))
        greeting = SocksGreeting(lambda host, port: (host, port) in self._open)
        self._greeting[end] = PendingGreeting(time.monotonic() + GREETING_SECONDS_MAX, greeting)
        self._ways.watch(end, selectors.EVENT_READ)
        site = site_of(end.peer)
        of_site = [each for each in self._greeting if site and site_of(each.peer) == site]
        if len(of_site) > GREETINGS_OF_SITE_MAX:
            self._tell_full("greetings", GREETINGS_OF_SITE_MAX, site)
            self._hang_up(of_site[0])
        elif len(self._greeting) > GREETINGS_MAX:
            self._tell_full("greetings", GREETINGS_MAX)
            self._hang_up(next(iter(self._greeting)))

    def _hang_up(self, end: WaySocket) -> None:
        """Close a connection that has not said where it leads."""
        del self._greeting[end]
        self._ways.watch(end, 0)
        end.socket.close()

    def _ended(self, end: WaySocket) -> None:
        """Both ends of a way are closed."""
        site = site_of(end.peer)
        self._counts[site] -= 1
        if not self._counts[site]:
            del self._counts[site]

    def _greet(self, end: WaySocket) -> None:
        """Bytes of a connection that has not said yet where it leads."""
        try:
            data = end.socket.recv(GREETING_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(end)
            return
        verdict = self._greeting[end].greeting.receive(data)
        if isinstance(verdict, ToDaemon):
            self._lead(end, "127.0.0.1", self._port, b"", verdict.received)
        elif not sent(end.socket, verdict.answer) or isinstance(verdict, TurnDown):
            self._hang_up(end)
        elif isinstance(verdict, ToHost):
            # A host whose machine has a name listens at all addresses; resolving it would hold everybody up.
            host = verdict.host if is_literal(verdict.host) else "127.0.0.1"
            self._lead(end, host, verdict.port, CONNECTED, verdict.received)
        else:
            assert isinstance(verdict, AskMore)

    def _lead(self, end: WaySocket, host: str, port: int, word: bytes, received: bytes) -> None:
        """Dial for a connection; `word` tells it that its far end is there."""
        site = site_of(end.peer)
        if self._is_full(site):
            sent(end.socket, FORBIDDEN if word else b"")
            self._hang_up(end)
            return
        try:
            far = WaySocket(prepared(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)), end.peer)
        except OSError:
            self._hang_up(end)
            return
        del self._greeting[end]
        self._counts[site] += 1
        self._ways.join(end, far)
        far.connecting, far.held = word or b"\0", memoryview(received)
        if not word:
            self._tell_source(far.socket, end.peer)
        self._ways.watch(end, 0)
        if far.socket.connect_ex((host, port)) not in (0, errno.EINPROGRESS):
            self._fail(far)
            return
        self._ways.watch(far, selectors.EVENT_WRITE)

    def _is_full(self, site: str) -> bool:
        """Whether a site may have no further way."""
        if site and self._counts[site] >= WAYS_OF_SITE_MAX:
            self._tell_full("ways", WAYS_OF_SITE_MAX, site)
            return True
        if self._counts.total() >= WAYS_MAX:
            self._tell_full("ways", WAYS_MAX)
            return True
        return False

    def _tell_full(self, kind: BoundKind, bound: int, site: str = "") -> None:
        """Tell the daemon of a bound that is reached, unless one of its kind was told within a minute."""
        now = time.monotonic()
        is_due = now - self._told.get(kind, float("-inf")) >= TELL_SECONDS
        if is_due and self._line.offer({"full": [kind, bound, site]}):  # Where the line is full, the next one is told.
            self._told[kind] = now

    def _tell_source(self, made: socket.socket, peer: str) -> None:
        """Bind a socket that dials the daemon to an address of its own, and tell the daemon whose it is."""
        source = f"127.1.{self._sources >> 8}.{self._sources & 255}"
        self._sources = (self._sources + 1) % SOURCES
        # Neither is needed to serve: the daemon then names the address on loopback.
        with suppress(OSError):
            made.bind((source, 0))
            self._line.offer({"source": source, "peer": peer})

    def _fail(self, far: WaySocket) -> None:
        """The far end cannot be reached."""
        assert far.other is not None
        if far.connecting == CONNECTED:
            sent(far.other.socket, UNREACHABLE)
        self._ways.close(far)

    def _connected(self, far: WaySocket) -> None:
        assert far.other is not None
        if far.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._fail(far)
            return
        word, far.connecting = far.connecting, b""
        if word == CONNECTED and not sent(far.other.socket, word):
            self._ways.close(far)
            return
        self._ways.watch(far.other, selectors.EVENT_READ)
        self._ways.watch(far, selectors.EVENT_READ)
        self._ways.flush(far)

    # -- the daemon, and time ------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """The endpoints of the hosts of this machine, all of them: {open: [[host, port], ...]}."""
        for message in self._line.hear():
            self._open = {(str(host), int(port)) for host, port in message["open"]}
        self._is_over = self._line.is_over

    def _wait(self) -> float | None:
        """Seconds until the next moment at which something is due; None if there is none."""
        due = [each.until for each in list(self._greeting.values())[:1]]
        due += [self._crowded_until] if self._crowded_until else []
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _look_at_time(self) -> None:
        self._line.flush()
        now = time.monotonic()
        while self._greeting and self._greeting[oldest := next(iter(self._greeting))].until <= now:
            self._hang_up(oldest)
        if self._crowded_until and self._crowded_until <= now:
            self._crowded_until = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)


def site_of(address: str) -> str:
    """The site of an address; empty for loopback."""
    if ":" not in address:
        return "" if address.startswith("127.") else address
    network = ipaddress.ip_network((address.partition("%")[0], 64), strict=False)
    return "" if address == "::1" else str(network)


def main(arguments: list[str]) -> None:
    """Serve until the daemon has gone."""
    port, listener, line = arguments
    daemon = serve_line("porter", line)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2 * WAYS_MAX + 2 * GREETINGS_MAX)), hard))
    PorterProcess(socket.socket(fileno=int(listener)), daemon, int(port)).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
