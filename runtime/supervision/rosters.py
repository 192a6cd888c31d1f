"""Lists that are sent as changes: the roster of a run, and the directory of its machines.

A `Table` has the rows of such a list by name, in the order in which they changed; a row that is gone leaves its name
there, so that its end is a change like any other. What a receiver holds is identified by a *mark*. Between home and
stations that is a digest of the rows: it says of itself what they are, whichever daemon has sent them, and a station
tells its own in each report; the home sends what has changed since, or the whole where it does not know that mark.
Between a station and a host it is the number of a version: what a station sends arrives in order, or its connection is
another one. A host whose mark is not the one that a change begins at has missed some, and asks for the whole.

A host is sent what concerns it (`Met`): its own row, and those of the replicas that it meets.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta

from isthmus.runtime.ids import NUMBER_MAX, Count, MachineOwner, Name, Replica

Row: TypeAlias = tuple[str, int, tuple[str, ...], str]
"""A row of a roster: (replica, incarnation, endpoints, machine) of a live member."""
MachineRow: TypeAlias = tuple[str, str, MachineOwner | None]
"""A row of a directory: (machine, its public key or '', its owner if it has one)."""
MET_MAX: Final = 64
"""Kinds of replicas that a host meets: more roles than a graph has."""
MARKS_MAX: Final = 4096
"""Marks whose versions a table remembers: of a receiver that has missed so many changes it needs the whole."""
_DIGEST_BYTES: Final = 7
"""A mark fits into a Count; that two lists of a run have the same by chance, has a chance of 2**-56."""


class Met(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """Replicas that a host meets: of a role, those in slots `first`, `first` + `step` and so on; with a step of 0 the
    first alone."""

    role: Name
    first: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 0
    step: Annotated[int, Meta(ge=0, le=NUMBER_MAX)] = 1

    def holds(self, replica: Replica) -> bool:
        """Whether a replica is one of them."""
        past = replica.slot - self.first
        return replica.role == self.role and (past == 0 or (self.step > 0 and past > 0 and past % self.step == 0))


MetRoles: TypeAlias = Annotated[tuple[Met, ...], Meta(max_length=MET_MAX)]


class RosterDifference(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The rows that have changed, and the names of those that are gone, between two marks; `since` None: all rows."""

    mark: Count
    since: Count | None = None
    rows: tuple[Row, ...] = ()
    gone: tuple[str, ...] = ()


