"""The outpost of a run on a machine that is not its home: its station there, on a link to the home.

It decides nothing. Its hosts connect to it on loopback, as they would to the daemon of their home, so they need not
know that the run is elsewhere.
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
from isthmus.runtime.supervision.station_events import FollowHome, TurnAway
from isthmus.runtime.tape.files import TAPE_BYTES


class Outpost:
    """The part of run `run` on this machine, in `folder`.

    `send` sends a message to the home that it follows, and may lose it; `home` is that at first, in `term`, and
    `follow` and `turn_away` perform the commands about homes. Without orders it ends its hosts after `lonely_seconds`;
    `on_over` is called once, when every process has ended for good.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        folder: Path,
        *,
        run: str,
        name: str,
        home: str,
        term: int,
        launch: Launch,
        send: Callable[[Message], None],
        follow: Callable[[FollowHome], None],
        turn_away: Callable[[TurnAway], None],
        lonely_seconds: float,
        on_over: Callable[[], None],
        tape_bytes: int = TAPE_BYTES,
    ) -> None:
        """Bind; zmq.ZMQError, OSError or sqlite3.Error if that fails."""
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
            home=home,
            term=term,
            follow=follow,
            turn_away=turn_away,
            lonely_beats=round(lonely_seconds / BEAT_SECONDS),
            report=lambda report, shown: send({**of_report(report, shown), "run": run}),
            on_over=on_over,
            tape_bytes=tape_bytes,
        )

    def start(self) -> None:
        """Publish this outpost's endpoint, and adopt the hosts that live here."""
        self._site.start()
        self._beat()

    def call(self, home: str, term: int) -> None:
        """A machine claims to be the home of the run."""
        self._site.call(home, term)

    def order(self, home: str, message: Mapping[str, Any]) -> None:
        """Handle orders of a machine that claims to be the home; KeyError, TypeError or ValueError for invalid ones."""
        orders, keys = read_orders(message)
        if orders.home != home:
            raise ValueError(f"orders of {orders.home[:100]!r}, given by {home!r}")
        self._site.order(orders, keys)

    def end(self) -> None:
        """End every host, then be over."""
        self._site.leave()

    def close(self) -> None:
        """Release everything; the hosts, if any are left, go on."""
        self._is_closed = True
        self._site.close()

    def _beat(self) -> None:
        if not self._is_closed:
            self._site.beat()
            self._loop.call_later(BEAT_SECONDS, self._beat)
