"""The standstill of a run: while nothing of it lives its clock stands still, so that this time is no time of the run.

Decides when that was: from the last sign of life that its files have, its recorded end or, where it was killed, the
last of its lines, until something goes on with it. Whatever counts the run's time follows: lines, wall time, goodput,
uptime, the axes of the report. The clock is moved once, before the first process of the next life is started.

Learners on other machines go on without their home for a while. For that long their time is the run's: if they are
found to live, they have used it. A home that was away for longer has none left to find.

A pause of less than GAP is none, because lines are not written more often than that. `events.jsonl`, whose times are
those of a machine, is told of each move (`WentOn`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Final

from isthmus.programs.engine.recorder import books
from isthmus.programs.engine.recorder.lines import recorded
from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results.lines import KINDS
from isthmus.programs.engine.results.record import as_number
from isthmus.programs.engine.results.run_files import SUMMARY, read_summary
from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.supervision.home_events import DAEMON
from isthmus.runtime.supervision.incidents import EVENTS, Happened, WentOn, as_line
from isthmus.runtime.system.disk import DISK
from isthmus.runtime.system.files import Lines, read_bytes, read_text
from isthmus.runtime.system.processes import boot_id

GAP: Final = seconds(1)
FOR_EVER: Final = 1 << 62
"""Nanoseconds: where learners elsewhere are known to live."""


def stand_still(folder: Path, *, elsewhere_ns: int = 0, least_ns: int = 0, was_over: bool = False) -> int:
    """Have the clock of a run go on from its last sign of life; returns for how many nanoseconds it stood still.

    Learners on other machines may have lived for `elsewhere_ns` after that: then nothing stood still, unless it is
    longer ago. The clock never goes on from before `least_ns`. `was_over`: the run had ended in order. OSError if the
    disk does not take it; nothing of the run lives on this machine, and nobody else writes into its folder.
    """
    fields = json.loads(read_text(folder / spec.SPEC))
    was_ns, is_same_boot = int(fields["zero_ns"]), fields["here"].get("boot") == boot_id().decode()
    age = time.monotonic_ns() - was_ns if is_same_boot else spec.age(fields)
    last = max([least_ns, *_signs(folder, was_ns if is_same_boot else None)])
    paused = age - last
    if last <= 0 or paused < GAP or paused <= elsewhere_ns:
        paused = 0
    if is_same_boot and not paused and age >= least_ns and not was_over:
        return 0
    zero_ns = time.monotonic_ns() - max(age - paused, last)
    _tell(folder, WentOn(paused_ns=paused, was_ns=was_ns, zero_ns=zero_ns, was_over=was_over))
    spec.write(folder, {**fields, "zero_ns": zero_ns, "paused_ns": fields.get("paused_ns", 0) + paused})
    return paused


def _signs(folder: Path, zero_ns: int | None) -> Iterator[int]:
    """Instants of the run's clock at which it lived; none before its first step. `zero_ns` is None after a reboot, by
    which the times of incidents mean nothing."""
    memory = None
    with suppress(OSError):
        memory = books.load(folder, DISK)
    summary = {}
    with suppress(OSError, ValueError):
        summary = read_summary(read_bytes(folder / SUMMARY))
    begun = as_number(summary.get("start_seconds"))
    zero = round(begun * 1e9) if begun else None if memory is None else memory.zero
    if not zero:
        return
    yield zero + round((as_number(summary.get("wall_seconds")) or 0.0) * 1e9)
    if memory is not None:
        yield memory.stepping_until
        yield from (int(report.get("reported_at", 0)) for report in memory.reports.values())
    for kind in KINDS:
        with suppress(OSError):
            yield from (zero + round(line.time * 1e9) for line in recorded(folder, DISK, kind, is_tail=True))
    if zero_ns is not None:
        yield from (at - zero_ns for at in _incidents(folder, zero_ns))


def _incidents(folder: Path, zero_ns: int) -> Iterator[int]:
    """The instant of the last incident, on the clock of this boot, if there is one."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        lines = map(json.loads, reversed(read_bytes(folder / EVENTS).splitlines()))
        # A try to go on that failed may have left a line: nothing lived by that.
        yield from islice((int(line["at"]) for line in lines if line.get("zero_ns", zero_ns) == zero_ns), 1)


def _tell(folder: Path, went_on: WentOn) -> None:
    events = Lines(folder / EVENTS, DISK)
    events.append(as_line(Happened(Instant(time.monotonic_ns()), DAEMON, went_on)))
    counts = events.counts()
    events.close()
    if counts["error"] is not None:
        raise OSError(f"{folder / EVENTS} cannot be written: {counts['error']}")
