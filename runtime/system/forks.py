"""Connections that a process forked from this one does not keep.

Where a host is beside code of its user's, that code may fork: a DataLoader forks its workers. A fork has every
descriptor, and a connection ends for its peer only when nobody has it any more; so a worker that outlives a killed
process would keep a dead host connected. libzmq names none of its sockets, so that a fork knows them by their
addresses: those that this process has dialled, or listens at.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from isthmus.runtime.system.addresses import host_and_port, is_literal, text_of

_IPC: Final = "ipc://"
_MAPPED: Final = "::ffff:"
"""Before an address of IPv4 in a socket of IPv6."""
_noted: Final[set[str]] = set()
_is_noting = False


def close_in_forks(also: Callable[[], None]) -> None:
    """From now on close, in every fork, the connections that are noted, and then call `also`. It is never undone."""
    global _is_noting
    _is_noting = True

    def after_fork() -> None:
        _close()
        also()

    os.register_at_fork(after_in_child=after_fork)


def note(endpoint: str) -> None:
    """Note an endpoint that this process dials or listens at, as libzmq takes it."""
    if not _is_noting:
        return
    if endpoint.startswith(_IPC):
        _noted.add(endpoint.removeprefix(_IPC))
        return
    host, port = host_and_port(endpoint)
    _noted.add(text_of(host, port) if is_literal(host) else f":{port}")  # Its address is known to libzmq only.


def _close() -> None:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            connection = socket.socket(fileno=int(name))
            if _noted.isdisjoint(_names(connection)):
                connection.detach()
            else:
                connection.close()


def _names(connection: socket.socket) -> Iterator[str]:
    """The addresses of both ends of a socket, as they may be noted."""
    for look in (connection.getsockname, connection.getpeername):
        with suppress(OSError):
            address: Any = look()
            if isinstance(address, tuple):
                host, port = str(address[0]).removeprefix(_MAPPED), address[1]
                yield from (text_of(host, port), f":{port}")
            elif isinstance(address, str | bytes) and address:
                yield os.fsdecode(address).replace("\0", "@", 1)
