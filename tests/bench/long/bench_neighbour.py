"""What a shard that is killed goes on with: how old its momentum is, and how many merges its fragments lose.

    python -m tests.bench.long.bench_neighbour [--kills 4] [--update float32 int8] [--interval 2] [--shards 2] [--json]

Decoupled DiLoCo on a task in NumPy whose steps sleep half a second, 16 MiB in 8 fragments, four learners and two
shards as processes of this machine, snapshots every 15 s as by default. `kill -9` of a shard, in turn, as soon as its
last life has merged each of its fragments nine times; by merges.jsonl, of each fragment at the first merge of the
next life: the outer steps between the momentum that it goes on with and the version (`age`, null where it goes on
without), the versions that are undone (`undone`), and the rounds of the time that passed without it, by the pace
before (`rounds`).
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from isthmus.programs.engine.request.program import Program
from tests.bench import observed
from tests.bench.size import ordered
from tests.bench.size.light import BROAD_16

FRAGMENTS = 8
LEARNERS = 4
MERGES = 9
SECONDS_MAX = 180.0


def killed(kills: int, shards: int, update: str, interval: int) -> list[dict[str, Any]]:
    """What each death of a shard cost each of its fragments."""
    program = Program(
        "decoupled-diloco",
        fragments=FRAGMENTS,
        interval=interval,
        overlap=1,
        shards=shards,
        update=update,
        outer_momentum=0.9,
    )
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as within:
        folder = Path(within) / "run"
        with ordered.running({folder: LEARNERS}, program, BROAD_16):
            return [cost for number in range(kills) for cost in _kill(folder, number % shards, shards)]


def _kill(folder: Path, shard: int, shards: int) -> list[dict[str, Any]]:
    """Kill a shard, and wait until the next life has merged all that is its own."""
    own = range(shard, FRAGMENTS, shards)
    _wait(folder, lambda merges: all(len(_of(merges, p)[-1][1]) >= MERGES for p in own if _of(merges, p)))
    life = max(merge["epoch"] for merge in _merges(folder) if merge["shard"] == shard)
    [pid] = [host["pid"] for host in observed.status(folder)["hosts"] if host["name"] == f"syncer/{shard}"]
    os.kill(pid, signal.SIGKILL)
    _wait(folder, lambda merges: all(len(_of(merges, p)) > life and _of(merges, p)[-1][0] > life for p in own))
    return [_cost(_merges(folder), p) for p in own]


def _cost(merges: list[dict[str, Any]], fragment: int) -> dict[str, Any]:
    (_, before), (_, after) = _of(merges, fragment)[-2:]
    first, last = after[0], before[-1]
    begun = first["version"][1] - 1
    pace = median([b["time"] - a["time"] for a, b in pairwise(before)] or [0.0])
    return {
        "fragment": fragment,
        "age": None if first["momentum"] is None else begun - first["momentum"][1],
        "undone": last["version"][1] - begun,
        "rounds": round((first["time"] - last["time"]) / pace - 1, 1) if pace else None,
    }


def _of(merges: list[dict[str, Any]], fragment: int) -> list[tuple[int, list[dict[str, Any]]]]:
    """The merges of a fragment by the life of its shard."""
    own = [merge for merge in merges if merge["fragment"] == fragment]
    lives = sorted({merge["epoch"] for merge in own})
    return [(life, [merge for merge in own if merge["epoch"] == life]) for life in lives]


def _merges(folder: Path) -> list[dict[str, Any]]:
    path = folder / "merges.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    made = [json.loads(line) for line in lines if line.endswith("}")]
    return [line for line in made if line["kind"] == "merge" and line["version"]]


def _wait(folder: Path, is_so: Any) -> None:
    until = time.monotonic() + SECONDS_MAX
    while not (
        (merges := _merges(folder)) and len({each["fragment"] for each in merges}) == FRAGMENTS and is_so(merges)
    ):
        assert time.monotonic() < until, "the run does not come to merging"
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--interval", type=int, default=2)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--update", nargs="+", default=["float32", "int8"])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows = []
    for update in asked.update:
        costs = killed(asked.kills, asked.shards, update, asked.interval)
        ages = [each["age"] for each in costs]
        row = {"update": update, "ages": ages, "undone": [each["undone"] for each in costs]}
        rows.append(row | {"rounds": [each["rounds"] for each in costs], "load": os.getloadavg()[0]})
        if not asked.json:
            print(rows[-1], flush=True)
    if asked.json:
        print(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
