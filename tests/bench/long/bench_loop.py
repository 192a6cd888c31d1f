"""What `island.step` costs a user's own loop: its steps a second as an island of a run, against the same loop bare.

    .venv-torch/bin/python -m tests.bench.long.bench_loop [--pairs 10] [--seconds 4] [--batch 8] [--json]

The loop is `own_loop_steps.py`; it needs PyTorch. The island (fragments 8, interval 24) is pinned to core 0, everything
else of its run to core 1, and the bare loop to core 0. They take turns: whoever is not measured is stopped with
SIGSTOP. A pair is one turn of each, in alternating order; figures are medians over pairs. `--batch 8` makes steps of
about 50 ms, `--batch 32` of 200 ms. CPU a step comes from /proc, of all threads of the process, and by thread.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.ops.island.life import lower_priority
from isthmus.runtime.system import processes
from isthmus.runtime.system.processes import environment
from tests.bench.bench_learner import START_SECONDS_MAX, Turn, by_thread, print_threads, spread, take_turns
from tests.bench.observed import pin, training

SCRIPT = Path(__file__).parents[1] / "own_loop_steps.py"
BARS = {50: 0.97, 200: 0.99}
"""By the milliseconds of a step, at least."""


def give_way() -> None:
    """Lower the priority of a process and of its session, as a learner does: what else runs here takes as much from
    both."""
    lower_priority()
    processes.lower_priority()


@contextmanager
def bare_loop(lines: Path, batch: int) -> Iterator[int]:
    """The bare loop in a process of its own, with the threads and the priority of a learner."""
    command = [sys.executable, str(SCRIPT), str(lines), str(batch), "bare"]
    variables = environment(computes=True)
    loop = subprocess.Popen(command, env=variables, preexec_fn=give_way, start_new_session=True)
    try:
        until = time.monotonic() + START_SECONDS_MAX
        while not lines.exists() or not lines.stat().st_size:
            time.sleep(0.2)
            if loop.poll() is not None or time.monotonic() > until:
                raise SystemExit("the bare loop does not step")
        pin([loop.pid], 0)
        yield loop.pid
    finally:
        loop.kill()
        loop.wait()


def instants(lines: Path) -> list[float]:
    """The ends of steps."""
    text = lines.read_text()
    return [float(line) for line in text[: text.rfind("\n") + 1].split()]


def measure(pairs: int, seconds: float, batch: int) -> list[tuple[Turn, Turn]]:
    """Turns of the bare loop and of the island; steps by their own clock."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        bare_lines, lines = Path(folder, "bare.txt"), Path(folder, "island")
        with bare_loop(bare_lines, batch) as loop:
            os.kill(loop, signal.SIGSTOP)
            options = ("--loop", str(SCRIPT))
            with training(Path(folder, "run"), *options, learners=1, after=(str(lines), str(batch))) as run:
                alone, inside = take_turns(loop, run, pairs, seconds)
                run.stop()
        ends, bare_ends = instants(lines.with_suffix(".0")), instants(bare_lines)
    return [(one.turn(bare_ends), other.turn(ends)) for one, other in zip(alone, inside, strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    pairs = measure(asked.pairs, asked.seconds, asked.batch)
    ratios = [inside.rate / alone.rate for alone, inside in pairs]
    cpu = [alone.cpu / inside.cpu for alone, inside in pairs]
    threads = {
        "bare loop": by_thread([alone for alone, _ in pairs]),
        "island": by_thread([inside for _, inside in pairs]),
    }
    if asked.json:
        print(json.dumps({"batch": asked.batch, "ratios": ratios, "cpu_ratios": cpu, "threads_ms": threads}))
        return
    print(f"{len(pairs)} pairs of {asked.seconds} s, batch {asked.batch}; medians and quartiles over pairs")
    print(f"bare loop, steps/s        {spread([alone.rate for alone, _ in pairs])}")
    print(f"island, steps/s           {spread([inside.rate for _, inside in pairs])}")
    bars = ", ".join(f"{bar} at steps of {step} ms" for step, bar in BARS.items())
    print(f"island / bare loop        {spread(ratios)}, bars {bars}")
    print(f"CPU, bare loop / island   {spread(cpu)}")
    print(f"bare loop, CPU ms a step  {spread([1e3 * alone.cpu for alone, _ in pairs])}")
    print(f"island, CPU ms a step     {spread([1e3 * inside.cpu for _, inside in pairs])}")
    print_threads(threads)


if __name__ == "__main__":
    main()
