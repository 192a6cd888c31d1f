"""A command's end of control messages: one question, one answer, or an error that a person understands."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Final

import zmq

from isthmus.runtime.control.messages import (
    MESSAGE_BYTES_MAX,
    Message,
    decode,
    encode,
    is_of_this_version,
    version_of,
)
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.security import handshakes
from isthmus.runtime.security.keys import Keyring, check_server

CUTS_MAX: Final = 5
"""Attempts of a command whose handshake was cut without a reason, as libzmq does for a wrong key, and sometimes for a
missing one; a tenth of a second each."""


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
            handshakes.secure_client(socket, keys, server_key)
            monitor = handshakes.watched(socket, context, handshakes.FAILURES)
            try:
                socket.connect(endpoint)
                # A handshake may have failed already, so that sending is impossible; the monitor reports the reason.
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
        reason = handshakes.failure(monitor.recv_multipart())
        cuts += reason == handshakes.CUT
        if reason is not None and (reason != handshakes.CUT or cuts == CUTS_MAX):
            raise ConfigError(doing, *_in_the_way(reason, keys))


def _in_the_way(reason: str, keys: Keyring | None) -> tuple[str, str, str]:
    """(expected, found, what to do) of an error about keys."""
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
