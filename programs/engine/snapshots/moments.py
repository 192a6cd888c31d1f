"""The moments of learners in snapshots, where nothing else brings them there: copies of their local leaves, from their
machines.

Decides whose copy is fetched when (`MomentsFetch`), and where a resume lays it out. Each learner's is fetched once
every `run.moments_every` seconds, one learner at a time and a part at a time: so the home has one part in memory, its
links are never shared by two copies, and a slow one delays but the next. Programs in lock-step have in each cut what
only their learners have, and need none of this.

A copy goes as it is: its own digest tells the learner that takes it whether it is whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, final

import msgspec
import xxhash

from isthmus.ops.exchange.messages import CopyPart, WantedPart
from isthmus.ops.recovery.local_files import copy_path
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.runtime.system.disk import Disk, File
from isthmus.runtime.system.files import write_bytes

SUFFIX: Final = ".local"
PATIENCE_NS: Final = 60_000_000_000
"""For one part: a machine that is cut off for longer is asked again when its turn comes."""

Life = tuple[int, int]
"""Slot and incarnation."""


class MomentsEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The copy of one learner: of which life, and its `file` with that many `bytes` and their `digest` (xxh3-128)."""

    slot: int
    incarnation: int
    file: str
    bytes: int
    digest: str

    @property
    def key(self) -> tuple[int, ...]:
        """Whose it is."""
        return (self.slot,)


@final
class MomentsFetch:
    """Fetches copies into the folder of the snapshots, for the recorder's life `life`; `every` is in nanoseconds.

    A copy counts once it is whole and on the disk. What the disk refuses is dropped, and asked for again at its turn.
    """

    def __init__(self, folder: Path, disk: Disk, every: int, life: int) -> None:
        self._folder, self._disk, self._every, self._life = folder / FOLDER, disk, every, life
        self._entries: dict[int, MomentsEntry] = {}
        self._due: dict[int, int] = {}
        """Slot -> when its next copy is due."""
        self._asked: WantedPart | None = None
        self._asked_at = self._number = 0
        self._file: File | None = None
        self._beside = self._folder
        self._digest = xxhash.xxh3_128()

    @property
    def entries(self) -> list[MomentsEntry]:
        """The newest whole copy of each slot."""
        return [entry for _, entry in sorted(self._entries.items())]

    def recall(self, entries: Iterable[MomentsEntry]) -> None:
        """Begin with those of the last snapshot; what no snapshot names is of a transfer that nobody finished."""
        self._entries = {entry.slot: entry for entry in entries} | self._entries
        named = {entry.file for entry in self._entries.values()}
        with suppress(OSError):
            for name in self._disk.sizes(self._folder):
                if name.endswith(SUFFIX) and name not in named:
                    self._disk.remove(self._folder / name)

    def step(self, parts: Collection[CopyPart], living: Sequence[Life], now: int) -> WantedPart | None:
        """Take parts that came; returns what is to be asked of learners, where that has changed."""
        for slot, _ in living:
            self._due.setdefault(slot, now + self._every)
        before = self._asked
        for part in parts:
            self._take(part, now)
        asked = self._asked
        if asked is not None and (
            now - self._asked_at >= PATIENCE_NS or (asked["slot"], asked["incarnation"]) not in living
        ):
            self._end()
        if self._asked is None:
            self._begin(living, now)
        return self._asked if self._asked is not before else None

    def _begin(self, living: Sequence[Life], now: int) -> None:
        due = [(self._due[slot], slot, life) for slot, life in living if self._due[slot] <= now]
        if due:
            _, slot, life = min(due)
            self._number += 1
            self._due[slot] = now + self._every
            self._ask(WantedPart(slot=slot, incarnation=life, number=self._number, at=0), now)

    def _ask(self, wanted: WantedPart, now: int) -> None:
        self._asked, self._asked_at = wanted, now

    def _take(self, part: CopyPart, now: int) -> None:
        asked = self._asked
        if asked is None or any(part[name] != asked[name] for name in ("slot", "incarnation", "number", "at")):
            return
        data = part["data"].tobytes()
        try:
            if self._file is None:
                self._beside = self._disk.beside(self._folder / f"moments-{part['slot']}{SUFFIX}")
                self._file, self._digest = self._disk.create(self._beside), xxhash.xxh3_128()
            is_written = self._file.write(data) == len(data) > 0
            self._digest.update(data)
            if is_written and part["at"] + len(data) >= part["size"]:
                self._keep(part)
        except OSError:
            is_written = False
        if not is_written or part["at"] + len(data) >= part["size"]:
            self._end()
        else:
            self._ask({**asked, "at": part["at"] + len(data)}, now)

    def _keep(self, part: CopyPart) -> None:
        """Have a copy that has come to its end count."""
        assert self._file is not None
        self._file.sync()
        name = f"moments-{part['slot']}-{part['incarnation']}-{self._life}-{part['number']}{SUFFIX}"
        self._disk.rename(self._beside, self._folder / name)
        entry = MomentsEntry(part["slot"], part["incarnation"], name, part["size"], self._digest.hexdigest())
        self._entries[part["slot"]] = entry

    def _end(self) -> None:
        """Be done with the present copy, whether it counts or not."""
        if self._file is not None:
            self._file.close()
            with suppress(OSError):
                self._disk.remove(self._beside)
        self._asked = self._file = None


def lay_out(folder: Path, entries: Iterable[MomentsEntry], disk: Disk) -> None:
    """Put the copies of a snapshot where the next lives of the learners look for one, if no other is there: theirs is
    newer."""
    for entry in entries:
        path = copy_path(folder, entry.slot)
        if not path.exists():
            write_bytes(path, disk.read(folder / FOLDER / entry.file), disk)
