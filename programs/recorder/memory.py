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
"""Read from the end of each file of lines if there is a state: more than a second ever adds."""


class Memory(msgspec.Struct):
    """The fields of `Books` of these names; `reports` and `former` are Reports, `shards` rows of `ShardBooks`, `early`
    lines by the name of their file that wait for the first step; `incarnation` is that of the writer."""

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
    since: list[tuple[int, int]] = []
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
        """Whether a later life has written; False if the disk cannot be read."""
        try:
            found = load(self._folder, self._disk)
        except OSError:
            return False
        return found is not None and found.incarnation > self._incarnation

    def save(self, memory: Memory) -> None:
        """Write the memory durably if it has changed; a failed write is repeated with the next call."""
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
    """The memory of an earlier recorder; None if there was none, or its file is torn.

    OSError if the disk cannot be read.
    """
    try:
        return msgspec.msgpack.decode(disk.read(folder / FILE), type=Memory)
    except (FileNotFoundError, ValueError):
        return None


def lines(path: Path, disk: Disk, *, is_tail: bool) -> Iterator[dict[str, Any]]:
    """The valid lines of a file, or of its last TAIL_BYTES; none if there is no file.

    OSError if the disk cannot be read.
    """
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
