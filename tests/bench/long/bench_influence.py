"""What a participant that sends noise, or flipped signs, costs the model of all, with and without a cap on it.

    python -m tests.bench.long.bench_influence [--seeds 3] [--steps 285] [--json]

The language model, nano, by decoupled-diloco in virtual time with pushes of float32: four learners, of which the one in
slot 0 has four times the batch of each other, .84 of the weight. From its tenth step on it sends gradients of normal
length that are noise, or have flipped signs. Told is the held-out loss at the end less that of the undisturbed run of
the same seed, nats a byte: without a cap, with `program.weight_share_max`, and with `program.opposed = "refuse"`.
Everything is deterministic: no figure depends on the machine, but for the text that is trained on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.programs import language_model
from isthmus.programs.engine.request.program import Program
from isthmus.programs.wings.simulation.pytest_plugin import Worlds
from tests.bench.long.bench_joined import replaced

LIAR: Final = 0
SOUND_STEPS: Final = 10
BATCHES: Final = [32, 8, 8, 8]
CAP: Final = {"weight_share_max": 0.25}
REFUSAL: Final = {"opposed": "refuse"}
CASES: Final[dict[str, tuple[str, Mapping[str, Any], float | None]]] = {
    "undisturbed, cap .25": ("", CAP, None),
    "noise": ("noise", {}, None),
    "noise, cap .25": ("noise", CAP, 0.05),
    "flips": ("flips", {}, None),
    "flips, cap .25": ("flips", CAP, 0.25),
    "flips, refused": ("flips", REFUSAL, 0.05),
    "flips, cap .25, refused": ("flips", {**CAP, **REFUSAL}, 0.05),
}
"""Name -> what the liar sends, the settings, and the most that it may cost."""


def forged(answer: dict[str, Any], what: str) -> dict[str, Any]:
    """An answer of the same length."""
    if answer["slot"] != LIAR or not what or answer["kind"] != "merge" or answer["end"] < SOUND_STEPS:
        return answer
    gradient = answer["gradient"]
    if what == "flips":
        return {**answer, "gradient": -gradient}
    drawn = np.random.default_rng(answer["round"]).standard_normal(gradient.size).astype(np.float32)
    length = np.float32(np.linalg.norm(gradient) / np.linalg.norm(drawn))
    return {**answer, "gradient": drawn * length, "norms": answer["norms"]}


def run(worlds: Worlds, seed: int, steps: int, what: str, settings: Mapping[str, Any]) -> float:
    """The held-out loss of one run."""

    def sending(make: Any) -> Any:
        return lambda self, capture: forged(make(self, capture), what)

    with replaced(FragmentSend, "_answer", sending):
        task = language_model.task(batch=BATCHES)
        program = Program("decoupled-diloco", push="float32", **settings)
        result = worlds.run(program, task=task, learners=4, steps=steps, seed=seed)
    return float(result.eval_loss or np.nan)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=285)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(Path(folder))
        for seed in range(asked.seeds):
            sound = run(worlds, seed, asked.steps, "", {})
            for name, (what, settings, _) in CASES.items():
                found.setdefault(name, []).append(run(worlds, seed, asked.steps, what, settings) - sound)
                print(f"seed {seed}: undisturbed {sound:.3f}; {name} {found[name][-1]:+.3f}", flush=True)
        worlds.close()
    if asked.json:
        print(json.dumps(found))
        return
    print(f"loss less that of the undisturbed run, means of {asked.seeds} seeds (smallest to largest)")
    for name, values in found.items():
        bar = CASES[name][2]
        spread = f"{statistics.mean(values):+.3f} ({min(values):+.3f} to {max(values):+.3f})"
        print(f"{name:26} {spread}{'' if bar is None else f'   bar <= {bar}'}")


if __name__ == "__main__":
    main()
