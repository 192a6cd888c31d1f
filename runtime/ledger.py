"""The daemon's memory on disk: which incarnation of each replica was started as which process, and a few notes.

A number is taken before the process starts, in one transaction, and never given again. A process is known by its pid
and the time of its start, as the kernel tells it, so that a pid that was given to somebody else is not mistaken.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import NamedTuple

from isthmus.runtime.ids import Replica

_SCHEMA = """
create table if not exists notes (name text primary key, value blob not null);
create table if not exists lives (
    role text not null, slot integer not null, incarnation integer not null, pid integer, started integer,
    primary key (role, slot, incarnation)
);
"""


class Row(NamedTuple):
    """One life; `started` in clock ticks since the machine booted."""

    incarnation: int
    pid: int
    started: int | None


class Ledger:
    """The lives of a run's hosts, in a SQLite file."""

    def __init__(self, path: Path) -> None:
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma synchronous = normal")
        self._database.executescript(_SCHEMA)

    def next(self, replica: Replica) -> int:
        """Take the next incarnation of a replica, from 1 on."""
        row = self._database.execute(
            "insert into lives (role, slot, incarnation) "
            "values (?, ?, 1 + (select coalesce(max(incarnation), 0) from lives where role = ? and slot = ?)) "
            "returning incarnation",
            (replica.role, replica.slot, replica.role, replica.slot),
        ).fetchone()
        return int(row[0])

    def take(self, replica: Replica, incarnation: int) -> None:
        """Take an incarnation whose number somebody else has given; it may be taken already."""
        self._database.execute(
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
        self._database.execute(
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
        self._database.execute("insert or replace into notes (name, value) values (?, ?)", (name, value))

    def noted(self, name: str) -> bytes | None:
        """What was kept under a name."""
        row = self._database.execute("select value from notes where name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def close(self) -> None:
        """Close the file."""
        self._database.close()


def started_at(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if there is none of that pid, or it is a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold anything, so the fields are counted from its end; the state is the first.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
