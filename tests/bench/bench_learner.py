"""What the runtime costs a learner: its steps a second and CPU a step inside a run, against the bare loop.

    python -m tests.bench.bench_learner [--pairs 20] [--seconds 2] [--batch 8] [--model own-step] [--json]

One learner of a real run (daemon, syncer, evaluator, recorder, fragments 8, interval 24) is pinned to core 0 and
everything else to core 1. The bare loop calls the same jitted function, with the same flags, on the same batches, and
is pinned to core 0 as well. They take turns: whoever is not measured is stopped with SIGSTOP. A pair is one turn of
each; figures are medians over pairs. `--batch 32` makes steps of 30 to 60 ms. `--model own-step`: the same model as a
task that brings its step (`own_step.py`), and the bare loop is that step under `jax.jit`, without anything of ours.
`--model torch`, where PyTorch is installed (`.venv-torch`): the same model in PyTorch (`torch_tasks.py`), and the bare
loop is the one that a script in PyTorch has. `--model adamw`: the shipped task with that loop's optimizer.

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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.runtime.system.processes import ONE_THREAD
from tests.bench.observed import Run, cpu_of, pin, signal_all, training

BAR_CPU_MS = 0.5
BAR, BAR_LONG_STEPS = 0.93, 0.97
LONG_STEPS_BATCH_MIN = 32
SETTLE_SECONDS = 0.3
START_SECONDS_MAX = 120.0
PRINT_SECONDS = 0.2


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
        if len(inside) < 2:
            raise SystemExit(f"{len(inside)} steps ended in a turn: give turns more --seconds")
        rate = (len(inside) - 1) / (inside[-1] - inside[0])
        made = rate * (self.ended - self.begun)
        return Turn(rate, sum(self.threads.values()) / made, {name: cpu / made for name, cpu in self.threads.items()})


class Side(NamedTuple):
    """One of the models: the options of its run, and the bare loop's step, with its batches, for a batch size."""

    options: Callable[[int], tuple[str, ...]]
    bare: Callable[[int], tuple[Callable[[Any], Any], Callable[[Any], Any]]]


def bare(model: str, batch: int) -> None:
    """The loop without a runtime: prints the instant at which each step ended, until it is killed."""
    os.environ.update(ONE_THREAD, NPROC="1")
    from isthmus.ops.data.batches import At
    from isthmus.ops.island.life import lower_priority
    from isthmus.programs.engine.request.environment import prepare_environment

    prepare_environment(1)
    lower_priority()  # As a learner does, so that what else runs on this machine takes as much from both.
    dispatch, batches = MODELS[model].bare(batch)
    pending, step, ends = None, 0, []
    while True:
        loss = dispatch(batches(At(0, 0, step)))
        if pending is not None:
            float(pending["loss"])
        pending, step = loss, step + 1
        ends.append(time.monotonic())
        if ends[-1] - ends[0] >= PRINT_SECONDS:
            print(*ends, sep="\n", flush=True)
            ends.clear()


def _learner(batch: int, **settings: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A step of the shipped task as a learner dispatches it, and its batches."""
    from isthmus.ops.data.batches import At
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.programs.language_model import task

    nano = task(batch=batch, **settings)
    learner = Learner(nano, (), life=LearnerLife(0, 0, 1))
    learner.compile(nano.batch(At(0, 0, 0)))
    learner.begin()
    return lambda each: learner.dispatch(each, 0.5), nano.batch


def _own_step(batch: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """The jitted step of a task that brings one, in the thread that asks, as a learner's is; and its batches."""
    import jax
    import numpy as np

    from isthmus.ops.island.functions import compute_in_the_calling_thread
    from isthmus.ops.island.recipe import Now
    from tests.bench.own_step import nano

    compute_in_the_calling_thread()
    task = nano(batch=batch)
    jitted = jax.jit(task.step, donate_argnums=0)
    state, now = jax.jit(task.init)(jax.random.key(0)), Now(jax.random.key(0), np.float32(0.5))

    def dispatch(each: Any) -> Any:
        nonlocal state
        state, metrics = jitted(state, each, now)
        return metrics

    return dispatch, task.batch


def _torch(batch: int) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """A step as a script in PyTorch has it, and its batches."""
    import torch

    from tests.bench.torch_tasks import nano

    task = nano(batch=batch)
    torch.manual_seed(0)
    module = task.build()
    optimizer = task.optimizer(module)

    def dispatch(each: Any) -> Any:
        loss = task.loss(module, {name: torch.from_numpy(array) for name, array in each.items()})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach()}

    return dispatch, task.batch


def _shipped_options(batch: int, *more: str) -> tuple[str, ...]:
    return ("--set", f"task.batch={batch}", *more)


def _task_options(file: str, batch: int) -> tuple[str, ...]:
    return ("--task", f"{Path(__file__).with_name(file)}:nano(batch = {batch})")


