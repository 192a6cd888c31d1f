"""A daemon's records on disk: the numbers that a home gave, the lives begun here with their processes, and notes.

A number is recorded before it is used, in a transaction that survives a power failure: until the disk accepts it, the
number does not exist. Everything else is written as soon as the disk accepts it. A process is identified by its pid and
its start time, as the kernel reports it, so that a reused pid is not mistaken for it.

A ledger that is missing where there was one, or that cannot be read, is *lost*: the file is renamed, and the caller is
told, because numbers must not start from the beginning again. The new one records the loss, for its home and for its
station, until each has made up for it. After a reboot none of the recorded processes exists.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.system import processes
from isthmus.runtime.system.locks import has_record_locks
from isthmus.runtime.system.refusals import is_absent

FILE: Final = "daemon.sqlite"
Whose: TypeAlias = Literal["home", "station"]
_LOST_OF: Final[dict[Whose, str]] = {"home": "lost home", "station": "lost station"}
_BOOT: Final = "boot"
_LOST: Final = "".join(f"insert into notes values ('{name}', x''); " for name in _LOST_OF.values())
LOST: Final = "daemon.sqlite.lost"
"""The name that an unreadable ledger is renamed to."""
_SCHEMA: Final = """
create table if not exists notes (name text primary key, value blob not null);
create table if not exists numbers (
    role text not null, slot integer not null, incarnation integer not null, primary key (role, slot)
);
create table if not exists lives (
    role text not null, slot integer not null, incarnation integer not null, pid integer, started integer,
    primary key (role, slot, incarnation)
);
"""


class LedgerError(OSError):
    """The ledger could not be written, so nothing was recorded; it may be tried again."""


class LedgerRow(NamedTuple):
    """The newest life of a replica that was begun here; `pid` is None where its process is not known."""

    member: Member
    pid: int | None
    is_alive: bool


class Kernel(Protocol):
    """What a ledger has to know of processes."""

    def boot_id(self) -> bytes:
        """The id of the machine's present boot."""

    def started_at(self, pid: int, /) -> int | None:
        """When a process started, in any unit; None if there is none of that pid."""


