"""The porter of a daemon: the process beside it that accepts connections at its port (`porter_process`).

It tells it at which endpoints the hosts of this machine listen. The daemon holds the listening socket, so that no
connection is refused while the porter starts again; it never waits for its porter.
"""

from __future__ import annotations

import asyncio
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, final

from isthmus.runtime.system import addresses
from isthmus.runtime.system.children import Child, KeptChild
from isthmus.runtime.wire.security_keys import Keyring, check_open

BACKLOG: Final = 512
"""Connections that wait while a porter starts again, a tenth of a second."""
PEERS_MAX: Final = 4096
_PROCESS: Final = "isthmus.programs.wings.one_port.porter_process"


@final
class Porter:
    """The porter of the daemon that others reach at `listen` (`engine.machine.doors.Door`).

    `listening()` returns the endpoints of the hosts here, and `tell` gets lines for people.
    """

    inner: Final = "tcp://127.0.0.1:*"
    leads_in: Final = True

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listen: str,
        keys: Keyring | None,
        listening: Callable[[], Iterable[str]],
        tell: Callable[[str], None],
    ) -> None:
        """Bind; OSError if the address is taken or not of this machine, ConfigError where keys are missing."""
        check_open(listen, keys, f"Listening at {listen}")
        self._loop, self._listening, self._tell = loop, listening, tell
        host, port = addresses.host_and_port(listen)
        self._socket = _listening_at(host, 0 if port == "*" else int(port))
        self.endpoint = f"tcp://{addresses.text_of('::' if host == '*' else host, self._socket.getsockname()[1])}"
        self._daemon_port = ""
        self._child = KeptChild("its porter", self._begin, state=self._open, hear=self._hear)
        self._peers: OrderedDict[str, str] = OrderedDict()

    def start(self, inner: str) -> None:
        """Start the process; the daemon listens at `inner`."""
        self._daemon_port = inner.rpartition(":")[2]
        self._child.start(self._loop, self._tell)

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return self._child.pid

    def peer(self, address: str) -> str:
        """The address from which a connection really comes that the daemon sees come from `address`."""
        self._child.hear()
        return self._peers.get(address, address)

    def close(self) -> None:
        """End the process, and free the port."""
        self._child.close()
        self._socket.close()

    def _begin(self) -> Child:
        listener = self._socket.fileno()
        return Child(_PROCESS, [self._daemon_port, listener], files=[listener])

    def _open(self) -> dict[str, Any]:
        return {"open": sorted(map(_address, self._listening()))}

    def _hear(self, message: Mapping[str, Any]) -> None:
        """An address on loopback and the peer that it stands for, or a bound that is reached."""
        if "full" in message:
            self._tell(_words_of_bound(*message["full"]))
            return
        self._peers[message["source"]] = message["peer"]
        self._peers.move_to_end(message["source"])
        if len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)


def _listening_at(host: str, port: int) -> socket.socket:
    """A socket that listens: at all addresses where a name, or *, stands for them (`security_curve.bind`)."""
    if host == "*" or (addresses.is_name(host) and host != "localhost"):
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return addresses.serve(host, port, BACKLOG)


def _words_of_bound(kind: str, bound: int, site: str) -> str:
    what = "connections" if kind == "ways" else "connections that do not say where they lead"
    whose = f"of {site}" if site else "in all"
    then = "further ones are refused" if kind == "ways" else "the oldest are hung up on"
    return f"its porter has {bound} {what} {whose}, as many as there may be; {then}"


def _address(endpoint: str) -> list[Any]:
    host, port = addresses.host_and_port(endpoint)
    return [host, int(port)]
