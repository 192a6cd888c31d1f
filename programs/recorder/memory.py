"""The state that a recorder needs in its next life: a file beside the lines that it writes, and those lines.

Decides which life of a recorder may write: the latest that has. One that was replaced may live on for a while, cut off
from its daemon; its writes would then be behind those of the next one. The file is written whole, once a second; later
changes are in the lines, which are read when a recorder opens. All that is known only grows, so reading something twice
changes nothing (`recorder.books`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus.runtime.system.disk import Disk
from isthmus.runtime.system.files import write_bytes

FILE: Final = "recorder.state"
TAIL_BYTES: Final = 1 << 20
"""Of each file of lines that is read where there is a state: more than ever comes within a second."""


class Memory(msgspec.Struct):
    """As the fields of `Books` of these names; `reports` and `former` are Reports, `shards` rows of `ShardBooks`,
    `early` lines by the name of their file that wait for the first step; `incarnation` is that of the writer."""

    incarnation: int = 0
    totals: list[list[int]] = []
    reports: list[dict[str, Any]] = []
    former: list[dict[str, Any]] = []
    shards: list[dict[str, Any]] = []
    evaluations: list[dict[str, Any]] = []
    final: list[int] = []
    final_at: int | None = None
    zero: int | None = None
    stepping_until: int = 0
    versions: list[list[int]] = []
    publishers: list[list[int]] = []
    snapshot_faults: list[str] = []
    early: list[tuple[str, dict[str, Any]]] = []


class Remembering:
    """The file, as one life of a recorder writes it."""

    def __init__(self, folder: Path, disk: Disk, incarnation: int) -> None:
        self._folder, self._disk, self._incarnation = folder, disk, incarnation
        self._saved: bytes | None = None

    def is_replaced(self) -> bool:
        """Whether a later life has written; no, where the disk does not say."""
        try:
            found = load(self._folder, self._disk)
        except OSError:
            return False
        return found is not None and found.incarnation > self._incarnation

    def save(self, memory: Memory) -> None:
        """Write what is new, to stay; what the disk does not take now it is given the next time."""
        memory.incarnation = self._incarnation
        data = msgspec.msgpack.encode(memory)
        if data == self._saved or self.is_replaced():
            return
        try:
            write_bytes(self._folder / FILE, data, self._disk)
        except OSError:
            return
        self._saved = data


def load(folder: Path, disk: Disk) -> Memory | None:
    """What a recorder before this one has known; None if there was none, or its file is torn. OSError if the disk does
    not say."""
    try:
        return msgspec.msgpack.decode(disk.read(folder / FILE), type=Memory)
    except (FileNotFoundError, ValueError):
        return None


def lines(path: Path, disk: Disk, *, is_tail: bool) -> Iterator[dict[str, Any]]:
    """The lines of a file that can be read, or those at its end; none where there is no file. OSError if the disk does
    not say."""
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return
    for line in data[-TAIL_BYTES:].splitlines() if is_tail else data.splitlines():
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, dict):
            yield told
