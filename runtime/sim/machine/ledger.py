"""The ledger of a simulated daemon: the guarantees of SQLite, on a simulated disk.

A write is whole and durable, or refused. The faults decide whether the ledger can be read; the daemons decide its
contents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.sim.machine.disk import Mount

RECORD_BYTES: Final = 64
"""Approximate bytes of a write, on a disk that fills up."""


@dataclass(slots=True)
class Book:
    """The contents of a ledger on disk.

    `was_there`: a daemon has been here; `lost` names the cores that have not made up yet for an unreadable ledger.
    """

    numbers: dict[Replica, int] = field(default_factory=dict)
    lives: dict[Replica, tuple[int, int | None]] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    was_there: bool = False
    lost: set[str] = field(default_factory=set)

    def forget(self) -> None:
        """The run has left this machine: drop its lives, and the record of a loss."""
        self.lives = {}
        self.lost.discard("station")

    def take_over(self, former: Book) -> None:
        """Become the ledger of a new home, from that of the home before, as far as that can be trusted."""
        self.numbers = dict(former.numbers)
        self.notes = {**self.notes, **former.notes}
        self.lost = {*self.lost, "home"}

    def lose(self) -> None:
        """The file is missing, or torn."""
        self.numbers, self.lives, self.notes = {}, {}, {}
        self.lost = {"home", "station"} if self.was_there else set()


class SimulatedLedger:
    """The ledger of one daemon, while it is alive."""

    def __init__(self, book: Book, mount: Mount) -> None:
        book.was_there = True
        self._book, self._mount = book, mount
        self._owed: dict[Any, Any] = {}

    def is_lost(self, whose: str) -> bool:
        """Whether an earlier ledger was lost, and the home or the station has not made up for it."""
        return whose in self._book.lost

    def found(self, whose: str) -> None:
        """Record that it has, now or later."""
        self._owed["found", whose] = None
        self.settle()

    def numbers(self) -> tuple[Member, ...]:
        """The newest number of every replica that was given one."""
        return tuple(Member(*each) for each in sorted(self._book.numbers.items()))

    def newest(self) -> list[tuple[Member, int | None]]:
        """The newest life of every replica of which one was begun here, and its process."""
        return [(Member(replica, number), pid) for replica, (number, pid) in sorted(self._book.lives.items())]

    def noted(self, name: str) -> Any:
        """The value under a name."""
        return self._book.notes.get(name)

    def give(self, members: Iterable[Member]) -> None:
        """Record numbers of a home; OSError if the disk does not accept them."""
        self._mount.disk().ask(size=RECORD_BYTES)
        for member in members:
            known = self._book.numbers.get(member.replica, 0)
            self._book.numbers[member.replica] = max(member.incarnation, known)

    def begin(self, members: Iterable[Member]) -> None:
        """Record lives that are about to begin here; OSError if the disk does not accept them."""
        self._mount.disk().ask(size=RECORD_BYTES)
        for member in members:
            if member.incarnation > self._book.lives.get(member.replica, (0, None))[0]:
                self._book.lives[member.replica] = member.incarnation, None

    def started(self, member: Member, pid: int) -> None:
        """Record the process of a life, now or later."""
        self._owed[member] = pid
        self.settle()

    def note(self, name: str, value: Any) -> None:
        """Keep a value for the next daemon, now or later."""
        self._owed[name] = value
        self.settle()

    def settle(self) -> None:
        """Write what the disk did not accept."""
        try:
            for key, value in list(self._owed.items()):
                self._mount.disk().ask(size=RECORD_BYTES)
                del self._owed[key]
                if isinstance(key, tuple):
                    self._book.lost.discard(key[1])
                elif isinstance(key, str):
                    self._book.notes[key] = value
                elif self._book.lives.get(key.replica, (0, None))[0] <= key.incarnation:
                    self._book.lives[key.replica] = key.incarnation, value
        except OSError:
            return
