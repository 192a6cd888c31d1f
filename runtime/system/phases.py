"""The instants at which the processes of a run reach the phases of its start: `phases.jsonl` in the run folder.

Each process appends its own lines, one a phase, as it gets there or once there is a folder. Instants are nanoseconds of
the monotonic clock, which all processes of a machine share, so that a reader takes differences of them. A line that the
disk does not take is missing, and nothing depends on it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeAlias

from isthmus.runtime.system.disk import opened_at_end
from isthmus.runtime.system.files import read_text

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
    line = (json.dumps(reached) + "\n").encode()
    with suppress(OSError), opened_at_end(folder / FILE) as file:
        os.write(file.fileno(), line)  # One call, so that lines of several processes do not mix.


def read(folder: Path) -> Iterator[PhaseReached]:
    """The phases in the file, in its order; none without one. Lines that are not whole are left out."""
    with suppress(OSError):
        for line in read_text(folder / FILE, "replace").splitlines():
            with suppress(ValueError, TypeError):
                yield PhaseReached(*json.loads(line))
