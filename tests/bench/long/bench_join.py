"""How long a machine that joins a run takes until something of it is merged, and what that costs the others.

    python -m tests.bench.long.bench_join [--joins 5] [--json]

A home with one learner trains nano under a daemon of its own, without an end. A second machine, a daemon with a state
folder of its own on loopback, joins with one island, and leaves again by Ctrl-C once something of it is merged; so
often as asked. The announcement is when the home has given the newcomer its slot (`events.jsonl`); the end is the first
merge in which that slot has a vote. The compilation cache is warm from the first learner. Beside it: the first
learner's steps a second in the five seconds before, over those between announcement and first merge. Where machines
share two cores, the newcomer's start takes some of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.observed import ISTHMUS, wait_for

WAIT_SECONDS_MAX = 60.0
BEFORE_SECONDS = 5.0
BAR_SECONDS = 6.0


class Home:
    """A daemon with a run that does not end, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "run"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.daemon = self.begin("alpha", "daemon", "--name", "alpha", "--listen", self.address)
        cluster = folder / "cluster.toml"
        cluster.write_text(f'[[machine]]\nname = "alpha"\naddress = "{self.address}"\nislands = 1\n')
        command = ["train", "--cluster", "cluster.toml", "--detach", "--quiet", "--tokens", str(10**12)]
        wait_for(
            lambda: self.begin("alpha", *command, "--run-dir", "run").wait() == 0, "a run that starts", WAIT_SECONDS_MAX
        )
        wait_for(lambda: len(self.lines("merges.jsonl")) > 20, "20 merges", WAIT_SECONDS_MAX)

    def begin(self, machine: str, *words: str) -> subprocess.Popen[bytes]:
        """A command typed on a machine."""
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / f"state-{machine}")}
        with (self.folder / f"{machine}.log").open("ab") as log:
            return subprocess.Popen([str(ISTHMUS), *words], cwd=self.folder, env=environment, stdout=log, stderr=log)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The complete lines of a file of the run."""
        path = self.run / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def join(self, number: int) -> tuple[float, float]:
        """(seconds from announcement to first merge, the first learner's pace meanwhile over that before)."""
        begun = time.monotonic()
        time.sleep(BEFORE_SECONDS)
        known = len(self.lines("events.jsonl"))
        machine = f"beta-{number}"
        joining = self.begin(machine, "join", self.address, "--name", machine, "--islands", "1")
        try:
            wait_for(
                lambda: any(line["kind"] == "joined" for line in self.lines("events.jsonl")[known:]),
                "a slot for who joins",
                WAIT_SECONDS_MAX,
            )
            event = next(line for line in self.lines("events.jsonl")[known:] if line["kind"] == "joined")
            slot, announced = int(event["host"].rpartition("/")[2]), event["at"] / 1e9
            wait_for(
                lambda: any(slot in line["voters"] for line in self.lines("merges.jsonl")),
                "its first merge",
                WAIT_SECONDS_MAX,
            )
            merged = time.monotonic()
        finally:
            joining.send_signal(signal.SIGINT)
            joining.wait()
        return merged - announced, self.pace(announced, merged) / self.pace(begun, announced)

    def pace(self, begun: float, ended: float) -> float:
        """Steps a second of the first learner, by the home's status, between two instants that are over."""
        reports = [line for line in self.lines("metrics.jsonl") if line["learner"] == 0]
        now, last = time.monotonic(), reports[-1]["time"]
        inside = [line for line in reports if begun <= now - (last - line["time"]) <= ended]
        return (inside[-1]["step"] - inside[0]["step"]) / (inside[-1]["time"] - inside[0]["time"])

    def end(self) -> None:
        """End the daemon, and with it the run."""
        for _ in range(2):
            self.daemon.send_signal(signal.SIGINT)
            time.sleep(0.5)
        self.daemon.wait(WAIT_SECONDS_MAX)


def spread(values: list[float]) -> str:
    """Median, and every value."""
    return f"{statistics.median(values):.2f} ({', '.join(f'{value:.2f}' for value in sorted(values))})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Home(Path(folder))
        try:
            joins = [home.join(number) for number in range(asked.joins)]
        finally:
            home.end()
    seconds, paces = [took for took, _ in joins], [pace for _, pace in joins]
    if asked.json:
        print(json.dumps({"seconds": seconds, "paces": paces, "bar_seconds": BAR_SECONDS}))
        return
    print(f"{len(joins)} joins; medians, and all")
    print(f"announcement to first merge, s  {spread(seconds)}, bar {BAR_SECONDS}")
    print(f"first learner's pace meanwhile  {spread(paces)}")


if __name__ == "__main__":
    main()
