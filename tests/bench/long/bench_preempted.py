"""A run that is preempted again and again, and started by the same command each time, beside a calm one.

    python -m tests.bench.long.bench_preempted [--cycles 20] [--tokens 8200000] [--learners 2] [--seconds 12 30]
        [--seed 0] [--json]

The language model, nano, in processes of this machine (`isthmus train --run-dir RUN --resume-or-start`). After a number
of seconds from the seed every process of the run gets SIGTERM, as from a scheduler that gives it 10 s, or SIGKILL, each
as likely; then the same command is given again, until the run is done. Beside it the same run without any of that.

Told: tokens that are lost in a cycle, over those of a snapshot interval (15 s at the calm run's rate); the held-out
loss minus the calm one; cycles and how each ended. Lost is what all lives of learners have reported to have trained
(metrics.jsonl), less what the run has at its end: its own books begin at the snapshot from which it was resumed, and
know nothing of what came after that. Reports come every 200 ms, so a kill hides that much. Bars: 1 and .02. Exit status
1 if the run does not end as done, or its books differ.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from tests.bench.long.soak_notices import everybody, preempt, send
from tests.bench.observed import COMMAND

SNAPSHOT_SECONDS: Final = 15.0
"""The default of run.snapshot_every_seconds."""
GRACE_SECONDS: Final = 10.0
END_SECONDS_MAX: Final = 3600.0
LOST_BAR, LOSS_BAR = 1.0, 0.02
PAUSE: Final = threading.Event()


def started(folder: Path, asked: argparse.Namespace) -> subprocess.Popen[str]:
    """The command, given to the run in `folder`; what it prints is beside it."""
    options = ["--learners", str(asked.learners), "--tokens", str(asked.tokens), "--seed", str(asked.seed)]
    command = [*COMMAND, "train", *options, "--run-dir", str(folder), "--resume-or-start", "--quiet"]
    with (folder.parent / f"{folder.name}.txt").open("a") as output:
        return subprocess.Popen(command, stdout=output, stderr=output, text=True, start_new_session=True)


def summary(folder: Path) -> dict[str, Any]:
    """That of a run that is over."""
    told: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return told


def kill(command: subprocess.Popen[str], folder: Path) -> dict[str, Any]:
    """SIGKILL to every process of the run at once."""
    begun = time.monotonic()
    while left := everybody(command, folder):
        send(left, signal.SIGKILL)
        PAUSE.wait(0.02)
    return {"wait": 0.0, "took": time.monotonic() - begun, "killed": True, "status": command.wait()}


def preempted(folder: Path, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """The run, ended so many times; returns the cycles. RuntimeError if it is over before, or fails."""
    rng, cycles = random.Random(f"preempted {asked.seed}"), list[dict[str, Any]]()
    for number in range(asked.cycles):
        command, begun = started(folder, asked), time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            command.wait(rng.uniform(*asked.seconds))
            raise RuntimeError(f"it was over in cycle {number}: give it more tokens, or fewer cycles")
        has_notice = rng.random() < 0.5
        told = preempt(command, folder, GRACE_SECONDS) if has_notice else kill(command, folder)
        cycles.append({**told, "notice": has_notice, "lasted": time.monotonic() - begun})
        print(json.dumps({"cycle": number, **cycles[-1]}), file=sys.stderr, flush=True)
    if started(folder, asked).wait(END_SECONDS_MAX):
        raise RuntimeError(f"it failed at last; look at {folder.parent}")
    return cycles


def trained(folder: Path) -> int:
    """Tokens by the last report of each life of each learner, which counts from its beginning."""
    lives = dict[tuple[int, int], int]()
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        with suppress(json.JSONDecodeError):  # What was being written when the recorder was killed.
            report = json.loads(line)
            lives[report["learner"], report["incarnation"]] = report["tokens"]
    return sum(lives.values())


def figures(asked: argparse.Namespace, place: Path) -> dict[str, Any]:
    """Both runs, the calm one first."""
    if started(place / "calm", asked).wait(END_SECONDS_MAX):
        raise RuntimeError(f"the calm run failed; look at {place}")
    cycles, calm = preempted(place / "run", asked), summary(place / "calm")
    run = summary(place / "run")
    a_snapshot = SNAPSHOT_SECONDS * calm["tokens_total"] / (calm["wall_seconds"] - calm["start_seconds"])
    lost = trained(place / "run") - run["tokens_total"] + run["tokens_lost"]
    killed = [each for each in cycles if not each["notice"]]
    return {
        "cycles": len(cycles),
        "cycles_killed": len(killed),
        "tokens": run["tokens_total"],
        "tokens_lost": lost,
        "tokens_a_snapshot_interval": round(a_snapshot),
        "lost_a_cycle_of_interval": lost / len(cycles) / a_snapshot,
        "loss": run["eval_loss_final"],
        "loss_calm": calm["eval_loss_final"],
        "loss_minus_calm": run["eval_loss_final"] - calm["eval_loss_final"],
        "seconds_to_leave": statistics.median(each["took"] for each in cycles if each["notice"]),
        "outcome": run["outcome"],
        "books_differ": len(run["books"]["differences"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8_200_000)
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--seconds", type=float, nargs=2, default=(12.0, 30.0))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="isthmus-preempted-"))
    found = figures(asked, place)
    if asked.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{name:28} {value}" for name, value in found.items()))
        print(f"bars: lost a cycle of interval <= {LOST_BAR}, loss minus calm <= {LOSS_BAR}")
    is_good = found["outcome"] == "done" and not found["books_differ"]
    if is_good:
        shutil.rmtree(place)
    else:
        print(f"kept: {place}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
