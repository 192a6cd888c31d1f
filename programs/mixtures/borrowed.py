"""Borrowed learners, that join half-way: the duration of a run for the same tokens, against one without them.

Each case is a whole run of the toy in virtual time: machines join by the real supervision, learners by the real
membership, and take the global fragments. When learners were borrowed was not published; from half of the tokens on,
without any cost, is 1/2 + 1/2 / (1 + more), within a point of the published figure for each case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from isthmus.programs.mixtures.measured import measured
from isthmus.programs.request.program import Program
from isthmus.programs.simulation.virtual_run import Pace
from isthmus.runtime.errors import ConfigError, Fault
from isthmus.runtime.sim import Join

PUBLISHED: Final = {0.25: (1.07, 0.90), 0.5: (1.09, 0.83), 1.0: (1.02, 0.75), 3.0: (0.80, 0.62)}
"""More learners, as a share: time to finish of data-parallel training, and of Decoupled DiLoCo, against none more
(arXiv 2604.21428)."""
LEARNERS_MAX: Final = 16
"""64 in all with three times as many on top."""
STEPS_MAX: Final = 10_000
_PACE: Final = Pace(step_ms=1000.0, jitter=0.1)


@final
@dataclass(frozen=True, slots=True)
class Borrowed:
    """The case of `more` learners, as a share of the original ones, which trained `share` of all tokens.

    `time` to finish is relative to the run without them; `limit` is that time if joining cost nothing.
    """

    more: float
    joined: int
    seconds: float
    time: float
    limit: float
    share: float
    published: float
    published_data_parallel: float


def borrowed(learners: int, steps: int, seed: int) -> list[Borrowed]:
    """All cases; ConfigError for numbers out of range."""
    _check(learners, steps)
    alone = measured(Program("decoupled-diloco"), learners=learners, steps=steps, pace=_PACE, seed=seed).summary
    half = alone["start_seconds"] + alone["wall_seconds"] / 2
    found = []
    for more, (data_parallel, decoupled) in PUBLISHED.items():
        joining = [Join(f"learner/{slot}", at=half) for slot in range(learners, learners + round(more * learners))]
        program = Program("decoupled-diloco")
        run = measured(program, learners=learners, steps=steps, pace=_PACE, seed=seed, faults=joining).summary
        guests = sum(each["tokens"] for each in run["per_learner"] if each["learner"] >= learners)
        took, limit = run["wall_seconds"], 0.5 + 0.5 / (1 + more)
        time, share = took / alone["wall_seconds"], guests / run["tokens_total"]
        found.append(Borrowed(more, len(joining), took, time, limit, share, decoupled, data_parallel))
    return found


def _check(learners: int, steps: int) -> None:
    doing, faults = "Reading the options of `isthmus simulate borrowed`", list[Fault]()
    if not (4 <= learners <= LEARNERS_MAX and learners % 4 == 0):
        expected = f"--learners a multiple of 4 from 4 to {LEARNERS_MAX}"
        faults.append(Fault(doing, expected, str(learners), "25 % more of it has to be a number of learners."))
    if not 50 <= steps <= STEPS_MAX:
        faults.append(Fault(doing, f"--steps from 50 to {STEPS_MAX}", str(steps), "Say how many a learner makes."))
    if faults:
        raise ConfigError.of(faults)
