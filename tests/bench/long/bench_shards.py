"""What a shard holds of memory at most, in sizes of its part of the model, by learners, shards and what it keeps.

    python -m tests.bench.long.bench_shards [--learners 8] [--shards 1 8] [--push float32 int4] [--mb 64] [--json]

Decoupled DiLoCo on a task in NumPy whose steps sleep, processes on this machine, 8 fragments, H = 16, once with
`program.keeps = "answers"` and once with "sums". Of each syncer its peak resident memory (VmHWM), with all pages
that it shares, those of answers of learners of its machine among them; and, looked at ten times a second from the first
merge on until each fragment was merged three times, the most of its proportional memory (PSS), in which a page of two
hosts is half in each, and of its own (RssAnon), which has nothing that it shares or lends; less those of the same
syncer in a run of a model of 320 kB; over the bytes of its part of the model in float32. Of several shards the largest.
Beside it the answers in a merge, and the milliseconds that it took (`merge_ms` in merges.jsonl), medians of the last
rounds. A learner of 64 MiB takes some 400 MB, one of 16 MiB 150 MB, one of 4 MiB 60 MB, and steps every two seconds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from isthmus.programs.engine.request.program import Program
from isthmus.runtime.system.memory import proportional_bytes
from tests.bench import observed
from tests.bench.size import ordered
from tests.bench.size.light import BROAD, LIGHT, SLOWEST, Light

FRAGMENTS = 8
ROUNDS = 3
KEEPS = ("answers", "sums")


def measured(learners: int, task: Light, **settings: Any) -> dict[str, Any]:
    """The peaks of the syncers of one run, by slot, and what their merges are like."""
    program = Program("decoupled-diloco", fragments=FRAGMENTS, interval=ordered.INTERVAL, overlap=2, **settings)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as within:
        folder = Path(within) / "run"
        with ordered.running({folder: learners}, program, task):
            until = time.monotonic() + 240 + 6 * learners
            pids: dict[str, int] = {}
            proportional, own = dict[str, int](), dict[str, int]()
            while len(lines := _merges(folder)) < ROUNDS * FRAGMENTS:
                assert time.monotonic() < until, f"the run does not come to merging: {len(lines)} merges"
                if lines and not pids:
                    hosts = observed.status(folder)["hosts"]
                    pids = {host["name"]: host["pid"] for host in hosts if host["name"].startswith("syncer/")}
                for name, pid in pids.items():
                    proportional[name] = max(proportional.get(name, 0), proportional_bytes(pid) or 0)
                    own[name] = max(own.get(name, 0), _bytes(pid, "RssAnon"))
                time.sleep(0.1)
            last = lines[-FRAGMENTS:]
            return {
                "peaks": {name: _bytes(pid, "VmHWM") for name, pid in pids.items()},
                "proportional": proportional,
                "own": own,
                "voters": median(len(line["voters"]) for line in last),
                "merge_ms": median(line["merge_ms"] for line in last),
            }


def _merges(folder: Path) -> list[dict[str, Any]]:
    path = folder / "merges.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    made = [json.loads(line) for line in lines if line.endswith("}")]
    return [line for line in made if line["kind"] == "merge" and line["version"]]


def _bytes(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, nargs="+", default=[8])
    parser.add_argument("--shards", type=int, nargs="+", default=[1, FRAGMENTS])
    parser.add_argument("--push", nargs="+", default=["float32", "int4"])
    parser.add_argument("--keeps", nargs="+", choices=KEEPS, default=list(KEEPS))
    parser.add_argument("--mb", type=int, choices=BROAD, default=64)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    task, rows = BROAD[asked.mb], list[dict[str, Any]]()
    small = LIGHT if task.step_seconds == LIGHT.step_seconds else SLOWEST
    whole = sum(4 * math.prod(each.shape) for each in task.layout)
    for learners in asked.learners:
        for shards in asked.shards:
            for push in asked.push:
                for keeps in asked.keeps:
                    settings = {"shards": shards, "push": push, "keeps": keeps}
                    idle, found = (measured(learners, each, **settings) for each in (small, task))
                    row: dict[str, Any] = {"learners": learners, **settings}
                    for kind in ("peaks", "proportional", "own"):
                        beyond = max(size - idle[kind][name] for name, size in found[kind].items())
                        row[kind] = round(beyond / (whole / shards), 2)
                    row |= {"voters": found["voters"], "merge_ms": round(found["merge_ms"], 1)}
                    rows.append(row | {"load": os.getloadavg()[0]})
                    if not asked.json:
                        print(rows[-1], flush=True)
    if asked.json:
        print(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
