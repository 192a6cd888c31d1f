"""A learner inside a run against its bare loop, in turns: whoever is not measured is stopped.

Started as a program it is that loop, with the settings of the shipped task as JSON: it prints the instant at which each
step ended, until it is killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from observed import signal_all, training

SETTLE_SECONDS = 0.5
START_SECONDS_MAX = 300.0


def rates(settings: Mapping[str, Any], pairs: int, seconds: float) -> list[tuple[float, float]]:
    """Steps a second of the bare loop and of a run's learner, in pairs of so many seconds each."""
    given = [item for key, value in settings.items() for item in ("--set", f"task.{key}={value}")]
    windows = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        lines = Path(folder, "bare.txt")
        with _bare_loop(lines, settings) as loop:
            os.kill(loop, signal.SIGSTOP)
            with training(Path(folder, "run"), *given, learners=1) as run:
                inside = [run.pids["learner/0"], *run.others("learner/0")]
                signal_all(inside, signal.SIGSTOP)
                for _ in range(pairs):
                    windows.append((_turn([loop], seconds), _turn(inside, seconds)))
                signal_all(inside, signal.SIGCONT)
                run.stop()
                made = [ended for _, ended in run.spans("learner/0", "inner-step")]
            alone = list(map(float, lines.read_text().split()))
    return [(_rate(one, alone), _rate(other, made)) for one, other in windows]


@contextmanager
def _bare_loop(lines: Path, settings: Mapping[str, Any]) -> Iterator[int]:
    """The bare loop in a process of its own."""
    with lines.open("w") as file:
        loop = subprocess.Popen([sys.executable, __file__, json.dumps(settings)], stdout=file)
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


def _turn(pids: list[int], seconds: float) -> tuple[float, float]:
    """Let processes run for a while; from when to when."""
    signal_all(pids, signal.SIGCONT)
    time.sleep(SETTLE_SECONDS)
    begun = time.monotonic()
    time.sleep(seconds)
    ended = time.monotonic()
    signal_all(pids, signal.SIGSTOP)
    return begun, ended


def _rate(window: tuple[float, float], ends: list[float]) -> float:
    """Steps a second, of steps that ended within a window."""
    inside = [end for end in ends if window[0] <= end <= window[1]]
    return (len(inside) - 1) / (inside[-1] - inside[0])


def _bare(settings: Mapping[str, Any]) -> None:
    from isthmus.ops.data.batches import At
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import Life
    from isthmus.programs.language_model import task
    from isthmus.programs.request.environment import prepare_environment

    prepare_environment(1)
    trained = task(**settings)
    learner = Learner(trained, (), life=Life(0, 0, 1))
    learner.compile(trained.batch(At(0, 0, 0)))
    learner.begin()
    step = 0
    while True:
        learner.step(trained.batch(At(0, 0, step)), 0.5)
        step += 1
        print(time.monotonic(), flush=True)


if __name__ == "__main__":
    _bare(json.loads(sys.argv[1]))
