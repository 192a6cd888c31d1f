"""What has crossed between the daemon of a run's home and those of other machines, while it has the run.

Decides what counts for a run: messages that name it, and those that name none, such as announcements, which are then in
the account of every run of this home. Messages are counted by their type; of a request and its answer by what was
requested. Only machines that are linked count: commands are no part of a run.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final, final

from isthmus.programs.engine.machine.links import REQUEST, RESPONSE, MachineLinks
from isthmus.runtime.channels.crossings import FRAMING, ITEMS, Account, Direction, EdgeCrossing, Tally
from isthmus.runtime.clock import Instant
from isthmus.runtime.wire import account_files
from isthmus.runtime.wire.control_messages import Message
from isthmus.runtime.wire.zmtp_sizes import greeting_bytes

DAEMON: Final = "daemon/0"
TYPE_LENGTH_MAX: Final = 32
TYPES_MAX: Final = 256
"""Distinct types of messages, of all machines: those beyond it count as 'others'."""


@final
class LinkAccount:
    """The account of the run named `run`, in `folder`, whose home is `machine`; `zero_ns` is that of the run's clock.

    It is written every ACCOUNT_SECONDS, and by `close` a last time.
    """

    def __init__(
        self, loop: Any, links: MachineLinks, folder: Path, run: str, machine: str, zero_ns: int, *, is_encrypted: bool
    ) -> None:
        self._loop, self._links, self._folder, self._run, self._machine = loop, links, folder, run, machine
        self._zero_ns, self._is_encrypted = zero_ns, is_encrypted
        self._tallies: dict[tuple[str, Direction, str], Tally] = {}
        self._greetings: dict[str, int] = {}
        self._is_closed = False
        links.accounts.append(self._count)
        self._write_later()

    def close(self) -> None:
        """Count nothing more, and write the last account."""
        if not self._is_closed:
            self._is_closed = True
            self._links.accounts.remove(self._count)
            self._write(is_last=True)

    def _now(self) -> Instant:
        return Instant(time.monotonic_ns() - self._zero_ns)

    def _count(self, machine: str, message: Message | None, size_bytes: int, direction: Direction) -> None:
        """A message has crossed; None: a connection was made."""
        if message is None:
            self._greetings[machine] = self._greetings.get(machine, 0) + 1
            return
        inner = message.get("message")
        asked = inner if message["type"] in (REQUEST, RESPONSE) and isinstance(inner, dict) else message
        if message.get("run", asked.get("run", self._run)) != self._run:
            return
        key = machine, direction, str(asked.get("type"))[:TYPE_LENGTH_MAX]
        if key not in self._tallies and len(self._tallies) >= TYPES_MAX:
            key = machine, direction, "others"
        self._tallies.setdefault(key, Tally()).add(size_bytes, self._now())

    def _write_later(self) -> None:
        if not self._is_closed:
            self._write()
            self._loop.call_later(account_files.ACCOUNT_SECONDS, self._write_later)

    def _write(self, *, is_last: bool = False) -> None:
        account = [self._line(machine, way, ITEMS, each, kind) for (machine, way, kind), each in self._tallies.items()]
        received, sent = greeting_bytes(dials=True, is_encrypted=self._is_encrypted)
        for machine, count in self._greetings.items():
            for way, size_bytes in _ways(sent, received):
                greetings = Tally()
                greetings.size_bytes = count * size_bytes
                account.append(self._line(machine, way, FRAMING, greetings))
        account_files.write(
            account_files.of_home(self._folder),
            Account(
                DAEMON,
                0,
                self._machine,
                self._now(),
                time.time(),
                is_last,
                self._is_encrypted,
                account,
                dict(self._links.error_texts),
            ),
        )

    def _line(self, machine: str, way: Direction, kind: str, tally: Tally, edge: str = "") -> EdgeCrossing:
        return EdgeCrossing.of(
            {"peer": DAEMON, "incarnation": 0, "machine": machine, "through": ""}, way, kind, tally, edge
        )


def _ways(sent: int, received: int) -> tuple[tuple[Direction, int], tuple[Direction, int]]:
    return ("sent", sent), ("received", received)
