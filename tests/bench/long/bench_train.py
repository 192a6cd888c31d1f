"""Whole runs of `isthmus train`, and of one learner alone on a quarter of the tokens: time, loss, contributors.

    python -m tests.bench.long.bench_train [--tokens 1020000] [--runs 3] [--json]

Each pair is one run of each, in turn, in processes of their own; medians and spread over the pairs. Losses are those of
this machine's Python library: compare them within one table only.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ISTHMUS = Path(sys.executable).with_name("isthmus")
FIGURES = ("seconds", "wall_seconds", "eval_loss_final", "contributors_mean", "merged_share", "goodput")


def train(tokens: int, learners: int, seed: int) -> dict[str, Any]:
    """The summary of one run, with the seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        command = [str(ISTHMUS), "train", "--quiet", "--tokens", str(tokens), "--learners", str(learners)]
        begun = time.monotonic()
        done = subprocess.run([*command, "--seed", str(seed), "--run-dir", f"{folder}/run"], cwd=folder, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}")
        summary: dict[str, Any] = json.loads(Path(folder, "run", "summary.json").read_text())
        return {**summary, "seconds": time.monotonic() - begun}


def spread(values: list[float]) -> str:
    """Median, and the range where there is one."""
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_020_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    four = []
    alone = []
    for seed in range(asked.runs):
        four.append(train(asked.tokens, 4, seed))
        alone.append(train(asked.tokens // 4, 1, seed))
    gains = [one["eval_loss_final"] - all_["eval_loss_final"] for one, all_ in zip(alone, four, strict=True)]
    if asked.json:
        print(json.dumps({"four": four, "alone": alone, "gains": gains}))
        return
    print(f"{asked.runs} pairs; 4 learners on {asked.tokens} tokens, 1 learner on {asked.tokens // 4}")
    for name in FIGURES:
        columns = [spread([run[name] for run in runs]) for runs in (four, alone)]
        print(f"{name:20} {columns[0]:28} {columns[1]:28}")
    print(f"{'gain, nats per byte':20} {spread(gains)}")


if __name__ == "__main__":
    main()
