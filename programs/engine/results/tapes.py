"""What a host did, by its tape alone: for lives that were killed, which leave no spans. Pure.

The tapes in a run folder: which there are, their owners, and their records.

A tape is there as files `NAME.NUMBER.tape`, where NAME is ROLE-SLOT-LIFE, home-PID or station-PID; the oldest may have
been deleted. Describes the faults of a file, and decides nothing about its contents.

The number of times that an inner step waited for another host, by the tape of its learner alone. Pure.

A wait lies between the end of one step and the beginning of the next. It was ended by the event that began the next
step; where that is the end of a firing beside it, which itself began during the wait, the wait was ended by the event
that began that firing, and so on. The wait was for another host if the last of these is an item or a credit that came
from one, and for this host's own work, or for a core, if not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.results.lines import read as read_lines
from isthmus.runtime.clock import Instant
from isthmus.runtime.cores.scheduler_events import (
    CreditGranted,
    FiringEnded,
    HostRecord,
    ItemArrived,
    ItemsEmitted,
    RunBody,
)
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.host.contract import Span
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.driver import HomeRecord, StationRecord
from isthmus.runtime.system.files import read_bytes
from isthmus.runtime.tape import reading
from isthmus.runtime.tape.reading import FOLDER, Reading, named


def firings_of(plan: Plan, host: str, records: Sequence[HostRecord]) -> Iterator[Span]:
    """The completed firings of the nodes of `plan` on the tape of `host`, ordered by their ends.

    Transfers are on no tape: the sender of an item does not learn of its arrival.
    """
    names = {node.index: node.name for node in plan.nodes}
    begun: dict[int, Instant] = {}
    for record in records:
        event = record.event
        if isinstance(event, FiringEnded) and event.node in begun and event.node in names:
            yield Span(host, names[event.node], begun.pop(event.node), record.at)
        for command in record.commands:
            if isinstance(command, RunBody):
                begun[command.node] = record.at


HOME: Final = "home"
STATION: Final = "station"
_DAEMON: Final = re.compile(rf"({HOME}|{STATION})-(\d+)")
_LIFE: Final = re.compile(r"(.+)-(\d+)-(\d+)")


class TapeFile(NamedTuple):
    """A tape: its name, its kind ('home', 'station', or 'host'), its member (None for a daemon's), the process of a
    daemon (0 for a host's), and its files, in the order in which they were written."""

    name: str
    kind: str
    member: Member | None
    pid: int
    paths: tuple[Path, ...] = ()


def of_folder(folder: Path) -> tuple[list[TapeFile], list[str]]:
    """The tapes of a run folder, hosts before daemons; and the names of files that are none."""
    paths: dict[str, list[tuple[int, Path]]] = {}
    others = []
    for path in sorted((folder / FOLDER).glob("*.tape*")):
        parts = named(path.name)
        if parts is None or _file(parts[0]) is None:
            others.append(path.name)
        else:
            paths.setdefault(parts[0], []).append((parts[1], path))
    files = []
    for name, numbered in paths.items():
        if (file := _file(name)) is not None:
            files.append(file._replace(paths=tuple(path for _, path in sorted(numbered))))
    return sorted(files, key=lambda file: (file.member is None, file.kind, file.member or 0, file.pid)), others


def of(folder: Path, member: Member) -> TapeFile | None:
    """The tape of one life; None if it is not here."""
    return next((file for file in of_folder(folder)[0] if file.member == member), None)


def of_lives(folder: Path) -> dict[Member, Reading]:
    """The tapes of all lives of hosts in a folder; ValueError or OSError if one cannot be read."""
    return {file.member: read(file) for file in of_folder(folder)[0] if file.member is not None}


def _file(name: str) -> TapeFile | None:
    """The tape of a name, without its files; None if no tape has it."""
    if daemon := _DAEMON.fullmatch(name):
        return TapeFile(name, daemon[1], None, int(daemon[2]))
    if life := _LIFE.fullmatch(name):
        return TapeFile(name, "host", Member(Replica(life[1], int(life[2])), int(life[3])), 0)
    return None


def read(file: TapeFile) -> Reading:
    """The contents of a tape. ValueError if it is damaged or no tape, OSError if it cannot be read."""
    kinds: Mapping[str, type[Any]] = {HOME: HomeRecord, STATION: StationRecord}
    kind = kinds.get(file.kind, HostRecord)
    return reading.joined([reading.read(read_bytes(path), kind) for path in file.paths])


def broken_off(folder: Path) -> frozenset[tuple[str, int]]:
    """The lives, as (host, incarnation), that ended otherwise than in order, by events.jsonl: the last record on their
    tapes may be unfinished."""
    return frozenset(_broken(read_lines(folder / "events.jsonl", dict)))


def _broken(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, int]]:
    for event in events:
        end = event.get("end") or {}
        is_orderly = event.get("kind") == "ended" and (end.get("exited") or end).get("status") == 0
        if event.get("kind") in ("ended", "condemned") and not is_orderly:
            yield str(event.get("host")), int(event.get("incarnation") or 0)


STEP: Final = "inner-step"
BATCH: Final = "batch"
WAIT_NS_MIN: Final = 1_000_000
"""Shorter waits are hops of a loop, as for `stall_seconds` of summary.json."""


class HostWait(NamedTuple):
    """A wait for another host, in nanoseconds of the run's clock."""

    begun: int
    ended: int


def waits_on_others(plan: Plan, records: Sequence[HostRecord]) -> Iterator[HostWait]:
    """The waits for other hosts of the inner steps on the tape of a learner of `plan`, by their times."""
    node = next(node for node in plan.nodes if node.name == STEP)
    batch = [port.name for port in node.inputs].index(BATCH)
    began_at: dict[int, int] = {}
    """Node -> the record at which its present firing, or its last one, began."""
    ended: int | None = None
    is_step = False
    for number, record in enumerate(records):
        event = record.event
        for command in record.commands:
            if isinstance(command, RunBody) and command.node == node.index:
                has_batch = batch in dict(command.inputs)
                is_wait = ended is not None and is_step and has_batch and record.at - ended > WAIT_NS_MIN
                if ended is not None and is_wait and _is_of_another(records, number, ended, began_at):
                    yield HostWait(ended, record.at)
                is_step = has_batch
        if isinstance(event, FiringEnded) and event.node == node.index:
            ended = record.at
        for command in record.commands:
            if isinstance(command, RunBody):
                began_at[command.node] = number


def _is_of_another(records: Sequence[HostRecord], number: int, since: int, began_at: dict[int, int]) -> bool:
    """Whether the cause of a record, after `since`, is an item or a credit of another host.

    Each turn of the loop goes to an earlier record, so it ends.
    """
    while True:
        event = records[number].event
        if isinstance(event, ItemArrived | CreditGranted):
            return True
        if not isinstance(event, FiringEnded | ItemsEmitted):
            return False
        begun = began_at.get(event.node, number)
        if begun >= number or records[begun].at <= since:
            return False
        number = begun
