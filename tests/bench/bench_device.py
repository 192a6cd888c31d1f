"""What a learner makes of a made device: its steps a second against a bare loop's, on a virtual clock.

    python -m tests.bench.bench_device [--framework jax|torch]... [--push float32,int4,int1] [--steps 24] [--json]

No device is there: the table of `tests/made_device.py` has its times, 88 ms a step, 25 GB/s in each direction, 5 us a
launch, and a learner exchanges one of eight fragments of 124 million parameters every three steps, as inner-step and
fragment-send do it. In PyTorch each operation of a transformer of 12 layers is a launch. What the table does not have,
such as what a real driver takes, is not in the figures. PyTorch is left out where it is not installed.

`newest`: waits of a learner's thread for the newest step, in all steps; `waits`: of any kind, in the mean of a step
without a boundary. Exit status 1 where a ratio is below its bar, or a learner waits for the newest step.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple
from unittest.mock import patch

from isthmus.ops.data.batches import At
from tests.made_device import H200_LIKE, Steps, Table, measured
from tests.made_steps import MadeSteps

PARAMETERS = 124e6
BARS = {"jax": 0.985, "torch": 0.98}
NOTHING = 1e-6
"""Seconds: the scalars of a step are there a moment after it."""


class Side(NamedTuple):
    """A bare loop and a learner, and what the learner's host waited for, as [what, times, nanoseconds]."""

    bare: Steps
    learner: Steps
    steps: MadeSteps
    faults: int | None
    """None where nothing looks for them."""


def jax_side(table: Table, push: str, steps: int) -> Side:
    """A learner in jax; the bare loop dispatches the same step, and waits for the one before."""
    from isthmus.ops.island import jax_learner
    from isthmus.ops.island.life import LearnerLife
    from tests.ops.island.made_jax import DeepTask, MadeJax

    task, bare, device = DeepTask(), MadeJax(table), MadeJax(table)
    parts = task.fragments()
    device.scale = PARAMETERS / sum(part.size for part in parts)
    with patch.object(jax_learner, "reach", lambda devices: bare):
        loop = jax_learner.Learner(task, parts, life=LearnerLife(0, 0, 1))
    loop.begin()
    bare.step = loop._functions.step
    before: list[Any] = []

    def make(number: int) -> None:
        before.append(loop.dispatch(task.batch(At(0, 0, number)), 0.0)["loss"])
        if len(before) > 1:
            bare.wait(before.pop(0), "step")

    alone = measured(bare.made, steps, make)
    with patch.object(jax_learner, "reach", lambda devices: device):
        learner = MadeSteps(task, parts, device.made, push=push)
    device.step = learner.learner._functions.step
    return Side(alone, measured(device.made, steps, learner.make), learner, None)  # Jax orders what it is asked.


def torch_side(table: Table, push: str, steps: int) -> Side:
    """A learner in PyTorch; the bare loop is that of a script which waits for the step before by an event."""
    import torch

    from isthmus.ops.exchange.fragments import partition
    from isthmus.ops.exchange.merge_rules import is_merged
    from tests.bench.made_transformer import TASK
    from tests.ops.bodies import Spec
    from tests.torch_tasks.made_torch import made_torch

    torch.set_num_threads(1)
    parts = partition([Spec(leaf.name, leaf.shape) for leaf in TASK.leaves(0) if is_merged(leaf.kind)], 8)
    scale = PARAMETERS / sum(part.size for part in parts)

    with made_torch(table) as mode:
        module = TASK.build()
        mode.adopt([*module.parameters(), *module.buffers()])
        optimizer = TASK.optimizer(module)  # type: ignore[misc]
        marks: list[Any] = []

        def make(number: int) -> None:
            batch = {name: torch.from_numpy(each) for name, each in TASK.batch(At(0, 0, number)).items()}
            TASK.loss(module, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            marks.append(mode.mark(mode.computing()))
            if len(marks) > 1:
                mode.wait(marks.pop(0))

        mode.scale = scale
        mode.let_take(table.step, make)
        product = mode.product
        alone = measured(mode.made, steps, lambda number: make(number + 2))
    with made_torch(table) as mode:
        mode.scale, mode.product = scale, product
        learner = MadeSteps(TASK, parts, mode.made, push=push)
        made = measured(mode.made, steps, learner.make)
    return Side(alone, made, learner, len(mode.made.faults))


SIDES: dict[str, Callable[[Table, str, int], Side]] = {"jax": jax_side, "torch": torch_side}


def figures(framework: str, push: str, steps: int, *, is_duplex: bool) -> dict[str, Any]:
    """What one learner comes to."""
    side = SIDES[framework](H200_LIKE._replace(is_duplex=is_duplex), push, steps)
    first = steps - len(side.learner.waits)
    calm = [waits for at, waits in enumerate(side.learner.waits) if not side.steps.is_boundary(first + at)]
    return {
        "framework": framework,
        "push": push,
        "engines": 2 if is_duplex else 1,
        "ratio": side.bare.seconds / side.learner.seconds,
        "bare_ms": 1e3 * side.bare.seconds,
        "learner_ms": 1e3 * side.learner.seconds,
        "idle_ms": 1e3 * side.learner.idle,
        "newest": sum(each.is_for_newest for waits in side.learner.waits for each in waits),
        "waits": sum(each.seconds > NOTHING for waits in calm for each in waits) / max(1, len(calm)),
        "faults": side.faults,
        "host_waits": [[what, count, took / 1e9] for what, count, took in side.steps.learner.host_waits.rows()],
    }


def is_good(found: dict[str, Any]) -> bool:
    """Whether a figure is within its bar, where each direction has an engine."""
    is_quick = found["engines"] == 1 or found["ratio"] >= BARS[found["framework"]]
    return is_quick and not found["newest"] and not found["faults"]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=SIDES, action="append")
    parser.add_argument("--push", default="float32,int4")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    there = [name for name in asked.framework or SIDES if find_spec(name) is not None]
    found = [
        figures(name, push, asked.steps, is_duplex=is_duplex)
        for name in there
        for push in asked.push.split(",")
        for is_duplex in (True, False)
    ]
    if asked.json:
        print(json.dumps(found))
    else:
        print("framework  push     engines  learner / bare loop  bar   idle, ms a step  newest  waits a step")
        for each in found:
            print(
                f"{each['framework']:9}  {each['push']:7}  {each['engines']:7}  {each['ratio']:19.4f}"
                f"  {BARS[each['framework']]:.3f}{each['idle_ms']:16.3f}{each['newest']:8}{each['waits']:14.2f}"
            )
    return 0 if all(map(is_good, found)) else 1


if __name__ == "__main__":
    sys.exit(main())
