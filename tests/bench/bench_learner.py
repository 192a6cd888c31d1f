"""What the runtime costs a learner: its steps a second and CPU a step inside a run, against the bare loop.

    python tests/bench/bench_learner.py [--pairs 20] [--seconds 2] [--batch 8] [--json]

One learner of a real run (daemon, syncer, evaluator, recorder, fragments 8, interval 24) is pinned to core 0 and
everything else to core 1. The bare loop calls the same jitted function, with the same flags, on the same batches, and
is pinned to core 0 as well. They take turns: whoever is not measured is stopped with SIGSTOP. A pair is one turn of
each; figures are medians over pairs. `--batch 32` makes steps of 30 to 60 ms.

CPU a step comes from /proc (all threads of the process). `cpu_added_ms` is the difference, itemised by thread.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from observed import cpu_of, pin, signal_all, training

BAR_CPU_MS = 0.5
BARS = {8: 0.93, 32: 0.97}
SETTLE_SECONDS = 0.3


class Turn(NamedTuple):
    """One turn of one side: steps a second and CPU seconds a step, in all and by thread."""

    rate: float
    cpu: float
    threads: dict[int, float]


def bare(batch: int) -> None:
    """The loop without a runtime: prints how many steps it has made, every 20 ms, until it is killed."""
    os.environ.update(NPROC="1", XLA_FLAGS="--xla_cpu_multi_thread_eigen=false", OMP_NUM_THREADS="1")
    from isthmus.ops.data import At
    from isthmus.ops.training import Learner
    from isthmus.programs.environment import prepare_environment
    from isthmus.programs.language_model import task

    prepare_environment(1)
    nano = task(batch=batch)
    learner = Learner(nano, (), seed=0)
    learner.compile(nano.batch(At(0, 0, 0)))
    learner.begin()
    pending, step, told = None, 0, 0.0
    while True:
        loss = learner.step(nano.batch(At(0, 0, step)), 0.5)
        if pending is not None:
            float(pending)
        pending, step = loss, step + 1
        if time.monotonic() - told > 0.02:
            told = time.monotonic()
            print(json.dumps({"time": told, "step": step}), flush=True)


class Steps:
    """The steps that a file of lines {"time", "step"} tells, by time."""

    def __init__(self, path: Path, learner: int | None = None) -> None:
        self._path, self._learner = path, learner

    def between(self, begun: float, ended: float) -> tuple[float, float]:
        """Steps, and the seconds between the first and the last line in a stretch of time."""
        lines = [json.loads(line) for line in self._path.read_text().splitlines() if line.endswith("}")]
        rows = [(line["time"], line["step"]) for line in lines if self._learner in (None, line.get("learner"))]
        inside = [row for row in rows if begun <= row[0] <= ended]
        return inside[-1][1] - inside[0][1], inside[-1][0] - inside[0][0]


def take_turn(pid: int, steps: Steps, seconds: float, zero: float, others: list[int]) -> Turn:
    """Let a process run alone for a while."""
    signal_all((pid, *others), signal.SIGCONT)
    time.sleep(SETTLE_SECONDS)
    before, begun = cpu_of(pid), time.monotonic()
    time.sleep(seconds)
    after, ended = cpu_of(pid), time.monotonic()
    time.sleep(SETTLE_SECONDS)
    signal_all((*others, pid), signal.SIGSTOP)
    count, took = steps.between(begun - zero, ended - zero)
    rate = count / took
    used = {thread: after[thread] - before.get(thread, 0.0) for thread in after}
    made = rate * (ended - begun)
    return Turn(rate, sum(used.values()) / made, {thread: each / made for thread, each in used.items()})


@contextmanager
def bare_loop(here: Path, batch: int) -> Iterator[tuple[int, Steps]]:
    """The bare loop in a process of its own."""
    with (here / "bare.jsonl").open("w") as lines:
        command = [sys.executable, __file__, "--bare", "--batch", str(batch)]
        loop = subprocess.Popen(command, stdout=lines)
    try:
        while (here / "bare.jsonl").stat().st_size < 2000:
            time.sleep(0.2)
        pin([loop.pid], 0)
        yield loop.pid, Steps(here / "bare.jsonl")
    finally:
        loop.kill()
        loop.wait()


def measure(pairs: int, seconds: float, batch: int) -> list[tuple[Turn, Turn]]:
    """Turns of the bare loop and of the learner, in alternating order."""
    found = []
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        bare_loop(Path(folder), batch) as (loop, loop_steps),
    ):
        os.kill(loop, signal.SIGSTOP)
        with training(Path(folder, "run"), "--set", f"task.batch={batch}", learners=1) as run:
            learner, others = run.pids["learner/0"], run.others("learner/0")
            pin(others, 1)
            pin([learner], 0)
            steps = Steps(run.folder / "metrics.jsonl", 0)
            signal_all((*others, learner), signal.SIGSTOP)
            for number in range(pairs):
                turns = [
                    lambda: take_turn(loop, loop_steps, seconds, 0.0, []),
                    lambda: take_turn(learner, steps, seconds, run.zero, others),
                ]
                made = [turn() for turn in (turns if number % 2 else turns[::-1])]
                found.append((made[0], made[1]) if number % 2 else (made[1], made[0]))
            signal_all((*others, learner), signal.SIGCONT)
    return found


def spread(values: list[float]) -> str:
    """Median, and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.bare:
        bare(asked.batch)
        return
    pairs = measure(asked.pairs, asked.seconds, asked.batch)
    ratios = [inside.rate / alone.rate for alone, inside in pairs]
    added = [1e3 * (inside.cpu - alone.cpu) for alone, inside in pairs]
    items = defaultdict(list)
    for _, inside in pairs:
        for thread, cpu in inside.threads.items():
            items[thread].append(1e3 * cpu)
    threads = {thread: statistics.median(values) for thread, values in items.items() if len(values) > len(pairs) // 2}
    if asked.json:
        print(json.dumps({"batch": asked.batch, "ratios": ratios, "cpu_added_ms": added, "threads_ms": threads}))
        return
    print(f"{len(pairs)} pairs of {asked.seconds} s, batch {asked.batch}; medians and quartiles over pairs")
    print(f"bare loop, steps/s              {spread([alone.rate for alone, _ in pairs])}")
    print(f"learner, steps/s                {spread([inside.rate for _, inside in pairs])}")
    print(f"learner / bare loop             {spread(ratios)}, bar {BARS.get(asked.batch, BARS[8])}")
    print(f"bare loop, CPU ms a step        {spread([1e3 * alone.cpu for alone, _ in pairs])}")
    print(f"CPU ms that the runtime adds    {spread(added)}, bar {BAR_CPU_MS}")
    for thread, cpu in sorted(threads.items(), key=lambda item: -item[1]):
        if cpu > 0.003:
            print(f"    thread {thread:10} {cpu:.3f} ms a step")


if __name__ == "__main__":
    main()
