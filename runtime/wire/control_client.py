"""The ends of control messages that dial a daemon: a command's, and a host's.

Decides how long a command waits for its answer (`ask`), in which words it reports keys that are missing or wrong, and
when a host dials its daemon again, or another one (`ControlClient`). `control_messages` decides the form of a message.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import zmq

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system import addresses, forks
from isthmus.runtime.system.shared_loop import Handle, Loop
from isthmus.runtime.wire import security_curve
from isthmus.runtime.wire.control_messages import (
    MESSAGE_BYTES_MAX,
    TURN_MESSAGES_MAX,
    Message,
    decode,
    encode,
    is_of_this_version,
    version_of,
)
from isthmus.runtime.wire.security_curve import Handshakes
from isthmus.runtime.wire.security_keys import Keyring, check_server

CUTS_MAX: Final = 5
"""Attempts of a command whose handshake was cut without a reason, as libzmq does for a wrong key, and sometimes for a
missing one; a tenth of a second each."""

CONNECT_SECONDS_MAX: Final = 2.0
"""For one address of a name."""


def ask(
    endpoint: str,
    message: Message,
    seconds_max: float = 5.0,
    *,
    keys: Keyring | None = None,
    server_key: str = "",
) -> Message | None:
    """Send one message from a command, and wait for one answer; None if none comes in time.

    ConfigError if the answer is not from a daemon, or from one of another version, and where keys are missing or wrong.
    """
    doing = f"Talking to the daemon at {endpoint}"
    check_server(endpoint, keys, server_key, doing)
    context = zmq.Context()
    try:
        with context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            security_curve.secure_client(socket, keys, server_key)
            monitor = security_curve.watched(socket, context, security_curve.FAILURES)
            try:
                security_curve.allow_ipv6(socket, endpoint)
                socket.connect(_reached(endpoint))
                # A handshake may have failed already, so that sending is impossible; the monitor reports the reason.
                with suppress(zmq.Again):
                    socket.send(encode(message), zmq.NOBLOCK)
                data = _first(socket, monitor, seconds_max, doing, keys, endpoint)
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


def _reached(endpoint: str) -> str:
    """The endpoint, with the address that accepts a connection in place of a name: libzmq would try one only."""
    host, _ = addresses.host_and_port(endpoint)
    if not (endpoint.startswith("tcp://") and addresses.is_name(host)):
        return endpoint
    try:
        with addresses.connect(endpoint, CONNECT_SECONDS_MAX) as connection:
            return f"tcp://{addresses.text_of(*connection.getpeername()[:2])}"
    except OSError:
        return endpoint


def check_greeting(endpoint: str, seconds_max: float) -> None:
    """OSError unless what listens at an endpoint greets, as every daemon does before keys are shown; blocks.

    A tunnel accepts connections, and hangs up where nothing listens at its far end.
    """
    try:
        with addresses.connect(endpoint, seconds_max) as connection:
            connection.settimeout(seconds_max)
            connection.sendall(_SIGNATURE)
            first = connection.recv(1)
    except TimeoutError:
        raise OSError(f"no answer within {seconds_max:g} s") from None
    except ConnectionResetError:
        first = b""
    except OSError as error:
        raise OSError(error.strerror or str(error)) from None
    if first != _SIGNATURE[:1]:
        raise OSError("no daemon is there, but what answers otherwise" if first else HUNG_UP)


def _first(
    socket: zmq.Socket[bytes],
    monitor: zmq.Socket[bytes],
    seconds_max: float,
    doing: str,
    keys: Keyring | None,
    endpoint: str,
) -> bytes | None:
    """The first message that comes in time, None if none does; ConfigError if keys prevent it.

    A single cut attempt proves nothing: the daemon may have ended, and another started.
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
        reason = security_curve.failure(monitor.recv_multipart())
        cuts += reason == security_curve.CUT
        if reason is not None and (reason != security_curve.CUT or cuts == CUTS_MAX):
            if reason == security_curve.CUT:
                _check_behind(endpoint, doing)
            raise ConfigError(doing, *_in_the_way(reason, keys))


