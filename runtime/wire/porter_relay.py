"""Ways through SOCKS5 proxies, such as porters, for the sockets of one host: dialled here, and not by libzmq.

It decides whether a proxy leads to an endpoint, and passes bytes between that connection and one of libzmq. It reads
nothing of what it passes on.

Theory of operation. libzmq 4.3.5 ends its process where SOCKS fails (`socks_connecter_t::error` removes its descriptor
from the epoll, keeps the handle, and the end of the socket removes it again: "Bad file descriptor (src/epoll.cpp:86)"),
and a proxy is another machine's. So libzmq never speaks SOCKS: a thread dials the proxy, within a time for all of its
answers together, and then listens at an abstract Unix socket for one connection of this very process, which libzmq
makes. From then on one thread for all ways passes bytes on (`ways`), so that the loop of the host does not.
"""

from __future__ import annotations

import ipaddress
import os
import secrets
import selectors
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final, final

from isthmus.runtime.system import addresses, forks
from isthmus.runtime.system.shared_loop import Loop
from isthmus.runtime.wire.porter_greeting import GREETED, VERSION
from isthmus.runtime.wire.ways import Ways, WaySocket, prepared

SECONDS_MAX: Final = addresses.UNHEARD_MS_MAX / 1000
"""For all answers of a proxy together, and for libzmq's connection."""
HERE_MAX: Final = 4
"""Connections that wait at a listening socket: one is libzmq's own."""
_GREETING: Final = b"\x05\x01\x00"
_ADDRESS_BYTES: Final = {1: 4, 4: 16}
_NAME: Final = 3
_NO_SOCKS: Final = "it does not speak SOCKS5 without a password"
_CREDENTIALS: Final = struct.Struct("3i")


def dial(proxy: str, endpoint: str, seconds_max: float) -> socket.socket:
    """A connection to an endpoint through the proxy at ADDRESS:PORT; blocks. OSError, within `seconds_max` for each
    address of the proxy and for its answers, where there is none, whatever the proxy answers.

    There are few reasons, and none has what the proxy has said: one that is new is told.
    """
    request = _request(*addresses.host_and_port(endpoint))
    try:
        way = addresses.connect(f"tcp://{proxy}", seconds_max)
    except TimeoutError:
        raise OSError(f"no answer within {seconds_max:g} s") from None
    except OSError as error:
        raise OSError(error.strerror or str(error)) from None
    with ExitStack() as stack:
        stack.enter_context(way)
        answers = ProxyAnswers(way, time.monotonic() + seconds_max, seconds_max)
        answers.send(_GREETING)
        if answers.receive(len(GREETED)) != GREETED:
            raise OSError(_NO_SOCKS)
        answers.send(request)
        version, reply, _, kind = answers.receive(4)
        if version != VERSION:
            raise OSError(_NO_SOCKS)
        if reply:
            raise OSError("it turns the endpoint down")
        size = answers.receive(1)[0] if kind == _NAME else _ADDRESS_BYTES.get(kind)
        if size is None:
            raise OSError(_NO_SOCKS)
        answers.receive(size + 2)
        stack.pop_all()
    return way


def _request(host: str, port: str) -> bytes:
    """CONNECT to a host by its address or its name; OSError for what is neither."""
    try:
        number = int(port).to_bytes(2, "big")
        if addresses.is_literal(host):
            address = ipaddress.ip_address(host)
            return b"\x05\x01\x00" + (b"\x01" if address.version == 4 else b"\x04") + address.packed + number
        name = host.encode("ascii")
        if not name:
            raise ValueError("no host")
        return b"\x05\x01\x00\x03" + bytes([len(name)]) + name + number
    except (ValueError, OverflowError) as error:
        raise OSError(f"{host!r}:{port!r} cannot be asked for: {error}") from None


class ProxyAnswers:
    """The answers of a proxy on a new connection, all of them until a time."""

    def __init__(self, way: socket.socket, until: float, seconds_max: float) -> None:
        self._way, self._until, self._seconds_max = way, until, seconds_max

    def send(self, data: bytes) -> None:
        """Send a few bytes."""
        with suppress(OSError):  # The answer, or its absence, says why.
            self._way.sendall(data)

    def receive(self, count: int) -> bytes:
        """So many bytes, and none beyond them. OSError if they do not come."""
        data = b""
        while len(data) < count:
            self._way.settimeout(max(self._until - time.monotonic(), 1e-3))
            try:
                more = self._way.recv(count - len(data))
            except TimeoutError:
                raise OSError(f"no answer within {self._seconds_max:g} s") from None
            except ConnectionError:
                more = b""
            if not more:
                raise OSError("it has hung up")
            data += more
        return data


