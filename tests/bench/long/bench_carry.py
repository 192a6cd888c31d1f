"""Where it gains that an adoption keeps what a learner trained since its answer: by interval, trip and format.

    python -m tests.bench.long.bench_carry [--kept FILE] [--minutes 30] [--seeds 5] [--json]

nano in batches of 2 sequences, four learners of one speed, 240 steps each, in virtual time. A cell is an interval, a
trip from an answer to the version that has it, in steps, a format of answers, and a seed; it is run twice, and what
counts is the loss of carry minus that of overwrite. The rule that the last table applies was written down before:
docs/decisions/0103-slow-learners-and-carry-by-default.md. With --kept every run is written to FILE when it ends, and a
later call measures the rest, those first by which the rule decides.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from isthmus.programs import language_model
from isthmus.programs.wings.compare.compare_outcome import FigureDifference, difference
from tests.bench.kept_cells import KeptCells
from tests.bench.long.bench_deviations import NANO, Table, measured

INTERVALS: Final = (8, 12, 24)
TRIPS: Final = {1: 5.0, 6: 30.0, 24: 120.0}
"""Steps of 10 ms, and the milliseconds of each of its two transfers."""
FORMATS: Final = ("float32", "int4", "int1")
SIDES: Final = {"overwrite": False, "carry": True}
DECIDING: Final = tuple(product((1, 6), ("float32", "int4")))
GAIN_MIN: Final = 0.005
SEEDS: Final = 5
SEEDS_MIN: Final = 3
STEPS: Final = 240


class Cell(NamedTuple):
    """What is run twice."""

    interval: int
    trip: int
    push: str
    seed: int

    def named(self, side: str) -> str:
        """The name of one of its runs."""
        return f"H {self.interval}, trip {self.trip}, {self.push}, seed {self.seed}: {side}"


def cells(seeds: int) -> Iterator[Cell]:
    """All of them, those first by which the rule decides, with as many seeds as it needs."""
    groups = [(h, *each) for h, each in product(INTERVALS, product(TRIPS, FORMATS))]

    def worth(cell: Cell) -> tuple[bool, bool, bool, int]:
        is_deciding = (cell.trip, cell.push) in DECIDING
        return not is_deciding, cell.seed >= SEEDS_MIN, cell.interval not in (8, 24), cell.seed

    yield from sorted((Cell(*group, seed) for group in groups for seed in range(seeds)), key=worth)


def measure(kept: KeptCells, seeds: int, until: float) -> None:
    """Run after run that is not there yet, until the time is over."""
    task = language_model.task(**NANO)
    for cell, (side, carries) in product(cells(seeds), SIDES.items()):
        if cell.named(side) in kept:
            continue
        if time.monotonic() > until:
            return
        settings = {"interval": cell.interval, "push": cell.push, "carry": carries}
        kept.keep(cell.named(side), measured(Table({}, delay_ms=TRIPS[cell.trip]), settings, task, STEPS, cell.seed))
        print(cell.named(side), kept[cell.named(side)], file=sys.stderr, flush=True)


def gains(kept: KeptCells, interval: int, trip: int, push: str, seeds: int) -> dict[int, tuple[float, float]]:
    """The losses of carry and of overwrite, by seed, where both runs are there."""
    pairs = {}
    for seed in range(seeds):
        names = [Cell(interval, trip, push, seed).named(side) for side in ("carry", "overwrite")]
        if all(name in kept for name in names):
            pairs[seed] = (kept[names[0]]["loss"], kept[names[1]]["loss"])
    return pairs


def paired(pairs: dict[int, tuple[float, float]]) -> FigureDifference | None:
    """Carry minus overwrite, with its interval."""
    return difference({seed: pair[0] for seed, pair in pairs.items()}, {seed: pair[1] for seed, pair in pairs.items()})


def shown(gap: FigureDifference | None) -> str:
    """A difference with its interval, and the number of seeds."""
    if gap is None:
        return "not measured"
    if gap.low is None or gap.high is None:
        return f"{gap.mean:+.3f} (1)"
    return f"{gap.mean:+.3f} ({gap.low:+.3f} to {gap.high:+.3f}; {len(gap.seeds)})"


def of_interval(kept: KeptCells, interval: int, seeds: int) -> FigureDifference | None:
    """The mean over the groups by which the rule decides, of the seeds that have them all."""
    groups = [gains(kept, interval, trip, push, seeds) for trip, push in DECIDING]
    common = set.intersection(*(set(group) for group in groups))
    means = {seed: tuple(fmean(group[seed][side] for group in groups) for side in (0, 1)) for seed in common}
    return paired({seed: (pair[0], pair[1]) for seed, pair in means.items()})


def verdict(kept: KeptCells, interval: int, seeds: int) -> str:
    """What the rule says of an interval."""
    gap = of_interval(kept, interval, seeds)
    if gap is None or gap.low is None or gap.high is None or len(gap.seeds) < SEEDS_MIN:
        return "not measured"
    harmful = []
    for trip, push in product(TRIPS, FORMATS):
        group = paired(gains(kept, interval, trip, push, seeds))
        if group is not None and group.low is not None and len(group.seeds) >= SEEDS_MIN and group.low > 0:
            harmful.append(f"trip {trip} in {push}")
    if harmful:
        return f"harms: {', '.join(harmful)}"
    return "gains" if gap.high < 0 and gap.mean <= -GAIN_MIN else "no gain"


def table(kept: KeptCells, seeds: int) -> str:
    """The tables, in Markdown."""
    lines = ["| H | trip | " + " | ".join(FORMATS) + " |", "| --- " * (2 + len(FORMATS)) + "|"]
    for interval, trip in product(INTERVALS, TRIPS):
        row = [shown(paired(gains(kept, interval, trip, push, seeds))) for push in FORMATS]
        lines.append(f"| {interval} | {trip} | {' | '.join(row)} |")
    lines += ["", "| H | mean of trips 1 and 6, float32 and int4 | by the rule |", "| --- | --- | --- |"]
    for interval in INTERVALS:
        lines.append(f"| {interval} | {shown(of_interval(kept, interval, seeds))} | {verdict(kept, interval, seeds)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="a file, with which a later call goes on")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no further run begins")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    kept = KeptCells(asked.kept)
    measure(kept, asked.seeds, time.monotonic() + 60 * asked.minutes)
    print(json.dumps(kept, indent=1) if asked.json else f"{table(kept, asked.seeds)}\n\n{kept.told()}")


if __name__ == "__main__":
    main()
