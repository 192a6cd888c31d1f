"""The seats of a run: which devices and cores each process of it has on this machine, `seats.jsonl` in the run folder.

Each process appends its own line, once it has claimed its devices and settled on its cores. What jax finds there, a
process that computes notes with what it compiles (`kept_programs`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.runtime.system import json_lines

RECORD: Final = "seats.jsonl"


class Seat(NamedTuple):
    """What a process has, in one of its lives: the devices that it has claimed, none where it has no claim to make, and
    the cores that it may use."""

    process: str
    life: int
    devices: Sequence[str]
    cores: Sequence[int]


def note_seat(folder: Path, process: str, life: int, devices: Sequence[str]) -> None:
    """Append the seat of this process, as it is now."""
    json_lines.append(folder / RECORD, Seat(process, life, devices, sorted(os.sched_getaffinity(0))))


def read_seats(folder: Path) -> Iterator[Seat]:
    """The seats of a run, in the order of the file."""
    return json_lines.rows(folder / RECORD, Seat)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as text, successive ones as a range: 0-3, 8."""
    parts: list[list[int]] = []
    for each in sorted(numbers):
        if parts and each == parts[-1][-1] + 1:
            parts[-1][1:] = [each]
        else:
            parts.append([each])
    return ", ".join("-".join(map(str, part)) for part in parts)
