"""Taking states of fragments from shards into the folder of the snapshots, a part at a time.

Decides what a file of a state has, and when it counts: once it is whole and on the disk. One state is under way at a
time, and of it one part is in memory. Which is taken, and when, is `taken_hold`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import final

import msgspec
import xxhash

from isthmus.ops.exchange.messages import NewVersion, StateBooks, StatePart, WantedState
from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.programs.engine.snapshots.snapshots import VALUES, FragmentEntry
from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import WholeFile, tensors_head


@final
class Taking:
    """Takes states for the recorder's life `life`; `sizes` are those of the fragments, in values."""

    def __init__(self, folder: Path, disk: Disk, life: int, sizes: Sequence[int]) -> None:
        self._folder, self._disk, self._life, self._sizes = folder / FOLDER, disk, life, sizes
        self._number = life << 32  # A shard may hear of the wishes of a former life.
        self._at = self._bytes = 0
        self._file: WholeFile | None = None
        self._books: StateBooks | None = None
        self._digest = xxhash.xxh3_128()
        self.under_way: NewVersion | None = None
        """The version that is taken, as it was told when it was asked for; a newer one may come."""

    def begin(self, newest: NewVersion) -> WantedState:
        """Take the state of a fragment, of which this is the newest version that is told; nothing is under way."""
        self.under_way, self._number, self._at = newest, self._number + 1, 0
        return self._wanted(newest)

    @property
    def version(self) -> list[int] | None:
        """[fragment, epoch, count] of the version that comes."""
        if self.under_way is None:
            return None
        version = self.under_way["version"] if self._books is None else self._books["version"]
        return [self.under_way["fragment"], *version]

    def accept(self, part: StatePart) -> FragmentEntry | WantedState | None:
        """Take a part; returns the entry of a state that is whole now, or what to ask for next, and None for a part of
        which nothing is known. OSError where the disk refuses it, and ValueError for one that has another form; then
        nothing is under way any more."""
        asked = self.under_way
        if asked is None or any(part[name] != asked[name] for name in ("fragment", "shard", "incarnation")):
            return None
        if (part["number"], part["at"]) != (self._number, self._at):
            return None
        try:
            return self._taken(asked, part)
        except (OSError, ValueError):
            self.give_up()
            raise

    def give_up(self) -> None:
        """Be done with what is under way."""
        if self._file is not None:
            self._file.drop()
        self._over()

    def _taken(self, asked: NewVersion, part: StatePart) -> FragmentEntry | WantedState:
        data = part["data"].tobytes()
        if part["at"] == 0:
            self._begin(asked["fragment"], part)
        if not data:
            raise ValueError(f"a part of fragment {asked['fragment']} is empty")
        assert self._file is not None
        self._write(data)
        self._at += len(data)
        if self._at < part["size"]:
            return self._wanted(asked)
        self._file.done()
        entry = self._entry(asked["fragment"])
        self._over()
        return entry

    def _begin(self, fragment: int, part: StatePart) -> None:
        books = part.get("books")
        if books is None or VALUES not in books["tensors"]:
            raise ValueError(f"the first part of fragment {fragment} has no books")
        shapes = {name: [self._sizes[fragment]] for name in books["tensors"]}
        if part["size"] != sum(4 * size for [size] in shapes.values()):
            raise ValueError(f"fragment {fragment} has {part['size']} bytes: expected float32 of {shapes}")
        self._books, self._digest, self._bytes = books, xxhash.xxh3_128(), 0
        self._file = WholeFile(self._folder / self._name(fragment), self._disk)
        self._write(tensors_head(shapes)[0])

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(data)
        self._digest.update(data)
        self._bytes += len(data)

    def _name(self, fragment: int) -> str:
        """A name of this life's: a version that a shard has recovered has the values of the one before, and may have
        other momentum, so no file is ever written over."""
        assert self._books is not None
        epoch, count = self._books["version"]
        return f"fragment-{fragment}-{epoch}-{count}-{self._life}-{self._number - (self._life << 32)}.safetensors"

    def _entry(self, fragment: int) -> FragmentEntry:
        assert self._books is not None
        fields = {**self._books, "fragment": fragment, "values_digest": self._books["digest"]}
        fields |= {"file": self._name(fragment), "bytes": self._bytes, "digest": self._digest.hexdigest()}
        return msgspec.convert({name: fields[name] for name in FragmentEntry.__struct_fields__}, FragmentEntry)

    def _wanted(self, asked: NewVersion) -> WantedState:
        return WantedState(fragment=asked["fragment"], number=self._number, at=self._at)

    def _over(self) -> None:
        self.under_way = self._file = self._books = None
