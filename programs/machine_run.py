"""One run under the daemon of a machine: its `Daemon`, its lease, and its end.

A run that is *watched* has a lease, which its command renews with every question. The machine's daemon ticks; when
nobody has asked for LEASE_TICKS_MAX ticks, the command is gone. A tick that comes late counts once, so a daemon that
was stopped does not blame its commands. A run that is *detached* has no lease.

Summary and report are written by a process of its own, because this one loads nobody's code and has other runs.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs import spec
from isthmus.programs.finishing import Ending, finish_apart
from isthmus.programs.launch import Launcher
from isthmus.runtime.daemon import Daemon
from isthmus.runtime.errors import ConfigError
from isthmus.runtime.ledger import Ledger
from isthmus.runtime.store import write_json

TICK_SECONDS: Final = 1.0
LEASE_TICKS_MAX: Final = 10
"""A command asks four times a second; ten seconds without a question are long for a busy machine, too."""


@final
class MachineRun:
    """A run from when it is taken until it is over; `on_over` is called then, once."""

    def __init__(
        self, loop: Any, folder: Path, told: spec.Spec, *, machine: str, is_watched: bool, on_over: Callable[[], None]
    ) -> None:
        """Bind, and start the processes soon, which may take a second or more.

        Raises OSError, sqlite3.Error, zmq.ZMQError or RunError if the run cannot be supervised.
        """
        self.folder = folder
        self._loop, self._machine, self._on_over = loop, machine, on_over
        self._unheard = 0 if is_watched else None
        self._launch = Launcher(loop, folder, told.computing)
        self.daemon = Daemon(
            loop,
            folder,
            told.roles,
            name=machine,
            listen="tcp://127.0.0.1:*",
            launch=self._launch,
            on_over=self._finish,
        )
        loop.call_soon(self._start)

    @property
    def is_watched(self) -> bool:
        """Whether it ends with its command."""
        return self._unheard is not None

    def renew(self) -> None:
        """Its command has asked something."""
        if self._unheard is not None:
            self._unheard = 0

    def tick(self) -> bool:
        """Whether its command is gone, a tick after the last time."""
        if self._unheard is None or self.daemon.outcome != "running":
            return False
        self._unheard += 1
        return self._unheard > LEASE_TICKS_MAX

    def log(self, line: str) -> None:
        """Write a line into the run's own log of its daemon; a folder that is gone costs the line."""
        with suppress(OSError):
            (self.folder / "logs").mkdir(exist_ok=True)
            with (self.folder / "logs" / "daemon.log").open("a") as file:
                file.write(f"isthmus daemon {self._machine}: {line}\n")

    def _start(self) -> None:
        try:
            self.daemon.start()
        except (OSError, sqlite3.Error) as error:
            self.daemon.end("failed", f"its processes could not be started: {type(error).__name__}: {error}")

    def _finish(self, daemon: Daemon) -> None:
        """Every process has ended."""
        by_hosts = sum(value for name, value in daemon.former_figures.items() if name.endswith(".cpu_seconds"))
        ending = Ending.of(daemon, by_hosts + self._launch.cpu_seconds)

        def work() -> None:
            try:
                finish_apart(self.folder, ending)
            finally:
                self._loop.call_soon_threadsafe(self._over)

        threading.Thread(target=work, name=f"finish {self.folder.name}").start()

    def _over(self) -> None:
        with suppress(OSError):
            write_json(self.folder / "over.json", {"outcome": self.daemon.outcome, "error": self.daemon.error})
        self.daemon.close()
        self._on_over()


def told_of(folder: Path, doing: str) -> spec.Spec:
    """What the run folder says; ConfigError if nobody has prepared a run there."""
    try:
        if not folder.is_absolute():
            raise FileNotFoundError(f"{folder} is no absolute path")
        return spec.load(folder)
    except (OSError, TypeError, KeyError, ValueError) as error:
        do = "Hand runs over with: isthmus train --cluster FILE."
        raise ConfigError(doing, f"a run's {spec.SPEC}", f"{type(error).__name__}: {error}", do) from None


def has_hosts(folder: Path) -> bool:
    """Whether any host of a run lives."""
    ledger = Ledger(folder / "daemon.sqlite")
    try:
        return bool(ledger.living())
    finally:
        ledger.close()
