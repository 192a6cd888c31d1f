"""How long a run takes to start: from the command to the first inner step of all learners, with a warm cache.

    python -m tests.bench.bench_start [--starts 5] [--tokens 100000] [--learners 2] [--json]

Each start is a whole `isthmus train`, whose processes say when they reached each phase (`phases.jsonl`). Beside it is
its limit: one process that imports jax and the shipped task, traces and loads the same step from the same cache, makes
first parameters and one step, once for each start, in turn. `--help` and `status` of the last run are timed, too, and
an interpreter that does nothing. The first start of each kind, which may compile, is not counted. Medians; CPU seconds
are of all processes of a start until its end, or of the one process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from isthmus.runtime.system.phases import read
from tests.bench.observed import COMMAND

NS = 1e9
BARS = {
    "all learners have begun their first step": 3.0,
    "the whole run": 5.0,
    "isthmus --help": 0.15,
    "isthmus status RUN": 0.3,
}
BARE = """
import os, sys, time
from isthmus.runtime.system.processes import environment
os.environ.update(environment(computes=True))
from isthmus.programs.engine.request.environment import prepare_environment
prepare_environment(2)
import jax
print("the bare process: jax is imported", time.monotonic_ns())
from isthmus.ops.data.batches import At
from isthmus.ops.island.jax_learner import Learner
from isthmus.ops.island.life import LearnerLife
from isthmus.programs.language_model import task
nano = task(batch=1)
batch = nano.batch(At(0, 0, 0))
learner = Learner(nano, (), life=LearnerLife(0, 0, 1))
learner.compile_step(batch)
learner.begin()
print("the bare process: its first step", time.monotonic_ns())
learner.step(batch, 0.0)
"""
"""The limit: nothing but jax, the task and its step."""


def timed(command: Sequence[str]) -> tuple[float, float, str]:
    """Seconds and CPU seconds of a command, and what it printed."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    took, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return took, cpu, done.stdout


def a_run(folder: Path, tokens: int, learners: int) -> dict[str, float]:
    """The phases of one run, in seconds from its command; and how long it took."""
    options = ["--tokens", str(tokens), "--learners", str(learners), "--run-dir", str(folder), "--quiet"]
    took, _, _ = timed([*COMMAND, "train", *options])
    first: dict[str, int] = {}
    for each in read(folder):
        if each.life <= 1:
            first.setdefault(f"{each.process}: {each.phase}", each.at_ns)
    zero = first["command: begun"]
    steps = [at for name, at in first.items() if name.endswith(": step")]
    if len(steps) < learners:
        raise SystemExit(f"{folder}: {len(steps)} of {learners} learners have told their first step")
    phases = {name: (at - zero) / NS for name, at in first.items()}
    used = json.loads((folder / "summary.json").read_text())["cpu_seconds_total"]
    whole = {"all learners have begun their first step": (max(steps) - zero) / NS, "the whole run": took}
    return {**phases, **whole, "CPU of the whole run": used}


def bare() -> dict[str, float]:
    """The limit: one process."""
    begun = time.monotonic()
    _, cpu, text = timed([sys.executable, "-c", BARE])
    marks = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) / NS - begun for line in text.splitlines()}
    return {**marks, "CPU of the bare process": cpu}


def measure(starts: int, tokens: int, learners: int) -> dict[str, list[float]]:
    """Name -> the values of each start."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for number in range(starts + 1):
            run = Path(folder) / f"run-{number}"
            parts: list[Callable[[], dict[str, float]]] = [
                lambda run=run: a_run(run, tokens, learners),  # type: ignore[misc]
                bare,
                lambda: {"isthmus --help": timed([*COMMAND, "--help"])[0]},
                lambda run=run: {"isthmus status RUN": timed([*COMMAND, "status", str(run)])[0]},  # type: ignore[misc]
                lambda: {"an interpreter": timed([sys.executable, "-c", "pass"])[0]},
            ]
            for part in parts:
                for name, value in part().items():
                    if number:
                        found.setdefault(name, []).append(value)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measure(asked.starts, asked.tokens, asked.learners)
    if asked.json:
        print(json.dumps(found))
        return
    print(f"medians of {asked.starts}, smallest and largest, seconds; load {os.getloadavg()[0]:.1f} at the end")
    for name, values in sorted(found.items(), key=lambda each: statistics.median(each[1])):
        bar = f"   bar <= {BARS[name]}" if name in BARS else ""
        print(f"{name:44} {statistics.median(values):7.2f} ({min(values):.2f} to {max(values):.2f}){bar}")


if __name__ == "__main__":
    main()
