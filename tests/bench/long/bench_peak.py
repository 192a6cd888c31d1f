"""How near the peak of a learner's link is to its mean.

    python -m tests.bench.long.bench_peak [--tokens N] [--json]

In each interval of H / P inner steps one fragment is due. By the layout, which is a function of names and shapes, and
the schedule, kept to the step: nano in 8 fragments, and gpt-124m in 24. And of a real run of nano, with four
learners and steps that the machine makes as fast as it can: what `trace.json` has of the transfers of each learner's
two directions, counted by intervals of H / P of its own steps after the first sweep. There an interval may have more
than one transfer, because rounds are due by the steps of the fastest learner and a transfer takes its time: so the mean
of three intervals in a row, by which a queue of one fragment would smooth it, is stated beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus.ops.exchange.fragments import Fragment, partition
from isthmus.ops.model_config import ModelConfig, tensors
from isthmus.ops.syncer.schedule import Schedule

ISTHMUS: Final = Path(sys.executable).with_name("isthmus")
INTERVAL: Final = 24
FRAGMENTS: Final = 8
LEARNERS: Final = 4
LARGE_BYTES: Final = 8 << 10
"""Of a transfer of a fragment; reports and pulls are smaller."""
SWEEPS: Final = 20
BAR: Final = 1.34
MODELS: Final = {
    "nano": (ModelConfig(256, 2, 64, 4, 64), FRAGMENTS),
    "gpt-124m": (ModelConfig(50_304, 12, 768, 12, 1024, tied=True, dtype="bfloat16"), 24),
}


class Named(NamedTuple):
    """A tensor of a layout."""

    name: str
    shape: tuple[int, ...]
    merge: str
    dtype: str = "float32"
    is_stacked: bool = False


def fragments_of(config: ModelConfig, count: int) -> tuple[Fragment, ...]:
    """The fragments of a model of the shipped task."""
    return partition(
        [
            Named(name, each.shape, "average" if name in ("embedding", "head") else "rda")
            for name, each in tensors(config).items()
        ],
        count,
    )


def by_layout(config: ModelConfig, count: int) -> float:
    """Peak over mean of what a schedule that is kept to the step has due in each interval of H / P steps."""
    sizes = [fragment.size for fragment in fragments_of(config, count)]
    schedule, due = Schedule(range(count), count, INTERVAL), Counter[int]()
    for step in range(SWEEPS * INTERVAL):
        for fragment in schedule.due(step):
            due[step * count // INTERVAL] += sizes[fragment]
            schedule.serve(fragment, step)
    intervals = [due[number] for number in range(count, SWEEPS * count)]
    return max(intervals) / statistics.fmean(intervals)


def measured(tokens: int) -> dict[str, list[float]]:
    """Peak over mean of each learner's link, by direction: of single intervals, and of three in a row."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, "run")
        command = [str(ISTHMUS), "train", "--learners", str(LEARNERS), "--tokens", str(tokens), "--quiet"]
        settings = ["--set", f"program.fragments={FRAGMENTS}", "--set", f"program.interval={INTERVAL}"]
        subprocess.run([*command, *settings, "--run-dir", str(folder)], check=True, stdout=subprocess.DEVNULL)
        events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    hosts = {each["pid"]: each["args"]["name"] for each in events if each.get("name") == "process_name"}
    steps: dict[str, list[float]] = defaultdict(list)
    moved: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for each in events:
        if each["ph"] != "X":
            continue
        host, told = hosts[each["pid"]], each.get("args", {})
        if each["name"] == "inner-step":
            steps[host].append(each["ts"])
        elif told.get("bytes", 0) >= LARGE_BYTES:
            target = told["to"]
            if host.startswith("learner/") and target.startswith("syncer/"):
                moved[host, "up"].append((each["ts"], told["bytes"]))
            elif host.startswith("syncer/") and target.startswith("learner/"):
                moved[target, "down"].append((each["ts"] + each["dur"], told["bytes"]))
    found: dict[str, list[float]] = defaultdict(list)
    for (learner, way), transfers in sorted(moved.items()):
        own = sorted(steps[learner])
        counts: Counter[int] = Counter()
        for at, size_bytes in transfers:
            counts[(bisect_right(own, at) - 1) * FRAGMENTS // INTERVAL] += size_bytes
        # Without the first two sweeps, and the end, when every fragment is merged once more with everybody.
        intervals = [counts[number] for number in range(2 * FRAGMENTS, len(own) * FRAGMENTS // INTERVAL - FRAGMENTS)]
        mean = statistics.fmean(intervals)
        found[f"{way}, one interval"].append(max(intervals) / mean)
        rows = [statistics.fmean(intervals[at : at + 3]) for at in range(len(intervals) - 2)]
        found[f"{way}, three in a row"].append(max(rows) / mean)
    return dict(found)


def main() -> None:
    """Compute, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_020_000)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    layouts = {f"{name}, {count} fragments": by_layout(config, count) for name, (config, count) in MODELS.items()}
    run: dict[str, Any] = measured(asked.tokens)
    if asked.json:
        print(json.dumps({"layout": layouts, "run": run}))
        return
    for name, ratio in layouts.items():
        print(f"by layout: {name:24} {ratio:.3f}   (the aim is {BAR})")
    for name, ratios in run.items():
        print(f"a run: {name:28} {', '.join(f'{ratio:.2f}' for ratio in ratios)}   of each learner")


if __name__ == "__main__":
    main()
