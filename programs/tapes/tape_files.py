"""The tapes in a run folder: which there are, their owners, and their records.

A tape is there as files `NAME.NUMBER.tape`, where NAME is ROLE-SLOT-LIFE, home-PID or station-PID; the oldest may have
been deleted. Describes the faults of a file, and decides nothing about its contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.programs.results.json_lines import objects
from isthmus.runtime.cores.scheduler_events import HostRecord
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.driver import HomeRecord, StationRecord
from isthmus.runtime.tape import reading
from isthmus.runtime.tape.reading import FOLDER, Reading, named

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


def found(folder: Path) -> tuple[list[TapeFile], list[str]]:
    """The tapes of a run folder, hosts before daemons; and the names of files that are none."""
    paths: dict[str, list[tuple[int, Path]]] = {}
    others = []
    for path in sorted((folder / FOLDER).glob("*.tape*")):
        known = named(path.name)
        if known is None or _file(known[0]) is None:
            others.append(path.name)
        else:
            paths.setdefault(known[0], []).append((known[1], path))
    files = []
    for name, numbered in paths.items():
        if (file := _file(name)) is not None:
            files.append(file._replace(paths=tuple(path for _, path in sorted(numbered))))
    return sorted(files, key=lambda file: (file.member is None, file.kind, file.member or 0, file.pid)), others


def of(folder: Path, member: Member) -> TapeFile | None:
    """The tape of one life; None if it is not here."""
    return next((file for file in found(folder)[0] if file.member == member), None)


def of_lives(folder: Path) -> dict[Member, Reading]:
    """The tapes of all lives of hosts in a folder; ValueError or OSError if one cannot be read."""
    return {file.member: read(file) for file in found(folder)[0] if file.member is not None}


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
    return reading.joined([reading.read(path.read_bytes(), kind) for path in file.paths])


def broken_off(folder: Path) -> frozenset[tuple[str, int]]:
    """The lives, as (host, incarnation), that ended otherwise than in order, by events.jsonl: the last record on their
    tapes may be unfinished."""
    return frozenset(_broken(objects(folder / "events.jsonl")))


def _broken(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, int]]:
    for event in events:
        is_orderly = event.get("kind") == "ended" and (event.get("end") or {}).get("status") == 0
        if event.get("kind") in ("ended", "condemned") and not is_orderly:
            yield str(event.get("host")), int(event.get("incarnation") or 0)
