"""What the runtime costs a learner: its steps a second and CPU a step inside a run, against the bare loop.

    python tests/bench/bench_learner.py [--pairs 20] [--seconds 2] [--batch 8] [--own-step] [--json]

One learner of a real run (daemon, syncer, evaluator, recorder, fragments 8, interval 24) is pinned to core 0 and
everything else to core 1. The bare loop calls the same jitted function, with the same flags, on the same batches, and
is pinned to core 0 as well. They take turns: whoever is not measured is stopped with SIGSTOP. A pair is one turn of
each; figures are medians over pairs. `--batch 32` makes steps of 30 to 60 ms. With `--own-step` the same model is a
task that brings its step (`own_step.py`), and the bare loop is that step under `jax.jit`, without anything of ours.

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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from observed import cpu_of, pin, signal_all, training

from isthmus.runtime.system.processes import ONE_THREAD

BAR_CPU_MS = 0.5
BARS = {8: 0.93, 32: 0.97}
SETTLE_SECONDS = 0.3
START_SECONDS_MAX = 120.0


class Turn(NamedTuple):
    """One turn of one side: steps a second and CPU seconds a step, in all and by thread."""

    rate: float
    cpu: float
    threads: dict[int, float]


class Window(NamedTuple):
    """A stretch of the monotonic clock, in seconds, and the CPU seconds of each thread in it."""

    begun: float
    ended: float
    threads: dict[int, float]

    def turn(self, ends: list[float]) -> Turn:
        """With the instants at which steps ended: those that ended in it, over the time between first and last."""
        inside = [end for end in ends if self.begun <= end <= self.ended]
        rate = (len(inside) - 1) / (inside[-1] - inside[0])
        made = rate * (self.ended - self.begun)
        return Turn(rate, sum(self.threads.values()) / made, {name: cpu / made for name, cpu in self.threads.items()})


def bare(batch: int, *, is_own_step: bool) -> None:
    """The loop without a runtime: prints the instant at which each step ended, until it is killed."""
    os.environ.update(ONE_THREAD, NPROC="1")
    from isthmus.ops.data.batches import At
    from isthmus.programs.engine.request.environment import prepare_environment

    prepare_environment(1)
    dispatch, batches = _own_step(batch) if is_own_step else _learner(batch)
    pending, step, ends = None, 0, []
    while True:
        loss = dispatch(batches(At(0, 0, step)))
        if pending is not None:
            float(pending["loss"])
        pending, step = loss, step + 1
        ends.append(time.monotonic())
        if len(ends) == 32:
            print(*ends, sep="\n", flush=True)
            ends.clear()


def _learner(batch: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A step of the shipped task as a learner dispatches it, and its batches."""
    from isthmus.ops.data.batches import At
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.programs.language_model import task

    nano = task(batch=batch)
    learner = Learner(nano, (), life=LearnerLife(0, 0, 1))
    learner.compile(nano.batch(At(0, 0, 0)))
    learner.begin()
    return lambda each: learner.dispatch(each, 0.5), nano.batch


