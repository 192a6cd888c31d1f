"""Keys on sockets, admission of connections, and failed handshakes.

It decides how a socket gets its keys, which handshakes are accepted (by a keyring, at that moment), and how failed ones
are named and reported. Later messages of a connection are judged by its *user id*, the public key that it has proved to
hold, one by one, because admission can end while it lives.

Theory of operation. A context calls one handler for every CURVE handshake, at an address that ZAP (ZeroMQ's RFC 27)
fixes; it is a REP socket drained by the event loop. Where there is no handler, or it does not answer, no connection is
accepted: sockets insist on a domain. The last unknown keys are kept, so that people can see which machine asked, and
how to admit it.

libzmq reports failed handshakes on a monitor, a pair of sockets inside the process. Its thread blocks where the pair is
full, so there is no high-water mark on it: a loop that is suspended for some seconds collects a small event for each
connection attempt meanwhile, no more.
"""

from __future__ import annotations

import itertools
import struct
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, Literal, final

import zmq
from zmq.utils import z85

from isthmus.runtime.system import addresses
from isthmus.runtime.system.shared_loop import Loop
from isthmus.runtime.wire.security_keys import Keyring

HANDSHAKE_MS_MAX: Final = 5_000
"""A connection that has not shown its key by then is closed."""
FAR_HANDSHAKE_MS_MAX: Final = 120_000
"""The same where the way leads through a bucket: four round trips, of seconds each, and an outage meanwhile."""
FAILURES: Final = int(
    zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
UNADMITTED, KEYLESS, MISTAKEN, CUT = "unadmitted", "keyless", "mistaken", "cut"
WORDS: Final = {
    UNADMITTED: "this machine's key is not admitted there",
    KEYLESS: "one side has keys, the other has none",
    MISTAKEN: "another public key of the machine that listens was expected",
    CUT: "the connection ended before keys were shown",
}
"""Why a handshake failed, in words for the side that dialled."""
TURN_EVENTS_MAX: Final = 256
_EVENT: Final = struct.Struct("=HI")
_monitors: Final = itertools.count()


def handshake_ms(*, is_far: bool) -> int:
    """The milliseconds within which a connection shows its key."""
    return FAR_HANDSHAKE_MS_MAX if is_far else HANDSHAKE_MS_MAX


def secure_server(socket: zmq.Socket[bytes], keys: Keyring | None, domain: str, *, is_far: bool = False) -> None:
    """Make a socket that will bind require keys. Without a ZAP handler in its context no connection is accepted."""
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.HANDSHAKE_IVL, handshake_ms(is_far=is_far))


def secure_client(socket: zmq.Socket[bytes], keys: Keyring | None, server_key: str) -> None:
    """Make a socket that will dial show its key, to the one machine that holds the other one."""
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.pair.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret.encode())


def allow_ipv6(socket: zmq.Socket[bytes], endpoint: str) -> None:
    """Make a socket take addresses of IPv6, where `endpoint` is one or has a name that may have one.

    Others stay sockets of IPv4, which is what they then tell of themselves.
    """
    host, _ = addresses.host_and_port(endpoint)
    if ":" in host or host == "*" or addresses.is_name(host):
        socket.setsockopt(zmq.IPV6, 1)


def bind(socket: zmq.Socket[bytes], endpoint: str) -> str:
    """Have a socket listen; returns the endpoint with its actual port. zmq.ZMQError if it cannot.

    A name is kept, for others to resolve, and listens at all addresses: here it may stand for loopback only.
    """
    host, port = addresses.host_and_port(endpoint)
    is_named = endpoint.startswith("tcp://") and addresses.is_name(host) and host != "localhost"
    allow_ipv6(socket, endpoint)
    socket.bind(f"tcp://*:{port}" if is_named else endpoint)
    actual = socket.getsockopt_string(zmq.LAST_ENDPOINT)
    return f"tcp://{host}:{addresses.host_and_port(actual)[1]}" if is_named else actual


def user_id(frame: Any) -> str | None:
    """The public key of a frame's sender (received with copy=False); None where there is none."""
    try:
        user = frame.get("User-Id")
    except zmq.ZMQError:
        return None
    return user if isinstance(user, str) else None


def watched(socket: zmq.Socket[bytes], context: zmq.Context[Any], events: int) -> zmq.Socket[bytes]:
    """A monitor of a socket, without a high-water mark."""
    address = f"inproc://monitor-{next(_monitors)}"
    socket.monitor(address, events)
    monitor: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.LINGER, 0)
    monitor.setsockopt(zmq.RCVHWM, 0)
    monitor.connect(address)
    return monitor


