"""How long learners take to start once everything is compiled, beyond a bare process that loads the same programs.

    python -m tests.bench.long.bench_second_start [--learners 2] [--pairs 3] [--nano] [--json]

gpt-124m at contexts of 64 on the CPU. Bare: a process that imports, makes one learner, loads its programs from the
cache, draws a model, and makes a step. The run: from its command to the first step of its last learner, as its
processes note it (`isthmus train --verbose`). In turns, after one start of each that compiles, and with what the run
compiled (`compiled.jsonl`), which has to be nothing.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.bench.observed import COMMAND

BAR_SECONDS: Final = 5.0
START_SECONDS_MAX: Final = 600.0
LOOK_SECONDS: Final = 0.1
OPTIONS: Final = ("--set", "program.interval=4", "--set", "program.fragments=8", "--set", "run.evaluate=none")


def settings(*, is_nano: bool) -> dict[str, Any]:
    """The task's settings; the rate is given, so that a bare process and a run have one step."""
    from isthmus.programs.command.config import MODELS

    if is_nano:
        return {"batch": 1, "context": 64, "lr": 1e-3}
    return {**MODELS["gpt-124m"], "batch": 1, "context": 64, "lr": 6e-4}


def bare(given: Mapping[str, Any]) -> None:
    """One learner, up to the end of its first step."""
    from isthmus.programs.engine.request.environment import prepare_environment

    prepare_environment(1)
    from isthmus.ops.data.batches import At
    from isthmus.ops.exchange.fragments import partition
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.programs.engine.request.layout import layout
    from isthmus.programs.language_model import task

    trained = task(**given)
    learner = Learner(trained, partition(layout(trained), 8), life=LearnerLife(0, 0, 1))
    learner.compile(trained.batch(At(0, 0, 0)))
    learner.begin()
    float(learner.step(trained.batch(At(0, 0, 0)), 0.0)["loss"])


def bare_seconds(given: Mapping[str, Any]) -> float:
    """A bare process, from its start to its end."""
    from isthmus.runtime.system.processes import environment

    begun = time.monotonic()
    command = [sys.executable, "-m", "tests.bench.long.bench_second_start", "--bare", json.dumps(given)]
    subprocess.run(command, check=True, env=environment(computes=True))
    return time.monotonic() - begun


def run_seconds(given: Mapping[str, Any], learners: int) -> tuple[float, int]:
    """A run, from its command to the first step of its last learner, and how many programs it compiled."""
    from isthmus.programs.engine.islands.kept_programs import read_compiled
    from isthmus.runtime.system.phases import read
    from tests.bench.in_turns import options_of

    options = [part for key, value in given.items() for part in options_of(key, value)]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as there:
        folder = Path(there, "run")
        command = [*COMMAND, "train", "--learners", str(learners), "--tokens", str(10**12), "--quiet", *OPTIONS]
        run = subprocess.Popen([*command, *options, "--run-dir", str(folder)], stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + START_SECONDS_MAX
            while len(steps := [each.at_ns for each in read(folder) if each.phase == "step"]) < learners:
                if run.poll() is not None or time.monotonic() > until:
                    raise SystemExit("the run does not step")
                time.sleep(LOOK_SECONDS)
            begun = next(each.at_ns for each in read(folder) if (each.process, each.phase) == ("command", "begun"))
            made = sum(each.way == "compiled" for each in read_compiled(folder))
        finally:
            run.send_signal(signal.SIGINT)
            run.wait()
    return (max(steps) - begun) / 1e9, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--nano", action="store_true", help="the shipped model's own size")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    if asked.bare is not None:
        bare(json.loads(asked.bare))
        return
    given = settings(is_nano=asked.nano)
    bare_seconds(given)
    run_seconds(given, asked.learners)
    pairs = [(bare_seconds(given), *run_seconds(given, asked.learners)) for _ in range(asked.pairs)]
    beyond = [run - alone for alone, run, _ in pairs]
    told = {"pairs": pairs, "beyond_seconds": statistics.median(beyond), "compiled": sum(made for *_, made in pairs)}
    if asked.json:
        print(json.dumps(told))
        return
    for alone, run, made in pairs:
        print(f"bare {alone:6.2f} s, the run {run:6.2f} s, {made} programs compiled")
    print(f"beyond the bare process {told['beyond_seconds']:.2f} s, bar {BAR_SECONDS:g}")


if __name__ == "__main__":
    main()
