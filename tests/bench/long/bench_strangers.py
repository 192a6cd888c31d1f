"""What a learner that is broken costs the others, in real runs: the run is done, and they lose no step.

    python -m tests.bench.long.bench_strangers [NAME ...] [--at-once 2] [--json]

Each run trains a linear model (`kills/distance.py`) with three learners, syncer, evaluator and recorder, a process
each; the learner of slot 2 is broken in one way in all its lives, each way in a run of its own (`strangers/forging.py`;
NAME is one of them). Exit status 1 unless every run is done, and none of the other learners has died, has lost a
step, or has had an answer refused as no sound learner's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from isthmus.programs.wings.simulation.invariants_model import OF_FORGERIES
from tests.bench.observed import ISTHMUS, lines_of
from tests.bench.strangers.forging import LIAR, STRANGERS, VARIABLE

HERE = Path(__file__).parents[1]
LEARNERS, TOKENS, TOKENS_PER_STEP = 3, 24_000, 8
"""1,000 steps a learner, of 4 ms and what a busy core makes of them."""
RUN_SECONDS_MAX = 180.0


@dataclass(slots=True)
class Found:
    """What came of one run. `lost` are steps that died with sound learners, `deaths` their lives that ended before the
    run, `refused` their answers that were taken for a forger's; `told` is what the run said of the broken one."""

    name: str
    outcome: str = "never ended"
    lost: float = 0.0
    deaths: int = 0
    refused: int = 0
    merged: float = 0.0
    loss: float | None = None
    lives: int = 0
    told: dict[str, int] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether it cost the others nothing."""
        return (self.outcome, self.lost, self.deaths, self.refused) == ("done", 0, 0, 0)


def one_run(name: str) -> Found:
    """Train with one learner that is broken so."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder = Path(place) / "run"
        command = [str(ISTHMUS), "train", f"{HERE / 'strangers' / 'forging.py'}:build", "--quiet"]
        command += ["--learners", str(LEARNERS), "--tokens", str(TOKENS), "--run-dir", str(folder)]
        command += ["--task", f"{HERE / 'kills' / 'distance.py'}:task"]
        environment = {**os.environ, VARIABLE: name}
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment)
        try:
            _, error = run.communicate(timeout=RUN_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            return Found(name)
        if not (folder / "summary.json").exists():
            raise SystemExit(f"{name}: no summary; {error.decode()}")
        return read(Found(name), folder)


def read(found: Found, folder: Path) -> Found:
    """Take in what a run left behind."""
    summary = json.loads((folder / "summary.json").read_text())
    others = [learner for learner in summary["per_learner"] if learner["learner"] != LIAR]
    found.outcome, found.merged, found.loss = summary["outcome"], summary["merged_share"], summary["eval_loss_final"]
    found.lost = sum(learner["tokens_lost"] for learner in others) / TOKENS_PER_STEP
    found.deaths = sum(learner["restarts"] for learner in others)
    merges = lines_of(folder / "merges.jsonl")
    refused = [(slot, why) for line in merges for slot, why in line["refused"]]
    found.refused = sum(slot != LIAR and why in OF_FORGERIES for slot, why in refused)
    events = [line for line in lines_of(folder / "events.jsonl") if line["host"] == f"learner/{LIAR}"]
    found.lives = max((line["incarnation"] for line in events), default=1)
    found.told = dict(told(events, [why for slot, why in refused if slot == LIAR], merges))
    return found


def told(events: list[dict[str, Any]], refused: list[str], merges: list[dict[str, Any]]) -> Counter[str]:
    """What was said of the liar, and how often."""
    said = Counter(f"answer {why}" for why in refused)
    for line in events:
        if line["kind"] == "item-refused":
            said[f"{line['refusal']['edge']}: {line['refusal']['field']} refused"] += 1
        elif line["kind"] == "condemned":
            said[f"killed: {line['verdict']['kind']}"] += 1
        elif line["kind"] in ("failed", "given-up", "slow"):
            said[line["kind"]] += 1
    said["shortened"] = sum(slot == LIAR for line in merges for slot, _ in line["shortened"])
    said["opposed"] = sum(slot == LIAR for line in merges for slot, _ in line["opposed"])
    return +said


def row(found: Found) -> str:
    """One line of the table."""
    loss = "-" if found.loss is None else f"{found.loss:.2f}"
    figures = (
        f"{found.outcome:<11} {found.lost:>5.0f} {found.deaths:>6} {found.refused:>8} {found.merged:>7.0%} {loss:>6}"
    )
    said = ", ".join(f"{what} ({count})" for what, count in found.told.items()) or "nothing"
    return f"{found.name:<34} {figures} {found.lives:>5}  {said}"


def main() -> int:
    """Run all and print; 1 if any broken learner cost the others something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *STRANGERS], default=[], metavar="NAME")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    every = []
    if not asked.json:
        print(f"{'learner 2':<34} {'outcome':<11} lost  deaths  refused  merged   loss lives  what was said of it")
    with ThreadPoolExecutor(asked.at_once) as pool:
        for found in pool.map(one_run, asked.names or STRANGERS):
            every.append(found)
            if not asked.json:
                print(row(found), flush=True)
    if asked.json:
        print(json.dumps([asdict(found) for found in every]))
    return 0 if all(found.is_right for found in every) else 1


if __name__ == "__main__":
    sys.exit(main())
