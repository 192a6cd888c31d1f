"""As many real learners as there are: from the start until all are merged, and a syncer's restart among them.

    python -m tests.bench.long.bench_many [--learners 128] [--slow] [--dir DIR] [--json]

Learners in NumPy whose steps sleep (`tests/bench/size`), each a process of this machine, under one daemon.
`all_merged`: seconds from the request until each learner has been in a merge. `to_next_merge`: seconds from a `kill -9`
of the syncer, half a minute later, to the first merge of its next life; `voters_then` has the learners in the merges of
the half minute after it. `daemon_ms_a_start`: the CPU time of the daemon from its start until all were merged, by
hosts; `daemon_seconds_of_1024` carries it on. Beside them the memory that all processes have for themselves, and the
load of the machine, with which the seconds grow: 128 learners of two steps a second keep two cores busy. With `--slow`
a step takes twice as long.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.bench.long.bench_size import own_bytes
from tests.bench.observed import cpu_seconds, status
from tests.bench.size import ordered
from tests.bench.size.light import LIGHT, SLOW, Light

ALL_MERGED_BAR: Final = 120.0
NEXT_MERGE_BAR: Final = 5.0
CALM_SECONDS: Final = 30.0
WAIT_SECONDS_MAX: Final = 900.0
LOOK_SECONDS: Final = 0.05


def merges_of(folder: Path) -> list[dict[str, Any]]:
    """The merges that are recorded."""
    path = folder / "merges.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def wait_for(what: str, is_so: Callable[[], bool]) -> float:
    """Return once it is so; the seconds that it took."""
    began = time.monotonic()
    while not is_so():
        if time.monotonic() - began > WAIT_SECONDS_MAX:
            raise SystemExit(f"waiting for {what}: not so after {WAIT_SECONDS_MAX:.0f} s")
        time.sleep(LOOK_SECONDS)
    return time.monotonic() - began


def measured(learners: int, folder: Path, task: Light) -> dict[str, Any]:
    """All figures of one run."""
    load, seen = os.getloadavg()[0], set[int]()
    read = 0

    def is_merged() -> bool:
        nonlocal read
        merges = merges_of(folder)
        for line in merges[read:]:
            seen.update(line["voters"])
        read = len(merges)
        return len(seen) == learners

    began = time.monotonic()
    with ordered.running({folder: learners}, task=task):
        asked = time.monotonic() - began
        wait_for("all learners to be merged once", is_merged)
        all_merged = time.monotonic() - began
        told = status(folder)
        pids = {host["name"]: host["pid"] for host in told["hosts"] if host["pid"]}
        daemon = cpu_seconds(told["pid"])
        own = sum(own_bytes(pid) for pid in pids.values())
        time.sleep(CALM_SECONDS)
        epoch = max(line["epoch"] for line in merges_of(folder))
        os.kill(pids["syncer/0"], signal.SIGKILL)
        to_next = wait_for("a merge of the next syncer", lambda: merges_of(folder)[-1]["epoch"] > epoch)
        time.sleep(CALM_SECONDS)
        after = [line for line in merges_of(folder) if line["epoch"] > epoch]
        hosts = len(told["hosts"])
        return {
            "learners": learners,
            "step_seconds": task.step_seconds,
            "asked": round(asked, 1),
            "all_merged": round(all_merged, 1),
            "to_next_merge": round(to_next, 2),
            "merges_then": len(after),
            "voters_then": len({voter for line in after for voter in line["voters"]}),
            "ended": sum(host["incarnation"] - 1 for host in status(folder)["hosts"]),
            "daemon_ms_a_start": round(1e3 * daemon / hosts, 1),
            "daemon_seconds_of_1024": round(daemon / hosts * 1027, 1),
            "own_gb": round(own / 1e9, 2),
            "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        }


def missed(row: dict[str, Any]) -> list[str]:
    """The bars that it misses."""
    found = {
        f"all merged within {ALL_MERGED_BAR:g} s": row["all_merged"] <= ALL_MERGED_BAR,
        f"merged again within {NEXT_MERGE_BAR:g} s": row["to_next_merge"] <= NEXT_MERGE_BAR,
        "one host ended, the syncer": row["ended"] == 1,
    }
    return [words for words, holds in found.items() if not holds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learners", type=int, default=128)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--dir", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as within:
        row = measured(asked.learners, (asked.dir or Path(within)) / "run", SLOW if asked.slow else LIGHT)
    if asked.json:
        print(json.dumps(row))
        return
    print("\n".join(f"{name:24} {value}" for name, value in row.items()))
    print(f"missed: {', '.join(missed(row)) or 'nothing'}")


if __name__ == "__main__":
    main()
