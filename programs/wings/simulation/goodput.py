"""The effect of failures on goodput: an event model, in which nothing is trained, and its cells beside the published
ones.

Decides the terms of each program and how a run of a day is simulated. The terms are *calibrated* to the published cells
(arXiv 2604.21428, where a chip is interrupted once a year), so agreement with those is no prediction; other published
cells are held out. The tests compare the model with whole runs of the real cores.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from random import Random
from statistics import fmean, stdev
from typing import Final, Literal, NamedTuple, TypeAlias, final

from isthmus.programs.command.demands import Demand, check, within
from isthmus.programs.engine.results.words import UNKNOWN, percent, scaled
from isthmus.programs.study.terminal.sheet import PageSection, Sheet, table
from isthmus.programs.wings.report.charts_lines import ChartLine, draw_lines

YEAR_SECONDS: Final = 365.25 * 86_400
UPTIME_STEPS: Final = 3
"""Steps after the end of its last one for which a learner counts as up, as in `summary.json`."""


@final
@dataclass(frozen=True, slots=True)
class FailureTerms:
    """Durations in seconds.

    A learner's work is merged once in `interval_seconds`, a fragment after the other, and unmerged work is lost with a
    failure; with 0 nothing is lost, because other slices hold the state. With `repair_seconds` of 0 a spare slice is
    available at once, and no slice ever rejoins later.
    """

    step_seconds: float = 4.0
    stall_seconds: float = 22.0
    upscale_seconds: float = 12.0
    calm_seconds: float = 180.0
    repair_seconds: float = 300.0
    interval_seconds: float = 0.0
    slice_chips: int = 256


@final
@dataclass(frozen=True, slots=True)
class RestartTerms:
    """What processes that are restarted add to a failure, beside the published model. Durations in seconds.

    With `snapshot_seconds` above 0 all work since the last snapshot is lost with a failure, and each snapshot costs
    `snapshot_cost_seconds`; they are taken at ends of steps, so often from the end of each stall. The n-th failure in a
    row before `healthy_seconds` of work stalls for the n-th of `backoff_seconds` longer, the last one for all beyond. A
    failure during a stall begins it again.
    """

    snapshot_seconds: float = 0.0
    snapshot_cost_seconds: float = 0.0
    healthy_seconds: float = 0.0
    backoff_seconds: tuple[float, ...] = (0.0,)

    def backoff(self, row: int) -> float:
        """How much longer the stall of the failure number `row` in a row is, from 1."""
        return self.backoff_seconds[min(row, len(self.backoff_seconds)) - 1]

    def wasted(self, worked: float, step: float, *, is_lost: bool) -> float:
        """Seconds of `worked` that snapshots took, and, if its end was a failure, that were after the last of them."""
        if not self.snapshot_seconds:
            return 0.0
        interval = max(1, math.ceil(self.snapshot_seconds / step)) * step
        count = int(worked / interval + 1e-9)
        return count * self.snapshot_cost_seconds + (worked - count * interval if is_lost else 0.0)


class LearnerStall(NamedTuple):
    """A time in which a learner does not step; `failed` are the failures that it is about, none in an upscale."""

    begin: float
    end: float
    failed: int


class Work(NamedTuple):
    """A time in which a learner steps, with this share of its chips; `lost` seconds of it were lost with its end."""

    begin: float
    end: float
    share: float
    lost: float


@final
@dataclass(frozen=True, slots=True)
class Lived:
    """The history of one learner."""

    works: tuple[Work, ...]
    stalls: tuple[LearnerStall, ...]

    def good_seconds(self) -> float:
        """Seconds of work that was not lost, weighted by the share of its chips."""
        return sum(work.share * (work.end - work.begin - work.lost) for work in self.works)


def failures(rng: Random, mean_seconds: float, seconds: float) -> list[float]:
    """Instants of a learner's failures, `mean_seconds` apart on average."""
    instants, at = list[float](), rng.expovariate(1 / mean_seconds)
    while at < seconds:
        instants.append(at)
        at += rng.expovariate(1 / mean_seconds)
    return instants


