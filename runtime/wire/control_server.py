"""The daemon's end of control messages. The daemon binds; all others dial it.

Without keys it stays on this machine; with keys only admitted machines get in, and each message has a `caller`, the
machine whose key it is. Beside them the holder of an invitation gets in, whose messages never reach the handler of the
others: only CLAIM is handled at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from isthmus.runtime.channels.crossings import Direction
from isthmus.runtime.system.addresses import BACKLOG
from isthmus.runtime.system.shared_loop import Loop
from isthmus.runtime.wire import security_curve
from isthmus.runtime.wire.control_messages import (
    MESSAGE_BYTES_MAX,
    TURN_MESSAGES_MAX,
    Message,
    decode,
    encode,
    is_of_this_version,
)
from isthmus.runtime.wire.daemon_notes import PRIVATE, forget, is_lost, private_endpoint
from isthmus.runtime.wire.security_curve import Handshakes, Zap
from isthmus.runtime.wire.security_keys import Keyring, check_open
from isthmus.runtime.wire.zmtp_sizes import message_bytes

CLAIM: Final = "claim"
"""The only message that an invitation's key may send."""


class ControlServer:
    """The daemon's end: a ROUTER. `send` answers at any time.

    Arguments:
        loop: where it is read.
        endpoint: where it listens.
        handle: called on the loop with a peer and its message.
        on_stranger: called with each message of another version.
        keys: only messages of admitted machines are handled, and `caller` is the one whose message is being handled:
            `handle` decides what it may do. None: all are handled.
        is_far: some come through a bucket, and show their keys late.
        on_unknown: called with a key that is not admitted, and its address.
        on_claim: called with the peer, the key of an invitation, and the CLAIM of its holder.
        on_crossed: called with each message that was sent, or received and handled, its peer, and its bytes on the
            wire.
    """

    def __init__(
        self,
        loop: Loop,
        endpoint: str,
        handle: Callable[[bytes, Message], None],
        on_stranger: Callable[[Message], None] = lambda message: None,
        *,
        keys: Keyring | None = None,
        is_far: bool = False,
        on_unknown: Callable[[str, str], None] = lambda key, address: None,
        on_claim: Callable[[bytes, str, Message], None] = lambda peer, key, message: None,
        on_crossed: Callable[[bytes, Message, int, Direction], None] = lambda peer, message, size, direction: None,
    ) -> None:
        """Bind; zmq.ZMQError if the endpoint is taken, ConfigError if it is off this machine and there are no keys.

        `is_far`: some come through a bucket, and show their keys late. `on_crossed` is called with each message that
        was sent, or received and handled, its peer, and its bytes on the wire. PRIVATE as `endpoint` is a new one that
        only this user can reach; OSError if there is no room for it.
        """
        check_open(endpoint, keys, f"Listening at {endpoint}")
        self._loop = loop
        self._handle = handle
        self._on_stranger = on_stranger
        self._on_claim = on_claim
        self._keys = keys
        self.caller: str | None = None
        """The machine whose message is being handled; None without keys."""
        self._on_crossed = on_crossed
        self.refused: Counter[str] = Counter()
        self._context = zmq.Context()
        self._zap = None if keys is None else Zap(loop, self._context, keys, on_unknown)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self._socket.setsockopt(zmq.BACKLOG, BACKLOG)
        security_curve.secure_server(self._socket, keys, "daemon", is_far=is_far)
        self._handshakes: Handshakes | None = None
        if keys is not None:
            self._handshakes = Handshakes(loop, self._context, self._socket, self._count)
        self.endpoint = endpoint
        try:
            self.endpoint = private_endpoint() if endpoint == PRIVATE else endpoint
            self.endpoint = security_curve.bind(self._socket, self.endpoint)
        except (OSError, zmq.ZMQError):
            self._end()
            raise
        self._file = self._socket.fileno()
        loop.add_reader(self._file, self._drain)
        loop.call_soon(self._drain)

    def send(self, peer: bytes, message: Message) -> None:
        """Send a message; one to a peer that is gone, or does not read, is dropped."""
        data = encode(message)
        try:
            self._socket.send_multipart([peer, data], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.refused["not sent"] += 1
        else:
            self._on_crossed(peer, message, message_bytes((data,), is_encrypted=self._keys is not None), "sent")
        # A send may clear the edge-triggered signal that messages can be read.
        self._loop.call_soon(self._drain)

    def restore(self) -> None:
        """Listen again at a private endpoint whose socket was deleted, as tools do that clean a temporary folder.

        Connections live on without it, but nobody else finds this daemon. The former listener stays: when libzmq ends
        one, later and in its own thread, it deletes whatever is at its path.
        """
        if is_lost(self.endpoint):
            with suppress(zmq.ZMQError):  # A disk that is full, for example; the next call tries again.
                self._socket.bind(self.endpoint)

    def close(self) -> None:
        self._loop.remove_reader(self._file)
        self._end()

    def _end(self) -> None:
        if self._handshakes is not None:
            self._handshakes.close()
        if self._zap is not None:
            self._zap.close()
        self._socket.close()
        self._context.term()
        forget(self.endpoint)

    def _drain(self) -> None:
        for _ in range(TURN_MESSAGES_MAX):
            if not self._has_message():
                return
            peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            self._on_message(peer.bytes, frames)
        self._loop.call_soon(self._drain)  # More may be there.

    def _count(self, reason: str) -> None:
        self.refused[reason] += 1

    def _has_message(self) -> bool:
        return not self._socket.closed and bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _on_message(self, peer: bytes, frames: list[zmq.Frame]) -> None:
        """Handle a message, or count the reason for refusing it."""
        caller = invitation = None
        if self._keys is not None:
            key = security_curve.user_id(frames[0])
            caller = self._keys.name_of(key)
            invitation = key if caller is None and key in self._keys.invitations else None
            if caller is None and invitation is None:
                self.refused["expelled"] += 1
                return
        try:
            if len(frames) != 1:
                raise ValueError(f"not a control message: {len(frames)} frames")
            message = decode(frames[0].bytes)
        except ValueError as error:
            self.refused[str(error).partition(":")[0]] += 1
            return
        if not is_of_this_version(message):
            self.refused["another version"] += 1
            self.send(peer, {"type": "another version"})
            self._on_stranger(message)
        elif invitation is not None:
            if message["type"] == CLAIM:
                self._on_claim(peer, invitation, message)
            else:
                self.refused["invitation"] += 1
        else:
            self.caller = caller
            try:
                self._handle(peer, message)
            finally:
                self.caller = None
            size_bytes = message_bytes((frames[0].buffer,), is_encrypted=self._keys is not None)
            self._on_crossed(peer, message, size_bytes, "received")
