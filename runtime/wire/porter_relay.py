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
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final, final

from isthmus.runtime.system import addresses, forks
from isthmus.runtime.system.shared_loop import Loop
from isthmus.runtime.wire.porter_greeting import GREETED, VERSION
from isthmus.runtime.wire.ways import WayThread, defer_pipe_signals, prepared

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
    with ExitStack() as stack:
        way, answers = _greeted(stack, proxy, seconds_max)
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


def check(proxy: str, seconds_max: float) -> None:
    """OSError, as of `dial`, unless what listens at ADDRESS:PORT greets as porters do; blocks."""
    with ExitStack() as stack:
        _greeted(stack, proxy, seconds_max)


def _greeted(stack: ExitStack, proxy: str, seconds_max: float) -> tuple[socket.socket, ProxyAnswers]:
    """A connection to a proxy, which has greeted, and its further answers."""
    try:
        way = stack.enter_context(addresses.connect(f"tcp://{proxy}", seconds_max))
    except TimeoutError:
        raise OSError(f"no answer within {seconds_max:g} s") from None
    except OSError as error:
        raise OSError(error.strerror or str(error)) from None
    answers = ProxyAnswers(way, time.monotonic() + seconds_max, seconds_max)
    answers.send(_GREETING)
    if answers.receive(len(GREETED)) != GREETED:
        raise OSError(_NO_SOCKS)
    return way, answers


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
        self._ways = WayThread("porter relay")

    def dial(self, proxy: str, endpoint: str, answer: Callable[[str, str], None]) -> None:
        """Dial an endpoint through the proxy at ADDRESS:PORT; `answer(where, reason)` is called on the loop, with the
        endpoint at which libzmq finds the way, or with '' and the reason."""
        threading.Thread(target=self._dial, args=(proxy, endpoint, answer), name="porter dial", daemon=True).start()

    def close(self) -> None:
        """End all ways."""
        self._ways.close()

    # -- a thread for each dial, because it waits ----------------------------------------------------------------------

    def _dial(self, proxy: str, endpoint: str, answer: Callable[[str, str], None]) -> None:
        defer_pipe_signals()
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
                if self._ways.give(near, far):
                    stack.pop_all()
        except OSError as error:
            # Where libzmq has been told of the way, it finds nothing there.
            self._answer(answer, "", f"no connection: the porter at {proxy}: {error}")

    def _answer(self, answer: Callable[[str, str], None], where: str, reason: str) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(answer, where, reason)


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
