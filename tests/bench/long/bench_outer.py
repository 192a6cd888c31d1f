"""The rate of the outer step by the number of learners: whether one rate serves all, at enough sweeps.

    python -m tests.bench.long.bench_outer [--kept FILE] [--table4 tests/bench/table4.json] [--minutes 30] [--json]

M = 2 and 4 decoupled learners of 41,632 parameters on 20 tokens a parameter, 109 sweeps, AdamW at the rate that
`bench_table4` found best for all of them; outer momentum 0.7, the default. For each M and seed the loss at each outer
rate of ETAS, minus that at the default, 0.4; the mean over three seeds with the interval of 95 %. ETAS were written
down before. Cells and files are as in `bench_table4`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import product
from pathlib import Path
from typing import Final

from tests.bench.kept_cells import KeptCells
from tests.bench.long.bench_line import OUTER
from tests.bench.long.bench_table4 import SEEDS, Benches, Wanted, interval, trained

SIZE: Final = "41k"
RATE: Final = 0.192
"""The best of `bench_table4`, times the width."""
ETAS: Final = (0.25, 0.4, 0.55, 0.7)
DEFAULT: Final = float(OUTER["eta"])
LEARNERS: Final = ("M=2", "M=4")


def name(who: str, eta: float, seed: int) -> str:
    return f"{who} eta {eta} seed {seed}"


def measure(kept: KeptCells, until: float, table4: Path | None) -> None:
    """Cell after cell that is not there yet, rate by rate, until the time is over; those at the default rate also
    stand in a file of `bench_table4`, where one is given."""
    for eta in ETAS:
        benches = Benches()  # The rate is a constant of what is compiled.
        for seed, who in product(range(SEEDS), LEARNERS):
            if name(who, eta, seed) in kept:
                continue
            if time.monotonic() > until:
                return
            bench = benches.of(SIZE, "")
            bench.line.of["eta"] = eta
            kept.keep(name(who, eta, seed), trained(bench, Wanted(SIZE, who, seed, RATE), RATE))
            if (
                eta == DEFAULT and table4 is not None
            ):  # The same cell as there, so that both say how far places are apart.
                KeptCells(table4).repeat(Wanted(SIZE, who, seed, RATE).name(RATE), kept[name(who, eta, seed)])
            print(name(who, eta, seed), kept[name(who, eta, seed)], file=sys.stderr, flush=True)


def table(kept: KeptCells) -> str:
    """The table, in Markdown."""
    lines = [f"| learners | {' | '.join(f'eta = {eta}' for eta in ETAS)} |", "| --- " * (1 + len(ETAS)) + "|"]
    for who in LEARNERS:
        cells = []
        for eta in ETAS:
            seeds = [s for s in range(SEEDS) if name(who, eta, s) in kept and name(who, DEFAULT, s) in kept]
            found = [kept[name(who, eta, s)]["loss"] for s in seeds]
            if eta == DEFAULT:
                cells.append(f"{statistics.mean(found):.4f}, n = {len(found)}" if found else "not measured")
            else:
                cells.append(
                    interval([a - kept[name(who, DEFAULT, s)]["loss"] for a, s in zip(found, seeds, strict=True)], 4)
                )
        lines.append(f"| {who} | {' | '.join(cells)} |")
    hours = sum(cell["seconds"] for cell in kept.values()) / 3600
    return "\n".join([*lines, "", f"{len(kept)} cells, {hours:.2f} hours."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, default=Path(__file__).parents[1] / "outer.json")
    parser.add_argument("--table4", type=Path, help="a file of `bench_table4`, whose cells these are at the default")
    parser.add_argument("--minutes", type=float, default=30.0, help="0: the table alone")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    kept = KeptCells(asked.kept)
    measure(kept, time.monotonic() + 60 * asked.minutes, asked.table4)
    print(json.dumps(kept) if asked.json else f"{table(kept)}\n\n{kept.told()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