def _own_step(batch: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The jitted step of a task that brings one, in the thread that asks, as a learner's is; and its batches."""
    import jax
    import numpy as np
    from own_step import nano

    from isthmus.ops.island.functions import compute_in_the_calling_thread
    from isthmus.ops.island.recipe import Now

    compute_in_the_calling_thread()
    task = nano(batch=batch)
    jitted = jax.jit(task.step, donate_argnums=0)
    state, now = jax.jit(task.init)(jax.random.key(0)), Now(jax.random.key(0), np.float32(0.5))

    def dispatch(each: Any) -> Any:
        nonlocal state
        state, metrics = jitted(state, each, now)
        return metrics

    return dispatch, task.batch


def take_turn(pid: int, seconds: float, others: list[int]) -> Window:
    """Let a process run for a while, with those that it needs."""
    signal_all((pid, *others), signal.SIGCONT)
    time.sleep(SETTLE_SECONDS)
    before, begun = cpu_of(pid), time.monotonic()
    time.sleep(seconds)
    after, ended = cpu_of(pid), time.monotonic()
    signal_all((*others, pid), signal.SIGSTOP)
    return Window(begun, ended, {thread: after[thread] - before.get(thread, 0.0) for thread in after})


@contextmanager
def bare_loop(here: Path, batch: int, *, is_own_step: bool) -> Iterator[int]:
    """The bare loop in a process of its own."""
    with (here / "bare.txt").open("w") as lines:
        command = [sys.executable, __file__, "--bare", "--batch", str(batch), *(["--own-step"] if is_own_step else [])]
        loop = subprocess.Popen(command, stdout=lines)
    try:
        until = time.monotonic() + START_SECONDS_MAX
        while (here / "bare.txt").stat().st_size < 500:
            time.sleep(0.2)
            if loop.poll() is not None or time.monotonic() > until:
                raise SystemExit("the bare loop does not step")
        pin([loop.pid], 0)
        yield loop.pid
    finally:
        loop.kill()
        loop.wait()


def measure(pairs: int, seconds: float, batch: int, *, is_own_step: bool) -> list[tuple[Turn, Turn]]:
    """Turns of the bare loop and of the learner, in alternating order; steps by the clock of whoever made them."""
    alone: list[Window] = []
    inside: list[Window] = []
    own_step = Path(__file__).with_name("own_step.py")
    task = ["--task", f"{own_step}:nano(batch = {batch})"] if is_own_step else ["--set", f"task.batch={batch}"]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        bare_loop(Path(folder), batch, is_own_step=is_own_step) as loop,
    ):
        os.kill(loop, signal.SIGSTOP)
        with training(Path(folder, "run"), *task, learners=1) as run:
            learner, others = run.pids["learner/0"], run.others("learner/0")
            pin(others, 1)
            pin([learner], 0)
            signal_all((*others, learner), signal.SIGSTOP)
            for number in range(pairs):
                for side in (number % 2, 1 - number % 2):
                    if side:
                        alone.append(take_turn(loop, seconds, []))
                    else:
                        inside.append(take_turn(learner, seconds, others))
            signal_all((*others, learner), signal.SIGCONT)
            run.stop()
            made = [ended for _, ended in run.spans("learner/0", "inner-step")]
        bare_made = list(map(float, Path(folder, "bare.txt").read_text().split()))
    return [(one.turn(bare_made), other.turn(made)) for one, other in zip(alone, inside, strict=True)]


def spread(values: list[float]) -> str:
    """Median, and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def by_thread(turns: list[Turn]) -> dict[int, float]:
    """Medians over the turns of what each thread takes for a step, in CPU ms."""
    items = defaultdict(list)
    for turn in turns:
        for thread, cpu in turn.threads.items():
            items[thread].append(1e3 * cpu)
    return {thread: statistics.median(values) for thread, values in items.items() if len(values) > len(turns) // 2}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--own-step", action="store_true", help="the model as a task that brings its step")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.bare:
        bare(asked.batch, is_own_step=asked.own_step)
        return
    pairs = measure(asked.pairs, asked.seconds, asked.batch, is_own_step=asked.own_step)
    ratios = [inside.rate / alone.rate for alone, inside in pairs]
    added = [1e3 * (inside.cpu - alone.cpu) for alone, inside in pairs]
    threads = {
        "bare loop": by_thread([alone for alone, _ in pairs]),
        "learner": by_thread([inside for _, inside in pairs]),
    }
    if asked.json:
        print(json.dumps({"batch": asked.batch, "ratios": ratios, "cpu_added_ms": added, "threads_ms": threads}))
        return
    print(f"{len(pairs)} pairs of {asked.seconds} s, batch {asked.batch}; medians and quartiles over pairs")
    print(f"bare loop, steps/s              {spread([alone.rate for alone, _ in pairs])}")
    print(f"learner, steps/s                {spread([inside.rate for _, inside in pairs])}")
    print(f"learner / bare loop             {spread(ratios)}, bar {BARS.get(asked.batch, BARS[8])}")
    print(f"bare loop, CPU ms a step        {spread([1e3 * alone.cpu for alone, _ in pairs])}")
    print(f"CPU ms that the runtime adds    {spread(added)}, bar {BAR_CPU_MS}")
    for side, items in threads.items():
        for thread, cpu in sorted(items.items(), key=lambda item: -item[1]):
            if cpu > 0.003:
                print(f"    {side}, thread {thread:10} {cpu:.3f} ms a step")


if __name__ == "__main__":
    main()
