"""Whether this machine lets processes be hosts of a run: descriptors, a compiler, a loopback interface to talk over."""

from __future__ import annotations

import socket
from importlib.util import find_spec
from typing import Final

from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system.processes import check_descriptors
from isthmus.runtime.system.refusals import is_own, remedy
from isthmus.runtime.wire.daemon_notes import forget, private_endpoint

COMPILER: Final = "numba"
LOOPBACK_SECONDS_MAX: Final = 2.0
DESCRIPTORS_BASE: Final = 48
"""Of a host: it has 40 beside those of its connections, and some more while it opens its bodies."""
DESCRIPTORS_A_HOST: Final = 4
"""Of a host that hears all others, as the evaluator and the recorder do, for each: control and data, both ways."""


def check_room_for(doing: str, hosts: int) -> None:
    """ConfigError unless each of so many hosts may have as many files open as it has connections."""
    check_descriptors(doing, DESCRIPTORS_BASE + DESCRIPTORS_A_HOST * hosts)


def check_compiler(doing: str) -> None:
    """ConfigError unless kernels can be compiled here, without which nothing is merged; a machine that only joins runs
    needs no compiler."""
    if find_spec(COMPILER) is None:
        do = f"Install it: pip install {COMPILER}. Without it this machine can join a run: isthmus join."
        raise ConfigError(doing, f"{COMPILER}, which compiles what merges", "none", do)


def check_loopback(doing: str) -> None:
    """ConfigError unless processes of this machine reach each other: hosts at 127.0.0.1, a daemon at its socket."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            socket.create_connection(server.getsockname(), timeout=LOOPBACK_SECONDS_MAX).close()
    except OSError as error:
        if is_own(error):
            raise
        do = "Bring it up (ip link set lo up), or train in one process: --transport inproc."
        expected = "a loopback interface, over which the processes of a run talk"
        raise ConfigError(
            doing, expected, f"127.0.0.1 out of reach: {error.strerror or error}", remedy(error, do)
        ) from None
    try:
        forget(private_endpoint())
    except OSError as error:
        expected, do = "room for the daemon's socket in the temporary folder", "Set TMPDIR to another folder."
        raise ConfigError(doing, expected, str(error), remedy(error, do)) from None
