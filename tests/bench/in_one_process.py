"""A learner inside a run against its bare loop, one after the other in one process: the same device, the same programs,
compiled once.

The bare loop, a run of one learner with its syncer (`transport="inproc"`), and the bare loop again, so that a clock
that changes meanwhile is seen. The run's steps are those that its recorder was told of, from its second merge on.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

WARM_STEPS: Final = 3
STEPS_MIN: Final = 5
STEPS_MORE: Final = 50
"""Of the run, for those that do not count."""
REPORTS_MIN: Final = 2
MERGES_MIN: Final = 2
"""Before what counts: first exchanges make buffers, and bring an anchor."""


def measured(task: Any, fragments: int, seconds: float) -> dict[str, float]:
    """Steps a second of both, and their ratio; the bare loop's before and after the run."""
    before = bare_rate(task, fragments, seconds)
    inside = run_rate(task, fragments, round(2 * seconds * before) + STEPS_MORE)
    after = bare_rate(task, fragments, seconds)
    bare = (before + after) / 2
    return {
        "bare_steps_per_second": bare,
        "bare_before": before,
        "bare_after": after,
        "steps_per_second": inside,
        "ratio": inside / bare,
    }


def bare_rate(task: Any, fragments: int, seconds: float) -> float:
    """Steps a second of a learner without a run."""
    from isthmus.ops.data.batches import At
    from isthmus.ops.exchange.fragments import partition
    from isthmus.ops.island.kind import LearnerParts, kind_of
    from isthmus.ops.island.life import LearnerLife
    from isthmus.programs.engine.request.task_checks import layout_of

    parts = LearnerParts(task, partition(layout_of(task, 0), fragments), LearnerLife(0, 0, 1), 0.0)
    learner = kind_of(None).learner(parts, lambda: None, time.monotonic_ns)
    learner.compile(task.batch(At(0, 0, 0)))
    learner.begin()
    step, begun, ended = 0, 0.0, 0.0
    while step < WARM_STEPS + STEPS_MIN or ended - begun < seconds:
        scalars = learner.step(task.batch(At(0, 0, step)), 0.5)
        step += 1
        if step == WARM_STEPS:
            float(scalars["loss"])  # What was queued before does not count.
            begun = time.monotonic()
        ended = time.monotonic()
    float(scalars["loss"])
    rate = (step - WARM_STEPS) / (time.monotonic() - begun)
    del learner, scalars
    gc.collect()
    return rate


def run_rate(task: Any, fragments: int, steps: int) -> float:
    """Steps a second of the learner of a run of so many steps; it comes to its own end, so that nothing of it computes
    beside what is measured next."""
    from isthmus import decoupled_diloco, train

    reports = list[tuple[float, int]]()
    merges = 0

    def on_metrics(line: Mapping[str, Any]) -> None:
        nonlocal merges
        merges += line["file"] == "merges"
        if line["file"] == "metrics" and merges >= MERGES_MIN and line["phase"] == "stepping":
            reports.append((line["time"], line["step"]))

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as there:
        train(
            decoupled_diloco(fragments=fragments),
            task,
            learners=1,
            tokens=steps * task.tokens_per_batch,
            transport="inproc",
            evaluate="none",
            run_dir=Path(there, "run"),
            quiet=True,
            on_metrics=on_metrics,
        )
    if len(reports) < REPORTS_MIN:
        raise SystemExit(f"{len(reports)} reports of a run of {steps} steps: give it more seconds")
    (begun, low), (ended, high) = reports[0], reports[-1]
    return (high - low) / (ended - begun)
