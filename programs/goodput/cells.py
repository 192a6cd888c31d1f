"""Cells of a table: the goodput of a program, a number of learners and a number of chips; and the published cells.

The terms are *calibrated*: they were chosen so that the model comes near the published cells (arXiv 2604.21428, where a
chip is interrupted once a year), so agreement with those cells is no prediction. Each seed is a day of a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, stdev
from typing import Final, final

from isthmus.programs.goodput.model import YEAR_SECONDS, Terms, failures, lived, uptime
from isthmus.runtime.errors import ConfigError, Fault

DATA_PARALLEL: Final = "data-parallel"
ELASTIC: Final = "elastic-data-parallel"
DECOUPLED: Final = "decoupled-diloco"
TERMS: Final = {
    DATA_PARALLEL: Terms(stall_seconds=82.0, repair_seconds=0.0),
    ELASTIC: Terms(),
    DECOUPLED: Terms(),
}
"""Calibrated. Data-parallel training begins again from its last snapshot, with a spare slice: 82 s a failure."""
SECONDS: Final = 86_400.0
CHIPS_MAX: Final = 10_000_000
LEARNERS_MAX: Final = 1024
SEEDS_MAX: Final = 100
"""All three maxima together take some 5 minutes; ten thousand chips that fail once a year fail 27 times a day."""
PUBLISHED_CHIPS: Final = (150_000, 300_000, 600_000, 1_200_000)
PUBLISHED: Final = {
    (DATA_PARALLEL, 1): (0.72, 0.57, 0.38, 0.27),
    (ELASTIC, 1): (0.88, 0.80, 0.69, 0.58),
    (DECOUPLED, 2): (0.94, 0.88, 0.80, 0.70),
    (DECOUPLED, 4): (0.96, 0.93, 0.89, 0.82),
    (DECOUPLED, 8): (0.98, 0.96, 0.94, 0.88),
}
"""Goodput at each of PUBLISHED_CHIPS, simulated by the authors of Decoupled DiLoCo (arXiv 2604.21428)."""


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """Shares between 0 and 1, means over seeds; `goodput_deviation` is the standard deviation of one seed."""

    program: str
    learners: int
    chips: int
    goodput: float
    goodput_deviation: float
    uptime: float

    @property
    def published(self) -> float | None:
        """The goodput that was published for this cell, if one was."""
        row = PUBLISHED.get((self.program, self.learners))
        return dict(zip(PUBLISHED_CHIPS, row, strict=True)).get(self.chips) if row else None


def cells(learners: Sequence[int], chips: Sequence[int], seeds: int) -> list[Cell]:
    """The two data-parallel programs once for each number of chips, Decoupled DiLoCo for each number of learners too.

    ConfigError for numbers out of range, all of them together.
    """
    _check(learners, chips, seeds)
    pairs = [(DATA_PARALLEL, 1), (ELASTIC, 1), *((DECOUPLED, count) for count in learners)]
    return [_cell(program, count, many, seeds) for program, count in pairs for many in chips]


def goodput_of(
    terms: Terms, learners: int, chips: int, seed: int, failures_per_year: float = 1.0, seconds: float = SECONDS
) -> tuple[float, float]:
    """Goodput and uptime, over `seconds`, of `learners` that share `chips`, each with `failures_per_year`.

    A learner with fewer chips than a slice is one slice.
    """
    mean = YEAR_SECONDS * learners / (chips * failures_per_year)
    slices = max(1.0, chips / learners / terms.slice_chips)
    lives = []
    for slot in range(learners):
        # The same failures for each program: luck does not favour one.
        rng = Random(f"{seed} {learners} {chips} {slot}")
        lives.append(lived(failures(rng, mean, seconds), terms, slices, seconds))
    good = sum(life.good_seconds() for life in lives) / (learners * seconds)
    return good, uptime(lives, terms, seconds)


def _cell(program: str, learners: int, chips: int, seeds: int) -> Cell:
    found = [goodput_of(TERMS[program], learners, chips, seed) for seed in range(seeds)]
    goods = [good for good, _ in found]
    deviation = stdev(goods) if seeds > 1 else 0.0
    return Cell(program, learners, chips, fmean(goods), deviation, fmean(up for _, up in found))


def _check(learners: Sequence[int], chips: Sequence[int], seeds: int) -> None:
    doing, faults = "Reading the options of `isthmus simulate goodput`", list[Fault]()
    if not learners or not all(1 <= count <= LEARNERS_MAX for count in learners):
        found = ", ".join(map(str, learners)) or "none"
        faults.append(Fault(doing, f"--learners from 1 to {LEARNERS_MAX}", found, "Say how many, as in 1,2,4."))
    slice_chips = TERMS[DECOUPLED].slice_chips
    least = slice_chips * max([1, *learners])
    if not chips or not all(least <= many <= CHIPS_MAX for many in chips):
        found = ", ".join(map(str, chips)) or "none"
        expected = f"--chips from {least:,} (a slice of {slice_chips} for each learner) to {CHIPS_MAX:,}"
        faults.append(Fault(doing, expected, found, "Take more chips, or fewer learners."))
    if not 1 <= seeds <= SEEDS_MAX:
        faults.append(Fault(doing, f"--seeds from 1 to {SEEDS_MAX}", str(seeds), "Say how many days to try."))
    if faults:
        raise ConfigError.of(faults)
