"""Trials of the way between two machines, for `isthmus doctor`: a port that is opened for a while, or is dialled.

Decides how many ports are open at once, and for how long: nothing is read from them. Any admitted machine may have one
opened, because it will dial the ports of hosts here; only an operator may have others dialled.
"""

from __future__ import annotations

import asyncio
import socket
import time
from types import MappingProxyType
from typing import Final, final

from isthmus.programs.engine.cluster.cluster_file import checked_address
from isthmus.programs.engine.machine.services import DaemonService, ServedMachine
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.system import addresses
from isthmus.runtime.system.refusals import remedy
from isthmus.runtime.wire.control_messages import Message

OPEN: Final = "open-port"
DIAL: Final = "dial-port"
OPEN_SECONDS: Final = 10.0
"""The caller dials at once, for three seconds at most."""
OPEN_MAX: Final = 8
DIAL_SECONDS_MAX: Final = 3.0
"""A firewall that drops packets lets a caller wait for minutes."""


@final
class TrialPorts(DaemonService):
    """The open ports of a daemon.

    A port is a listening socket at which nothing is accepted: the kernel completes a caller's connection by itself.
    """

    messages = MappingProxyType({OPEN: "open", DIAL: "dial"})

    def __init__(self) -> None:
        self._open: list[socket.socket] = []

    def start(self, machine: ServedMachine) -> None:
        self._machine, self._name = machine, machine.name

    def open(self, message: Message) -> Message:
        """Open a port at the daemon's address for OPEN_SECONDS; the answer has it, and this machine's time.

        ConfigError if OPEN_MAX are open, or none can be opened.
        """
        doing = f"Opening a port for a trial at the daemon {self._name!r}"
        if len(self._open) >= OPEN_MAX:
            do = f"Try again in {OPEN_SECONDS:.0f} s."
            raise ConfigError(doing, f"{OPEN_MAX} at once, at most", f"{len(self._open)} that are open", do)
        host, _ = addresses.host_and_port(self._machine.endpoint)
        try:
            server = addresses.serve(host if addresses.is_literal(host) else "", 0, 1)  # A name: at all addresses.
        except OSError as error:
            do = "Look at the limits of its daemon."
            raise ConfigError(doing, "a free port", error.strerror or str(error), remedy(error, do)) from None
        self._open.append(server)
        self._machine.loop.call_later(OPEN_SECONDS, self._close, server)
        return {
            "type": "opened",
            "name": self._name,
            "port": server.getsockname()[1],
            "time_ns": time.time_ns(),
        }

    def close(self) -> None:
        """Close all ports."""
        for server in list(self._open):
            self._close(server)

    async def dial(self, message: Message) -> Message:
        """Dial a port; the answer has the seconds that it took, None with the reason if it was not reached."""
        address = checked_address(str(message["endpoint"]), "Dialling a port for a trial", has_keys=True)
        host, port = addresses.host_and_port(address)
        began = time.monotonic()
        try:
            async with asyncio.timeout(DIAL_SECONDS_MAX):
                _, writer = await asyncio.open_connection(host, int(port))
        except TimeoutError:
            return _dialled(None, f"no answer within {DIAL_SECONDS_MAX:.0f} s")
        except OSError as error:
            return _dialled(None, error.strerror or str(error))
        writer.close()
        return _dialled(time.monotonic() - began, "")

    def _close(self, server: socket.socket) -> None:
        if server in self._open:
            self._open.remove(server)
            server.close()


def _dialled(seconds: float | None, refusal: str) -> Message:
    return {"type": "dialled", "seconds": seconds, "refusal": refusal}
