"""The daemon's memory on disk: which incarnation of each replica was started as which process, and a few notes.

A number is taken before the process starts, in one transaction that outlives a power failure, and never given again:
as long as the disk does not take it, there is no number. Everything else is written as soon as the disk takes it. A
process is known by its pid and the time of its start, as the kernel tells it, so that a pid that was given to somebody
else is not mistaken.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.runtime.ids import Replica

_SCHEMA = """
create table if not exists notes (name text primary key, value blob not null);
create table if not exists lives (
    role text not null, slot integer not null, incarnation integer not null, pid integer, started integer,
    primary key (role, slot, incarnation)
);
"""


class LedgerError(OSError):
    """The ledger could not be written, so that no number was given; it may be tried again."""


class Row(NamedTuple):
    """One life; `started` in clock ticks since the machine booted."""

    incarnation: int
    pid: int
    started: int | None


class Ledger:
    """The lives of a run's hosts, in a SQLite file."""

    def __init__(self, path: Path) -> None:
        """Open or make the file; sqlite3.Error if that cannot be."""
        self._path = path
        self._owed: dict[tuple[str, str], tuple[str, tuple[Any, ...]]] = {}
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        # With `normal` the newest transactions are lost with the power, and their numbers would be given again.
        self._database.execute("pragma synchronous = full")
        self._database.executescript(_SCHEMA)

    def next(self, replica: Replica) -> int:
        """Take the next incarnation of a replica, from 1 on; LedgerError if it cannot be written."""
        rows = self._take(
            replica,
            "insert into lives (role, slot, incarnation) "
            "values (?, ?, 1 + (select coalesce(max(incarnation), 0) from lives where role = ? and slot = ?)) "
            "returning incarnation",
            (replica.role, replica.slot, replica.role, replica.slot),
        )
        return int(rows[0][0])

    def take(self, replica: Replica, incarnation: int) -> None:
        """Take an incarnation whose number somebody else has given; it may be taken already. LedgerError if it cannot
        be written."""
        self._take(
            replica,
            "insert or ignore into lives (role, slot, incarnation) values (?, ?, ?)",
            (replica.role, replica.slot, incarnation),
        )

    def last(self, replica: Replica) -> int:
        """The newest incarnation that was taken, whether or not it became a process; 0 if none was."""
        row = self._database.execute(
            "select coalesce(max(incarnation), 0) from lives where role = ? and slot = ?", (replica.role, replica.slot)
        ).fetchone()
        return int(row[0])

    def started(self, replica: Replica, incarnation: int, pid: int) -> None:
        """Note the process of an incarnation."""
        self._owe(
            ("life", f"{replica}#{incarnation}"),
            "update lives set pid = ?, started = ? where role = ? and slot = ? and incarnation = ?",
            (pid, started_at(pid), replica.role, replica.slot, incarnation),
        )

    def newest(self, replica: Replica) -> Row | None:
        """The newest life of a replica whose process is known, if there is one."""
        row = self._database.execute(
            "select incarnation, pid, started from lives where role = ? and slot = ? and pid is not null "
            "order by incarnation desc limit 1",
            (replica.role, replica.slot),
        ).fetchone()
        return None if row is None else Row(*row)

    def replicas(self) -> list[Replica]:
        """Every replica of which a life has become a process."""
        rows = self._database.execute(
            "select distinct role, slot from lives where pid is not null order by role, slot"
        ).fetchall()
        return [Replica(role, slot) for role, slot in rows]

    def living(self) -> list[int]:
        """The pids of all lives whose process is there."""
        rows = self._database.execute("select pid, started from lives where pid is not null").fetchall()
        return [pid for pid, started in rows if started is not None and started_at(pid) == started]

    def note(self, name: str, value: bytes = b"") -> None:
        """Keep something for the next daemon, in place of what was kept under this name."""
        self._owe(("note", name), "insert or replace into notes (name, value) values (?, ?)", (name, value))

    def settle(self) -> bool:
        """Write what the disk did not take; whether nothing is left."""
        try:
            for key, (statement, values) in list(self._owed.items()):
                self._database.execute(statement, values)
                del self._owed[key]
        except sqlite3.Error:
            return False
        return True

    def noted(self, name: str) -> bytes | None:
        """What was kept under a name."""
        row = self._database.execute("select value from notes where name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def close(self) -> None:
        """Close the file."""
        self.settle()
        self._database.close()

    def _owe(self, key: tuple[str, str], statement: str, values: tuple[Any, ...]) -> None:
        """Write something now, or as soon as it can be, in place of what was owed under the same key."""
        self._owed[key] = statement, values
        self.settle()

    def _take(self, replica: Replica, statement: str, values: tuple[Any, ...]) -> list[Any]:
        """Carry out a statement that gives a number."""
        try:
            # All rows are fetched, for only then the transaction ends.
            return self._database.execute(statement, values).fetchall()
        except sqlite3.Error as error:
            raise LedgerError(
                f"giving {replica} its next life: {self._path} cannot be written: {error}. "
                "Make room on its disk, or mend it; it is tried again."
            ) from None


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none of that pid, or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, so the fields are counted from its end; the state is the first.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
