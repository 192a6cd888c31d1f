"""Control messages between daemons, their hosts and commands: small msgpack maps over ZeroMQ.

Decides what such a message may be and how it travels; what it asks for is the daemon's or the host's business. Each
message is one frame, a map with a text `type`. It carries no payloads: a message larger than MESSAGE_BYTES_MAX, or one
that is no such map, is dropped and counted. Everybody dials the daemon, which binds. Without keys both stay on
loopback; with keys nobody gets in who is not admitted, and each message has a `caller`, the machine whose key it is.

Every message names the version of isthmus that it comes from. Nobody acts on one of another version: a daemon counts it
and answers what it is itself, a host drops it, a command tells its user.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import zmq

from isthmus.runtime import handshakes
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.handshakes import Handshakes
from isthmus.runtime.keys import Keyring, check_open, check_server
from isthmus.runtime.loop import Handle, Loop
from isthmus.runtime.zap import Zap

MESSAGE_BYTES_MAX: Final = 4 << 20
"""A status with the accounts of 64 learners and 64 fragments takes a quarter of this."""
PROTOCOL: Final = 1
RETRY_SECONDS: Final = 1.0
"""Between two attempts of one who is not admitted yet; each costs who listens half a millisecond."""
CUTS_MAX: Final = 5
"""Attempts of a command whose handshake was cut without a reason, as libzmq does for a wrong key, and sometimes for no
keys at all; a tenth of a second each."""
DETACH: Final = b"detach"
"""What a command writes into the pipe that it holds to a daemon, before it goes away and the run goes on."""

Message = dict[str, Any]
_LIMITS: Final = {"max_str_len": 1 << 20, "max_bin_len": 0, "max_array_len": 1 << 16, "max_map_len": 1 << 14}


@cache
def _mark() -> Message:
    """What every message says of where it comes from."""
    return {"protocol": PROTOCOL, "version": metadata.version("isthmus")}


def encode(message: Message) -> bytes:
    """One frame."""
    data: bytes = msgpack.packb({**message, **_mark()}, use_bin_type=True)
    return data


def is_of_this_version(message: Message) -> bool:
    """Whether the sender speaks this control protocol, and is this version of isthmus."""
    return {name: message.get(name) for name in _mark()} == _mark()


def version_of(message: Message | None = None) -> str:
    """The version of a message's sender in words, or our own."""
    told = _mark() if message is None else message
    return f"isthmus {told.get('version', 'of an unknown version')} with control protocol {told.get('protocol')}"


def without_mark(message: Message) -> Message:
    """What a message says beyond its type and its sender's version."""
    return {name: value for name, value in message.items() if name not in ("type", *_mark())}


