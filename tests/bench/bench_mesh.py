"""What the runtime costs a learner on a mesh: its steps a second inside a run, against the bare loop on the same mesh.

    python tests/bench/bench_mesh.py [--devices 4] [--pairs 5] [--seconds 4] [--batch 64] [--json]

One learner of a real run (daemon, syncer, evaluator, recorder, fragments 8, interval 24) on CPU devices. The bare loop
is the same learner without a run. They take turns: whoever is not measured is stopped. Figures are medians over pairs.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from observed import signal_all, training

BAR = 0.97
SETTLE_SECONDS = 0.5
START_SECONDS_MAX = 120.0
WIDE = {"width": 128, "layers": 1, "context": 64}


def bare(batch: int) -> None:
    """The loop without a runtime: prints the instant at which each step ended, until it is killed."""
    from isthmus.ops.data.batches import At
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import Life
    from isthmus.programs.language_model import task
    from isthmus.programs.request.environment import prepare_environment

    prepare_environment(1)
    wide = task(batch=batch, **WIDE)
    learner = Learner(wide, (), life=Life(0, 0, 1))
    learner.compile(wide.batch(At(0, 0, 0)))
    learner.begin()
    step = 0
    while True:
        learner.step(wide.batch(At(0, 0, step)), 0.5)
        step += 1
        print(time.monotonic(), flush=True)


@contextmanager
def bare_loop(lines: Path, batch: int) -> Iterator[int]:
    """The bare loop in a process of its own."""
    command = [sys.executable, __file__, "--bare", "--batch", str(batch)]
    with lines.open("w") as file:
        loop = subprocess.Popen(command, stdout=file)
    try:
        until = time.monotonic() + START_SECONDS_MAX
        while lines.stat().st_size < 100:
            time.sleep(0.2)
            if loop.poll() is not None or time.monotonic() > until:
                raise SystemExit("the bare loop does not step")
        yield loop.pid
    finally:
        loop.kill()
        loop.wait()


def turn(pids: list[int], seconds: float) -> tuple[float, float]:
    """Let processes run for a while; from when to when."""
    signal_all(pids, signal.SIGCONT)
    time.sleep(SETTLE_SECONDS)
    begun = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    signal_all(pids, signal.SIGSTOP)
    return begun, ended


def rate(window: tuple[float, float], ends: list[float]) -> float:
    """Steps a second, of steps that ended within a window."""
    inside = [end for end in ends if window[0] <= end <= window[1]]
    return (len(inside) - 1) / (inside[-1] - inside[0])


def measure(pairs: int, seconds: float, batch: int) -> list[tuple[float, float]]:
    """Rates of the bare loop and of the learner, in turns."""
    settings = [item for key, value in (WIDE | {"batch": batch}).items() for item in ("--set", f"task.{key}={value}")]
    windows = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lines = Path(folder, "bare.txt")
        with bare_loop(lines, batch) as loop:
            os.kill(loop, signal.SIGSTOP)
            with training(Path(folder, "run"), *settings, learners=1) as run:
                inside = [run.pids["learner/0"], *run.others("learner/0")]
                signal_all(inside, signal.SIGSTOP)
                for _ in range(pairs):
                    windows.append((turn([loop], seconds), turn(inside, seconds)))
                signal_all(inside, signal.SIGCONT)
                run.stop()
                made = [ended for _, ended in run.spans("learner/0", "inner-step")]
            alone = list(map(float, lines.read_text().split()))
    return [(rate(one, alone), rate(other, made)) for one, other in windows]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.bare:
        bare(asked.batch)
        return
    os.environ.update(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=str(asked.devices), NPROC="1")
    os.environ.update(XLA_FLAGS="--xla_cpu_multi_thread_eigen=false", OMP_NUM_THREADS="1")
    rates = measure(asked.pairs, asked.seconds, asked.batch)
    ratios = [inside / alone for alone, inside in rates]
    if asked.json:
        print(json.dumps({"devices": asked.devices, "rates": rates, "ratios": ratios}))
        return
    alone, inside = (statistics.median(values) for values in zip(*rates, strict=True))
    print(f"{asked.devices} CPU devices, batch {asked.batch}, {len(rates)} pairs of {asked.seconds} s; medians")
    print(f"bare loop                       {1e3 / alone:.1f} ms a step")
    print(f"learner                         {1e3 / inside:.1f} ms a step")
    print(f"learner / bare loop             {statistics.median(ratios):.3f}, bar {BAR}")


if __name__ == "__main__":
    main()