@final
class PorterRelay:
    """The ways of one host, whose sockets are on `loop`."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._selector = selectors.DefaultSelector()
        self._ways = Ways(self._selector)
        self._bell, self._bell_here = socket.socketpair()
        self._made: deque[tuple[socket.socket, socket.socket]] = deque()
        """Of ways that the thread does not know yet: both ends."""
        self._is_closed = False
        self._lock = threading.Lock()
        for each in (self._bell, self._bell_here):
            each.setblocking(False)
        self._selector.register(self._bell_here, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="porter relay", daemon=True)
        self._thread.start()

    def dial(self, proxy: str, endpoint: str, answer: Callable[[str, str], None]) -> None:
        """Dial an endpoint through the proxy at ADDRESS:PORT; `answer(where, reason)` is called on the loop, with the
        endpoint at which libzmq finds the way, or with '' and the reason."""
        threading.Thread(target=self._dial, args=(proxy, endpoint, answer), name="porter dial", daemon=True).start()

    def close(self) -> None:
        """End all ways."""
        with self._lock:
            self._is_closed = True  # From now on no thread that dials hands a way over.
            self._ring()
        self._thread.join()

    # -- a thread for each dial, because it waits ----------------------------------------------------------------------

    def _dial(self, proxy: str, endpoint: str, answer: Callable[[str, str], None]) -> None:
        _defer_pipe_signals()
        name = f"isthmus-way-{secrets.token_hex(8)}"
        try:
            with ExitStack() as stack:
                forks.note(f"tcp://{proxy}")
                far = stack.enter_context(dial(proxy, endpoint, SECONDS_MAX))
                prepared(far)
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(f"\0{name}")
                listener.listen(HERE_MAX)
                self._answer(answer, f"ipc://@{name}", "")
                near = stack.enter_context(_accepted(listener))
                listener.close()
                with self._lock:
                    if not self._is_closed:
                        stack.pop_all()
                        self._made.append((near, far))
                        self._ring()
        except OSError as error:
            # Where libzmq has been told of the way, it finds nothing there.
            self._answer(answer, "", f"no connection: the porter at {proxy}: {error}")

    def _answer(self, answer: Callable[[str, str], None], where: str, reason: str) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(answer, where, reason)

    def _ring(self) -> None:
        with suppress(OSError):  # It rings already, or the thread has ended.
            self._bell.send(b"\0")

    # -- one thread for all ways ---------------------------------------------------------------------------------------

    def _serve(self) -> None:
        _defer_pipe_signals()
        while not self._is_closed:
            for key, ready in self._selector.select():
                if key.fileobj is self._bell_here:
                    self._bell_here.recv(4096)
                    self._begin_made()
                elif key.data.watched:  # Not closed in this turn.
                    self._ways.turn(key.data, ready)
        self._ways.close_all()
        while self._made:
            for each in self._made.popleft():
                each.close()
        self._selector.close()
        self._bell.close()
        self._bell_here.close()

    def _begin_made(self) -> None:
        while self._made:
            near, far = (WaySocket(each) for each in self._made.popleft())
            self._ways.join(near, far)
            for each in (near, far):
                each.socket.setblocking(False)
                self._ways.watch(each, selectors.EVENT_READ)


def _defer_pipe_signals() -> None:
    """Have this thread's writes to closed connections fail alone: a script may have SIGPIPE end its process."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})


def _accepted(listener: socket.socket) -> socket.socket:
    """The connection of this process; any other one is hung up on. OSError if it does not come in time."""
    until = time.monotonic() + SECONDS_MAX
    while True:
        listener.settimeout(max(until - time.monotonic(), 1e-3))
        made, _ = listener.accept()
        process, _, _ = _CREDENTIALS.unpack(made.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        if process == os.getpid():
            return made
        made.close()