class DirectoryDifference(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The same of a directory."""

    mark: Count
    since: Count | None = None
    rows: tuple[MachineRow, ...] = ()
    gone: tuple[str, ...] = ()


Change: TypeAlias = RosterDifference | DirectoryDifference


class Table:
    """Rows by their names, which are replicas or machines. `mark` is their digest, `version` how often they changed."""

    __slots__ = ("_kinds", "_marks", "mark", "version")

    def __init__(self) -> None:
        self.mark = self.version = 0
        self._kinds: dict[str, dict[str, tuple[int, Any]]] = {}
        """Role -> name -> (version, row, or None of one that is gone), the last change last; of machines the role ''.
        """
        self._marks: dict[int, int] = {0: 0}

    def rows(self) -> tuple[Any, ...]:
        """All of them, in the order in which they changed."""
        return tuple(row for entries in self._kinds.values() for _, row in entries.values() if row is not None)

    def follow(self, rows: Iterable[Any]) -> None:
        """Have these rows, and no others."""
        present = {row[0]: row for row in rows}
        gone = [row[0] for row in self.rows() if row[0] not in present]
        self._change(present.values(), gone)

    def take(self, change: Change) -> None:
        """Apply a change that begins at this table's mark; any other changes nothing, and the mark says so."""
        if change.since is None:
            self.follow(change.rows)
        elif change.since == self.mark:
            self._change(change.rows, change.gone)

    def after(self, mark: int) -> tuple[int | None, tuple[Any, ...], tuple[str, ...]] | None:
        """What a receiver with this mark lacks: (mark, or None for the whole; rows; names that are gone); None where
        that is nothing."""
        version = self._marks.get(mark)
        if mark == self.mark:
            return None
        if version is None:
            return None, self.rows(), ()
        return mark, *self.since(version)

    def has_news(self, version: int, met: Met) -> bool:
        """Whether a row of these has changed, or is gone, since a version."""
        return next(self._changed(version, (met,)), None) is not None

    def since(self, version: int, among: Sequence[Met] | None = None) -> tuple[tuple[Any, ...], tuple[str, ...]]:
        """The rows, of all or those `among` these, that have changed since a version, and the names of those gone."""
        changed = dict(self._changed(version, among))  # Of those that are named twice, once.
        names = sorted(changed)
        # What holds nothing has not to forget either.
        gone = tuple(name for name in names if changed[name] is None) if version else ()
        return tuple(changed[name] for name in names if changed[name] is not None), gone

    def _changed(self, version: int, among: Sequence[Met] | None) -> Iterator[tuple[str, Any]]:
        whole = [Met(role) for role in self._kinds] if among is None else among
        for met in whole:
            entries = self._kinds.get(met.role, {})
            if met.step == 0:
                name = str(Replica(met.role, met.first))
                if name in entries and entries[name][0] > version:
                    yield name, entries[name][1]
                continue
            is_all = met.first == 0 and met.step == 1
            for name, (at, row) in reversed(entries.items()):
                if at <= version:
                    break
                if is_all or met.holds(Replica.parse(name)):
                    yield name, row

    def _change(self, rows: Iterable[Any], gone: Iterable[str]) -> None:
        at = self.version + 1
        for row in rows:
            self._put(row[0], row, at)
        for name in gone:
            self._put(name, None, at)
        if self.version == at:
            self._marks.pop(self.mark, None)  # The last one comes last, also where the same rows have been before.
            self._marks[self.mark] = at
            if len(self._marks) > MARKS_MAX:
                del self._marks[next(iter(self._marks))]

    def _put(self, name: str, row: Any, at: int) -> None:
        entries = self._kinds.setdefault(name.partition("/")[0] if "/" in name else "", {})
        _, former = entries.get(name, (0, None))
        if former == row:
            return
        entries.pop(name, None)
        entries[name] = at, row
        self.version = at
        self.mark ^= (0 if former is None else _digest(former)) ^ (0 if row is None else _digest(row))


def _digest(row: Any) -> int:
    digest = hashlib.blake2b(msgspec.msgpack.encode(row), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(digest, "big")


ASK_AGAIN: Final = 8
"""Messages of its station after which a host that has asked for the whole asks again: four seconds."""


class RosterCopy:
    """The rows that a host holds of its station's roster; `asks` counts how often it has asked for all of them."""

    __slots__ = ("_mark", "_rows", "_unanswered", "asks")

    def __init__(self) -> None:
        self.asks = 0
        self._mark: int | None = None
        self._rows: dict[str, Row] = {}
        self._unanswered: int | None = None

    def rows(self) -> list[Row]:
        """All of them."""
        return list(self._rows.values())

    def take(self, change: RosterDifference) -> tuple[list[Row], list[str]] | None:
        """Apply a change; returns the rows that are new or changed, and the names of those that are gone; None for a
        change that begins elsewhere, because one before it was missed."""
        if change.since is not None and change.since != self._mark:
            self._ask()
            return None
        self._unanswered = None
        self._mark = change.mark
        gone = [name for name in change.gone if name in self._rows]
        if change.since is None:
            present = {row[0] for row in change.rows}
            gone = [name for name in self._rows if name not in present]
        rows = [row for row in change.rows if self._rows.get(row[0]) != row]
        for name in gone:
            del self._rows[name]
        self._rows.update((row[0], row) for row in rows)
        return rows, gone

    def _ask(self) -> None:
        if self._unanswered is None or self._unanswered >= ASK_AGAIN:
            self.asks, self._unanswered = self.asks + 1, 0
        else:
            self._unanswered += 1
