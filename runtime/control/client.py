"""A host's end of control messages: it dials the daemon, and another one on request."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from isthmus.runtime.control.messages import MESSAGE_BYTES_MAX, Message, decode, encode, is_of_this_version
from isthmus.runtime.security import handshakes
from isthmus.runtime.security.handshakes import Handshakes
from isthmus.runtime.security.keys import Keyring, check_server
from isthmus.runtime.system.shared_loop import Handle, Loop

RETRY_SECONDS: Final = 1.0
"""Delay between two attempts of a client that is not admitted yet; each costs the server half a millisecond."""


class ControlClient:
    """A host's end: a DEALER that dials the daemon, and another one on request.

    With `keys` it accepts only the machine that has `server_key`; `on_refused(reason)` is called with the reason of
    each failed attempt, one of `handshakes.WORDS`. It goes on trying.
    """

    def __init__(
        self,
        loop: Loop,
        endpoint: str,
        handle: Callable[[Message], None],
        *,
        keys: Keyring | None = None,
        server_key: str = "",
        on_refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Dial; ConfigError if the endpoint is off loopback, and there are no keys or no `server_key`."""
        self._loop = loop
        self._handle, self._on_refused = handle, on_refused
        self._keys, self._server_key = keys, server_key
        check_server(endpoint, keys, server_key, f"Dialling the daemon at {endpoint}")
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._handshakes: Handshakes | None = None
        self._retry: Handle | None = None
        self.endpoint = ""
        self.dial(endpoint)

    def dial(self, endpoint: str) -> None:
        """Disconnect from the present daemon, if any, and dial this one."""
        check_server(endpoint, self._keys, self._server_key, f"Dialling the daemon at {endpoint}")
        self._hang_up()
        self.endpoint = endpoint
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self._socket.setsockopt(zmq.SNDHWM, 64)
        if self._keys is not None:
            handshakes.secure_client(self._socket, self._keys, self._server_key)
            self._handshakes = Handshakes(self._loop, self._context, self._socket, self._failed)
        self._socket.connect(endpoint)
        self._file = self._socket.fileno()
        self._loop.add_reader(self._file, self._drain)
        self._loop.call_soon(self._drain)

    def send(self, message: Message) -> None:
        """Send a message; one that the daemon does not accept is dropped, because the next heartbeat repeats it."""
        if self._socket is None:
            return
        with suppress(zmq.Again):
            self._socket.send(encode(message), zmq.NOBLOCK)
        self._loop.call_soon(self._drain)  # A send clears the descriptor's signal, whether it fails or not.

    def close(self) -> None:
        """Disconnect for good; pending messages are still sent, for half a second."""
        self._hang_up()
        self._context.term()

    def _failed(self, reason: str) -> None:
        """Dial again after a delay: libzmq itself gives up where it is not admitted."""
        if self._retry is None:
            self._retry = self._loop.call_later(RETRY_SECONDS, lambda: self.dial(self.endpoint))
        self._on_refused(reason)

    def _hang_up(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self._handshakes is not None:
            self._handshakes.close()
            self._handshakes = None
        if self._socket is not None:
            self._loop.remove_reader(self._file)
            self._socket.close()
            self._socket = None

    def _drain(self) -> None:
        socket = self._socket
        if socket is None or socket.closed:
            return
        while socket is self._socket and int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
            try:
                message = decode(socket.recv(zmq.NOBLOCK))
            except ValueError:
                continue
            if is_of_this_version(message):
                self._handle(message)
