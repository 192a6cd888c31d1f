"""Control messages between a daemon, its hosts and commands: small msgpack maps over ZeroMQ, on loopback.

Decides what such a message may be and how it travels; what it asks for is the daemon's or the host's business. Each
message is one frame, a map with a text `type`. It carries no payloads: a message larger than MESSAGE_BYTES_MAX, or one
that is no such map, is dropped and counted. Everybody dials the daemon, which binds.

Every message names the version of isthmus that it comes from. Nobody acts on one of another version: a daemon counts it
and answers what it is itself, a host drops it, a command tells its user.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib import metadata
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]
import zmq

from isthmus.runtime.errors import ConfigError

MESSAGE_BYTES_MAX: Final = 4 << 20
"""A status with the accounts of 64 learners and 64 fragments takes a quarter of this."""
PROTOCOL: Final = 1
HEARTBEAT_SECONDS: Final = 0.25
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

    `on_stranger` is told of each message of another version.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        endpoint: str,
        handle: Callable[[bytes, Message], None],
        on_stranger: Callable[[Message], None] = lambda message: None,
    ) -> None:
        """Bind; zmq.ZMQError if the endpoint is taken."""
        self._loop = loop
        self._handle = handle
        self._on_stranger = on_stranger
        self.refused: Counter[str] = Counter()
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError:
            self._socket.close(0)
            self._context.term()
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
        self._socket.close()
        self._context.term()

    def _drain(self) -> None:
        if self._socket.closed:
            return
        while int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN:
            frames = self._socket.recv_multipart(zmq.NOBLOCK)
            try:
                if len(frames) != 2:
                    raise ValueError(f"not a control message: {len(frames) - 1} frames")
                message = decode(frames[1])
            except ValueError as error:
                self.refused[str(error).partition(":")[0]] += 1
                continue
            if is_of_this_version(message):
                self._handle(frames[0], message)
            else:
                self.refused["another version"] += 1
                self.send(frames[0], {"type": "another version"})
                self._on_stranger(message)


class ControlClient:
    """A host's end: a DEALER that dials the daemon, and dials again where it is told to."""

    def __init__(self, loop: asyncio.AbstractEventLoop, endpoint: str, handle: Callable[[Message], None]) -> None:
        self._loop = loop
        self._handle = handle
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self.endpoint = ""
        self.dial(endpoint)

    def dial(self, endpoint: str) -> None:
        """Leave the daemon that was dialled, if any, and dial this one."""
        self._hang_up()
        self.endpoint = endpoint
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 500)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
        self._socket.setsockopt(zmq.SNDHWM, 64)
        self._socket.connect(endpoint)
        self._file = self._socket.fileno()
        self._loop.add_reader(self._file, self._drain)
        self._loop.call_soon(self._drain)

    def send(self, message: Message) -> None:
        """Hand a message over; one that the daemon does not take is dropped, for the next heartbeat says it again."""
        if self._socket is None:
            return
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Hang up for good; what was handed over is still sent, for half a second."""
        self._hang_up()
        self._context.term()

    def _hang_up(self) -> None:
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


def ask(endpoint: str, message: Message, seconds_max: float = 5.0) -> Message | None:
    """Send one message from a command, and wait for one answer; None if none comes in time.

    ConfigError if what answers is no daemon, or one of another version.
    """
    context = zmq.Context()
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.connect(endpoint)
            socket.send(encode(message))
            if not socket.poll(round(seconds_max * 1000)):
                return None
            data = socket.recv()
    finally:
        context.term()
    doing = f"Talking to the daemon at {endpoint}"
    try:
        answer = decode(data)
    except ValueError as error:
        do = "Look at the address: something else listens there."
        raise ConfigError(doing, "an answer of a daemon of isthmus", str(error), do) from None
    if not is_of_this_version(answer):
        do = "Use one version: end that daemon, and start it again with the isthmus that you call it with."
        raise ConfigError(doing, f"{version_of()}, as here", version_of(answer), do)
    return answer