def failure(frames: list[bytes]) -> str | None:
    """Why a handshake failed, a key of WORDS; None if a monitor's message is about something else."""
    event, value = _EVENT.unpack(frames[0][: _EVENT.size])
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return UNADMITTED
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return KEYLESS if value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH else MISTAKEN
    return CUT if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL else None


def progress(frames: list[bytes]) -> Literal["connected", "greeted"] | None:
    """The progress of a connection; None if a monitor's message is about something else."""
    event, _ = _EVENT.unpack(frames[0][: _EVENT.size])
    if event == zmq.EVENT_CONNECTED:
        return "connected"
    return "greeted" if event == zmq.EVENT_HANDSHAKE_SUCCEEDED else None


@final
class Handshakes:
    """Reports the failed handshakes of one socket, from its monitor on the loop: calls `failed(reason)` for each."""

    def __init__(
        self,
        loop: Loop,
        context: zmq.Context[Any],
        socket: zmq.Socket[bytes],
        failed: Callable[[str], None],
    ) -> None:
        self._loop, self._socket, self._failed = loop, socket, failed
        self._monitor = watched(socket, context, FAILURES)
        self._file = self._monitor.fileno()
        loop.add_reader(self._file, self._drain)
        # libzmq signals only what comes after its events were read for the first time.
        loop.call_soon(self._drain)

    def close(self) -> None:
        """Stop reporting; before the socket is closed."""
        self._loop.remove_reader(self._file)
        self._socket.disable_monitor()
        self._monitor.close()

    def _drain(self) -> None:
        if self._monitor.closed:
            return
        for _ in range(TURN_EVENTS_MAX):
            if not int(self._monitor.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            reason = failure(self._monitor.recv_multipart(zmq.NOBLOCK))
            if reason is not None:
                self._failed(reason)
        self._loop.call_soon(self._drain)


ADDRESS: Final = "inproc://zeromq.zap.01"
STRANGERS_MAX: Final = 64
"""Unknown keys that are remembered."""
TELL_SECONDS: Final = 1.0
TURN_REQUESTS_MAX: Final = 32
"""Handshakes judged in one turn of the loop, 50 us each; the rest wait for the next one."""
_FRAMES: Final = 7
_KEY_BYTES: Final = 32


@final
class Zap:
    """The handler of one context.

    `on_stranger(key, address)` is called for keys that are not admitted: once for each as long as it is remembered, and
    at most once a second.
    """

    def __init__(
        self,
        loop: Loop,
        context: zmq.Context[Any],
        keys: Keyring,
        on_stranger: Callable[[str, str], None] = lambda key, address: None,
    ) -> None:
        self._loop, self._keys, self._on_stranger = loop, keys, on_stranger
        self.strangers: OrderedDict[str, bool] = OrderedDict()
        """The last keys that were not admitted; whether `on_stranger` was called."""
        self._told_at = loop.time() - TELL_SECONDS
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.bind(ADDRESS)
        self._file = self._socket.fileno()
        loop.add_reader(self._file, self._drain)

    def close(self) -> None:
        """Stop answering; before the context ends."""
        self._loop.remove_reader(self._file)
        self._socket.close()

    def _drain(self) -> None:
        if self._socket.closed:
            return
        for _ in range(TURN_REQUESTS_MAX):
            if not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            self._socket.send_multipart(self._judged(frames), zmq.NOBLOCK)
        self._loop.call_soon(self._drain)

    def _judged(self, frames: list[bytes]) -> list[bytes]:
        """The answer to a request: version, id, domain, address, routing id, mechanism, public key."""
        version, request = (*frames[:2], b"", b"")[:2]
        key = ""
        if len(frames) == _FRAMES and frames[5] == b"CURVE" and len(frames[6]) == _KEY_BYTES:
            key = z85.encode(frames[6]).decode()
        if self._keys.connects(key):
            return [version, request, b"200", b"admitted", key.encode(), b""]
        self._remember(key, frames[3].decode(errors="replace") if len(frames) == _FRAMES else "")
        return [version, request, b"400", b"not admitted", b"", b""]

    def _remember(self, key: str, address: str) -> None:
        now, was_told = self._loop.time(), self.strangers.pop(key, False)
        is_telling = not was_told and now - self._told_at >= TELL_SECONDS
        self.strangers[key] = was_told or is_telling
        if len(self.strangers) > STRANGERS_MAX:
            self.strangers.popitem(last=False)
        if is_telling:
            self._told_at = now
            self._on_stranger(key, address)
