"""What a daemon says to the service manager that started it, as systemd with `Type=notify`: sd_notify(3).

Decides when it is ready (its loop runs, and it listens), that it is alive (a beat of that loop, at least twice within
WATCHDOG_USEC), what it does (its runs), and that it is stopping. Where nothing is said no manager listens.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Final, Self, final

BEAT_SECONDS: Final = 1.0
SHARE_OF_WATCHDOG: Final = 0.4
"""A beat may be late by as much again, and there was one within the time all the same."""


@final
class ServiceManager:
    """The manager that listens at `address`, empty for none; it wants a sign of life every `watchdog_seconds`."""

    def __init__(self, address: str = "", watchdog_seconds: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        beat = BEAT_SECONDS if watchdog_seconds is None else watchdog_seconds * SHARE_OF_WATCHDOG
        self._beat_seconds = min(BEAT_SECONDS, beat)
        self._watches = watchdog_seconds is not None
        self._said: dict[str, str] = {}

    @classmethod
    def of(cls, variables: MutableMapping[str, str]) -> Self:
        """The manager that the environment names; its variables are taken out, since they are not for hosts."""
        address = variables.pop("NOTIFY_SOCKET", "")
        microseconds, pid = variables.pop("WATCHDOG_USEC", ""), variables.pop("WATCHDOG_PID", "")
        is_watched = microseconds.isdigit() and int(microseconds) > 0 and pid in ("", str(os.getpid()))
        return cls(address, int(microseconds) / 1e6 if is_watched else None)

    def follow(self, later: Callable[[float, Callable[[], None]], None], doing: Callable[[], str]) -> None:
        """Say that the daemon is ready, now that its loop calls this, and from now on that it is alive, and its work.

        `later(seconds, call)` calls on that loop; `doing` is one line.
        """
        if not self._address:
            return
        fields = {"READY": "1", "STATUS": doing()}
        self._notify_changed(fields, {"WATCHDOG": "1"} if self._watches else {})
        later(self._beat_seconds, lambda: self.follow(later, doing))

    def stop(self) -> None:
        """Say that the daemon is stopping, once; signs of life go on."""
        self._notify_changed({"STOPPING": "1"}, {})

    def _notify_changed(self, fields: dict[str, str], always: dict[str, str]) -> None:
        changed = {name: value for name, value in fields.items() if self._said.get(name) != value}
        self._said |= changed
        self._notify(changed | always)

    def _notify(self, fields: dict[str, str]) -> None:
        """Send the fields in one datagram; one that the manager does not take is lost."""
        if not self._address or not fields:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(f"{name}={value}" for name, value in fields.items()).encode(), self._address)
