"""What an absolute bound of answers costs in loss: `program.clip_answers`, beside the lengths that answers have.

    python -m tests.bench.long.bench_clip [--kept FILE] [--minutes 30] [--seeds 5] [--parts FOLDER | --alike] [--json]

nano in batches of 2 sequences, four learners of one speed, 480 steps each, in virtual time; each has text of its own
kind (`parts_of_text.py`, written to --parts), or, with --alike, all have the same. For each seed the run is made
without a bound, and its answers' lengths are noted, each as that of an answer about the whole model, which the bound is
of: length sqrt(N / n). Then it is made with bounds at twice the median over all seeds, at it, and at half of it. What
counts is the loss minus that without, by seed. With --kept every run is written to FILE when it ends, and a later call
measures the rest.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Any, Final
from unittest.mock import patch

from isthmus import Program
from isthmus.ops.syncer.answer_rules import AnswerJudge, JudgePlace, LengthBounds, RoundTally, length
from isthmus.programs import language_model
from isthmus.programs.engine.recorder.lines import recorded
from isthmus.programs.engine.results.lines import MergeRecord
from isthmus.programs.wings.compare.compare_outcome import difference
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.system.disk import DISK
from tests.bench.kept_cells import KeptCells
from tests.bench.long.bench_deviations import LEARNERS, NANO, by_part

STEPS: Final = 480
INTERVAL: Final = 24
SEEDS: Final = 5
NO_BOUND: Final = "no bound"
SHARES: Final = {"twice the median": 2.0, "the median": 1.0, "half of it": 0.5}
"""By its name, the bound over the median of the lengths."""


@contextmanager
def lengths_noted(into: list[float]) -> Iterator[None]:
    """Note the lengths of all answers that are merged, each as that of an answer about the whole model."""
    begin = LengthBounds.begin

    def begun(rule: LengthBounds, place: JudgePlace) -> AnswerJudge:
        judge = begin(rule, place)
        sizes, merged = [fragment.size for fragment in place.fragments], judge.merged

        def noted(tally: RoundTally) -> None:
            of_whole = math.sqrt(sum(sizes) / sizes[tally.round["fragment"]])
            into.extend(length(vote["norms"]) * of_whole for vote in tally.voters())
            merged(tally)

        judge.merged = noted  # type: ignore[method-assign]
        return judge

    with patch.object(LengthBounds, "begin", begun):
        yield


def run(task: Any, seed: int, bound: float | None) -> dict[str, Any]:
    """The loss of one run, the lengths of its answers, and how many of these were clipped, and to what."""
    lengths: list[float] = []
    with tempfile.TemporaryDirectory() as folder, lengths_noted(lengths):
        worlds = Worlds(Path(folder))
        program = Program("decoupled-diloco", interval=INTERVAL, clip_answers=bound)
        result = worlds.run(program, task=task, seed=seed, learners=LEARNERS, steps=STEPS)
        merges = [line for line in recorded(result.folder, DISK, MergeRecord) if line.kind in ("merge", "final")]
        worlds.close()
    votes = sum(len(line.voters) for line in merges)
    shares = [share for line in merges for _, share in line.clipped]
    return {
        "loss": float(result.summary["eval_loss_final"]),
        "lengths": [float(f"{each:.4g}") for each in lengths],
        "clipped": len(shares) / votes,
        "clipped_to": fmean(shares) if shares else None,
    }


def median_length(kept: KeptCells, seeds: int) -> float:
    """That of all answers of the runs without a bound."""
    return median(each for seed in range(seeds) for each in kept[f"{NO_BOUND}, seed {seed}"]["lengths"])


def measure(kept: KeptCells, task: Any, seeds: int, until: float) -> bool:
    """Run after run that is not there yet, until the time is over; whether all are there."""
    for name, share in {NO_BOUND: None, **SHARES}.items():
        for seed in range(seeds):
            cell = f"{name}, seed {seed}"
            if cell in kept:
                continue
            if time.monotonic() > until:
                return False
            bound = None if share is None else float(f"{share * median_length(kept, seeds):.3g}")
            kept.keep(cell, {**run(task, seed, bound), "bound": bound})
            print(cell, kept[cell]["loss"], bound, kept[cell]["clipped"], file=sys.stderr, flush=True)
    return True


def table(kept: KeptCells, seeds: int) -> str:
    """The table, in Markdown."""
    free = {seed: kept[f"{NO_BOUND}, seed {seed}"] for seed in range(seeds)}
    lengths = [each for cell in free.values() for each in cell["lengths"]]
    tenths = quantiles(lengths, n=10)
    lines = [
        f"Lengths without a bound: median {median(lengths):.3g}, from {tenths[0]:.3g} to {tenths[-1]:.3g} in eight of "
        f"ten of {len(lengths)} answers, {max(lengths):.3g} at most.",
        "",
        "| bound | answers that are longer | scaled to, in the mean | loss | minus that without |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in (NO_BOUND, *SHARES):
        cells = {seed: kept[f"{name}, seed {seed}"] for seed in range(seeds)}
        gap = difference(*({seed: cell["loss"] for seed, cell in side.items()} for side in (cells, free)))
        bound = cells[0]["bound"]
        minus = "" if gap is None or name == NO_BOUND else f"{gap.mean:+.3f}"
        if minus and gap is not None and gap.low is not None and gap.high is not None:
            minus += f" ({gap.low:+.3f} to {gap.high:+.3f})"
        to = [cell["clipped_to"] for cell in cells.values() if cell["clipped_to"] is not None]
        first = name if bound is None else f"{bound:g}, {name}"
        clipped = f"{fmean(cell['clipped'] for cell in cells.values()):.0%}"
        loss = fmean(cell["loss"] for cell in cells.values())
        lines.append(f"| {first} | {clipped} | {f'{fmean(to):.0%}' if to else ''} | {loss:.3f} | {minus} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="a file, with which a later call goes on")
    parser.add_argument("--minutes", type=float, default=1e9, help="after which no further run begins")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--parts", type=Path, help="the folder of the texts, made where it is not there")
    parser.add_argument("--alike", action="store_true", help="all learners have the same text")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    kept = KeptCells(asked.kept)
    if asked.alike:
        task = language_model.task(**NANO)
    else:
        task = by_part(asked.parts or Path(tempfile.mkdtemp(prefix="parts-")) / "text", NANO)
    if not measure(kept, task, asked.seeds, time.monotonic() + 60 * asked.minutes):
        sys.exit("not all runs are there: call it again with --kept")
    print(json.dumps(kept, indent=1) if asked.json else f"{table(kept, asked.seeds)}\n\n{kept.told()}")


if __name__ == "__main__":
    main()
