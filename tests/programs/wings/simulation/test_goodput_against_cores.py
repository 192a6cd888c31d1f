"""The event model beside whole runs of the real quorum, membership and supervision, which meet the same failures.

Four learners with steps of 4 s are killed as chips fail; supervision starts their next lives, which take the global
fragments and go on. The model is set by the times measured in a run with other failures, at another rate, and has to
say what goodput and uptime of the run will be.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from statistics import fmean
from typing import Final

import pytest

from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.simulation.goodput import FailureTerms, Lived, failures, lived, uptime
from isthmus.programs.wings.simulation.virtual_run import VirtualPace
from isthmus.runtime.host.contract import Span
from isthmus.runtime.sim.faults import Kill
from tests.bench.long.bench_mixtures import Measured, measured

LEARNERS: Final = 4
STEP: Final = 4.0
INTERVAL: Final = 24
PACE: Final = VirtualPace(step_ms=1e3 * STEP, jitter=0.1)
OVERLAP: Final = 2
BOOT: Final = 14.0
"""Of a process, on average; with what follows, some 20 s until it steps again."""


@pytest.mark.soak
@pytest.mark.parametrize("case", [(150.0, 70, 0), (105.0, 240, 0), (60.0, 240, 1)])
def test_the_model_predicts_what_real_cores_do(case: tuple[float, int, int]) -> None:
    mean_seconds, steps, seed = case
    set_by = [(slot, 60.0 + 38 * life + 9 * slot) for life in range(3) for slot in range(LEARNERS)]
    before = ran(28, set_by)
    zero = before.summary["start_seconds"]
    terms = FailureTerms(STEP, stall(before, set_by), repair_seconds=math.inf, interval_seconds=INTERVAL * STEP)

    failed = [failures(Random(f"{seed} {slot}"), mean_seconds, steps * STEP) for slot in range(LEARNERS)]
    stalls = [(slot, each) for slot, life in enumerate(lives(failed, terms, steps * STEP)) for each in life.stalls]
    kills = [(slot, zero + each.begin) for slot, each in stalls]
    run = ran(steps, kills)

    wall = run.summary["wall_seconds"]
    predicted = lives(failed, terms, wall)
    goodput = sum(life.good_seconds() for life in predicted) / (LEARNERS * wall)
    assert run.summary["outcome"] == "done"
    assert run.faults["kill"] == len(kills) >= 6
    assert goodput < 0.85
    assert goodput == pytest.approx(run.summary["goodput"], abs=0.03)
    assert uptime(predicted, terms, wall) == pytest.approx(run.summary["uptime"], abs=0.02)


def lives(failed: Sequence[Sequence[float]], terms: FailureTerms, seconds: float) -> list[Lived]:
    """What the model says of each learner; of slices without number, so that all that counts is when it stalls."""
    return [lived(each, terms, math.inf, seconds) for each in failed]


def ran(steps: int, kills: Sequence[tuple[int, float]]) -> Measured:
    faults = [Kill(f"learner/{slot}", at=at) for slot, at in kills]
    program = Program("decoupled-diloco", interval=INTERVAL, overlap=OVERLAP)
    return measured(program, learners=LEARNERS, steps=steps, pace=PACE, faults=faults, boot_seconds=BOOT)


def stall(run: Measured, kills: Sequence[tuple[int, float]]) -> float:
    """Seconds from the last step before a kill to the first one after it, on average. The first firings of a life are
    no steps: they take the global fragments; how many there are is counted in lives that saw the end of the run."""
    gaps, firings = [], {slot: firings_of(run, slot) for slot in range(LEARNERS)}
    for slot, at in kills:
        begun = min(span.begun for span in firings[slot] if span.begun > at * 1e9)
        gaps.append((begun - max(span.ended for span in firings[slot] if span.ended <= at * 1e9)) / 1e9)
    last = {slot: max(at for of, at in kills if of == slot) for slot in firings}
    steps = {life["learner"]: life["steps"] for life in run.summary["books"]["lives"] if not life["has_ended"]}
    idle = [
        sum(span.begun > last[slot] * 1e9 for span in firings[slot]) - steps.get(slot, math.nan) for slot in firings
    ]
    return fmean(gaps) + STEP * fmean(idle)


def firings_of(run: Measured, slot: int) -> list[Span]:
    return [span for span in run.spans if span.name == "inner-step" and span.host == f"learner/{slot}"]
