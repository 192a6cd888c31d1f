"""Table 4 of the scaling laws of DiLoCo (arXiv 2503.09799) in miniature: what M learners cost against data-parallel.

    python -m tests.bench.long.bench_table4 [--kept tests/bench/table4.json] [--minutes 60] [--only 41k] [--json]

Three sizes, 41,632, 131,904 and 381,600 parameters, each by data-parallel and by M = 1, 2 and 4 decoupled learners, on
20 tokens a parameter of Python's library, with the same global batch, H = 30 and at least 80 sweeps (of every fragment
of eight), AdamW. The learning rate is the best with seed 0, for each cell, as published: of GRID, and, as long as the
best is the highest or the lowest that is measured, of one more on that side, of RATES. The other seeds have that one:
five in all, three for M = 1. Held-out loss on 4,096 windows. Then, with the rates of 131,904 parameters: 83 tokens a
parameter, one seed; and 20 on a second split of the files, one seed. A gap whose best rate is at an edge says so.

Each cell stands in the file of --kept as soon as it is there; the same command goes on with the rest, for so many
minutes. The table is of what there is: our percent of data-parallel's loss beside the published one, with the half
width of the 95 % interval over seeds, and the hours that it took. GRID and sizes were written down before.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.ops import transformer
from tests.bench.gap import DEFAULTS, EVALUATION_BATCH
from tests.bench.kept_cells import KeptCells
from tests.bench.long import bench_line
from tests.bench.long.bench_line import PUBLISHED, Bench, Cell, Kept, Line, Size

WINDOWS: Final = 4096
GRID: Final = (0.096, 0.192, 0.384)
"""Learning rates, times the width: .0015, .003 and .006 at nano's. The first grid had .768 in place of .096: with
41,632 parameters its least rate was the best one."""
RATES: Final = tuple(0.096 * 2.0**power for power in range(-3, 6))
"""Those that are ever tried, in order."""
SIZES: Final = {
    "41k": Size("41k", {"layers": 2, "width": 32, "heads": 2, "context": 64}, 0.0, 4, 30, (1, 2, 4)),
    "132k": Size("nano", {"layers": 2, "width": 64, "heads": 4, "context": 64}, 0.0, 16, 30, (1, 2, 4)),
    "382k": Size("382k", {"layers": 3, "width": 96, "heads": 4, "context": 64}, 0.0, 48, 30, (1, 2, 4)),
}
SEEDS: Final = 3
"""Of M = 1, and of `bench_outer`; others have MORE_SEEDS."""
MORE_SEEDS: Final = 5
LONGER: Final = 83
NAMES: Final = ("data-parallel", "M=1", "M=2", "M=4")
T95: Final = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t of 95 % for as many seeds."""


class Wanted(NamedTuple):
    """A cell: a size, who trains, with which seed, at which rate times the width (None: the best of seed 0), and the
    variant, "" or "longer" or "split"."""

    size: str
    who: str
    seed: int
    rate: float | None
    variant: str = ""

    def name(self, rate: float) -> str:
        """The name in the file."""
        return " ".join(filter(None, [self.size, self.variant, self.who, f"seed {self.seed}", f"rate {rate}"]))


def wanted(kept: KeptCells, sizes: Iterable[str]) -> Iterator[Wanted]:
    """All cells of sizes, in order: of each seed 0 at all rates, by what is kept meanwhile, then the others."""
    for size in sizes:
        for who in NAMES:
            while (rate := next_rate(kept, size, who)) is not None:
                yield Wanted(size, who, 0, rate)
        for seed in range(1, MORE_SEEDS):
            yield from (Wanted(size, who, seed, None) for who in NAMES if seed < SEEDS or who != "M=1")
        if size == "132k":
            yield from (Wanted(size, who, 0, None, variant) for variant in ("split", "longer") for who in NAMES)


def losses(kept: KeptCells, size: str, who: str) -> dict[float, float]:
    """By rate, in order, the losses with seed 0 that are kept."""
    names = {rate: Wanted(size, who, 0, rate).name(rate) for rate in RATES}
    return {rate: kept[name]["loss"] for rate, name in names.items() if name in kept}


def next_rate(kept: KeptCells, size: str, who: str) -> float | None:
    """The rate to try next with seed 0; None where the best one has a worse one on each side, or all were tried."""
    found = losses(kept, size, who)
    missing = [rate for rate in GRID if rate not in found]
    if missing:
        return missing[0]
    at = RATES.index(min(found, key=found.__getitem__))
    beside = [RATES[index] for index in (at - 1, at + 1) if 0 <= index < len(RATES)]
    return next((rate for rate in beside if rate not in found), None)


def is_inside(kept: KeptCells, size: str, who: str) -> bool:
    """Whether the best rate has a worse one on each side."""
    found = list(losses(kept, size, who).values())
    return len(found) > 2 and min(found) not in (found[0], found[-1])


