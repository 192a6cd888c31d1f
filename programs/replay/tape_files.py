"""The tapes in a run folder: which there are, whose they are, and their records.

A tape is there as `ROLE-SLOT-LIFE.tape`, or as `home-PID.tape` and `station-PID.tape`, with the part before in
`NAME.1`, where a daemon's has been rotated. Says what is wrong with a file, and decides nothing about its contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.programs.results.json_lines import objects
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.scheduler import tape
from isthmus.runtime.scheduler.tape import Record
from isthmus.runtime.supervision.driver import HomeRecord, StationRecord

FOLDER: Final = "tape"
HOME: Final = "home"
STATION: Final = "station"
_DAEMON: Final = re.compile(rf"({HOME}|{STATION})-(\d+)")
_LIFE: Final = re.compile(r"(.+)-(\d+)-(\d+)")


class TapeFile(NamedTuple):
    """A tape: its file, its kind ('home', 'station', or 'host'), whose it is (None for a daemon's), the process of a
    daemon (0 for a host's)."""

    path: Path
    kind: str
    member: Member | None
    pid: int

    @property
    def older(self) -> Path:
        """Where the part before is, if the tape was rotated."""
        return self.path.with_name(f"{self.path.name}.1")


class Read(NamedTuple):
    """The records of a tape, and how many bytes of a last one were never finished."""

    records: list[Any]
    torn_bytes: int


def found(folder: Path) -> tuple[list[TapeFile], list[str]]:
    """The tapes of a run folder, by name, hosts before daemons; and the names of files that are none."""
    names = {path.name.removesuffix(".1") for path in (folder / FOLDER).glob("*.tape*")}
    files, others = [], []
    for name in sorted(names):
        stem, dot, ending = name.rpartition(".")
        if (daemon := _DAEMON.fullmatch(stem)) and dot and ending == "tape":
            files.append(TapeFile(folder / FOLDER / name, daemon[1], None, int(daemon[2])))
        elif (life := _LIFE.fullmatch(stem)) and dot and ending == "tape":
            member = Member(Replica(life[1], int(life[2])), int(life[3]))
            files.append(TapeFile(folder / FOLDER / name, "host", member, 0))
        else:
            others.append(name)
    return sorted(files, key=lambda file: (file.member is None, file.kind, file.member or 0, file.pid)), others


def read(file: TapeFile) -> Read:
    """The records of a tape but for an unfinished last one. ValueError where it is damaged, OSError where it cannot be
    read."""
    kinds: Mapping[str, type[Any]] = {HOME: HomeRecord, STATION: StationRecord}
    older = file.older.read_bytes() if file.older.exists() else b""
    data = older + (file.path.read_bytes() if file.path.exists() else b"")
    end = tape.whole_size(data)
    return Read([*tape.read_as(data[:end], kinds.get(file.kind, Record))], len(data) - end)


def broken_off(folder: Path) -> frozenset[tuple[str, int]]:
    """The lives, as (host, incarnation), that ended otherwise than in order, by events.jsonl: the last record on their
    tapes may be unfinished."""
    return frozenset(_broken(objects(folder / "events.jsonl")))


def _broken(events: Iterable[Mapping[str, Any]]) -> Iterable[tuple[str, int]]:
    for event in events:
        is_orderly = event.get("kind") == "ended" and (event.get("end") or {}).get("status") == 0
        if event.get("kind") in ("ended", "condemned") and not is_orderly:
            yield str(event.get("host")), int(event.get("incarnation") or 0)
