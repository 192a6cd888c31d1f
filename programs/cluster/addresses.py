"""The address of a machine's daemon, as the user writes it: tcp://ADDRESS:PORT, on loopback where there are no keys.

Without keys nothing is encrypted, and anyone who reaches a daemon may start and end runs.
"""

from __future__ import annotations

import re
import socket
from typing import Final

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.wire.security_keys import DO_KEYS, is_loopback

_FORM: Final = re.compile(r"tcp://(?P<host>[^:/\[\]]+):(?P<port>\d{1,5}|\*)")
_PORT_MAX: Final = 65535
ANSWER_SECONDS_MAX: Final = 2.0


def checked(text: str, doing: str, *, may_choose: bool = False, has_keys: bool = False) -> str:
    """The endpoint that `text` names; ConfigError if it is no address, or, without keys, one that others can reach.

    Port 0 or * is a free one, for a daemon that `may_choose`.
    """
    form = _FORM.fullmatch(text)
    port = None if form is None else 0 if form["port"] == "*" else int(form["port"])
    if form is None or port is None or port > _PORT_MAX or not (port or may_choose):
        free = "; port 0 is any free one" if may_choose else ""
        raise ConfigError(doing, f"tcp://ADDRESS:PORT{free}", repr(text), "Write for example tcp://127.0.0.1:7400.")
    host = "127.0.0.1" if form["host"] == "localhost" else form["host"]
    if not has_keys and not is_loopback(f"tcp://{host}:{port}"):
        expected = "an address that only this machine reaches, 127.0.0.1, because there are no keys"
        raise ConfigError(doing, expected, repr(form["host"]), f"Keys come first. {DO_KEYS}")
    return f"tcp://{host}:{port or '*'}"


def is_listening(endpoint: str) -> bool:
    """Whether a process accepts connections at `endpoint`; the kernel refuses an unused port at once."""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS_MAX).close()
    except OSError:
        return False
    return True
