"""What it costs a learner that joins that its moments begin anew: against one that is given those of another.

    python -m tests.bench.long.bench_joined [--seeds 3] [--steps 330] [--json]

The language model, nano, by decoupled-diloco in virtual time: 3 learners, and a fourth that joins after 2.2 s, some 160
steps. It begins with the newest model each time; its moments begin anew, or are lent by another learner as the runtime
does it, within its first steps (`lent`), or are a copy of learner 0's at that step, before its first one (`given`):
what a peer could give at best, with no way to go. Told is the mean training loss of the joined learner in its first
steps, in nats a byte, and the held-out loss at the end of the run. Everything is deterministic: no figure depends on
the machine, but for the text that is trained on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.ops.learner.inner_step import InnerStep
from isthmus.ops.learner.recovery import Inheritance
from isthmus.ops.recovery.lend import Lend
from isthmus.programs import language_model
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from isthmus.runtime.sim.faults import Join

LEARNERS, JOINED, AT = 3, 3, 2.2
HOW = "anew", "lent", "given"
SPANS = {"steps 1 to 8": (0, 8), "steps 1 to 24": (0, 24), "steps 25 to 48": (24, 48)}


@contextmanager
def replaced(owner: type, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Have a method of a class wrapped."""
    before = getattr(owner, name)
    setattr(owner, name, wrap(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def run(worlds: Worlds, seed: int, steps: int, how: str) -> dict[str, float]:
    """The losses of one run."""
    lives: dict[int, Any] = {}
    losses: list[float] = []

    def taking(take: Any) -> Any:
        def taken(self: Any) -> Any:
            result = take(self)
            lives[self._slot] = self
            if self._slot == JOINED and how == "given":
                donor = lives[0]
                if donor._odometer.steps < 50 or not self._sole.take_local([*donor._sole.local()]):
                    raise SystemExit("learner 0 has no moments that fit: it was expected to have stepped by then")
            return result

        return taken

    def training(train: Any) -> Any:
        def trained(self: Any, batch: Any) -> None:
            if self._slot != JOINED:
                return train(self, batch)
            step = self._learner.step

            def noted(batch: Any, progress: float) -> Any:
                metrics = step(batch, progress)
                losses.append(float(np.asarray(metrics["loss"])))
                return metrics

            self._learner.step = noted
            train(self, batch)
            self._learner.step = step
            return None

        return trained

    def lending(call: Any) -> Any:
        return lambda self, moments=None: call(self, moments) if how == "lent" else None

    joining = [Join(f"learner/{JOINED}", at=AT)]
    with (
        replaced(Inheritance, "take", taking),
        replaced(InnerStep, "_train", training),
        replaced(Lend, "__call__", lending),
    ):
        task = language_model.task()
        result = worlds.run("decoupled-diloco", task=task, learners=LEARNERS, steps=steps, seed=seed, faults=joining)
    if len(losses) < SPANS["steps 25 to 48"][1]:
        raise SystemExit(f"the learner that joined made {len(losses)} steps: ask for more --steps")
    told = {name: statistics.mean(losses[begin:end]) for name, (begin, end) in SPANS.items()}
    return {**told, "held-out": float(result.eval_loss or np.nan)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=330)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(Path(folder))
        for seed in range(asked.seeds):
            found.append({"seed": seed, **{how: run(worlds, seed, asked.steps, how) for how in HOW}})
        worlds.close()
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{'':16}{'anew':>28}{'lent - anew':>30}{'given - anew':>30}")
    for name in found[0]["anew"]:
        anew = " ".join(f"{each['anew'][name]:8.4f}" for each in found)
        lent, given = (" ".join(f"{each[how][name] - each['anew'][name]:+9.4f}" for each in found) for how in HOW[1:])
        print(f"{name:16}{anew:>28}{lent:>30}{given:>30}")


if __name__ == "__main__":
    main()