def decode(data: bytes) -> Message:
    """The message in a frame; ValueError if it is none."""
    if len(data) > MESSAGE_BYTES_MAX:
        raise ValueError(f"a control message of {len(data)} bytes, {MESSAGE_BYTES_MAX} are allowed")
    try:
        message = msgpack.unpackb(data, raw=False, strict_map_key=False, **_LIMITS)
    except Exception as error:
        raise ValueError(f"not a control message: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError("not a control message: no map with a type")
    return message


class ControlServer:
    """The daemon's end: a ROUTER. `handle(peer, message)` is called on the loop; `send` answers at any time.

    `on_stranger` is told of each message of another version. With `keys` only machines that they admit are heard, and
    `caller` is the one whose message is being handled: for whom it may speak is for `handle` to judge. `on_unknown(key,
    address)` is told of keys that are not admitted.
    """

    def __init__(
        self,
        loop: Loop,
        endpoint: str,
        handle: Callable[[bytes, Message], None],
        on_stranger: Callable[[Message], None] = lambda message: None,
        *,
        keys: Keyring | None = None,
        on_unknown: Callable[[str, str], None] = lambda key, address: None,
    ) -> None:
        """Bind; zmq.ZMQError if the endpoint is taken, ConfigError if it leaves the machine and there are no keys."""
        check_open(endpoint, keys, f"Listening at {endpoint}")
        self._loop = loop
        self._handle = handle
        self._on_stranger = on_stranger
        self._keys = keys
        self.caller: str | None = None
        """The machine whose message is being handled; None without keys."""
        self.refused: Counter[str] = Counter()
        self._context = zmq.Context()
        self._zap = None if keys is None else Zap(loop, self._context, keys, on_unknown)
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        handshakes.secure_server(self._socket, keys, "daemon")
        self._handshakes: Handshakes | None = None
        if keys is not None:
            self._handshakes = Handshakes(loop, self._context, self._socket, self._count)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            self._end()
            raise
        self.endpoint: str = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._file = self._socket.fileno()
        loop.add_reader(self._file, self._drain)
        loop.call_soon(self._drain)

    def send(self, peer: bytes, message: Message) -> None:
        """Hand a message over; one to a peer that is gone, or does not read, is dropped."""
        try:
            self._socket.send_multipart([peer, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError:
            self.refused["not sent"] += 1
        # A send may swallow the edge that announces what can be read.
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Unbind."""
        self._loop.remove_reader(self._file)
        self._end()

    def _end(self) -> None:
        if self._handshakes is not None:
            self._handshakes.close()
        if self._zap is not None:
            self._zap.close()
        self._socket.close()
        self._context.term()

    def _drain(self) -> None:
        while self._has_message():
            peer, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            self._hear(peer.bytes, frames)

    def _count(self, reason: str) -> None:
        self.refused[reason] += 1

    def _has_message(self) -> bool:
        return not self._socket.closed and bool(int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def _hear(self, peer: bytes, frames: list[zmq.Frame]) -> None:
        """Handle a message, or count why not."""
        caller = None if self._keys is None else self._keys.name_of(handshakes.user_id(frames[0]))
        if self._keys is not None and caller is None:
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
        else:
            self.caller = caller
            self._handle(peer, message)
            self.caller = None


class ControlClient:
    """A host's end: a DEALER that dials the daemon, and dials again where it is told to.

    With `keys` it talks only to the machine that has `server_key`; `on_refused(reason)` is told why an attempt
    failed, of `handshakes.WORDS`, each time. It goes on trying.
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
        """Dial; ConfigError if the endpoint leaves the machine and there are no keys, or not that of who listens."""
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
        """Leave the daemon that was dialled, if any, and dial this one."""
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
        """Hand a message over; one that the daemon does not take is dropped, for the next heartbeat says it again."""
        if self._socket is None:
            return
        with suppress(zmq.Again):
            self._socket.send(encode(message), zmq.NOBLOCK)
        self._loop.call_soon(self._drain)  # A send takes the descriptor's signal away, whether it fails or not.

    def close(self) -> None:
        """Hang up for good; what was handed over is still sent, for half a second."""
        self._hang_up()
        self._context.term()

    def _failed(self, reason: str) -> None:
        """Dial again in a while: libzmq itself gives up where it was told that it is not admitted."""
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


def ask(
    endpoint: str,
    message: Message,
    seconds_max: float = 5.0,
    *,
    keys: Keyring | None = None,
    server_key: str = "",
) -> Message | None:
    """Send one message from a command, and wait for one answer; None if none comes in time.

    ConfigError if what answers is no daemon, or one of another version, and where keys are missing or others.
    """
    doing = f"Talking to the daemon at {endpoint}"
    check_server(endpoint, keys, server_key, doing)
    context = zmq.Context()
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            handshakes.secure_client(socket, keys, server_key)
            monitor = handshakes.watched(socket, context, handshakes.FAILURES)
            try:
                socket.connect(endpoint)
                # A handshake may have failed already, so that there is no way to send; the monitor says why.
                with suppress(zmq.Again):
                    socket.send(encode(message), zmq.NOBLOCK)
                data = _first(socket, monitor, seconds_max, doing, keys)
            finally:
                socket.disable_monitor()
                monitor.close()
    finally:
        context.term()
    if data is None:
        return None
    try:
        answer = decode(data)
    except ValueError as error:
        do = "Look at the address: something else listens there."
        raise ConfigError(doing, "an answer of a daemon of isthmus", str(error), do) from None
    if not is_of_this_version(answer):
        do = "Use one version: end that daemon, and start it again with the isthmus that you call it with."
        raise ConfigError(doing, f"{version_of()}, as here", version_of(answer), do)
    return answer


def _first(
    socket: zmq.Socket[bytes], monitor: zmq.Socket[bytes], seconds_max: float, doing: str, keys: Keyring | None
) -> bytes | None:
    """The first message that comes in time, None if none does; ConfigError if keys are in the way.

    One attempt that was only cut proves nothing: the daemon may have ended, and another come.
    """
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(monitor, zmq.POLLIN)
    until = time.monotonic() + seconds_max
    cuts = 0
    while True:
        ready = dict(poller.poll(max(0, round(1000 * (until - time.monotonic())))))
        if socket in ready:
            return socket.recv()
        if not ready:
            return None
        reason = handshakes.failure(monitor.recv_multipart())
        cuts += reason == handshakes.CUT
        if reason is not None and (reason != handshakes.CUT or cuts == CUTS_MAX):
            raise ConfigError(doing, *_in_the_way(reason, keys))


def _in_the_way(reason: str, keys: Keyring | None) -> tuple[str, str, str]:
    """What a command expected of keys, what it found, and what to do."""
    if keys is None:
        do = "Name a key of yours that it admits: [keys] secret in the cluster file, and its own as public_key."
        return "a daemon without keys", "one that has keys", do
    if reason == handshakes.UNADMITTED:
        do = f"Type on that machine: isthmus admit NAME {keys.pair.public}"
        return "to be admitted", "that this key is not", do
    if reason == handshakes.KEYLESS:
        return "a daemon with keys", "one without", "Start it with a machine.toml that has [keys] secret."
    do = "Compare the public_key in the cluster file with the NAME.pub there, and see that its daemon has keys."
    return "the machine whose public key was given", "one that has another key, or none", do
