"""One GPU: what the runtime costs a learner there, whether the memory of a step is as predicted, and two islands on it.

    python -m tests.bench.long.bench_gpu [--batch 8] [--pairs 5] [--seconds 10] [--json]

gpt-124m with contexts of 1,024. Steps a second of a learner in a real run against the same learner without a run, in
turns (whoever is not measured is stopped; each has 0.45 of the memory). Peak memory as jax's allocator counts it, after
ten steps and an exchange of every fragment, against what the compiler says of the functions that were called. Then two
learners on the same GPU, as placement puts them there; their steps a second together, against one. Without a GPU that
jax can use it says so, and ends with status 2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.bench.in_turns import rates
from tests.bench.observed import training

BAR, MEMORY_BAR = 0.97, (0.9, 1.1)
STEPS = 10
SHARE = "0.45"


def settings(batch: int) -> dict[str, Any]:
    """The task's settings."""
    from isthmus.programs.command.config import MODELS

    return {**MODELS["gpt-124m"], "batch": batch}


def memory(settings: Mapping[str, Any]) -> dict[str, int | None]:
    """Bytes of the device, of the shipped task: predicted by the compiler, and at the peak of steps and exchanges.

    In a process of its own. None is measured where the device does not count, as CPUs do not.
    """
    import jax
    import numpy as np

    from isthmus.ops.data.batches import At
    from isthmus.ops.exchange.fragments import partition
    from isthmus.ops.island.jax_learner import Learner
    from isthmus.ops.island.life import LearnerLife
    from isthmus.programs.engine.request.layout import layout
    from isthmus.programs.language_model import task
    from isthmus.programs.wings.compile.figures import Compiled
    from isthmus.programs.wings.compile.worker import bytes_on_device, compiled

    trained = task(**settings)
    learner = Learner(trained, partition(layout(trained), 8), life=LearnerLife(0, 0, 1))
    state, predicted = bytes_on_device(learner.shapes), 0
    for call in learner._functions.calls(trained.batch(At(0, 0, 0))):
        found = compiled(call.function.lower(*call.arguments), {})
        assert isinstance(found, Compiled)
        predicted = max(predicted, found.memory.total + state - bytes_on_device(call.arguments[0]))
    learner.begin()
    for step in range(STEPS):
        learner.step(trained.batch(At(0, 0, step)), 0.5)["loss"].block_until_ready()
    for fragment in range(8):
        learner.adopt(fragment, np.asarray(learner.extract(fragment), np.float32))
        learner.step(trained.batch(At(0, 0, STEPS + fragment)), 0.5)["loss"].block_until_ready()
    counted = jax.local_devices()[0].memory_stats() or {}
    return {"predicted": predicted, "measured": counted.get("peak_bytes_in_use")}


def together(batch: int, learners: int, seconds: float) -> float:
    """Steps a second of all learners of a run on the one GPU."""
    given = [part for key, value in settings(batch).items() for part in ("--set", f"task.{key}={value}")]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as there:
        folder = Path(there, "run")
        with training(folder, *given, learners=learners) as run:
            begun = time.monotonic()
            time.sleep(seconds)
            ended = time.monotonic()
            run.stop()
            spans = [run.spans(f"learner/{slot}", "inner-step") for slot in range(learners)]
    inside = [sum(begun <= end <= ended for _, end in each) for each in spans]
    return sum(inside) / (ended - begun)


def the_gpu(doing: str) -> str:
    """The number of the first GPU; the end, with status 2, where there is none."""
    from isthmus.programs.engine.islands.environment import find

    found = find()
    if found is None or found.platform != "cuda":
        there = "none that jax can use" if found is None else f"{len(found.ids)} devices for {found.platform!r}"
        print(
            f"{doing}: expected an NVIDIA GPU, and jax with its plugin for CUDA, found {there}. "
            "Run it on a machine that has one, after: pip install 'jax[cuda12]'.",
            file=sys.stderr,
        )
        raise SystemExit(2)
    return found.ids[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ.update(CUDA_VISIBLE_DEVICES=the_gpu("Measuring on a GPU"), JAX_PLATFORMS="cuda")
    if asked.memory:
        print(json.dumps(memory(settings(asked.batch))))
        return
    # What has the GPU is a process that ends before the next begins, or shares it.
    own = [sys.executable, "-m", "tests.bench.long.bench_gpu", "--memory", "--batch", str(asked.batch)]
    bytes_of = json.loads(subprocess.run(own, stdout=subprocess.PIPE, check=True).stdout.splitlines()[-1])
    alone, two = (together(asked.batch, learners, asked.seconds) for learners in (1, 2))
    os.environ["XLA_CLIENT_MEM_FRACTION"] = SHARE
    found = rates(settings(asked.batch), asked.pairs, asked.seconds)
    ratio = statistics.median(inside / bare for bare, inside in found)
    told = {"rates": found, "ratio": ratio, "memory": bytes_of, "steps_one": alone, "steps_two": two}
    if asked.json:
        print(json.dumps(told))
        return
    part = bytes_of["predicted"] / bytes_of["measured"]
    print(f"learner / bare loop             {ratio:.3f}, bar {BAR}")
    print(f"predicted / measured memory     {part:.3f} of {bytes_of['measured'] / 1e9:.2f} GB, bar {MEMORY_BAR}")
    print(f"one island, two islands on it   {alone:.2f}, {two:.2f} steps a second together")


if __name__ == "__main__":
    main()
