"""How many calls the threads of a learner's nodes make a firing: what a step costs beside the step itself.

    python -m tests.bench.long.bench_calls [--firings 1200] [--top 40] [--json]

CPU time is noisy and differs from machine to machine; the number of calls hardly does. It says how much there is to do,
not what it takes: after a step what is called first costs most (`bench_cold.py`). It is counted by Python's
own profiler in a real run with one learner (fragments 8, interval 24: an exchange every third step), of C functions,
too; constructors of C classes are not seen.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

from tests.bench.observed import training

NODES = {"inner-step": 1, "fragment-send": 2}
"""By their number in the graph, as threads are named. `data` fires rarely, and makes batches, which the bare loop has
to make as well."""
SKIPPED = 300
SECONDS_MAX = 300.0


def count(firings: int) -> dict[str, dict[str, float]]:
    """Calls a firing, by node and function."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        hook = str(Path(__file__).parents[1] / "counting")
        os.environ.update(PYTHONPATH=hook, CALLS_FOLDER=folder, CALLS_SKIPPED=str(SKIPPED), CALLS_FIRINGS=str(firings))
        files = {node: Path(folder, f"learner-0:{number}.json") for node, number in NODES.items()}
        with training(Path(folder, "run"), learners=1) as run:
            until = time.monotonic() + SECONDS_MAX
            while not all(path.exists() for path in files.values()):
                if time.monotonic() > until:
                    raise SystemExit(f"the learner did not come to {SKIPPED + firings} firings of each node")
                time.sleep(0.5)
            run.stop()
        return {node: json.loads(path.read_text()) for node, path in files.items()}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--firings", type=int, default=1200)
    parser.add_argument("--top", type=int, default=0, help="functions to list of each node")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    counted = count(asked.firings)
    if asked.json:
        print(json.dumps(counted))
        return
    for node, calls in counted.items():
        python = sum(each for name, each in calls.items() if " in " not in name)
        print(f"{node:14} {sum(calls.values()):6.1f} calls a firing, {python:.1f} of them of Python functions")
        for name, each in list(calls.items())[: asked.top]:
            print(f"    {each:7.2f} {name}")


if __name__ == "__main__":
    main()