def lived(
    failed: Sequence[float], terms: FailureTerms, slices: float, seconds: float, restarts: RestartTerms | None = None
) -> Lived:
    """The history, over `seconds`, of a learner of `slices` slices, one of which fails at each instant of `failed`.

    A learner works in steps. Chips fail as a Poisson process, at a rate that belongs to the whole learner. At the end
    of the step in which one failed the learner stalls (it detects, reshards, replays) and continues without that slice.
    A slice that fails during a stall is lost, too, and neither prolongs the stall nor begins another. Repaired slices
    rejoin for nothing at the end of any stall, or else in a stall of their own, the upscale, which comes no sooner than
    `calm_seconds` after the last one. A learner without any slice waits for the first. With `restarts` the slices are
    processes that are restarted.
    """
    works, stalls, row = list[Work](), list[LearnerStall](), 0
    away = list[float]()  # When each slice that is away will be repaired, in this order.
    now, index, stalled = 0.0, 0, 0.0
    # Each turn is a failure, or an upscale, of which there is at most one for a failure; or the end.
    while now < seconds:
        upscale = max(away[0], stalled + terms.calm_seconds) if away else math.inf
        until = min(failed[index] if index < len(failed) else math.inf, upscale, seconds)
        end = now + max(1, math.ceil((until - now) / terms.step_seconds)) * terms.step_seconds
        before = index
        index = bisect_right(failed, end, index)
        share = max(0.0, 1 - len(away) / slices)
        lost = unmerged(end - now, terms.interval_seconds) if index > before else 0.0
        if restarts is not None:
            lost += restarts.wasted(min(end, seconds) - now, terms.step_seconds, is_lost=index > before)
            row = 1 if end - now >= restarts.healthy_seconds else row + 1
        works.append(Work(now, min(end, seconds), share, lost))
        away += [at + terms.repair_seconds for at in failed[before:index]]
        if index == before and upscale > end:
            break
        stalled = end + (terms.stall_seconds if index > before else terms.upscale_seconds)
        if restarts is not None and index > before:
            stalled += restarts.backoff(row)
            while index < len(failed) and failed[index] <= stalled:
                row += 1
                away.append(failed[index] + terms.repair_seconds)
                stalled = failed[index] + terms.stall_seconds + restarts.backoff(row)
                index += 1
        during = bisect_right(failed, stalled, index)
        away += [at + terms.repair_seconds for at in failed[index:during]]
        away = [at for at in away if at > stalled]
        while away and len(away) >= slices:
            stalled = away.pop(0)
        stalls.append(LearnerStall(end, stalled, index - before))
        now, index = stalled, bisect_right(failed, stalled, during)
    return Lived(tuple(works), tuple(stalls))


def unmerged(worked: float, interval: float) -> float:
    """Seconds of unmerged work after `worked` seconds: the mean over fragments that are merged at even distances, once
    in `interval` seconds each."""
    return worked - worked**2 / (2 * interval) if worked < interval else interval / 2


def uptime(lives: Iterable[Lived], terms: FailureTerms, seconds: float) -> float:
    """The share of the time, from the end of the first step, at which some learner has just finished a step."""
    works = sorted(chain.from_iterable(life.works for life in lives))
    up, reached = 0.0, terms.step_seconds
    for work in works:
        begin, end = work.begin + terms.step_seconds, min(work.end + UPTIME_STEPS * terms.step_seconds, seconds)
        up += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return min(1.0, up / (seconds - terms.step_seconds))


