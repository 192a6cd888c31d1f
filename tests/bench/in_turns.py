"""A learner inside a run against its bare loop, in turns: whoever is not measured is stopped.

Started as a program it is that loop, with the settings of the shipped task as JSON: it prints the instant at which each
step ended, until it is killed.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.observed import Run, lines_of, signal_all, training

SETTLE_SECONDS = 0.5
START_SECONDS_MAX = 300.0
TURN_SECONDS_MAX = 60.0
STEPS_MIN = 3
"""Or reports of steps: what lies between the first and the last is measured."""


def rates(settings: Mapping[str, Any], pairs: int, seconds: float) -> list[tuple[float, float]]:
    """Steps a second of the bare loop and of a run's learner, in pairs of so many seconds each."""
    return list(turns(settings, pairs, seconds))


def turns(
    settings: Mapping[str, Any], pairs: int, seconds: float, *, ready_seconds: float = START_SECONDS_MAX
) -> Iterator[tuple[float, float]]:
    """The same, each pair as soon as it is measured: the run's steps are those that its recorder was told of."""
    given = [item for key, value in settings.items() for item in options_of(key, value)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lines = Path(folder, "bare.txt")
        # One after the other: the loop has the step that the run compiled. Two that compile at the same time measure
        # each other's kernels: on an H200 the loop's choice made 20 steps a second, the run's 30.
        with (
            training(Path(folder, "run"), *given, learners=1, ready_seconds=ready_seconds) as run,
            _bare_loop(lines, settings) as loop,
        ):
            _await_steps(lines, loop)
            loop.send_signal(signal.SIGSTOP)
            inside = [run.pids["learner/0"], *run.others("learner/0")]
            signal_all(inside, signal.SIGSTOP)
            try:
                for _ in range(pairs):
                    alone = _turn([loop.pid], seconds, lambda: _steps_of_loop(lines))
                    yield alone, _turn(inside, seconds, lambda: _steps_of_run(run))
            finally:
                signal_all(inside, signal.SIGCONT)
            run.stop()


def options_of(key: str, value: Any) -> list[str]:
    """A setting of the task, as options of the command."""
    if key == "data":
        return [part for path in value for part in ("--data", str(path))]
    text = str(value).lower() if isinstance(value, bool) else value
    return ["--set", f"task.{key}={text}"]


def _steps_of_loop(lines: Path) -> list[tuple[float, int]]:
    """(instant, number) of each step of the bare loop."""
    text = lines.read_text()
    return [(float(line), number) for number, line in enumerate(text[: text.rfind("\n") + 1].split())]


def _steps_of_run(run: Run) -> list[tuple[float, int]]:
    """(instant, number of steps) of each report of the learner."""
    return [(run.zero + line["time"], line["step"]) for line in lines_of(run.folder / "metrics.jsonl")]


@contextmanager
def _bare_loop(lines: Path, settings: Mapping[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    """The bare loop in a process of its own, with the environment of a host, which may not step yet."""
    from isthmus.runtime.system.processes import environment

    with lines.open("w") as file:
        command = [sys.executable, "-m", "tests.bench.in_turns", json.dumps(settings)]
        loop = subprocess.Popen(command, stdout=file, env=environment(computes=True))
    try:
        yield loop
    finally:
        loop.kill()
        loop.wait()


def _await_steps(lines: Path, loop: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while lines.stat().st_size < 100:
        time.sleep(0.2)
        if loop.poll() is not None or time.monotonic() > until:
            raise SystemExit("the bare loop does not step")


def _turn(pids: list[int], seconds: float, steps: Callable[[], list[tuple[float, int]]]) -> float:
    """Let processes run for so long, and until some steps are known; steps a second."""
    signal_all(pids, signal.SIGCONT)
    time.sleep(SETTLE_SECONDS)
    begun = time.monotonic()
    time.sleep(seconds)
    until = begun + TURN_SECONDS_MAX
    while len(inside := [each for each in steps() if each[0] >= begun]) < STEPS_MIN:
        if time.monotonic() > until:
            raise SystemExit(f"less than {STEPS_MIN} steps in {TURN_SECONDS_MAX:.0f} s")
        time.sleep(0.2)
    signal_all(pids, signal.SIGSTOP)
    (first, low), (last, high) = inside[0], inside[-1]
    return (high - low) / (last - first)


def _bare(settings: Mapping[str, Any]) -> None:
    from isthmus.ops.data.batches import At
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.programs.engine.request.environment import prepare_environment
    from isthmus.programs.language_model import task

    prepare_environment(1)
    trained = task(**settings)
    learner = Learner(trained, (), life=LearnerLife(0, 0, 1))
    learner.compile(trained.batch(At(0, 0, 0)))
    learner.begin()
    step = 0
    while True:
        learner.step(trained.batch(At(0, 0, step)), 0.5)
        step += 1
        print(time.monotonic(), flush=True)


if __name__ == "__main__":
    _bare(json.loads(sys.argv[1]))