class Ledger:
    """The ledger of one run on one machine, in its `folder`; `connect` opens a database, `kernel` knows processes."""

    def __init__(
        self,
        folder: Path,
        *,
        was_there: bool = False,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
        kernel: Kernel = processes,
    ) -> None:
        """Open or create the file; `was_there`: a daemon was here before. sqlite3.Error or OSError on failure."""
        self._path, self._connect, self._kernel = folder / FILE, connect, kernel
        self._owed: dict[tuple[str, str], tuple[str, tuple[Any, ...]]] = {}
        try:
            self._database = self._opened(was_there)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:  # The file is torn, or not a database.
            for suffix in ("", "-wal", "-shm"):
                with suppress(FileNotFoundError):
                    (folder / f"{FILE}{suffix}").replace(folder / f"{LOST}{suffix}")
            self._database = self._opened(was_there=True)
        self._identity = identity(self._path)
        self._has_rebooted = self.noted(_BOOT) not in (None, kernel.boot_id())
        if self._has_rebooted:  # These pids now belong to other processes, for every later daemon, too.
            self._owe(("lives", ""), "update lives set pid = null, started = null", ())
        self.note(_BOOT, kernel.boot_id())

    def restore(self) -> bool:
        """Rewrite the file, with all its contents, if it was deleted under this daemon; returns whether it was.

        If the disk does not accept it, the next call tries again.
        """
        try:
            if identity(self._path) == self._identity:
                return False
        except OSError:  # Nobody knows.
            return False
        kept = sqlite3.connect(":memory:", isolation_level=None)
        try:
            self._database.backup(kept)  # The file has no name any more, and exists as long as it is open.
            for suffix in ("", "-wal", "-shm"):
                self._path.with_name(f"{FILE}{suffix}").unlink(missing_ok=True)
            database = self._opened(was_there=False)
            kept.backup(database)
        except (sqlite3.Error, OSError):
            return False
        finally:
            kept.close()
        self._database.close()
        self._database, self._identity = database, identity(self._path)
        return True

    def is_lost(self, whose: Whose) -> bool:
        """Whether an earlier ledger was lost, and the home or the station here has not made up for it."""
        return self.noted(_LOST_OF[whose]) is not None

    def mark_whole(self, whose: Whose) -> None:
        """Record that the loss of the ledger before this one was made up for."""
        key = _LOST_OF[whose]
        self._owe(("note", key), "delete from notes where name = ?", (key,))

    def _opened(self, was_there: bool) -> sqlite3.Connection:
        """The open database; one created where there was one before is lost from its first transaction on."""
        database = self._connect(self._path, isolation_level=None)
        try:
            database = self._in_wal(database)
            # With `normal` a power failure loses the newest transactions, and their numbers would be given again.
            database.execute("pragma synchronous = full")
            has_tables = database.execute("select 1 from sqlite_master where name = 'notes'").fetchone() is not None
            lost = "" if has_tables or not was_there else _LOST
            database.executescript(f"begin; {_SCHEMA} {lost} commit;")
            if database.execute("pragma quick_check").fetchone() != ("ok",):
                raise sqlite3.DatabaseError("it is damaged")
        except BaseException:
            database.close()
            raise
        return database

    def _in_wal(self, database: sqlite3.Connection) -> sqlite3.Connection:
        """The database with a write-ahead log. On a disk without locks another one, without either: whoever opens a
        ledger has its folder (`RunLock`), and "database is locked" would be no word about another."""
        try:
            database.execute("pragma journal_mode = wal")
        except sqlite3.OperationalError:
            if has_record_locks(self._path.parent):
                raise
            database.close()
            database = self._connect(_lockless(self._path), uri=True, isolation_level=None)
        return database

    # -- numbers of a home ---------------------------------------------------------------------------------------------

    def give(self, members: Iterable[Member]) -> None:
        """Record the numbers of future lives; LedgerError if the disk does not accept them."""
        self._write_all(
            "insert into numbers values (?, ?, ?) on conflict (role, slot) "
            "do update set incarnation = max(incarnation, excluded.incarnation)",
            members,
        )

    def numbers(self) -> tuple[Member, ...]:
        """The newest number of every replica that was given one."""
        rows = self._database.execute("select role, slot, incarnation from numbers order by role, slot").fetchall()
        return tuple(Member(Replica(role, slot), incarnation) for role, slot, incarnation in rows)

    # -- lives on this machine -----------------------------------------------------------------------------------------

    def begin(self, members: Iterable[Member]) -> None:
        """Record lives that are about to begin here; LedgerError if the disk does not accept them."""
        self._write_all("insert or ignore into lives (role, slot, incarnation) values (?, ?, ?)", members)

    def started(self, member: Member, pid: int) -> None:
        """Record the process of a life."""
        replica = member.replica
        self._owe(
            ("life", str(member)),
            "insert into lives values (?, ?, ?, ?, ?) on conflict (role, slot, incarnation) "
            "do update set pid = excluded.pid, started = excluded.started",
            (replica.role, replica.slot, member.incarnation, pid, self._kernel.started_at(pid)),
        )

    def newest(self) -> list[LedgerRow]:
        """The newest life of every replica of which one was begun here, and whether its process exists."""
        rows = self._database.execute(
            "select role, slot, max(incarnation), pid, started from lives group by role, slot order by role, slot"
        ).fetchall()
        return [
            LedgerRow(Member(Replica(role, slot), incarnation), pid, pid is not None and self._is_there(pid, started))
            for role, slot, incarnation, pid, started in rows
        ]

    def _is_there(self, pid: int, started: int | None) -> bool:
        return not self._has_rebooted and started is not None and self._kernel.started_at(pid) == started

    def move(self, former: str | None) -> None:
        """Turn this ledger, of a run that had its home elsewhere, into that of a home here.

        The lives in it were on that machine; they are replaced by those of this machine, from the ledger in the
        database `former`, with its record of a loss. The rest may be old, so it counts as lost for the home.
        LedgerError if the disk does not accept that.
        """
        try:
            if former is not None:
                self._database.execute("attach database ? as former", (former,))
            self._database.execute("begin immediate")
            self._database.execute("delete from lives")
            self._database.execute("delete from notes where name = ?", (_LOST_OF["station"],))
            if former is not None:
                self._database.execute("insert into lives select * from former.lives")
                lost = "insert into notes select * from former.notes where name = ?"
                self._database.execute(lost, (_LOST_OF["station"],))
            self._database.execute("insert or replace into notes values (?, x'')", (_LOST_OF["home"],))
            self._database.execute("commit")
        except sqlite3.Error as error:
            raise LedgerError(f"{self._path} cannot be written: {error}") from None

    # -- notes ---------------------------------------------------------------------------------------------------------

    def note(self, name: str, value: bytes) -> None:
        """Keep a value for the next daemon, in place of an earlier one under this name."""
        self._owe(("note", name), "insert or replace into notes (name, value) values (?, ?)", (name, value))

    def noted(self, name: str) -> bytes | None:
        """The value under a name; None if there is none."""
        row = self._database.execute("select value from notes where name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def settle(self) -> bool:
        """Write what the disk did not accept; returns whether nothing is left."""
        try:
            for key, (statement, values) in list(self._owed.items()):
                self._database.execute(statement, values)
                del self._owed[key]
        except sqlite3.Error:
            return False
        return True

    def close(self) -> None:
        self.settle()
        self._database.close()

    def _owe(self, key: tuple[str, str], statement: str, values: tuple[Any, ...]) -> None:
        """Execute a statement now, or as soon as possible, in place of one pending under the same key."""
        self._owed[key] = statement, values
        self.settle()

    def _write_all(self, statement: str, members: Iterable[Member]) -> None:
        """Execute a statement for each member, in one transaction."""
        named = list(members)
        rows = [(member.replica.role, member.replica.slot, member.incarnation) for member in named]
        try:
            self._database.execute("begin immediate")
            try:
                self._database.executemany(statement, rows)
                self._database.execute("commit")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._database.execute("rollback")
                raise
        except sqlite3.Error as error:
            raise LedgerError(
                f"noting {', '.join(map(str, named))}: {self._path} cannot be written: {error}. "
                "Make room on its disk, or mend it; it is tried again."
            ) from None


def opened_to_read(folder: Path) -> sqlite3.Connection:
    """The ledger in a folder, to be read; sqlite3.Error where there is none."""
    database = sqlite3.connect(f"{_uri(folder / FILE)}?mode=ro", uri=True)
    try:
        database.execute("select 1 from sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        with suppress(OSError):
            if not has_record_locks(folder):
                return sqlite3.connect(f"{_lockless(folder / FILE)}&mode=ro", uri=True)
        raise
    except BaseException:
        database.close()
        raise
    return database


def _uri(path: Path) -> str:
    return f"file:{quote(os.fsencode(path))}"


def _lockless(path: Path) -> str:
    return f"{_uri(path)}?vfs=unix-none"


def living(folder: Path) -> list[int]:
    """The pids of all lives in the ledger of a folder whose process exists; none where it cannot be read."""
    try:
        with closing(opened_to_read(folder)) as database:
            rows = database.execute("select pid, started from lives where pid is not null").fetchall()
            boot = database.execute("select value from notes where name = ?", (_BOOT,)).fetchone()
    except sqlite3.Error:
        return []
    if boot is not None and bytes(boot[0]) != processes.boot_id():
        return []
    return [pid for pid, started in rows if started is not None and processes.started_at(pid) == started]


def identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of the file or folder at a path; None if there is none, OSError where that is not known."""
    try:
        status = path.stat()
    except OSError as error:
        if is_absent(error):
            return None
        raise
    return status.st_dev, status.st_ino
