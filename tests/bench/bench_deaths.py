"""What a death costs the others, and how often a healthy host is taken for a dead, slow or stuck one.

    python -m tests.bench.bench_deaths [deaths] [syncer] [calm] [--kills 8] [--apart 3] [--minutes 10] [--json]

deaths  a run of 4 learners, whose learners are killed (SIGKILL) in turn, each once the one before is merged again: from
        the kill to the next fragment that is merged at all, to the next one of a round that was opened after the kill,
        to the next life's first step, and to the first one that it had a part in; beside the time between two merges
        before that, and what was lost of a learner's work at each kill. A spare (`run.spare`) is there for kills that
        are more than 10 s --apart.
syncer  such a run, whose syncer is killed, again 6 s later, and so on: from the last merge before to the next one.
calm    a run of 4 learners beside two processes that keep both cores busy: whom the daemon suspected, called slow or
        stuck, and removed, though nothing was wrong with anybody. All counts should be 0.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from isthmus.runtime.system import phases
from tests.bench.observed import Run, lines_of, print_spreads, status, training

LEARNERS = 4
CALM_SECONDS = 3.0
SYNCER_SECONDS = 6.0
RETURN_SECONDS_MAX = 60.0
CORES = 2
BARS = {"next round that was opened since, s": 1.0}
VERDICTS = {
    "suspected": "suspected",
    "excused": "suspected",
    "slow": "called slow",
    "stall": "removed as stuck",
    "silence": "removed as silent",
    "long-excuse": "removed as silent",
    "no-first-heartbeat": "removed as silent",
    "ended": "ended",
    "failed": "failed",
}
"""What an incident is counted as, by its kind; one that condemns a host, by the kind of the verdict."""


def merges_of(run: Run) -> list[dict[str, Any]]:
    """The merges so far, their times in seconds of the monotonic clock; `opened` is when a round was."""
    found = [line for line in lines_of(run.folder / "merges.jsonl") if line["kind"] == "merge" and line["version"]]
    for line in found:
        line["time"] += run.zero
        line["opened"] = line["time"] - ((line["quorum_ms"] or 0.0) + (line["grace_ms_used"] or 0.0)) / 1e3
    return found


def pid_of(run: Run, name: str) -> int:
    """The process of a host now; 0 if there is none."""
    return next((host["pid"] or 0 for host in status(run.folder)["hosts"] if host["name"] == name), 0)


def kill_one(run: Run, slot: int, seconds_max: float = RETURN_SECONDS_MAX) -> dict[str, float]:
    """Kill a learner, and wait for its return, at most so long."""
    name = f"learner/{slot}"
    pid = pid_of(run, name)
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    returned: float | None = None
    steps: list[float] = []
    while returned is None or not steps:
        if time.monotonic() - killed > seconds_max:
            raise SystemExit(f"{name} was not merged again within {seconds_max:.0f} s")
        time.sleep(0.2)
        restarts = [
            line["at"] / 1e9
            for line in lines_of(run.folder / "events.jsonl")
            if line["host"] == name and line["kind"] == "restarted" and line["at"] / 1e9 > killed
        ]
        merges = [line for line in merges_of(run) if line["time"] > killed]
        if restarts:
            returned = next(
                (line["time"] for line in merges if slot in line["voters"] and line["opened"] > restarts[0]), None
            )
        begun = [each.at_ns / 1e9 for each in phases.read(run.folder) if (each.process, each.phase) == (name, "step")]
        steps = [at for at in begun if at > killed]
    return {
        "next merged fragment, s": min(line["time"] for line in merges) - killed,
        "next round that was opened since, s": min(line["time"] for line in merges if line["opened"] > killed) - killed,
        "its next life is started, s": restarts[0] - killed,
        "its next life's first step, s": min(steps) - killed,
        "its next life is merged, s": returned - killed,
    }


def measure_deaths(folder: Path, asked: argparse.Namespace) -> dict[str, list[float]]:
    """One run, many kills."""
    found: dict[str, list[float]] = {}
    with training(folder / "run", learners=LEARNERS) as run:
        time.sleep(CALM_SECONDS)
        times = [line["time"] for line in merges_of(run)]
        found["between two merges, s"] = [after - before for before, after in pairwise(times)]
        for number in range(asked.kills):
            time.sleep(asked.apart)
            for name, value in kill_one(run, number % LEARNERS).items():
                found.setdefault(name, []).append(value)
        summary = run.stop()
    a_second = summary["tokens_total"] / summary["trained_seconds"] / LEARNERS
    found["lost of its work at each, in the mean, s"] = [summary["tokens_lost"] / asked.kills / a_second]
    return found


def measure_syncer(folder: Path, asked: argparse.Namespace) -> dict[str, list[float]]:
    """One run, whose syncer is killed every few seconds, so that the daemon takes longer and longer to start it."""
    found: list[float] = []
    with training(folder / "run", learners=LEARNERS) as run:
        for _ in range(asked.kills):
            time.sleep(SYNCER_SECONDS)
            os.kill(pid_of(run, "syncer/0"), signal.SIGKILL)
            killed = time.monotonic()
            while not any(line["time"] > killed for line in merges_of(run)):
                if time.monotonic() - killed > RETURN_SECONDS_MAX:
                    raise SystemExit(f"nothing was merged within {RETURN_SECONDS_MAX:.0f} s of the death of the syncer")
                time.sleep(0.2)
            times = [line["time"] for line in merges_of(run)]
            found.append(min(each for each in times if each > killed) - max(each for each in times if each <= killed))
        run.stop()
    return {"syncer: last merge to next, s": found}


@contextmanager
def busy_cores() -> Iterator[None]:
    """A process on each core that does nothing but compute."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(CORES)]
    try:
        for core, each in enumerate(burning):
            os.sched_setaffinity(each.pid, {sorted(os.sched_getaffinity(0))[core % os.cpu_count()]})
        yield
    finally:
        for each in burning:
            each.kill()
            each.wait()


def measure_calm(folder: Path, asked: argparse.Namespace) -> dict[str, list[float]]:
    """One long run in which nothing happens."""
    with busy_cores(), training(folder / "run", learners=LEARNERS) as run:
        time.sleep(60 * asked.minutes)
        told = lines_of(run.folder / "events.jsonl")
        merged = len(merges_of(run))
        run.stop()
    kinds = [line["verdict"]["kind"] if line["kind"] == "condemned" else line["kind"] for line in told]
    counts = Counter(VERDICTS[kind] for kind in kinds if kind in VERDICTS)
    figures = {f"hosts {verdict}": [float(counts[verdict])] for verdict in dict.fromkeys(VERDICTS.values())}
    return {"minutes": [float(asked.minutes)], "fragments merged": [float(merged)], **figures}


PARTS: dict[str, Callable[[Path, argparse.Namespace], dict[str, list[float]]]] = {
    "deaths": measure_deaths,
    "syncer": measure_syncer,
    "calm": measure_calm,
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--apart", type=float, default=CALM_SECONDS, metavar="SECONDS")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found: dict[str, list[float]] = {}
    for part in asked.parts or PARTS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            found |= PARTS[part](Path(folder), asked)
    if asked.json:
        print(json.dumps(found))
        return
    bars = dict.fromkeys((name for name in found if name.startswith("hosts ")), "0")
    print_spreads(found, bars | {name: f"<= {bar}" for name, bar in BARS.items()})


if __name__ == "__main__":
    main()
