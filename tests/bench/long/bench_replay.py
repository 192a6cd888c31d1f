"""How long replaying a run takes, as a share of what the run took.

    python -m tests.bench.long.bench_replay [--tokens 410000] [--repeat 5] [--json]

A run of the default program in processes, then `isthmus replay` of its folder, as commands, with the start of Python
and all imports in both. Beside it: the same over the run's training alone (`wall_seconds`), and records a second of the
replay itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.observed import ISTHMUS

BAR = 0.2
"""Of the time of the run."""


def timed(*words: str) -> tuple[float, str]:
    """Seconds of a command, and what it prints."""
    begun = time.monotonic()
    done = subprocess.run([str(ISTHMUS), *words], stdout=subprocess.PIPE, text=True, check=True)
    return time.monotonic() - begun, done.stdout


def measured(folder: Path, tokens: int, repeat: int) -> dict[str, Any]:
    """The figures of one run."""
    trained, _ = timed("train", "--tokens", str(tokens), "--run-dir", str(folder), "--quiet")
    replays = [timed("replay", str(folder), "--json") for _ in range(repeat)]
    told = [json.loads(output) for _, output in replays]
    took = statistics.median(seconds for seconds, _ in replays)
    training = json.loads((folder / "summary.json").read_text())["wall_seconds"]
    return {
        "identical": all(each["identical"] for each in told),
        "records": told[0]["records"],
        "commands": told[0]["commands"],
        "merges": told[0]["merges"],
        "train_seconds": trained,
        "training_seconds": training,
        "replay_seconds": took,
        "records_a_second": told[0]["records"] / statistics.median(each["seconds"] for each in told),
        "share": took / trained,
        "share_of_training": took / training,
        "bar": BAR,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=410_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measured(Path(folder, "run"), asked.tokens, asked.repeat)
    if asked.json:
        print(json.dumps(figures))
        return
    print(f"run     {figures['train_seconds']:.1f} s, of which {figures['training_seconds']:.1f} s of training")
    print(f"replay  {figures['replay_seconds']:.2f} s, {figures['records_a_second']:,.0f} records a second")
    print(f"share   {figures['share']:.3f} of the run, {figures['share_of_training']:.3f} of its training; bar {BAR}")
    print("identical" if figures["identical"] else "DIFFERENT")


if __name__ == "__main__":
    main()