MODELS = {
    "shipped": Side(_shipped_options, _learner),
    "adamw": Side(
        lambda batch: _shipped_options(batch, "--set", "task.optimizer=adamw"), partial(_learner, optimizer="adamw")
    ),
    "own-step": Side(partial(_task_options, "own_step.py"), _own_step),
    "torch": Side(partial(_task_options, "torch_tasks.py"), _torch),
}


def take_turn(pid: int, seconds: float, others: list[int]) -> Window:
    """Let a process run for a while, with those that it needs."""
    signal_all((pid, *others), signal.SIGCONT)
    time.sleep(SETTLE_SECONDS)
    before, begun = cpu_of(pid), time.monotonic()
    time.sleep(seconds)
    after, ended = cpu_of(pid), time.monotonic()
    signal_all((*others, pid), signal.SIGSTOP)
    return Window(begun, ended, {thread: after[thread] - before.get(thread, 0.0) for thread in after})


def take_turns(loop: int, run: Run, pairs: int, seconds: float) -> tuple[list[Window], list[Window]]:
    """Turns of a bare loop, which is stopped, and of the learner of a run, in alternating order; the run goes on then.

    The learner has core 0 for itself, everything else of the run core 1.
    """
    alone, inside = list[Window](), list[Window]()
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
    return alone, inside


@contextmanager
def bare_loop(here: Path, model: str, batch: int) -> Iterator[int]:
    """The bare loop in a process of its own."""
    with (here / "bare.txt").open("w") as lines:
        command = [sys.executable, "-m", "tests.bench.bench_learner", "--bare", "--batch", str(batch), "--model", model]
        loop = subprocess.Popen(command, stdout=lines)
    try:
        until = time.monotonic() + START_SECONDS_MAX
        while (here / "bare.txt").stat().st_size < 50:
            time.sleep(0.2)
            if loop.poll() is not None or time.monotonic() > until:
                raise SystemExit("the bare loop does not step")
        pin([loop.pid], 0)
        yield loop.pid
    finally:
        loop.kill()
        loop.wait()


def measure(model: str, pairs: int, seconds: float, batch: int) -> list[tuple[Turn, Turn]]:
    """Turns of the bare loop and of the learner, in alternating order; steps by the clock of whoever made them."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        bare_loop(Path(folder), model, batch) as loop,
    ):
        os.kill(loop, signal.SIGSTOP)
        with training(Path(folder, "run"), *MODELS[model].options(batch), learners=1) as run:
            alone, inside = take_turns(loop, run, pairs, seconds)
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


def print_threads(sides: Mapping[str, Mapping[Any, float]]) -> None:
    """What each thread takes for a step, in CPU ms, of those that take anything."""
    for side, items in sides.items():
        for thread, cpu in sorted(items.items(), key=lambda item: -item[1]):
            if cpu > 0.003:
                print(f"    {side}, thread {thread:10} {cpu:.3f} ms a step")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--model", choices=MODELS, default="shipped")
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.bare:
        bare(asked.model, asked.batch)
        return
    pairs = measure(asked.model, asked.pairs, asked.seconds, asked.batch)
    ratios = [inside.rate / alone.rate for alone, inside in pairs]
    added = [1e3 * (inside.cpu - alone.cpu) for alone, inside in pairs]
    threads = {
        "bare loop": by_thread([alone for alone, _ in pairs]),
        "learner": by_thread([inside for _, inside in pairs]),
    }
    if asked.json:
        print(
            json.dumps(
                {
                    "model": asked.model,
                    "batch": asked.batch,
                    "ratios": ratios,
                    "cpu_added_ms": added,
                    "cpu_bare_ms": [1e3 * alone.cpu for alone, _ in pairs],
                    "cpu_learner_ms": [1e3 * inside.cpu for _, inside in pairs],
                    "threads_ms": threads,
                }
            )
        )
        return
    print(
        f"{len(pairs)} pairs of {asked.seconds} s, {asked.model}, batch {asked.batch}; medians and quartiles over pairs"
    )
    print(f"bare loop, steps/s              {spread([alone.rate for alone, _ in pairs])}")
    print(f"learner, steps/s                {spread([inside.rate for _, inside in pairs])}")
    bar = BAR_LONG_STEPS if asked.batch >= LONG_STEPS_BATCH_MIN else BAR
    print(f"learner / bare loop             {spread(ratios)}, bar {bar}")
    print(f"bare loop, CPU ms a step        {spread([1e3 * alone.cpu for alone, _ in pairs])}")
    print(f"learner, CPU ms a step          {spread([1e3 * inside.cpu for _, inside in pairs])}")
    print(f"CPU ms that the runtime adds    {spread(added)}, bar {BAR_CPU_MS}")
    print_threads(threads)


if __name__ == "__main__":
    main()
