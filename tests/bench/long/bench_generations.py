"""What unlike generations of accelerators cost in quality: learners alike against mixed ones, at equal time.

    python -m tests.bench.long.bench_generations [--steps 480] [--seeds 5] [--nano] [--kept FILE] [--json]

Decoupled DiLoCo on the language model, four learners, H = 24, in virtual time; a step takes 10 ms at speed 1. All sides
train as many tokens in the same time:

- alike: four learners of speed 0.75, batches of 4 sequences
- alike, H = 18: the same, merged as often in a second as the others, whose fastest learner sets the pace: the control
- speeds: of 1, 1, 0.6 and 0.4, the same batches
- speeds and batches: of 1, 1, 0.5 and 0.5, with batches of 4, 5, 4 and 2 sequences: steps of fast ones do more, too

MARGIN, .02 nats a byte, was written down before: where the 95 % interval (Student's t, paired by seed) of a side's
held-out loss, less that of the control, ends below it, mixing costs no quality. Published by others: 64.1 against
64.4 of learners alike, in a mean of tasks (arXiv 2604.21428). With --kept every cell is written to FILE when it ends,
and a later call measures the rest.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from isthmus.programs import language_model
from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.compare.compare_outcome import difference
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.bench.kept_cells import KeptCells

MARGIN: Final = 0.02
SMALL: Final = {"layers": 1, "width": 32}


class Side(NamedTuple):
    """The learners: speeds, sequences of a batch, and the steps of the fastest one between two merges of a fragment."""

    speeds: tuple[float, ...]
    batches: tuple[int, ...] = (4, 4, 4, 4)
    interval: int = 24


SIDES: Final[Mapping[str, Side]] = {
    "alike": Side((0.75,) * 4),
    "alike, H = 18": Side((0.75,) * 4, interval=18),
    "speeds": Side((1.0, 1.0, 0.6, 0.4)),
    "speeds and batches": Side((1.0, 1.0, 0.5, 0.5), (4, 5, 4, 2)),
}
CONTROL: Final = "alike, H = 18"


def task_of(batches: tuple[int, ...], shape: Mapping[str, Any]) -> Any:
    """The shipped task, whose slots have batches of their own sizes."""
    tasks = [language_model.task(batch=batch, **shape) for batch in batches]

    def batch(at: Any) -> Any:
        return tasks[at.slot % len(tasks) if at.split == "train" else 0].batch(at)

    if len(set(batches)) == 1:
        return tasks[0]
    return replace(tasks[0], batch=batch, tokens_per_batch=tuple(each.tokens_per_batch for each in tasks))


def measured(side: Side, shape: Mapping[str, Any], steps: int, seed: int) -> dict[str, float]:
    """The figures of one run, of so many steps of a learner that has batches of 4."""
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(Path(folder))
        world = {"learners": len(side.batches), "steps": round(steps * 16 / sum(side.batches)), "speeds": side.speeds}
        program, task = Program("decoupled-diloco", interval=side.interval), task_of(side.batches, shape)
        summary: dict[str, Any] = worlds.run(program, task=task, seed=seed, **world).summary
        worlds.close()
    return {
        "loss": float(summary["eval_loss_final"]),
        "seconds": float(summary["wall_seconds"]),
        "merged": float(summary["merged_share"]),
        "voters": float(summary["contributors_mean"]),
    }


def verdict(low: float | None, high: float | None) -> str:
    """What an interval says of the margin."""
    if low is None or high is None:
        return "not known"
    return "no cost" if high < MARGIN else "a cost" if low > MARGIN else "undecided"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--nano", action="store_true", help="the model nano, in place of one of 29,024 parameters")
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    kept, name = KeptCells(asked.kept), "nano" if asked.nano else "small"
    cells: dict[str, dict[int, dict[str, float]]] = {side: {} for side in SIDES}
    for seed in range(asked.seeds):
        for side, learners in SIDES.items():
            cell = f"{name}, {side}, {asked.steps} steps, seed {seed}"
            if cell not in kept:
                kept.keep(cell, measured(learners, {} if asked.nano else SMALL, asked.steps, seed))
            cells[side][seed] = kept[cell]
    if asked.json:
        print(json.dumps(cells))
        return
    print("| learners | loss | minus alike | minus the control | verdict | seconds | learners in a merge | merged |")
    print("| --- " * 8 + "|")
    losses = {side: {seed: cell["loss"] for seed, cell in of_side.items()} for side, of_side in cells.items()}
    for side, of_side in cells.items():
        mean = {figure: fmean(cell[figure] for cell in of_side.values()) for figure in of_side[0]}
        minus, said = {"alike": "", CONTROL: ""}, ""
        for reference in minus:
            paired = difference(losses[side], losses[reference])
            if side != reference and paired is not None and paired.low is not None and paired.high is not None:
                minus[reference] = f"{paired.mean:+.4f} ({paired.low:+.4f} to {paired.high:+.4f})"
                said = verdict(paired.low, paired.high) if reference == CONTROL and side not in minus else ""
        figures = f"{mean['seconds']:.2f} | {mean['voters']:.2f} | {mean['merged']:.1%}"
        print(f"| {side} | {mean['loss']:.4f} | {minus['alike']} | {minus[CONTROL]} | {said} | {figures} |")
    print(f"\n{kept.told()}")


if __name__ == "__main__":
    main()
