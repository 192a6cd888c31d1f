"""What the runtime costs a learner on a mesh: its steps a second inside a run, against the bare loop on the same mesh.

    python -m tests.bench.long.bench_mesh [--devices 4] [--pairs 5] [--seconds 4] [--batch 64] [--json]

One learner of a real run (daemon, syncer, evaluator, recorder, fragments 8, interval 24) on CPU devices. The bare loop
is the same learner without a run. They take turns: whoever is not measured is stopped. Figures are medians over pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics

from isthmus.runtime.system.processes import ONE_THREAD
from tests.bench.in_turns import rates

BAR = 0.97
WIDE = {"width": 128, "layers": 1, "context": 64}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ.update(JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES=str(asked.devices), NPROC="1")
    os.environ.update(ONE_THREAD)
    found = rates(WIDE | {"batch": asked.batch}, asked.pairs, asked.seconds)
    ratios = [inside / alone for alone, inside in found]
    if asked.json:
        print(json.dumps({"devices": asked.devices, "rates": found, "ratios": ratios}))
        return
    alone, inside = (statistics.median(values) for values in zip(*found, strict=True))
    print(f"{asked.devices} CPU devices, batch {asked.batch}, {len(found)} pairs of {asked.seconds} s; medians")
    print(f"bare loop                       {1e3 / alone:.1f} ms a step")
    print(f"learner                         {1e3 / inside:.1f} ms a step")
    print(f"learner / bare loop             {statistics.median(ratios):.3f}, bar {BAR}")


if __name__ == "__main__":
    main()
