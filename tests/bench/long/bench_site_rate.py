"""What evaluation by site costs its learner: steps a second of a site with it, and without, in pairs.

    python -m tests.bench.long.bench_site_rate [--pairs 5] [--steps 500] [--batch 8] [--json]

Runs of one learner in one process (`transport="inproc"`), nano on Python's library, one after the other: with a site,
whose learner evaluates on its held-out part as `SitePlan` has it, and without. Told are, by pair, steps a second from
the first step to the last, by the CPU time of the process, and by the clock, which says little on a machine that is not
idle. Beside them stands the share of the learner's time that all evaluations take, those at the start and at the end
included, each measured as it is made: one less it is that ratio, too, for nothing else differs. What compiles them
before the first step is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from isthmus import decoupled_diloco, train
from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.learner.boundary import Boundary, Companion
from isthmus.ops.learner.site_evaluation import SiteEvaluation
from isthmus.programs import language_model
from isthmus.programs.task import TaskTerms
from isthmus.programs.wings.compare.compare_outcome import difference
from tests.bench.long.bench_joined import replaced

BAR: Final = 0.98
STEPS_TO_COMPILE: Final = 100
TERMS: Final = SiteTerms("0" * 32, bytes=12_000_000, tokens=12_000_000, text_bytes=12_000_000)


@dataclass
class StepWatch(Companion):
    """Notes the first and the last boundary behind a step, with the CPU time of the process, in seconds."""

    boundary: Boundary
    first: tuple[int, float, float] | None = None
    last: tuple[int, float, float] | None = None

    def before_step(self) -> bool:
        """A step was made, or none yet."""
        steps = self.boundary.odometer.steps
        if steps and (self.last is None or steps > self.last[0]):
            self.last = steps, time.monotonic(), time.process_time()
            self.first = self.first or self.last
        return False

    def rates(self) -> tuple[float, float]:
        """Steps a second, by the clock and by the CPU time."""
        if self.first is None or self.last is None or self.first == self.last:
            raise SystemExit("the run made no steps that can be measured: ask for more --steps")
        steps = self.last[0] - self.first[0]
        return steps / (self.last[1] - self.first[1]), steps / (self.last[2] - self.first[2])


def measured(task: Any, steps: int) -> dict[str, float]:
    """The rates of one run; of a site also how many evaluations it made, and the share of its time that they took."""
    watches: list[StepWatch] = []
    made: list[dict[str, Any]] = []

    def watched(companions: Any) -> Any:
        def of_boundary(self: Any, boundary: Boundary) -> Iterator[Companion]:
            watches.append(StepWatch(boundary))
            # Behind the others: it notes a boundary once their work there is done.
            return chain(companions(self, boundary), [watches[-1]])

        return of_boundary

    def noting(write: Any) -> Any:
        return lambda self, evaluated: made.append(evaluated) or write(self, evaluated)

    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as there,
        replaced(TaskTerms, "companions", watched),
        replaced(SiteEvaluation, "_write", noting),
        redirect_stdout(sys.stderr),  # Where a run says that it is done.
    ):
        train(
            decoupled_diloco(),
            task,
            learners=1,
            tokens=steps * task.tokens_per_batch,
            transport="inproc",
            evaluate="none",
            run_dir=Path(there, "run"),
            quiet=True,
        )
    clock, cpu = watches[0].rates()
    took = sum(each["took"] for each in made) / 1e9
    return {"clock": clock, "cpu": cpu, "evaluations": len(made), "share": took / (took + steps / clock)}


def shown(values: Sequence[float]) -> str:
    """The mean of some figures, with the interval of 95 % (Student's t)."""
    gap = difference(dict(enumerate(values)), dict.fromkeys(range(len(values)), 0.0))
    if gap is None or gap.low is None or gap.high is None:
        return f"{fmean(values):.4f}"
    return f"{gap.mean:.4f} ({gap.low:.4f} to {gap.high:.4f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    without = language_model.task(batch=asked.batch)
    site = replace(without, site=TERMS)
    pairs: list[dict[str, dict[str, float]]] = []
    measured(site, STEPS_TO_COMPILE)
    for pair in range(asked.pairs):
        sides = {"with": site, "without": without}
        order = list(sides) if pair % 2 else list(sides)[::-1]
        pairs.append({side: measured(sides[side], asked.steps) for side in order})
    if asked.json:
        print(json.dumps(pairs, indent=1))
        return
    print(f"steps a second with evaluation by site / without, {asked.pairs} pairs of {asked.steps} steps; bar >= {BAR}")
    for by, what in {"cpu": "by the CPU time of the process", "clock": "by the clock"}.items():
        print(f"{what}: {shown([each['with'][by] / each['without'][by] for each in pairs])}")
    evaluations = fmean(each["with"]["evaluations"] for each in pairs)
    shares = [1 - each["with"]["share"] for each in pairs]
    print(f"one less the share of the time in {evaluations:.1f} evaluations: {shown(shares)}")


if __name__ == "__main__":
    main()
