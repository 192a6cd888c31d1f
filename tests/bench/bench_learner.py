"""What the runtime costs a learner: its steps a second and CPU a step inside a run, against the bare loop.

    python tests/bench/bench_learner.py [--pairs 20] [--seconds 2] [--batch 8] [--json]

One learner of a real run (daemon, syncer, evaluator, recorder, fragments 8, interval 24) is pinned to core 0 and
everything else to core 1. The bare loop calls the same jitted function, with the same flags, on the same batches, and
is pinned to core 0 as well. They take turns: whoever is not measured is stopped with SIGSTOP. A pair is one turn of
each; figures are medians over pairs. `--batch 64` makes steps of 30 to 60 ms.

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
from typing import Any, NamedTuple

ISTHMUS = Path(sys.executable).with_name("isthmus")
BAR_CPU_MS = 0.5
BARS = {8: 0.93, 64: 0.97}
SETTLE_SECONDS = 0.3
NS = 1e9


class Turn(NamedTuple):
    """One turn of one side: steps a second and CPU seconds a step, in all and by thread."""

    rate: float
    cpu: float
    threads: dict[str, float]


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


def threads_of(pid: int) -> Iterator[Path]:
    """The folders of a process's threads."""
    yield from Path(f"/proc/{pid}/task").iterdir()


def cpu_of(pid: int) -> dict[str, float]:
    """CPU seconds of each thread, by number."""
    used = {}
    for thread in threads_of(pid):
        try:
            used[thread.name] = int((thread / "schedstat").read_text().split()[0]) / NS
        except OSError:
            continue
    return used


def pin(pid: int, core: int) -> None:
    """Let every thread of a process run on one core only."""
    for thread in threads_of(pid):
        os.sched_setaffinity(int(thread.name), {core})


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
    for each in (pid, *others):
        os.kill(each, signal.SIGCONT)
    time.sleep(SETTLE_SECONDS)
    before, begun = cpu_of(pid), time.monotonic()
    time.sleep(seconds)
    after, ended = cpu_of(pid), time.monotonic()
    time.sleep(SETTLE_SECONDS)
    for each in (*others, pid):
        os.kill(each, signal.SIGSTOP)
    count, took = steps.between(begun - zero, ended - zero)
    rate = count / took
    used = {thread: after[thread] - before.get(thread, 0.0) for thread in after}
    made = rate * (ended - begun)
    return Turn(rate, sum(used.values()) / made, {thread: each / made for thread, each in used.items()})


def status(folder: Path) -> dict[str, Any]:
    """What `isthmus status` tells of a run."""
    command = [str(ISTHMUS), "status", "--json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"hosts": [], "outcome": "unknown"}
    return told


@contextmanager
def training(here: Path, batch: int) -> Iterator[tuple[int, Steps, float, list[int]]]:
    """A run of one learner: its pid, its steps, the zero of their times, and the pids of all others."""
    options = ["--learners", "1", "--tokens", "100000000000", "--set", f"task.batch={batch}", "--quiet"]
    command = [str(ISTHMUS), "train", "--transport", "zmq", *options, "--run-dir", str(here / "run")]
    run = subprocess.Popen(command, cwd=here, stdout=subprocess.DEVNULL)
    try:
        pids: dict[str, int] = {}
        while not (here / "run" / "metrics.jsonl").exists() or (here / "run" / "metrics.jsonl").stat().st_size < 5000:
            time.sleep(0.5)
            if run.poll() is not None:
                raise SystemExit("the run ended before it had begun")
        told = status(here / "run")
        pids = {host["name"]: host["pid"] for host in told["hosts"] if host["pid"]}
        pids["daemon"] = told["pid"]
        learner = pids.pop("learner/0")
        for pid in (run.pid, *pids.values()):
            pin(pid, 1)
        pin(learner, 0)
        zero = json.loads((here / "run" / "spec.json").read_text())["zero_ns"] + told["training"]["zero"]
        yield learner, Steps(here / "run" / "metrics.jsonl", 0), zero / NS, [*pids.values(), run.pid]
    finally:
        run.kill()
        run.wait()


@contextmanager
def bare_loop(here: Path, batch: int) -> Iterator[tuple[int, Steps]]:
    """The bare loop in a process of its own."""
    with (here / "bare.jsonl").open("w") as lines:
        command = [sys.executable, __file__, "--bare", "--batch", str(batch)]
        loop = subprocess.Popen(command, stdout=lines)
    try:
        while (here / "bare.jsonl").stat().st_size < 2000:
            time.sleep(0.2)
        pin(loop.pid, 0)
        yield loop.pid, Steps(here / "bare.jsonl")
    finally:
        loop.kill()
        loop.wait()


def measure(pairs: int, seconds: float, batch: int) -> list[tuple[Turn, Turn]]:
    """Turns of the bare loop and of the learner, in alternating order."""
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        bare_loop(Path(folder), batch) as (loop, loop_steps),
    ):
        os.kill(loop, signal.SIGSTOP)
        with training(Path(folder), batch) as (learner, learner_steps, zero, others):
            for pid in (*others, learner):
                os.kill(pid, signal.SIGSTOP)
            for number in range(pairs):
                turns = [
                    lambda: take_turn(loop, loop_steps, seconds, 0.0, []),
                    lambda: take_turn(learner, learner_steps, seconds, zero, others),
                ]
                made = [turn() for turn in (turns if number % 2 else turns[::-1])]
                found.append((made[0], made[1]) if number % 2 else (made[1], made[0]))
            for pid in (*others, learner):
                os.kill(pid, signal.SIGCONT)
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