def _check_behind(endpoint: str, doing: str) -> None:
    """ConfigError where no daemon is behind what accepts connections at an endpoint."""
    try:
        check_greeting(endpoint, CONNECT_SECONDS_MAX)
    except OSError as error:
        do = "Start it there. If a tunnel leads there, its far end is the address at which the daemon listens."
        raise ConfigError(doing, "a daemon there", str(error), do) from None


def _in_the_way(reason: str, keys: Keyring | None) -> tuple[str, str, str]:
    """(expected, found, what to do) of an error about keys."""
    if keys is None:
        do = "Name a key of yours that it admits: [keys] secret in the cluster file, and its own as public_key."
        return "a daemon without keys", "one that has keys", do
    if reason == security_curve.UNADMITTED:
        do = f"Type on that machine: isthmus admit NAME {keys.pair.public}"
        return "to be admitted", "that this key is not", do
    if reason == security_curve.KEYLESS:
        return "a daemon with keys", "one without", "Start it with a machine.toml that has [keys] secret."
    do = "Compare the public_key in the cluster file with the NAME.pub there, and see that its daemon has keys."
    return "the machine whose public key was given", "one that has another key, or none", do


_SIGNATURE: Final = b"\xff" + bytes(8) + b"\x7f"
"""The first bytes of ZMTP, which both sides send."""
HUNG_UP: Final = "it accepts connections, and hangs up before it says anything"
"""What `check_greeting` finds at a tunnel to nowhere."""
RETRY_SECONDS: Final = 1.0
"""Delay between two attempts of a client that is not admitted yet; each costs the server half a millisecond."""


class ControlClient:
    """A host's end: a DEALER that dials the daemon, and another one on request.

    With `keys` it accepts only the machine that has `server_key`; `on_refused` is called with the reason of each failed
    attempt, a key of `security_curve.WORDS`, and `on_stranger` with each message of another version. It goes on trying.
    """

    def __init__(
        self,
        loop: Loop,
        endpoint: str,
        handle: Callable[[Message], None],
        *,
        keys: Keyring | None = None,
        server_key: str = "",
        is_far: bool = False,
        on_refused: Callable[[str], None] = lambda reason: None,
        on_stranger: Callable[[Message], None] = lambda message: None,
    ) -> None:
        """Dial, `is_far` through a bucket; ConfigError if the endpoint is off loopback, and there are no keys or no
        `server_key`."""
        self._loop = loop
        self._handle, self._on_refused, self._on_stranger = handle, on_refused, on_stranger
        self._keys, self._server_key, self._is_far = keys, server_key, is_far
        check_server(endpoint, keys, server_key, f"Dialling the daemon at {endpoint}")
        self._context = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._handshakes: Handshakes | None = None
        self._retry: Handle | None = None
        self._dials = 0
        """Attempts so far: of a name, libzmq tries one address, so that every other one is of IPv4."""
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
        if self._is_far:
            self._socket.setsockopt(zmq.HANDSHAKE_IVL, security_curve.handshake_ms(is_far=True))
        if self._keys is not None:
            security_curve.secure_client(self._socket, self._keys, self._server_key)
            self._handshakes = Handshakes(self._loop, self._context, self._socket, self._failed)
        if self._dials % 2 == 0 or endpoint.startswith("tcp://["):
            security_curve.allow_ipv6(self._socket, endpoint)
        self._dials += 1
        forks.note(endpoint)
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
        for _ in range(TURN_MESSAGES_MAX):
            if socket is not self._socket or not int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
                return
            try:
                message = decode(socket.recv(zmq.NOBLOCK))
            except ValueError:
                continue
            if is_of_this_version(message):
                self._handle(message)
            else:
                self._on_stranger(message)
        self._loop.call_soon(self._drain)  # More may be there.
