"""Islands of two frameworks against islands of one: the final losses of runs on the same tokens, in pairs of a seed.

    python -m tests.bench.long.bench_mixed [--seeds 5] [--tokens 1_020_000] [--learners 2] [--out FILE] [--json]

`docs/examples/jax_nano.py` and `torch_nano.py` are one model on one text; a pair is a run whose learners all train the
first, and one whose slots take both in turn. Both runs are real ones, in processes, and the task in jax evaluates both.
Printed is the mean of the differences, mixed less jax, with its interval of 95 % (Student's t), in nats a byte.

With --out every run that is over is a line of JSON in FILE, and a later call with the same options leaves it out.
PyTorch has to be there (`.venv-torch`).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
BAR = 0.02
RUN_SECONDS_MAX = 3600
T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t of 95 %, two-sided, by degrees of freedom."""


def tasks(kind: str, learners: int) -> list[str]:
    """The task of each slot."""
    names = {"jax": ["jax_nano.py"], "mixed": ["jax_nano.py", "torch_nano.py"]}[kind]
    return [f"{EXAMPLES / names[slot % len(names)]}:task" for slot in range(learners)]


def trained(kind: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What came of one run."""
    with tempfile.TemporaryDirectory() as folder:
        words = [word for task in tasks(kind, options.learners) for word in ("--task", task)]
        words += ["--learners", str(options.learners), "--tokens", str(options.tokens), "--seed", str(seed)]
        command = [sys.executable, "-m", "isthmus.programs.command", "train", *words, "--quiet", "--run-dir", "run"]
        subprocess.run(command, cwd=folder, check=True, timeout=RUN_SECONDS_MAX, stdout=subprocess.DEVNULL)
        summary = json.loads(Path(folder, "run", "summary.json").read_text())
    slots = [{"tokens": each["tokens"], "restarts": each["restarts"]} for each in summary["per_learner"]]
    loss, seconds = summary["eval_loss_final"], summary["wall_seconds"]
    return {**cell(kind, seed, options), "loss": loss, "seconds": seconds, "slots": slots}


def cell(kind: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """What names a run among all."""
    return {"kind": kind, "seed": seed, "tokens": options.tokens, "learners": options.learners}


def runs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All runs, those of earlier calls among them, pair by pair."""
    out = options.out
    lines = out.read_text().splitlines() if out is not None and out.exists() else []
    before = [json.loads(line) for line in lines]
    for seed in range(options.seeds):
        for kind in ("jax", "mixed"):
            named = cell(kind, seed, options)
            made = next((each for each in before if named.items() <= each.items()), None)
            if made is None:
                made = trained(kind, seed, options)
                if out is not None:
                    with out.open("a") as file:
                        file.write(json.dumps(made) + "\n")
            yield made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=1_020_000)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    losses: dict[str, list[float]] = {"jax": [], "mixed": []}
    for made in runs(options):
        losses[made["kind"]].append(made["loss"])
        if not options.json:
            shares = " + ".join(f"{each['tokens']:,}" for each in made["slots"])
            print(f"seed {made['seed']} {made['kind']:6} {made['loss']:.4f}   {made['seconds']:.0f} s, {shares} tokens")
    differences = [mixed - alone for mixed, alone in zip(losses["mixed"], losses["jax"], strict=True)]
    mean, count = statistics.fmean(differences), len(differences)
    half = T_95[count - 1] * statistics.stdev(differences) / math.sqrt(count) if count > 1 else math.inf
    figures = {"difference": mean, "half_interval": half, "differences": differences, "bar": BAR, **losses}
    if options.json:
        print(json.dumps(figures))
    else:
        print(f"mixed less jax: {mean:+.4f} nats a byte, 95 % within {half:.4f}; {count} seeds; the bar is {BAR}")
    return 0 if abs(mean) <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
