"""What the evaluation by site costs a learner: its steps a second with it, over those without.

    python -m tests.bench.long.bench_site_evaluation [--steps 500] [--pairs 3] [--json]

Two learners of the shipped task, of which one is on a site, take steps in turns, in one thread, and adopt the same
versions, a fragment at every third step. Time is that of the process on its cores, so that other work on the machine is
not in it. `steps`: while they step; `whole`: with the evaluations before the first step and of
the final model, but without compilation. A plan gives all of them at most 2 % of the steps.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from isthmus.ops.data.batches import At
from isthmus.ops.data.site_terms import SiteTerms
from isthmus.ops.exchange.fragments import Fragment, partition
from isthmus.ops.learner.inner_step import InnerStep
from isthmus.programs.engine.request.layout import layout
from isthmus.programs.language_model import task
from tests.ops.bodies import Context, update

SITE = SiteTerms("0" * 32, bytes=1, tokens=1)
LEARNERS, FRAGMENTS, EVERY = 2, 8, 3
WARM = 30
"""Steps that are not counted: each function is called by then."""


class RealContext(Context):
    """A context with the time of this process's processors."""

    def now(self) -> int:
        return time.process_time_ns()


class Timed:
    """A learner, and the time that its boundaries have taken."""

    def __init__(self, trained: Any, steps: int) -> None:
        tokens = steps * LEARNERS * trained.tokens_per_batch
        tensors = layout(trained)
        self.parts: tuple[Fragment, ...] = partition(tensors, FRAGMENTS)
        self.context = RealContext()
        self.context.connected = frozenset({"fragment", "report"})
        self.body = InnerStep(trained, fragments=self.parts, tokens=tokens, learners=LEARNERS)
        self.body.open(self.context)
        self.spent, self.evaluations = 0.0, 0
        first = [np.random.default_rng(p).normal(0, 0.02, part.size) for p, part in enumerate(self.parts)]
        self.fire(None, {part.index: update(part, 0, values) for part, values in zip(self.parts, first, strict=True)})

    def fire(self, batch: Any, updates: dict[int, Any]) -> None:
        """One boundary."""
        begun = time.process_time()
        news = {("syncer/0", index): each for index, each in updates.items()}
        firing = self.body(batch=batch, update=news or None)
        while True:
            try:
                next(firing)
            except StopIteration as end:
                self.spent += time.process_time() - begun
                for _, item in end.value:
                    made = item.get("site", {}).get("evaluations", ())
                    self.evaluations = max([self.evaluations, *(each["number"] + 1 for each in made)])
                return


def measure(steps: int) -> dict[str, float]:
    """The shares of one pair, and how many evaluations there were."""
    plain = task()
    pair = [Timed(plain, steps), Timed(replace(plain, site=SITE), steps)]
    rng = np.random.default_rng(0)
    for step in range(steps):
        if step == WARM:
            for each in pair:
                each.spent = 0.0
        batch, updates = plain.batch(At(0, 0, step)), {}
        if step and step % EVERY == 0:
            part = pair[0].parts[step // EVERY % FRAGMENTS]
            values = rng.normal(0, 0.02, part.size)
            others = [[1, 1, step * plain.tokens_per_batch]]  # type: ignore[operator]
            updates = {part.index: {**update(part, step, values), "totals": others}}
        for each in pair if step % 2 else reversed(pair):
            each.fire(batch, updates)
    stepping = [each.spent for each in pair]
    for each in pair:
        each.fire(None, {part.index: update(part, steps, 0.01, kind="final") for part in each.parts})
    last = pair[1].spent - stepping[1]
    # Without compilation the evaluation before the first step costs half of that of the final model.
    whole = stepping[0] / (stepping[1] + 1.5 * last)
    return {"steps": stepping[0] / stepping[1], "whole": whole, "evaluations": pair[1].evaluations}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    pairs = [measure(asked.steps) for _ in range(asked.pairs)]
    if asked.json:
        print(json.dumps(pairs))
        return
    for name in ("steps", "whole"):
        values = [each[name] for each in pairs]
        print(f"{name:6} {median(values):.4f} (of {len(pairs)}: {min(values):.4f} to {max(values):.4f})")
    print(f"evaluations: {pairs[-1]['evaluations']}")


if __name__ == "__main__":
    main()
