"""What benches of whole runs share: a run to watch from outside, its processes, and what /proc tells of them."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

ISTHMUS = Path(sys.executable).with_name("isthmus")
COMMAND = (sys.executable, "-c", "from isthmus.programs.command.main import main; main()")
"""The same, also where the packages are only on the path."""
NS = 1e9
READY_SECONDS_MAX = 120.0
END_SECONDS_MAX = 30.0


class Run(NamedTuple):
    """A run that trains: its folder, its processes by name (learner/0, syncer/0, daemon, command), and the zero of the
    times in its metrics, in seconds of the monotonic clock."""

    folder: Path
    pids: dict[str, int]
    zero: float
    command: subprocess.Popen[bytes]

    def others(self, *names: str) -> list[int]:
        """The pids of all but these."""
        return [pid for name, pid in self.pids.items() if name not in names]

    def stop(self) -> dict[str, Any]:
        """Stop it as Ctrl-C does; its summary."""
        self.command.send_signal(signal.SIGINT)
        if self.command.wait(120):
            raise SystemExit(f"the run ended with {self.command.returncode}")
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary

    def spans(self, host: str, node: str) -> list[tuple[float, float]]:
        """The firings of a node in the life of a host that ended with the run, in seconds of the monotonic clock."""
        zero_ns = json.loads((self.folder / "spec.json").read_text())["zero_ns"]
        found = []
        for path in sorted((self.folder / "spans").glob(f"{host.replace('/', '-')}-*.json")):
            for _, name, begun, ended, peer, _ in json.loads(path.read_text()):
                if name == node and not peer:
                    found.append(((zero_ns + begun) / NS, (zero_ns + ended) / NS))
        return found


def status(folder: Path) -> dict[str, Any]:
    """What `isthmus status --json` tells of a run; no hosts if nobody answers."""
    command = [*COMMAND, "status", "--json", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"hosts": [], "outcome": "unknown"}
    return told


@contextmanager
def training(
    folder: Path,
    *options: str,
    learners: int,
    ready_seconds: float = READY_SECONDS_MAX,
    after: tuple[str, ...] = (),
) -> Iterator[Run]:
    """A run without an end, once every learner steps and fragments are merged, for which it has `ready_seconds`.

    `after` are the arguments of the script of `--loop`.
    """
    command = [*COMMAND, "train", "--learners", str(learners), "--quiet"]
    if "--tokens" not in options:
        command += ["--tokens", str(10**12)]
    run = subprocess.Popen(
        [*command, *options, "--run-dir", str(folder), *(("--", *after) if after else ())], stdout=subprocess.DEVNULL
    )
    try:
        yield _ready(run, folder, learners, ready_seconds)
    finally:
        if run.poll() is None:
            run.kill()
        run.wait()
        _wait_for_daemon(folder)


def _wait_for_daemon(folder: Path) -> None:
    """The daemon, if there was one, ends after its command, when it has written what is left of the run."""
    if not (folder / "daemon.json").exists():
        return
    pid = json.loads((folder / "daemon.json").read_text())["pid"]
    until = time.monotonic() + END_SECONDS_MAX
    while time.monotonic() < until and not (folder / "over.json").exists() and Path(f"/proc/{pid}").exists():
        time.sleep(0.1)


def _ready(run: subprocess.Popen[bytes], folder: Path, learners: int, seconds: float) -> Run:
    until = time.monotonic() + seconds
    while time.monotonic() < until and run.poll() is None:
        time.sleep(0.5)
        told = status(folder)
        pids = {host["name"]: host["pid"] for host in told["hosts"] if host["pid"]}
        stepping = [host for host in told["hosts"] if host["phase"] == "stepping"]
        if len(stepping) == learners and told["training"].get("outer_steps", 0) > 8:
            zero = json.loads((folder / "spec.json").read_text())["zero_ns"] + told["training"]["zero"]
            return Run(folder, {**pids, "daemon": told["pid"], "command": run.pid}, zero / NS, run)
    raise SystemExit(f"the run in {folder} does not train")


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON that grows; none if it is not there yet."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def threads_of(pid: int) -> list[int]:
    """The threads of a process."""
    return [int(path.name) for path in Path(f"/proc/{pid}/task").iterdir()]


def cpu_of(pid: int) -> dict[int, float]:
    """CPU seconds of each thread of a process."""
    used = {}
    for thread in threads_of(pid):
        with suppress(OSError):
            used[thread] = int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / NS
    return used


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have computed so far, those that have ended, too: by the clock of
    clock_getcpuclockid(3). OSError where there is no such process."""
    return time.clock_gettime(~pid << 3 | 2)


def pin(pids: Iterable[int], core: int) -> None:
    """Let every thread of these processes run on one core only."""
    for pid in pids:
        for thread in threads_of(pid):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(thread, {core})


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_for(holds: Callable[[], Any], what: str, seconds_max: float) -> Any:
    """What is found once there is something; SystemExit if there is nothing for so long."""
    until = time.monotonic() + seconds_max
    while not (found := holds()):
        if time.monotonic() > until:
            raise SystemExit(f"{what}: not within {seconds_max:g} s")
        time.sleep(0.02)
    return found


def print_spreads(found: Mapping[str, Sequence[float]], bars: Mapping[str, str]) -> None:
    """A line for each figure."""
    print("medians, smallest and largest")
    width = max(map(len, found), default=0)
    for name, values in found.items():
        bar = f"   bar {bars[name]}" if name in bars else ""
        print(f"{name:{width}} {statistics.median(values):8.3f} ({min(values):.3f} to {max(values):.3f}){bar}")