def best(kept: KeptCells, size: str, who: str) -> float:
    """The rate of the least loss with seed 0, of those that are measured; KeyError without any."""
    found = losses(kept, size, who)
    if not found:
        raise KeyError(size, who)
    return min(found, key=found.__getitem__)


class Benches:
    """The bench of a size and a variant: the last one is kept, with its compiled programs."""

    def __init__(self) -> None:
        self._of: tuple[str, str] | None = None
        self._bench: Any = None

    def of(self, size: str, variant: str) -> Bench:
        """It, with its text read."""
        if self._of != (size, variant):
            shape = SIZES[size]
            if variant == "longer":
                shape = replace(shape, tokens_per_parameter=LONGER)
            text, windows, held_out = bench_line.read(
                None, shape, evaluations=WINDOWS // EVALUATION_BATCH, is_other_split=variant == "split"
            )
            of = {**DEFAULTS, **bench_line.OUTER, "H": shape.interval, "batch": shape.sequences}
            line = Line(transformer.ModelConfig(**shape.shape), of, text, held_out)
            self._of, self._bench = (size, variant), Bench(line, shape, windows, Kept(None, {}), lambda: False)
        bench: Bench = self._bench
        return bench


def trained(bench: Bench, each: Wanted, rate: float) -> dict[str, float]:
    """Train a cell; returns its figures. A rate at which it does not learn has a loss without end."""
    bench.line.of["lr"] = rate / SIZES[each.size].shape["width"]
    learners = int(each.who.partition("=")[2] or 1)
    record = bench.trained(Cell(each.seed, each.who != "data-parallel", learners), None)
    names = ("tokens", "seconds", "passes")
    loss = math.inf if record["loss"] is None else record["loss"]
    return {"loss": loss, "sweeps": record["sweeps"] or 0.0, **{name: record[name] for name in names}}


def measure(kept: KeptCells, until: float, only: str | None) -> None:
    """Cell after cell that is not there yet, until the time is over."""
    benches = Benches()
    for each in wanted(kept, SIZES if only is None else [only]):
        rate = best(kept, each.size, each.who) if each.rate is None else each.rate
        if each.name(rate) in kept:
            continue
        if time.monotonic() > until:
            return
        kept.keep(each.name(rate), trained(benches.of(each.size, each.variant), each, rate))
        print(each.name(rate), kept[each.name(rate)], file=sys.stderr, flush=True)


def gaps(kept: KeptCells, size: str, who: str, variant: str = "") -> list[float]:
    """Percent behind data-parallel, of each seed of which both are there."""
    found = []
    for seed in range(MORE_SEEDS):
        try:
            of = {
                name: Wanted(size, name, seed, None, variant).name(best(kept, size, name)) for name in (who, NAMES[0])
            }
            found.append(100 * (kept[of[who]]["loss"] / kept[of[NAMES[0]]]["loss"] - 1))
        except KeyError:
            continue
    return found


def table(kept: KeptCells) -> str:
    """The table, in Markdown."""
    lines = ["| parameters | M = 1 | M = 2 | M = 4 |", "| --- | --- | --- | --- |"]
    columns = list(PUBLISHED)
    for size, variant in [*((size, "") for size in SIZES), ("132k", "split"), ("132k", "longer")]:
        cells = [interval(gaps(kept, size, who, variant), unit=" %") + _edge(kept, size, who) for who in columns]
        lines.append(f"| {' '.join(filter(None, [size, variant]))} | {' | '.join(cells)} |")
    means = [[statistics.mean(found) for size in SIZES if (found := gaps(kept, size, who))] for who in columns]
    told = [f"{statistics.mean(each):+.2f} %" if len(each) == len(SIZES) else "not all measured" for each in means]
    lines.append(f"| mean of the three | {' | '.join(told)} |")
    lines.append(f"| published, 35M parameters | {' | '.join(f'{PUBLISHED[who]:+.1f} %' for who in columns)} |")
    hours = sum(cell["seconds"] for cell in kept.values()) / 3600
    return "\n".join([*lines, "", f"{len(kept)} cells, {hours:.2f} hours."])


def _edge(kept: KeptCells, size: str, who: str) -> str:
    sides = [name for name in (who, NAMES[0]) if not is_inside(kept, size, name)]
    return f" (rate at an edge: {', '.join(sides)})" if sides else ""


def interval(found: list[float], digits: int = 2, unit: str = "") -> str:
    """The mean of some values and the half width of its interval of 95 %, in words."""
    if not found:
        return "not measured"
    width = T95[len(found)] * statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else None
    half = "" if width is None else f" ± {width:.{digits}f}"
    return f"{statistics.mean(found):+.{digits}f}{half}{unit}, n = {len(found)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=Path(__file__).parents[1] / "table4.json")
    parser.add_argument("--minutes", type=float, default=60.0, help="0: the table alone")
    parser.add_argument("--only", choices=SIZES, help="this size alone")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    kept = KeptCells(asked.kept)
    measure(kept, time.monotonic() + 60 * asked.minutes, asked.only)
    print(json.dumps(kept) if asked.json else f"{table(kept)}\n\n{kept.told()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