DATA_PARALLEL: Final = "data-parallel"
ELASTIC: Final = "elastic-data-parallel"
DECOUPLED: Final = "decoupled-diloco"
TERMS: Final = {
    DATA_PARALLEL: FailureTerms(stall_seconds=82.0, repair_seconds=0.0),
    ELASTIC: FailureTerms(),
    DECOUPLED: FailureTerms(),
}
"""Calibrated. Data-parallel training begins again from its last snapshot, with a spare slice: 82 s a failure."""
SECONDS: Final = 86_400.0
CHIPS_MAX: Final = 10_000_000
LEARNERS_SIMULATED_MAX: Final = 1024
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
HELD_OUT_CHIPS: Final = 2_400_000
HELD_OUT_LEARNERS: Final = 16
"""Their simulation covers these, too. No term of the model was chosen by them, and we have no figures of theirs."""
Standing: TypeAlias = Literal["calibrated", "held out", "held out, new"]


_CALIBRATED_LEARNERS: Final = [learners for program, learners in PUBLISHED if program == DECOUPLED]
_CALIBRATED: Final = {
    (TERMS[program], chips / learners) for program, learners in PUBLISHED for chips in PUBLISHED_CHIPS
}


@final
@dataclass(frozen=True, slots=True)
class Cell:
    """Shares between 0 and 1, means over seeds; `goodput_deviation` is the standard deviation of one seed, None
    where there is only one."""

    program: str
    learners: int
    chips: int
    goodput: float
    goodput_deviation: float | None
    uptime: float

    @property
    def published(self) -> float | None:
        """The goodput that was published for this cell, if one was."""
        row = PUBLISHED.get((self.program, self.learners))
        return dict(zip(PUBLISHED_CHIPS, row, strict=True)).get(self.chips) if row else None

    @property
    def standing(self) -> Standing | None:
        """What the published figure of this cell was for the terms of the model; None if none was published.

        M learners on N chips behave as one on N / M, so a cell that was held out is only new where no calibrated cell
        has the same terms and as many chips a learner.
        """
        if self.published is not None:
            return "calibrated"
        if self.chips not in (*PUBLISHED_CHIPS, HELD_OUT_CHIPS) or (
            self.program == DECOUPLED and self.learners not in (*_CALIBRATED_LEARNERS, HELD_OUT_LEARNERS)
        ):
            return None
        is_known = (TERMS[self.program], self.chips / self.learners) in _CALIBRATED
        return "held out" if is_known else "held out, new"

    @property
    def difference(self) -> float | None:
        """The goodput minus the published one."""
        return None if self.published is None else self.goodput - self.published


def cells(learners: Sequence[int], chips: Sequence[int], seeds: int) -> list[Cell]:
    """The two data-parallel programs once for each number of chips, Decoupled DiLoCo for each number of learners too.

    ConfigError for numbers out of range, all of them together.
    """
    _check(learners, chips, seeds)
    pairs = [(DATA_PARALLEL, 1), (ELASTIC, 1), *((DECOUPLED, count) for count in learners)]
    return [_cell(program, count, many, seeds) for program, count in pairs for many in chips]


