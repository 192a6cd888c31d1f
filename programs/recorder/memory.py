"""What a recorder has to know in its next life: a file beside the lines that it writes, and those lines.

Decides nothing. The file is written whole, once a second; what came after it is in the lines, which are read when a
recorder opens. All that is known only grows, so what is read twice changes nothing (`record_books`).
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
    `early` lines by the name of their file that wait for the first step."""

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
    early: list[tuple[str, dict[str, Any]]] = []


def encoded(memory: Memory) -> bytes:
    """The bytes of the file."""
    return msgspec.msgpack.encode(memory)


def save(data: bytes, folder: Path, disk: Disk) -> None:
    """Write the file, to stay; OSError if the disk does not take it, and the file is as it was."""
    write_bytes(folder / FILE, data, disk)


def load(folder: Path, disk: Disk) -> Memory | None:
    """What a recorder before this one has known; None if there was none, or its file is torn. OSError if the disk does
    not say."""
    try:
        return msgspec.msgpack.decode(disk.read(folder / FILE), type=Memory)
    except (FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
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
