"""The outpost of a run on a machine that is not its home: its station there, on a link to the home.

It decides nothing. Its hosts speak to it on loopback, as they would to the daemon of their home, so they need not know
that the run is elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from isthmus.runtime.control.messages import Message
from isthmus.runtime.daemon.local_processes import Launch
from isthmus.runtime.daemon.outpost_messages import of_report, read_orders
from isthmus.runtime.daemon.site import Site
from isthmus.runtime.supervision.station import BEAT_SECONDS


class Outpost:
    """The part of run `run` that is on this machine, in `folder`. `send` takes a message home, or loses it; `on_over`
    is called once, when every process has ended for good."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        *,
        run: str,
        name: str,
        launch: Launch,
        send: Callable[[Message], None],
        on_over: Callable[[], None],
    ) -> None:
        """Bind; zmq.ZMQError, OSError or sqlite3.Error if that cannot be."""
        self.folder, self.run = folder, run
        self._loop, self._is_closed = loop, False
        self._site = Site(
            loop,
            folder,
            run=run,
            name=name,
            listen="tcp://127.0.0.1:*",
            launch=launch,
            is_at_home=False,
            report=lambda report, shown: send({**of_report(report, shown), "run": run}),
            on_over=on_over,
        )

    def start(self) -> None:
        """Say where this outpost is, and adopt the hosts that live here."""
        self._site.start()
        self._beat()

    def order(self, message: Mapping[str, Any]) -> None:
        """Do what the home says; KeyError, TypeError or ValueError for what no home of ours says."""
        self._site.order(*read_orders(message))

    def end(self) -> None:
        """End every host, and be over."""
        self._site.leave()

    def close(self) -> None:
        """Let go of everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self._site.close()

    def _beat(self) -> None:
        if not self._is_closed:
            self._site.beat()
            self._loop.call_later(BEAT_SECONDS, self._beat)
