"""Admission: the handler that libzmq calls for every CURVE handshake (ZAP, ZeroMQ's RFC 27).

Decides by a keyring, at that moment; gives the connection its *user id*, the public key that it has proved to hold.
Later messages of a connection are judged by that id, one by one, because admission can end while it lives.

Theory of operation. A context calls one handler, at an address that RFC 27 fixes; it is a REP socket drained by the
event loop. Where there is no handler, or it does not answer, no connection is accepted: sockets insist on a domain. The
last unknown keys are kept, so that people can see which machine asked, and how to admit it; `handshakes` counts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, final

import zmq
from zmq.utils import z85

from isthmus.runtime.security.keys import Keyring
from isthmus.runtime.system.shared_loop import Loop

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
        if self._keys.name_of(key) is not None:
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
