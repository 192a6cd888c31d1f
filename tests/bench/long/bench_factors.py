"""The published factors of bytes, measured on runs, beside what they cost in loss.

    python -m tests.bench.long.bench_factors [--kept tests/bench/factors.json] [--tokens 1020000] [--seeds 3]
        [--minutes 60] [--json]

Two islands of the shipped model nano in virtual time, on equal tokens with one global batch: data-parallel, then each
of ROWS. `bytes` are those that learners and syncers sent each other, as the summary has them. Compared is what passes
the link of an island, in and out: what data-parallel sends passes the links of two islands, what an island and a syncer
send each other that of one. Published: 400 times fewer bytes with H = 100, 4 bits and one fragment at a time (arXiv
2501.18512; against gradients in bfloat16, which data-parallel does not have here, so that the ratio to half its bytes
stands beside that to all of them), and a loss that is no worse, on 13 billion tokens and more. So few tokens have 10 or
40 of such intervals, and the first version, in float32, counts.

Every cell is kept when it ends, and the same call goes on with the rest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from isthmus.programs.engine.request import new_folder, new_spec, spec
from isthmus.programs.engine.request.program import Program
from isthmus.programs.engine.request.request import prepare
from isthmus.programs.wings.compare.compare_outcome import difference
from isthmus.programs.wings.simulation.virtual_run import VirtualPace, VirtualRun
from tests.bench.kept_cells import KeptCells

LEARNERS: Final = 2
BATCH: Final = 8
"""Of an island; the context is nano's, 64."""
SECONDS_MAX: Final = 1e5


class Row(NamedTuple):
    """A program with its settings."""

    program: str
    interval: int | None = None
    form: str = "float32"
    """Of answers and of versions."""

    @property
    def name(self) -> str:
        """As the table has it."""
        return self.program if self.interval is None else f"{self.program} {self.form} H {self.interval}"

    def made(self) -> Program:
        """With its settings."""
        if self.interval is None:
            return Program(self.program)
        return Program(self.program, interval=self.interval, push=self.form, update=self.form)


PARALLEL: Final = Row("data-parallel")
ROWS: Final = (
    Row("streaming-diloco", 100, "int4"),
    Row("decoupled-diloco", 100, "int4"),
    Row("streaming-diloco", 100),
    Row("decoupled-diloco", 24),
    Row("decoupled-diloco", 24, "int4"),
)


def cell_name(row: Row, tokens: int, seed: int) -> str:
    """The name in the file."""
    return f"{row.name}, {tokens} tokens, seed {seed}"


def measured(row: Row, tokens: int, seed: int) -> dict[str, Any]:
    """One run: its loss, its bytes, and the seconds that it took here."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="factors-") as folder:
        run = {"learners": LEARNERS, "tokens": tokens, "seed": seed}
        made = prepare(
            row.made(), None, run=run, task_settings={"batch": BATCH}, run_dir=Path(folder) / "run"
        ).to_train()
        new_folder.create(made.run_dir, made.config_text)
        spec.write(made.run_dir, new_spec.of(made, zero_ns=0, cpu_seconds=0.0, transport=spec.INPROC))
        ran = VirtualRun(made, VirtualPace())
        try:
            ran.run(SECONDS_MAX)
        finally:
            ran.world.close()
    return {
        "loss": ran.summary["eval_loss_final"],
        "bytes": ran.summary["bytes_sent_total"],
        "tokens": ran.summary["tokens_total"],
        "took": round(time.monotonic() - begun, 1),
    }


def wanted(tokens: int, seeds: int) -> Iterator[tuple[Row, int, int]]:
    """The cells, seed by seed."""
    for seed in range(seeds):
        yield from ((row, tokens, seed) for row in (PARALLEL, *ROWS))


def figures(cells: Mapping[str, Mapping[str, Any]], tokens: int, seeds: int) -> list[dict[str, Any]]:
    """What each row has beside data-parallel, by the seeds of which both are there."""
    rows = []
    for row in ROWS:
        pairs = {
            seed: (cells[cell_name(row, tokens, seed)], cells[cell_name(PARALLEL, tokens, seed)])
            for seed in range(seeds)
            if all(cell_name(each, tokens, seed) in cells for each in (row, PARALLEL))
        }
        gap = difference(
            {seed: own["loss"] for seed, (own, _) in pairs.items()},
            {seed: other["loss"] for seed, (_, other) in pairs.items()},
        )
        if gap is not None:
            times = fmean(2 * other["bytes"] / own["bytes"] for own, other in pairs.values())
            rows.append(
                {
                    "row": row.name,
                    "tokens": tokens,
                    "seeds": list(pairs),
                    "loss": fmean(own["loss"] for own, _ in pairs.values()),
                    "parallel": fmean(other["loss"] for _, other in pairs.values()),
                    "minus_parallel": [gap.mean, gap.low, gap.high],
                    "fewer_bytes": times,
                    "fewer_than_bf16": times / 2,
                }
            )
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """They in Markdown."""
    lines = [
        "| program, format, H | tokens | bytes: times fewer | than half of them | loss | minus data-parallel | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        mean, low, high = row["minus_parallel"]
        interval = "" if low is None else f" ({low:+.3f} to {high:+.3f})"
        lines.append(
            f"| {row['row']} | {row['tokens']:,} | {row['fewer_bytes']:.0f} | {row['fewer_than_bf16']:.0f} | "
            f"{row['loss']:.3f} | {mean:+.3f}{interval} | {len(row['seeds'])} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="a file that cells are added to; what it has is not measured again")
    parser.add_argument("--tokens", type=int, default=1_020_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no further run begins")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    cells, until = KeptCells(asked.kept), time.monotonic() + 60 * asked.minutes
    for each in wanted(asked.tokens, asked.seeds):
        if cell_name(*each) not in cells:
            if time.monotonic() > until:
                break
            cells.keep(cell_name(*each), measured(*each))
            print(cell_name(*each), cells[cell_name(*each)], file=sys.stderr, flush=True)
    found = figures(cells, asked.tokens, asked.seeds)
    print(json.dumps(found) if asked.json else f"{table(found)}\n{cells.told()}")


if __name__ == "__main__":
    main()
