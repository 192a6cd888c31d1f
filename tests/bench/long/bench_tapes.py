"""What a learner's tape costs its threads, as a share of an inner step.

    python -m tests.bench.long.bench_tapes [--tokens 820000] [--repeat 15] [--json]

A run of the default program in processes. The tape of its first learner is then fed to a scheduler again, in pairs:
with a tape, which is taken and written to a file twice a second of the run, and without. The difference, by the clock
of the thread, is put on the inner steps that are on the tape, and compared with the tenth percentile of what an inner
step took in that run: other processes make it longer, and nothing makes it shorter. States of the core are taken, too,
once in the tape, which is more often than at the default bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from isthmus.programs.engine.request import spec
from isthmus.programs.engine.results import tapes
from isthmus.programs.engine.results.record import read_timeline
from isthmus.runtime.cores.scheduler_core import Scheduler
from isthmus.runtime.cores.scheduler_events import FiringEnded
from isthmus.runtime.graph.plans import Plan
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.tape.reading import TapeFiles
from isthmus.runtime.tape.writing import Tape
from tests.bench.observed import ISTHMUS

BAR = 0.01
"""Of an inner step."""
LEARNER = Member(Replica("learner", 0), 1)
FLUSH_NS = 500_000_000
STEP = "inner-step"


def fed(plan: Plan, records: list[Any], folder: Path | None, segment_bytes: int) -> float:
    """The seconds of this thread in which a scheduler takes all events, with a tape in `folder`, or without."""
    core = Scheduler(plan, LEARNER)
    tape = Tape(segment_bytes) if folder is not None else None
    files = TapeFiles.of_host(folder, LEARNER) if folder is not None else None
    begun, flushed = time.thread_time(), records[0].at
    if tape is not None:
        tape.begin(core.saved)
    for record in records:
        commands = core.handle(record.event, record.at)
        if tape is not None and files is not None:
            tape.append(record.at, record.event, commands)
            if record.at - flushed >= FLUSH_NS:
                files.write(tape)
                flushed = record.at
    took = time.thread_time() - begun
    if files is not None:
        files.close()
    return took


def measure(run: Path, repeat: int) -> dict[str, float]:
    """The figures of a run that is over."""
    plan = spec.load(run).plans()["learner"]
    records = tapes.of_lives(run)[LEARNER].records
    node = plan.node_named(STEP).index
    steps = sum(isinstance(each.event, FiringEnded) and each.event.node == node for each in records)
    size = sum(path.stat().st_size for path in (run / "tape").glob("learner-0-1.*.tape"))
    firings = read_timeline((run / "trace.json").read_bytes()).firings["learner/0", STEP]
    took = sorted(each.ended - each.begun for each in firings)
    step_seconds = took[len(took) // 10]
    extra = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            with_tape = fed(plan, records, Path(folder), size * 2 // 3)
            extra.append((with_tape - fed(plan, records, None, 0)) / steps)
    return {
        "steps": steps,
        "records_a_step": len(records) / steps,
        "bytes_a_step": size / steps,
        "step_us": step_seconds * 1e6,
        "extra_us": statistics.median(extra) * 1e6,
        "share": statistics.median(extra) / step_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=820_000)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        words = [str(ISTHMUS), "train", "--tokens", str(asked.tokens), "--run-dir", str(run), "--quiet"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        found = measure(run, asked.repeat)
    if asked.json:
        print(json.dumps({**found, "bar": BAR}))
        return
    for name, value in found.items():
        print(f"{name:<16}{value:>12.2f}" if name != "share" else f"{name:<16}{value:>12.2%}   bar {BAR:.0%}")


if __name__ == "__main__":
    main()
