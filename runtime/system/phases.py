"""The instants at which the processes of a run reach the phases of its start: `phases.jsonl` in the run folder.

Each process appends its own lines, one a phase, as it gets there or once there is a folder. Instants are nanoseconds of
the monotonic clock, which all processes of a machine share, so that a reader takes differences of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from isthmus.runtime.system import json_lines

FILE: Final = "phases.jsonl"

Phase: TypeAlias = Literal["begun", "forked", "prepared", "written", "waiting", "serving", "ready", "open", "step"]
"""begun: the process exists. The command has `forked` what prepares its request; this is `prepared` (read, traced and
checked) and `written`. The daemon is `waiting` for it, then `serving`; the fork server is `ready`. The bodies of a host
are `open`, and a learner begins its first `step`."""


class PhaseReached(NamedTuple):
    """A phase of a process, in one of its lives, 0 where it has none."""

    process: str
    life: int
    phase: Phase
    at_ns: int


def note(folder: Path, process: str, phase: Phase, *, life: int = 0, at_ns: int | None = None) -> None:
    """Append a phase, reached now unless `at_ns` says when."""
    reached = PhaseReached(process, life, phase, time.monotonic_ns() if at_ns is None else at_ns)
    json_lines.append(folder / FILE, reached)


def read(folder: Path) -> Iterator[PhaseReached]:
    """The phases in the file, in its order; none without one."""
    return json_lines.rows(folder / FILE, PhaseReached)
