"""What the options of the outer loop change: late answers, what is carried over, alpha, and work by speed.

    python -m tests.bench.long.bench_deviations [TABLE ...] [--steps 240] [--seeds 3] [--nano] [--kept FILE] [--json]

The language model with one layer of width 32, 29,024 parameters, batches of 2 sequences, H = 24, four learners, in
virtual time: an inner step takes 10 ms at speed 1. A table is a situation, and its sides differ from the first in one
option or two. Printed are, by side, the held-out loss in nats a byte, the mean of seeds and of the differences from the
first side, paired by seed, with the interval of 95 % (Student's t), the merged share of all trained tokens, the
learners in a merge, and the staleness. With --kept every cell is written to FILE when it ends, and a later call
measures the rest.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from isthmus.programs import language_model
from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.compare.compare_outcome import difference
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.bench.kept_cells import KeptCells

LEARNERS: Final = 4
SMALL: Final = {"layers": 1, "width": 32, "batch": 2}
NANO: Final = {"batch": 2}
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A situation, and the settings of each side; the first is the reference."""

    sides: Mapping[str, Settings]
    speeds: Sequence[float] = ()
    delay_ms: float = 1.0
    program: str = "decoupled-diloco"
    by_part: bool = False
    """Each slot trains on text of its own kind, and the evaluation is of all kinds in turn."""


CARRIED: Final[Mapping[str, Settings]] = {"overwrite": {}, "carry": {"carry": True}}
"""All tables but the last ones are of learners that are treated alike (`AS_IT_WAS`), unless their sides say so."""
DEVIATIONS: Final[Mapping[str, Settings]] = {
    "as it is": {},
    "late refused": {"late": "refuse"},
    "carry": {"carry": True},
}
NO_GRACE: Final[Mapping[str, Settings]] = {side: {"grace": False, **settings} for side, settings in DEVIATIONS.items()}
MEMORY: Final[Mapping[str, Settings]] = {
    f"({lr:g}, {momentum:g})": {"interval": 4, "fragments": 4, "outer_lr": lr, "outer_momentum": momentum}
    for lr, momentum in ((0.4, 0.7), (0.7, 0.3), (0.7, 0.0), (1.0, 0.0))
}
"""The same share of steps at which a fragment is due, in 60 sweeps of 240 steps."""
BY_SPEED: Final[Mapping[str, Settings]] = {
    "as it is": {},
    "by speed": {"steps_by_speed": True},
    "carry": {"carry": True},
    "carry, by speed": {"carry": True, "steps_by_speed": True},
    "by speed, late refused": {"steps_by_speed": True, "late": "refuse"},
}
AS_IT_WAS: Final[Settings] = {"carry": False, "steps_by_speed": False}
UNLIKE: Final[Mapping[str, Settings]] = {
    "both off": {},
    "by default": {"carry": None, "steps_by_speed": "auto"},
    "both on": {"carry": True, "steps_by_speed": True},
}
"""At H = 24, where only slow learners carry by default."""
SHORT: Final[Mapping[str, Settings]] = {side: {"interval": None, **settings} for side, settings in UNLIKE.items()}
"""At the interval that such a run has by default, 8."""
TABLES: Final[Mapping[str, Table]] = {
    "near": Table(CARRIED),
    "trip-1": Table(CARRIED, delay_ms=5.0),
    "trip-6": Table(CARRIED, delay_ms=30.0),
    "trip-24": Table(CARRIED, delay_ms=120.0),
    "slower": Table(DEVIATIONS, speeds=(1.0, 1.0, 0.8, 0.6)),
    "slow": Table(DEVIATIONS, speeds=(1.0, 1.0, 0.5, 0.25)),
    "no-grace": Table(NO_GRACE, speeds=(1.0, 1.0, 0.8, 0.6)),
    "memory": Table(MEMORY, speeds=(1.0, 1.0, 0.5, 0.25)),
    "by-speed": Table(BY_SPEED, speeds=(1.0, 1.0, 0.5, 0.25)),
    "tenth": Table(UNLIKE, speeds=(1.0, 1.0, 1.0, 0.1)),
    "quarter": Table(UNLIKE, speeds=(1.0, 1.0, 0.5, 0.25)),
    "ten-times": Table(UNLIKE, speeds=(10.0, 1.0, 1.0, 1.0)),
    "tenth-short": Table(SHORT, speeds=(1.0, 1.0, 1.0, 0.1)),
    "quarter-short": Table(SHORT, speeds=(1.0, 1.0, 0.5, 0.25)),
    "memory-unlike": Table(MEMORY, speeds=(1.0, 1.0, 0.5, 0.25), by_part=True),
    "alpha": Table({"alpha .5": {"alpha": 0.5}, "alpha 0": {"alpha": 0.0}}, program="streaming-diloco"),
}
"""A transfer takes `delay_ms`, so that from an answer to its adoption two of them pass: 1, 6 and 24 steps."""


