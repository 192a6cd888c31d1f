"""A run that is done, and is trained on to twice its tokens, beside one that knew so from the start, by schedule.

    python -m tests.bench.long.bench_trained_on [--program P] [--tokens 255000] [--seeds 5] [--cells FILE] [--json]

Of each seed, with each schedule: a run of twice the tokens, and one of the tokens, which `--resume` goes on with to as
many. Two learners, nano, Python's own library. The figure is the held-out loss of the second minus that of the first,
in nats; beside it the two losses minus that of one run with the schedule that is the default, at the same seed. Means
over seeds, with 95 % intervals. A blocking program (`diloco`) has the same losses at each call; in decoupled-diloco the
order of updates depends on the machine. A cell is a run and its seed, and is not made again where `--cells` has it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from isthmus.programs.wings.compare.compare_outcome import FigureDifference, difference
from tests.bench.kept_cells import KeptCells
from tests.bench.observed import COMMAND

SCHEDULES = ("cosine", "constant")
RUN_SECONDS_MAX = 1800.0


def trained(folder: Path, *options: str) -> float:
    """The final held-out loss of a run that ends in a folder."""
    subprocess.run(
        [*COMMAND, "train", "--quiet", *options], check=True, stdout=subprocess.DEVNULL, timeout=RUN_SECONDS_MAX
    )
    summary = json.loads((folder / "summary.json").read_text())
    return float(summary["eval_loss_final"])


def losses(program: str, schedule: str, seed: int, tokens: int) -> dict[str, float]:
    """The losses of one run of twice the tokens, of one of the tokens, and of that trained on."""
    with tempfile.TemporaryDirectory() as below:
        once, on = Path(below, "once"), Path(below, "on")
        how = [program, "--learners", "2", "--seed", str(seed), "--set", f"task.schedule={schedule}"]
        found = {"once": trained(once, *how, "--tokens", str(2 * tokens), "--run-dir", str(once))}
        found["half"] = trained(on, *how, "--tokens", str(tokens), "--run-dir", str(on))
        found["on"] = trained(on, "--resume", str(on), "--tokens", str(2 * tokens))
    return found


def figures(
    cells: dict[str, dict[str, Any]], program: str, seeds: Sequence[int], tokens: int
) -> dict[str, FigureDifference]:
    """What is told, by name, of all cells."""

    def of(schedule: str, key: str) -> dict[int, float]:
        return {seed: cells[_name(program, schedule, seed, tokens)][key] for seed in seeds}

    told = dict[str, FigureDifference | None]()
    for schedule in SCHEDULES:
        told[f"{schedule}: trained on minus one run"] = difference(of(schedule, "on"), of(schedule, "once"))
        for key, what in {"once": "one run", "on": "trained on"}.items():
            told[f"{schedule}: {what} minus one run, cosine"] = difference(of(schedule, key), of("cosine", "once"))
    return {name: each for name, each in told.items() if each is not None}


def _name(program: str, schedule: str, seed: int, tokens: int) -> str:
    return f"{program} {schedule} seed {seed} tokens {tokens}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="decoupled-diloco")
    parser.add_argument("--tokens", type=int, default=255_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cells", type=Path)
    parser.add_argument("--json", action="store_true")
    of = parser.parse_args()
    cells, seeds = KeptCells(of.cells, starts_hosts=True), range(of.seeds)
    for seed in seeds:
        for schedule in SCHEDULES:
            if (name := _name(of.program, schedule, seed, of.tokens)) not in cells:
                cells.keep(name, losses(of.program, schedule, seed, of.tokens))
    told = figures(cells, of.program, seeds, of.tokens)
    if of.json:
        print(json.dumps(msgspec.to_builtins(told)))
        return
    for name, each in told.items():
        ends = "" if each.low is None or each.high is None else f" ({each.low:+.4f} to {each.high:+.4f})"
        print(f"{name:<44} {each.mean:+.4f}{ends}, {len(each.seeds)} seeds")
    print(cells.told())


if __name__ == "__main__":
    main()
