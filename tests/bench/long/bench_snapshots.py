"""What snapshots cost a learner's threads, as a share of an inner step.

    python -m tests.bench.long.bench_snapshots [decoupled-diloco] [streaming-diloco] ... [--seconds 150]
        [--every 5] [--json]

A run of two learners on nano in processes. The CPU clock of the first learner's process, all its threads in it, those
that have ended too, is read every second, and so are its inner steps. Seconds in which a snapshot was taken, or a copy
of what only that learner has was written, are compared with the seconds between them: CPU for each inner step, in
pairs, each with its next neighbour that has none. So both are of one process, and next to each other in time. The
extra CPU of one snapshot and one copy is put on the steps of the 15 s in which there is one of each by default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.bench.observed import training

BAR = 0.01
"""Of an inner step."""
DEFAULT_SECONDS = 15.0
WINDOW_SECONDS = 1.0
PROGRAMS = ("decoupled-diloco", "streaming-diloco")
SLOT = 0


class Window(NamedTuple):
    """A second of a learner: its inner steps, its CPU seconds, and what was written meanwhile."""

    steps: float
    cpu: float
    has_snapshot: bool
    has_copy: bool

    @property
    def cpu_a_step(self) -> float:
        """Seconds."""
        return self.cpu / self.steps


def cpu_clock(pid: int) -> int:
    """The clock of the CPU time of another process, all its threads in it (clock_getcpuclockid)."""
    return (~pid << 3) | 2


def steps_at(folder: Path, zero: float) -> list[tuple[float, int]]:
    """(seconds of the monotonic clock, inner steps of the learner by then), as it reports them."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(line["time"] + zero, line["step"]) for line in lines if line["learner"] == SLOT]


def at(reports: Sequence[tuple[float, int]], when: float) -> float:
    """The steps by then, in a straight line between two reports."""
    for (begun, steps), (ended, more) in pairwise(reports):
        if begun <= when <= ended:
            return steps + (more - steps) * (when - begun) / (ended - begun)
    raise ValueError(f"no reports around {when}")


def written(path: Path) -> int:
    """When a file was written last; 0 if it was not."""
    return path.stat().st_mtime_ns if path.exists() else 0


def measured(folder: Path, program: str, seconds: float, every: float) -> list[Window]:
    """The windows of one run."""
    options = ("--set", f"run.program={program}", "--set", f"run.snapshot_every_seconds={every}")
    read: list[tuple[float, float, int, int]] = []
    with training(folder, *options, learners=2) as run:
        clock = cpu_clock(run.pids[f"learner/{SLOT}"])
        files = (folder / "snapshots" / "manifest.json", folder / "local" / f"learner-{SLOT}")
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            read.append((time.monotonic(), time.clock_gettime(clock), *map(written, files)))
            time.sleep(WINDOW_SECONDS)
        time.sleep(2 * WINDOW_SECONDS)
        run.stop()
    reports = steps_at(folder, run.zero)
    return [
        Window(
            steps=at(reports, after[0]) - at(reports, before[0]),
            cpu=after[1] - before[1],
            has_snapshot=before[2] != after[2],
            has_copy=before[3] != after[3],
        )
        for before, after in pairwise(read)
    ]


def extra(windows: Sequence[Window], *, of_copies: bool) -> list[float]:
    """CPU seconds that each window has more than its steps would take in the next one in which nothing was written:
    of those with a snapshot and no copy, or the other way round."""
    quiet = [index for index, each in enumerate(windows) if not (each.has_snapshot or each.has_copy)]
    found = []
    for index, each in enumerate(windows):
        if (each.has_copy, each.has_snapshot) == (of_copies, not of_copies) and quiet:
            near = windows[min(quiet, key=lambda other: abs(other - index))]
            found.append((each.cpu_a_step - near.cpu_a_step) * each.steps)
    return found


def figures(windows: Sequence[Window]) -> dict[str, Any]:
    """Of one run."""
    step = statistics.median(each.cpu_a_step for each in windows)
    seconds = statistics.median(each.steps for each in windows) / WINDOW_SECONDS
    by_kind = {"snapshot": extra(windows, of_copies=False), "copy": extra(windows, of_copies=True)}
    told: dict[str, Any] = {"cpu_ms_a_step": step * 1e3, "steps_a_second": seconds}
    share = 0.0
    for kind, found in by_kind.items():
        median = statistics.median(found) if found else 0.0
        share += median / (DEFAULT_SECONDS * seconds * step)
        quarters = statistics.quantiles(found, n=4) if len(found) > 1 else [0.0] * 3
        told[kind] = {"pairs": len(found), "extra_ms": median * 1e3, "quartiles_ms": [q * 1e3 for q in quarters]}
    return {**told, "share": share, "bar": BAR}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {}
    for program in asked.programs or PROGRAMS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found[program] = figures(measured(Path(folder) / "run", program, asked.seconds, asked.every))
    if asked.json:
        print(json.dumps(found))
        return
    for program, told in found.items():
        print(f"{program}: {told['cpu_ms_a_step']:.2f} ms of CPU a step, {told['steps_a_second']:.0f} steps a second")
        for kind in ("snapshot", "copy"):
            low, _, high = told[kind]["quartiles_ms"]
            pairs, ms = told[kind]["pairs"], told[kind]["extra_ms"]
            print(f"  a {kind:<9} {ms:8.2f} ms more ({low:.2f} to {high:.2f}, quartiles of {pairs} pairs)")
        print(f"  of an inner step, one of each every {DEFAULT_SECONDS:.0f} s: {told['share']:.3%}   bar {BAR:.0%}")


if __name__ == "__main__":
    main()
