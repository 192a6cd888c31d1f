"""The porter of a daemon: the process beside it that accepts connections at its port (`runtime.wire.porter_process`).

It decides whether a daemon has one, starts it, starts it again when it has died, and tells it at which endpoints the
hosts of this machine listen. The daemon holds the listening socket, so that no connection is refused in between; it
never waits for its porter.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, final

from isthmus.programs.engine.request.spec import is_one_port
from isthmus.runtime.system import addresses
from isthmus.runtime.wire.porter_process import FULL
from isthmus.runtime.wire.security_keys import Keyring, check_open, is_loopback

BACKLOG: Final = 512
"""Connections that wait while a porter starts again, a tenth of a second."""
LOOK_SECONDS: Final = 0.1
RESTART_SECONDS: Final = 1.0
"""A porter that has lived for a shorter time is started again only after it."""
PEERS_MAX: Final = 4096
LINE_BYTES_MAX: Final = 256
_PROCESS: Final = "isthmus.runtime.wire.porter_process"


def is_porter_needed(listen: str, ports: str) -> bool:
    """Whether the daemon at `listen` has a porter: on loopback everything can be dialled, unless hosts are inside."""
    return not is_loopback(listen) or is_one_port(ports)


@final
class Porter:
    """The porter of the daemon that others reach at `listen`, and that itself listens at `INNER`.

    `listening()` returns the endpoints of the hosts here, and `tell` gets lines for people.
    """

    INNER: Final = "tcp://127.0.0.1:*"

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listen: str,
        keys: Keyring | None,
        *,
        listening: Callable[[], Iterable[str]],
        tell: Callable[[str], None],
    ) -> None:
        """Bind; OSError if the address is taken or not of this machine, ConfigError where keys are missing."""
        check_open(listen, keys, f"Listening at {listen}")
        self._loop, self._listening, self._tell = loop, listening, tell
        host, port = addresses.host_and_port(listen)
        self._socket = _listening_at(host, 0 if port == "*" else int(port))
        self.endpoint = f"tcp://{addresses.text_of('::' if host == '*' else host, self._socket.getsockname()[1])}"
        self._inner = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._said: list[tuple[str, int]] | None = None
        self._peers: OrderedDict[str, str] = OrderedDict()
        self._is_closed = False

    def start(self, inner: str) -> None:
        """Start the process; the daemon listens at `inner`."""
        self._inner = int(inner.rpartition(":")[2])
        self._begin()
        self._look()

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    def peer(self, address: str) -> str:
        """The address from which a connection really comes that the daemon sees come from `address`."""
        self._hear()
        return self._peers.get(address, address)

    def close(self) -> None:
        """End the process, and free the port."""
        self._is_closed = True
        process = self._process
        self._hang_up()
        self._socket.close()
        if process is not None:
            process.wait()

    def _begin(self) -> None:
        if self._is_closed:
            return
        self._line, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.setblocking(False)
        files = self._socket.fileno(), far.fileno()
        command = [sys.executable, "-m", _PROCESS, *map(str, files), str(self._inner)]
        with far:
            self._process = subprocess.Popen(command, pass_fds=files, stdin=subprocess.DEVNULL, env=dict(os.environ))
        self._said = None
        self._begun_at = self._loop.time()
        self._loop.add_reader(self._line.fileno(), self._hear)
        self._say()

    def _look(self) -> None:
        """Have the process know the endpoints of the hosts that live now."""
        if not self._is_closed:
            self._say()
            self._loop.call_later(LOOK_SECONDS, self._look)

    def _say(self) -> None:
        endpoints = sorted(map(_address, self._listening()))
        if self._line is not None and endpoints != self._said:
            # Where it has no room, because the process does not read, the next look tries again.
            with suppress(OSError):
                self._line.send(json.dumps(endpoints).encode())
                self._said = endpoints

    def _hear(self) -> None:
        """Lines of the process: an address on loopback and the peer that it stands for, or a bound that is reached."""
        while self._line is not None:
            try:
                line = self._line.recv(LINE_BYTES_MAX)
            except BlockingIOError:
                return
            except OSError:
                line = b""
            if not line:
                self._died()
                return
            source, _, peer = line.decode("ascii", "replace").partition(" ")
            if source == FULL:
                self._tell(_words_of_bound(*peer.split(" ", 2)))
                continue
            self._peers[source] = peer
            self._peers.move_to_end(source)
            if len(self._peers) > PEERS_MAX:
                self._peers.popitem(last=False)

    def _died(self) -> None:
        """The process has gone: start it again."""
        process, lived = self._process, self._loop.time() - self._begun_at
        self._hang_up()
        if process is not None:
            self._loop.run_in_executor(None, process.wait)  # Reaped by a thread: it may still be ending.
        if not self._is_closed:
            self._tell("its porter has died, and is started again; connections through it are made anew")
            self._loop.call_later(max(0.0, RESTART_SECONDS - lived), self._begin)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._loop.remove_reader(self._line.fileno())
            self._line.close()
        if self._process is not None:
            self._process.kill()
        self._line = self._process = None


def _listening_at(host: str, port: int) -> socket.socket:
    """A socket that listens: at all addresses where a name, or *, stands for them (`security_curve.bind`)."""
    if host == "*" or (addresses.is_name(host) and host != "localhost"):
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=True)
    return addresses.serve(host, port, BACKLOG)


def _words_of_bound(kind: str, bound: str, site: str) -> str:
    what = "connections" if kind == "ways" else "connections that do not say where they lead"
    whose = f"of {site}" if site else "in all"
    then = "further ones are refused" if kind == "ways" else "the oldest are hung up on"
    return f"its porter has {bound} {what} {whose}, as many as there may be; {then}"


def _address(endpoint: str) -> tuple[str, int]:
    host, port = addresses.host_and_port(endpoint)
    return host, int(port)
