"""How long it takes until training goes on: after a learner was killed, and after everything was.

    python -m tests.bench.long.bench_resume [learner] [everything] [--kills 5] [--task TASK] [--json]

learner     a run of 2 learners on nano, one of which is killed (SIGKILL), again and again. From the start of its next
            process to its first inner step, and from there to the first fragment that is merged with a vote of it. The
            next process is alone on one core, as long as there are two; all others are on the other one.
everything  a run of 4 learners on nano, of which every process is killed at once after a snapshot. From the call of
            `isthmus train --resume` to the first inner step of any learner, and to the first merge.

`--task` trains another task, such as torch_tasks.py:nano(batch=8). The compilation cache is warm in both. Instants are
those of the hosts' own tapes and lines, on the monotonic clock.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.bench.observed import ISTHMUS, NS, Run, lines_of, pin, print_spreads, status, training, wait_for

BARS = {
    "learner killed: process to first inner step, s": 3.0,
    "learner killed: from there to its first merge, s": 1.0,
    "everything killed: --resume to first inner step, s": 8.0,
}
WAIT_SECONDS_MAX = 120.0
CALM_SECONDS = 3.0
AFTER_SECONDS = 3.0
TICKS = os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """The processes below a process, of any generation."""
    with suppress(OSError):
        own = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return [*own, *(below for each in own for below in children_of(each))]
    return []


def started_at(pid: int) -> float:
    """When a process began, in seconds of the monotonic clock."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return ticks / TICKS - (time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic())


def first_step(run: Run, host: str) -> float:
    """When the life of a learner that ended with the run began its first inner step, seconds."""
    return min(begun for begun, _ in run.spans(host, "inner-step"))


def versions_of(folder: Path) -> list[dict[str, Any]]:
    """The merges of a run that made a version."""
    return [line for line in lines_of(folder / "merges.jsonl") if line["kind"] == "merge" and line["version"]]


def merges_after(run: Run, seconds: float, slot: int) -> list[float]:
    """When fragments were merged from then on, with a vote of this slot."""
    times = [line["time"] + run.zero for line in versions_of(run.folder) if slot in line["voters"]]
    return sorted(each for each in times if each >= seconds)


def kill_learner(folder: Path, *task: str) -> dict[str, float]:
    """One run, one kill: spans are those of the last life of a host, whose first ones are there as long as it is
    short."""
    with training(folder, *task, learners=2) as run:
        daemon, victim = run.pids["daemon"], run.pids["learner/0"]
        if len(os.sched_getaffinity(0)) > 1:
            pin([daemon, *children_of(daemon)], 1)
            pin([pid for pid in children_of(daemon) if pid not in run.pids.values()], 0)  # Which starts hosts.
        time.sleep(CALM_SECONDS)
        known = set(children_of(daemon))
        os.kill(victim, signal.SIGKILL)
        wait_for(lambda: _pid(folder, "learner/0") not in (0, victim), "the learner's next process", WAIT_SECONDS_MAX)
        pid = _pid(folder, "learner/0")
        if pid in known:
            raise SystemExit(f"the learner's next process, {pid}, was there before")
        begun = started_at(pid)
        wait_for(lambda: merges_after(run, begun, slot=0), "its first merge", WAIT_SECONDS_MAX)
        time.sleep(AFTER_SECONDS)
        run.stop()
        stepped = first_step(run, "learner/0")
        told = merges_after(run, stepped, slot=0)
        return {
            "learner killed: process to first inner step, s": stepped - begun,
            "learner killed: from there to its first merge, s": told[0] - stepped,
        }


def _pid(folder: Path, name: str) -> int:
    return next((host["pid"] or 0 for host in status(folder)["hosts"] if host["name"] == name), 0)


def kill_everything(folder: Path, *task: str) -> dict[str, float]:
    """One run, all of it killed, and resumed."""
    settings = ("--set", "run.snapshot_every_seconds=1")
    with training(folder, *task, *settings, learners=4) as run:
        wait_for((folder / "snapshots" / "manifest.json").exists, "a snapshot", WAIT_SECONDS_MAX)
        time.sleep(CALM_SECONDS)
        all_of_it = [run.pids["daemon"], *children_of(run.pids["daemon"]), run.pids["command"]]
        for pid in all_of_it:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        run.command.wait()
    called = time.monotonic()
    command = [str(ISTHMUS), "train", "--resume", str(folder), "--quiet"]
    resumed = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    wait_for(
        lambda: any(line["version"][0] > 1 for line in versions_of(folder)),
        "a merge of the resumed run",
        WAIT_SECONDS_MAX,
    )
    time.sleep(AFTER_SECONDS)
    again = Run(folder, {}, json.loads((folder / "spec.json").read_text())["zero_ns"] / NS, resumed)
    again.stop()
    steps = [first_step(again, f"learner/{slot}") for slot in range(4)]
    merged = min(ended for _, ended in again.spans("syncer/0", "outer-step") if ended > min(steps))
    return {
        "everything killed: --resume to first inner step, s": min(steps) - called,
        "everything killed: --resume to first merge, s": merged - called,
    }


PARTS: dict[str, Callable[..., dict[str, float]]] = {"learner": kill_learner, "everything": kill_everything}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--task")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    task = ("--task", asked.task) if asked.task else ()
    found: dict[str, list[float]] = {}
    for part in asked.parts or PARTS:
        for _ in range(asked.kills):
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                for name, value in PARTS[part](Path(folder) / "run", *task).items():
                    found.setdefault(name, []).append(value)
    if asked.json:
        print(json.dumps(found))
        return
    print_spreads(found, {name: f"<= {bar}" for name, bar in BARS.items()})


if __name__ == "__main__":
    main()
