"""Keys on sockets, and failed handshakes.

Decides how a socket gets its keys, and how failed handshakes are named and reported. `zap` decides which keys are
admitted.

Theory of operation. libzmq reports handshakes on a monitor, a pair of sockets inside the process. Its thread blocks
where the pair is full, so there is no high-water mark on it: a loop that is suspended for some seconds collects a small
event for each connection attempt meanwhile, no more.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable
from typing import Any, Final, final

import zmq

from isthmus.runtime.security.keys import Keyring
from isthmus.runtime.system.shared_loop import Loop

HANDSHAKE_MS_MAX: Final = 5_000
"""A connection that has not shown its key by then is closed."""
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


def secure_server(socket: zmq.Socket[bytes], keys: Keyring | None, domain: str) -> None:
    """Make a socket that will bind require keys. Without a ZAP handler in its context no connection is accepted."""
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVER, 1)
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret.encode())
        socket.setsockopt(zmq.ZAP_DOMAIN, domain.encode())
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS_MAX)


def secure_client(socket: zmq.Socket[bytes], keys: Keyring | None, server_key: str) -> None:
    """Make a socket that will dial show its key, to the one machine that holds the other one."""
    if keys is not None:
        socket.setsockopt(zmq.CURVE_SERVERKEY, server_key.encode())
        socket.setsockopt(zmq.CURVE_PUBLICKEY, keys.pair.public.encode())
        socket.setsockopt(zmq.CURVE_SECRETKEY, keys.pair.secret.encode())


def user_id(frame: Any) -> str | None:
    """The public key of a frame's sender (received with copy=False); None where there is none."""
    try:
        told = frame.get("User-Id")
    except zmq.ZMQError:
        return None
    return told if isinstance(told, str) else None


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
