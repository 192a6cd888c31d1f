"""Learners of two speeds: their goodput if all wait, or none, with and without grace.

Each case is a whole run of the toy in virtual time: hosts, quorum, membership, supervision and wire are the real ones,
steps take the given time. Half of the learners, the last ones, step at `slower` times the speed of the others; every
duration has 10 % of jitter. How much slower they are was not published: 0.68 is what lock-step with 84 % implies, (1 +
0.68) / 2, so that case is set by the published figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from isthmus.programs.mixtures.measured import Measured, measured
from isthmus.programs.request.program import Program
from isthmus.programs.simulation.virtual_run import Pace
from isthmus.runtime.errors import ConfigError, Fault

SLOWER: Final = 0.68
STEPS_MAX: Final = 10_000
LEARNERS_MAX: Final = 64
JITTER: Final = 0.1
WARM_UP: Final = 5_000_000_000
"""Nanoseconds: before their first steps learners take the global fragments."""
_LOCK_STEP: Final = "quorum = learners, all wait"
CASES: Final = {
    _LOCK_STEP: Program("streaming-diloco"),
    "quorum 1": Program("decoupled-diloco", quorum=1, grace=False),
    "quorum 1 with grace": Program("decoupled-diloco", quorum=1, grace=True),
}
PUBLISHED: Final = {_LOCK_STEP: 0.84, "quorum 1": 1.0, "quorum 1 with grace": 1.0}
"""Goodput, half of the learners slower, jitter 10 % (arXiv 2604.21428)."""


@final
@dataclass(frozen=True, slots=True)
class Mixed:
    """One case: shares between 0 and 1.

    `goodput`: share of the time in which learners step, as in the published figures; `goodput_merged`: that of
    `summary.json`, where refused work does not count; `contributors`: learners in a merge, on average; `seconds`: of
    virtual time for the same tokens.
    """

    case: str
    program: str
    goodput: float
    published: float
    goodput_merged: float
    contributors: float
    seconds: float


def mixed(learners: int, slower: float, steps: int, seed: int) -> list[Mixed]:
    """All cases; ConfigError for numbers out of range."""
    _check(learners, slower, steps)
    speeds = tuple(1.0 if slot < (learners + 1) // 2 else slower for slot in range(learners))
    found = []
    for case, program in CASES.items():
        pace = Pace(speeds, step_ms=1000.0, jitter=JITTER)
        run = measured(program, learners=learners, steps=steps, pace=pace, seed=seed)
        figures = (run.summary[name] for name in ("goodput", "contributors_mean", "wall_seconds"))
        found.append(Mixed(case, program.name, _stepping(run, learners), PUBLISHED[case], *figures))
    return found


def _stepping(run: Measured, learners: int) -> float:
    """The share of the learners' time in their steps, from when all of them step to the last step of any."""
    steps = [span for span in run.spans if span.name == "inner-step" and not span.peer]
    begun = max(min(span.begun for span in steps if span.host == f"learner/{slot}") for slot in range(learners))
    first = begun + WARM_UP
    last = max(span.ended for span in steps)
    spent = sum(max(0, span.ended - max(span.begun, first)) for span in steps)
    return spent / (learners * (last - first))


def _check(learners: int, slower: float, steps: int) -> None:
    doing, faults = "Reading the options of `isthmus simulate speeds`", list[Fault]()
    if not 2 <= learners <= LEARNERS_MAX:
        faults.append(Fault(doing, f"--learners from 2 to {LEARNERS_MAX}", str(learners), "Say how many there are."))
    if not 0.05 <= slower <= 1:
        faults.append(Fault(doing, "--slower from 0.05 to 1", f"{slower:g}", "Say how fast the slower half is."))
    if not 50 <= steps <= STEPS_MAX:
        faults.append(Fault(doing, f"--steps from 50 to {STEPS_MAX}", str(steps), "Say how many a learner makes."))
    if faults:
        raise ConfigError.of(faults)
