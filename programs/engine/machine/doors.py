"""The door of a daemon: where others reach it. By default its own endpoint; a wing may put another one before it.

A door is made before the daemon binds, and never waited for. It decides nothing about whom the daemon admits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol, final

from isthmus.programs import wing_table
from isthmus.runtime.wire.security_keys import Keyring, is_loopback


class Door(Protocol):
    """Where others reach a daemon."""

    inner: str
    """The endpoint at which the daemon itself is to listen."""
    endpoint: str
    """Where others reach it; '' where that is the endpoint that it has bound."""
    leads_in: bool
    """Whether what comes to it is led to the hosts of this machine, too."""

    def start(self, inner: str) -> None:
        """Lead to the daemon from now on, which has bound that endpoint."""

    def peer(self, address: str) -> str:
        """The address from which a connection really comes that the daemon sees come from `address`."""

    def close(self) -> None:
        """Close it."""


MakeDoor = Callable[
    [asyncio.AbstractEventLoop, str, Keyring | None, Callable[[], Iterable[str]], Callable[[str], None]], Door
]
"""(loop, listen, keys, listening, tell) -> a door of the daemon that others reach at `listen`: `listening()` returns
the endpoints of the hosts here, and `tell` gets lines for people. OSError if the address is taken."""


@final
class OwnDoor:
    """The daemon's own endpoint."""

    endpoint = ""
    leads_in = False

    def __init__(self, listen: str) -> None:
        self.inner = listen

    def start(self, inner: str) -> None:
        return

    def peer(self, address: str) -> str:
        return address

    def close(self) -> None:
        return


def door_that_leads_in(listen: str) -> MakeDoor | None:
    """What makes a door at `listen` that leads to the hosts of a machine; None on loopback where nothing does.

    ConfigError where nothing does and others than this machine come there.
    """
    if is_loopback(listen) and not wing_table.has_door():
        return None
    made: MakeDoor = wing_table.door()
    return made
