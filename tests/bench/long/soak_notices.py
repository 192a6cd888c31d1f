"""A run whose every process gets SIGTERM, again and again, and whose command is typed again: what does it cost?

    python -m tests.bench.long.soak_notices [--cycles 30] [--learners 2] [--seconds 30 90] [--seed 0] [--json]

What a scheduler does that preempts a job: it sends SIGTERM to every process of the run at once, waits 1, 3 or 10 s, or
for as long as they take, sends SIGKILL to all that is left, and starts the same command again (`isthmus train ...
--run-dir RUN --resume-or-start`). The cycles, their lengths and the waits follow from the seed. The budget is one that
the last of them reaches. The books tell what each cycle has lost: tokens trained after the snapshot from which the next
goes on, over all that were trained. Exit status 1 if the run does not end as done, or two books differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from isthmus.programs.engine.run.private_daemon import processes_of
from tests.bench.observed import ISTHMUS

HERE = Path(__file__).parents[1] / "kills"
WAITS: tuple[float | None, ...] = (1.0, 3.0, 10.0, None)
"""Seconds from SIGTERM to SIGKILL; None: as long as they take."""
GRACE = 20.0
PAUSE = threading.Event()


def started(folder: Path, tokens: int, learners: int) -> subprocess.Popen[str]:
    command = [str(ISTHMUS), "train", "--run-dir", str(folder), "--resume-or-start"]
    command += ["--task", f"{HERE / 'distance.py'}:task", "--learners", str(learners), "--tokens", str(tokens)]
    output = (folder.parent / "output.txt").open("a")
    with output:
        return subprocess.Popen(command, stdout=output, stderr=output, text=True, start_new_session=True)


def everybody(command: subprocess.Popen[str], folder: Path) -> list[int]:
    """The processes of the run, and its command."""
    found = [pid for pid, _ in processes_of(folder)] if folder.exists() else []
    return [*found, *([command.pid] if command.poll() is None else [])]


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def preempt(command: subprocess.Popen[str], folder: Path, wait: float | None) -> dict[str, Any]:
    """SIGTERM to all, SIGKILL after `wait` seconds; how long all took to go, and the exit status."""
    begun = time.monotonic()
    send(everybody(command, folder), signal.SIGTERM)
    until = begun + (GRACE + 10.0 if wait is None else wait)
    while everybody(command, folder) and time.monotonic() < until:
        PAUSE.wait(0.05)
    took = time.monotonic() - begun
    left = everybody(command, folder)
    while left := everybody(command, folder):
        send(left, signal.SIGKILL)
        PAUSE.wait(0.05)
    return {"wait": wait, "took": took, "killed": bool(left) or took >= until - begun, "status": command.wait()}


def trained(folder: Path) -> int:
    """Tokens of all lives that reported, by the lines of metrics.jsonl."""
    most: dict[tuple[int, int], int] = {}
    with suppress(FileNotFoundError):
        for text in (folder / "metrics.jsonl").read_text().splitlines():
            line = json.loads(text)
            key = line["learner"], line["incarnation"]
            most[key] = max(most.get(key, 0), line["tokens"])
    return sum(most.values())


def cycles_of(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rng, found = random.Random(options.seed), []
    for number in range(options.cycles):
        command, before, begun = started(folder, 1_000_000_000, options.learners), trained(folder), time.monotonic()
        lasts, wait = rng.uniform(*options.seconds), WAITS[number % len(WAITS)]
        with suppress(subprocess.TimeoutExpired):
            command.wait(lasts)
        told = preempt(command, folder, wait)
        found.append({**told, "lasted": time.monotonic() - begun, "trained": trained(folder) - before})
        print(json.dumps({"cycle": number, **found[-1]}), flush=True)
    total = trained(folder)
    command = started(folder, total + 20_000, options.learners)
    status = command.wait(600)
    summary = json.loads((folder / "summary.json").read_text())
    undone = _undone(folder.parent / "output.txt")
    differences = [each["difference"] for each in summary["fragment_accounts"]]
    return {
        "cycles": len(found),
        "done": status == 0 and summary["outcome"] == "done" and not any(differences),
        "status": status,
        "outcome": summary["outcome"],
        "tokens": summary["tokens_total"],
        "lost_share": summary["tokens_lost"] / summary["tokens_total"],
        "seconds_to_leave": statistics.median([each["took"] for each in found if not each["killed"]] or [float("nan")]),
        "kept_grace": sum(not each["killed"] for each in found),
        "undone_share": sum(undone) / summary["tokens_total"],
        "undone_most": max(undone, default=0),
        "differences": differences,
    }


def _undone(path: Path) -> list[float]:
    """Tokens undone at each start, as the command told it: '668 tokens that were trained after it are undone'."""
    found = re.findall(r"; ([0-9.]+) ?(k|M)? tokens that were trained after it are undone", path.read_text())
    return [float(number) * {"": 1, "k": 1e3, "M": 1e6}[unit] for number, unit in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=30)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--seconds", type=float, nargs=2, default=(30.0, 90.0))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="isthmus-notices-"))
    figures = cycles_of(options, place / "run")
    print(json.dumps(figures, indent=None if options.json else 2))
    if figures["done"]:
        shutil.rmtree(place)
    else:
        print(f"kept: {place}")
    return 0 if figures["done"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
