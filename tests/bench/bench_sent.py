"""What hosts hand to their sockets.

    python -m tests.bench.bench_sent [--steps N] [--repeats N] [--json]

Real runs of four learners on nano, in turns: data-parallel (a ring of float32), and decoupled-diloco with int4 both
ways, interval 24. Counted are bytes that learners and shards hand to the sockets that lead to learners and shards, all
frames of all messages, credit and heartbeats; evaluator and recorder are apart. From the step on by which every
fragment was merged (twice the interval), for so many steps of each learner; bytes a step, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

ISTHMUS = Path(sys.executable).with_name("isthmus")
LEARNERS: Final = 4
INTERVAL: Final = 24
BATCH: Final = 8
STEP_TOKENS: Final = 64 * BATCH
COUNTED: Final = ("learner", "syncer")
BAR: Final = 120.0
PARAMETERS: Final = 131_904
THEORY: Final = 2 * (LEARNERS - 1) / LEARNERS * 4 * PARAMETERS / (2 * 0.515625 * PARAMETERS / INTERVAL)
SECONDS_MAX: Final = 600.0
CASES: Final = {
    "data-parallel": ("data-parallel",),
    "decoupled int4": (
        "decoupled-diloco",
        *("--set", "program.push=int4", "--set", "program.update=int4", "--set", f"program.interval={INTERVAL}"),
    ),
}


def lines_of(path: Path) -> list[str]:
    """The whole lines of a file that is being written."""
    return path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []


def steps_of(folder: Path) -> int:
    """The steps of all learners together; 0 before all have begun."""
    steps = dict[int, int]()
    for line in lines_of(folder / "metrics.jsonl"):
        told = json.loads(line)
        if "learner" in told:
            steps[told["learner"]] = told["step"]
    return sum(steps.values()) if len(steps) == LEARNERS else 0


def sent_in(folder: Path) -> int:
    """The bytes so far of learners and shards, among themselves."""
    total = 0
    for role in COUNTED:
        for path in folder.glob(f"{role}-*.jsonl"):
            _, by_role = json.loads(lines_of(path)[-1])
            total += sum(by_role.get(peer, 0) for peer in COUNTED)
    return total


def bytes_a_step(options: tuple[str, ...], steps: int) -> float:
    """What one run hands over, for each step of a learner."""
    first, last = (LEARNERS * each for each in (2 * INTERVAL, 2 * INTERVAL + steps))
    tokens = str((last + LEARNERS * 2 * INTERVAL) * STEP_TOKENS)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        folder, counts = Path(place, "run"), Path(place, "sent")
        counts.mkdir()
        paths = os.pathsep.join(filter(None, [str(Path(__file__).with_name("sent")), os.environ.get("PYTHONPATH")]))
        command = [str(ISTHMUS), "train", *options, "--learners", str(LEARNERS), "--tokens", tokens, "--quiet"]
        command += ["--set", f"task.batch={BATCH}"]
        run = subprocess.Popen(
            [*command, "--run-dir", str(folder)],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": paths, "SENT_FOLDER": str(counts)},
        )
        try:
            begun = _at(folder, counts, first, run)
            ended = _at(folder, counts, last, run)
            if run.wait(SECONDS_MAX):
                raise SystemExit(f"the run ended with {run.returncode}")
        finally:
            if run.poll() is None:
                run.kill()
                run.wait()
    return (ended[1] - begun[1]) / (ended[0] - begun[0])


def _at(folder: Path, counts: Path, steps: int, run: subprocess.Popen[bytes]) -> tuple[int, int]:
    """(steps, bytes) as soon as there are so many steps."""
    until = time.monotonic() + SECONDS_MAX
    while time.monotonic() < until and run.poll() is None:
        if (found := steps_of(folder)) >= steps:
            return found, sent_in(counts)
        time.sleep(0.05)
    raise SystemExit(f"the run did not come to {steps} steps")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=480, help="of each learner, that are counted")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(asked.repeats):
        for name, options in CASES.items():
            found[name].append(bytes_a_step(options, asked.steps))
            print(f"{name:20} {found[name][-1]:12,.0f} bytes a step of a learner", file=sys.stderr, flush=True)
    whole, coded = (statistics.median(each) for each in found.values())
    ratios = [one / other for one, other in zip(*found.values(), strict=True)]
    if asked.json:
        print(json.dumps({**found, "ratio": whole / coded, "ratios": ratios, "theory": THEORY}))
        return
    print(f"ratio of the medians {whole / coded:.1f} ({min(ratios):.1f} to {max(ratios):.1f}), in theory {THEORY:.1f}")
    print(f"the aim is {BAR:.0f}")


if __name__ == "__main__":
    main()
