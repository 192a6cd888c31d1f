"""What it costs that a tenth of all answers is lost, by format.

    python -m tests.bench.long.bench_lost [--steps 500] [--seeds 3] [--share .1]

The language model, nano, by decoupled-diloco in virtual time, four learners, batches of 8. Each answer is lost with
this probability when its round closes: it counts as one that was refused. Told is the held-out loss, nats a byte, less
that of the same seed and format without a loss. Everything is deterministic but for the text that is trained on.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any, Final

import numpy as np

from isthmus.ops.syncer.answer_rules import RoundTally
from isthmus.ops.syncer.merge import Merge
from isthmus.programs import language_model
from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.bench.long.bench_joined import replaced

PUSHES: Final = ("int4", "int2", "int1")
MARGIN: Final = 0.03


def run(worlds: Worlds, seed: int, steps: int, push: str, share: float) -> tuple[float, float]:
    """The loss of one run, and the share of answers that were lost."""
    rng, counts = random.Random(seed), [0, 0]

    def losing(merge: Any) -> Any:
        def merged(self: Merge, tally: RoundTally, early: Any) -> Any:
            def is_lost(vote: Any) -> bool:
                lost = tally.round["kind"] == "merge" and rng.random() < share
                counts[lost] += 1
                return lost

            tally.refuse("lost", is_lost)
            return merge(self, tally, early)

        return merged

    with replaced(Merge, "_merge", losing):
        program = Program("decoupled-diloco", push=push)
        result = worlds.run(program, task=language_model.task(batch=8), learners=4, steps=steps, seed=seed)
    return float(result.eval_loss or np.nan), counts[1] / sum(counts)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500, help="of each learner")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--share", type=float, default=0.1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(Path(folder))
        for push in PUSHES:
            costs = []
            for seed in range(asked.seeds):
                whole, _ = run(worlds, seed, asked.steps, push, 0.0)
                loss, lost = run(worlds, seed, asked.steps, push, asked.share)
                costs.append(loss - whole)
                print(f"{push}, seed {seed}: {whole:.3f}; {lost:.1%} of the answers lost {loss:.3f}", flush=True)
            spread = f"{statistics.mean(costs):+.3f} ({min(costs):+.3f} to {max(costs):+.3f})"
            print(f"{push:8} {spread}   bar <= {MARGIN}", flush=True)
        worlds.close()


if __name__ == "__main__":
    main()