def goodput_of(
    terms: FailureTerms, learners: int, chips: int, seed: int, failures_per_year: float = 1.0, seconds: float = SECONDS
) -> tuple[float, float]:
    """Goodput and uptime, over `seconds`, of `learners` that share `chips`, each with `failures_per_year`.

    A learner with fewer chips than a slice is one slice.

    Learners do not interact: with Decoupled DiLoCo none waits for another, so each learner of a run with M is one with
    an M-th of the chips. Data-parallel training is one learner with all of them.
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
    days = [goodput_of(TERMS[program], learners, chips, seed) for seed in range(seeds)]
    goods = [good for good, _ in days]
    deviation = stdev(goods) if seeds > 1 else None
    return Cell(program, learners, chips, fmean(goods), deviation, fmean(up for _, up in days))


def _check(learners: Sequence[int], chips: Sequence[int], seeds: int) -> None:
    slice_chips = FailureTerms().slice_chips
    least = slice_chips * max([1, *learners])
    demands = [
        Demand(
            bool(learners) and all(1 <= count <= LEARNERS_SIMULATED_MAX for count in learners),
            f"--learners from 1 to {LEARNERS_SIMULATED_MAX}",
            ", ".join(map(str, learners)) or "none",
            "Say how many, as in 1,2,4.",
        ),
        Demand(
            bool(chips) and all(least <= many <= CHIPS_MAX for many in chips),
            f"--chips from {least:,} (a slice of {slice_chips} for each learner) to {CHIPS_MAX:,}",
            ", ".join(map(str, chips)) or "none",
            "Take more chips, or fewer learners.",
        ),
        within("--seeds", seeds, 1, SEEDS_MAX, "Say how many days to try."),
    ]
    check("Reading the options of `isthmus simulate goodput`", demands)


SOURCE: Final = "arXiv 2604.21428"
CALIBRATED: Final = (
    f"The terms of the model are calibrated to the cells published in {SOURCE}: agreement with those is no prediction."
)


def sheet(cells: Sequence[Cell], seeds: int) -> Sheet:
    """The result, with a row for each cell; in its data `published` and `difference` are None where the terms were not
    set by a published figure, `standing` says what that was for, and `calibrated` are the terms of each program."""
    names_of_lines = dict.fromkeys(map(_name, cells))
    lines = [
        ChartLine(
            name,
            [(cell.chips, cell.goodput) for cell in cells if _name(cell) == name],
            [(cell.chips, cell.published) for cell in cells if _name(cell) == name and cell.published is not None],
        )
        for name in names_of_lines
    ]
    drawing = draw_lines(lines, "Goodput by number of chips", scaled, percent, low=0.0, high=1.0)
    objects = [
        asdict(cell) | {name: getattr(cell, name) for name in ("published", "difference", "standing")} for cell in cells
    ]
    columns = ("program", "chips", "goodput", "deviation", "published", "difference", "uptime")
    rows = [
        (
            _name(cell),
            scaled(cell.chips),
            *map(percent, (cell.goodput, cell.goodput_deviation)),
            percent(cell.published) if cell.published is not None else cell.standing or UNKNOWN,
            UNKNOWN if cell.difference is None else f"{100 * cell.difference:+.1f} points",
            percent(cell.uptime),
        )
        for cell in cells
    ]
    names = [field.name for field in fields(FailureTerms)]
    terms = [(program, *(f"{getattr(each, name):g}" for name in names)) for program, each in TERMS.items()]
    days = f"{seeds} simulated days" if seeds > 1 else "one simulated day"
    notes = [*_summary(cells), CALIBRATED, "The deviation is that of one day."]
    caption = f"Lines: the model. Rings: published in {SOURCE}."
    return Sheet(
        "Goodput when chips fail",
        f"Means of {days} for each cell, in which a chip fails once a year. Nothing was trained.",
        [
            PageSection("Goodput", [table(columns, rows, ("deviation", "difference"))], notes, drawing, caption),
            PageSection("Calibrated", [table(("program", *names), terms)], is_detail=True),
        ],
        {"cells": objects, "calibrated": TERMS},
    )


def _summary(cells: Sequence[Cell]) -> list[str]:
    off = [abs(cell.difference) for cell in cells if cell.difference is not None]
    held_out = [cell.standing for cell in cells if cell.standing not in (None, "calibrated")]
    said = []
    if off:
        mean, most = 100 * sum(off) / len(off), 100 * max(off)
        said.append(f"{len(off)} cells set the terms: mean absolute difference {mean:.1f} points, largest {most:.1f}.")
    if held_out:
        said.append(
            f"{len(held_out)} cells were published, too, and held out: {held_out.count('held out, new')} are new, the "
            "others have as many chips a learner as a cell that set the terms (M learners on N chips are one on N / M)."
        )
    return said or ["None of these cells was published."]


def _name(cell: Cell) -> str:
    return f"{cell.program}, {cell.learners}" if cell.program == DECOUPLED else cell.program
