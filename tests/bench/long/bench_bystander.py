"""What a user's own loop that is killed, stopped or raises costs another learner: its steps a second, against before.

    .venv-torch/bin/python -m tests.bench.long.bench_bystander [--times 3] [--seconds 20] [--json]

Two islands of `own_loop_steps.py` (steps of about 50 ms; PyTorch) by `isthmus train --loop`. The other learner is alone
on core 0, all else of the run on core 1. Its steps in `--seconds` before the event and in as many from it on: SIGKILL,
SIGSTOP with SIGCONT at the end, an exception in the loop. Each time is a run of its own, of which the books must
balance and the victim must be merged again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import tempfile
import time
from pathlib import Path

from tests.bench.long.bench_loop import SCRIPT, instants
from tests.bench.observed import pin, training

EVENTS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP, "raises": signal.SIGUSR2}
BAR = 0.95
PARTS = ("merged", "overlapped", "refused", "lost", "pending")
VICTIM, OTHER = "learner/0", "learner/1"


def ratio(event: signal.Signals, seconds: float) -> float:
    """Steps of the other learner from the event on / before, in one run."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        lines = Path(name, "ends")
        with training(Path(name, "run"), "--loop", str(SCRIPT), learners=2, after=(str(lines), "8")) as run:
            pin(run.others(OTHER, "command"), 1)
            pin([run.pids[OTHER]], 0)
            time.sleep(seconds)
            at = time.monotonic()
            os.kill(run.pids[VICTIM], event)
            time.sleep(seconds)
            if event == signal.SIGSTOP:
                os.kill(run.pids[VICTIM], signal.SIGCONT)
            time.sleep(5)
            summary = run.stop()
        ends = instants(lines.with_name("ends.1"))
        parts = {name: summary[f"tokens_{name}"] for name in PARTS}
        if abs(sum(parts.values()) - summary["tokens_total"]) > 1:
            raise SystemExit(f"the books do not balance: {summary['tokens_total']} tokens, {parts}")
        before, after = (sum(t <= end < t + seconds for end in ends) for t in (at - seconds, at))
        return after / before


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = {name: [ratio(event, asked.seconds) for _ in range(asked.times)] for name, event in EVENTS.items()}
    if asked.json:
        print(json.dumps(found))
        return
    print(f"steps a second of the other learner, after / before; medians of {asked.times}, bar >= {BAR}")
    for name, values in found.items():
        print(f"{name:8} {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