@dataclass(frozen=True)
class ByPart:
    """Batches of a slot from its part, and of the evaluation from all in turn."""

    parts: tuple[Any, ...]

    def __call__(self, at: Any) -> Any:
        """The batch at a place."""
        count = len(self.parts)
        if at.split == "evaluation":
            return self.parts[at.position % count].batch(replace(at, position=at.position // count))
        return self.parts[at.slot % count].batch(at)


def by_part(folder: Path, settings: Settings) -> Any:
    """The task whose slots train on the parts of a text (`parts_of_text.py`), which are written into `folder`."""
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "tests.bench.parts_of_text", str(folder)], check=True)
    tasks = tuple(language_model.task(data=(str(part),), **settings) for part in sorted(folder.iterdir()))
    return replace(tasks[0], batch=ByPart(tasks))


def measured(table: Table, settings: Settings, task: Any, steps: int, seed: int) -> dict[str, float]:
    """The figures of one run."""
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(Path(folder))
        as_it_was = AS_IT_WAS if table.program == "decoupled-diloco" else {}
        program = Program(table.program, **{"interval": 24, **as_it_was, **settings})
        world = {"learners": LEARNERS, "steps": steps, "speeds": table.speeds, "delay_ms": table.delay_ms}
        summary = worlds.run(program, task=task, seed=seed, **world).summary
        worlds.close()
    return {
        "loss": float(summary["eval_loss_final"]),
        "merged": float(summary["merged_share"]),
        "voters": float(summary["contributors_mean"]),
        "overlapped": summary["tokens_overlapped"] / summary["tokens_total"],
        "refused": summary["tokens_refused"] / summary["tokens_total"],
    }


def shown(name: str, of_side: Mapping[int, Mapping[str, float]], reference: Mapping[int, Mapping[str, float]]) -> str:
    """A row of a table in Markdown."""
    losses, others = ({seed: cell["loss"] for seed, cell in side.items()} for side in (of_side, reference))
    mean = {figure: fmean(cell[figure] for cell in of_side.values()) for figure in next(iter(of_side.values()))}
    paired, minus = difference(losses, others), ""
    if of_side is not reference and paired is not None:
        minus = f"{paired.mean:+.3f}"
        if paired.low is not None and paired.high is not None:
            minus += f" ({paired.low:+.3f} to {paired.high:+.3f})"
    shares = " | ".join(f"{mean[figure]:.1%}" for figure in ("merged", "overlapped", "refused"))
    return f"| {name} | {mean['loss']:.3f} | {minus} | {mean['voters']:.2f} | {shares} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; default: all")
    parser.add_argument("--steps", type=int, default=240, help="of a learner, on average")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--nano", action="store_true", help="the model nano, 131,904 parameters")
    parser.add_argument("--kept", type=Path, help="a file for each model")
    parser.add_argument("--parts", type=Path, help="where texts by kind are, or go, for tables with unlike data")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    settings, kept = NANO if asked.nano else SMALL, KeptCells(asked.kept)
    names = asked.tables or list(TABLES)
    task, parts = language_model.task(**settings), None
    if any(TABLES[table].by_part for table in names):
        parts = by_part(asked.parts or Path(tempfile.mkdtemp(prefix="parts-")) / "text", settings)
    for seed in range(asked.seeds):
        for table in names:
            task_of = parts if TABLES[table].by_part else task
            for side, side_settings in TABLES[table].sides.items():
                cell = f"{table}: {side}, {asked.steps} steps, seed {seed}"
                if cell not in kept:
                    kept.keep(cell, measured(TABLES[table], side_settings, task_of, asked.steps, seed))
    if asked.json:
        print(json.dumps(kept, indent=1))
        return
    for table in names:
        print(f"\n| {table} | loss | minus the first | learners in a merge | merged | overlapped | refused |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        cells = {
            side: {seed: kept[f"{table}: {side}, {asked.steps} steps, seed {seed}"] for seed in range(asked.seeds)}
            for side in TABLES[table].sides
        }
        reference = next(iter(cells.values()))
        for side, of_side in cells.items():
            print(shown(side, of_side, reference))
    print(f"\n{kept.told()}")


if __name__ == "__main__":
    main()
