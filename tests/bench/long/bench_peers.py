"""Two replicas of one loop in PyTorch under torchft's DiLoCo, and as islands of a run, on the same machine.

    .venv-peers/bin/python -m tests.bench.long.bench_peers [--rounds 3] [--kills 3] [--seconds 20] [--batch 8]
        [--only KIND ...] [--json]

    python3 -m venv .venv-peers
    .venv-peers/bin/pip install torch                       # A build for the CPU
    .venv-peers/bin/pip install --editable . torchft-nightly

The loop is that of `own_loop_steps.py` and `peers/torchft_loop.py`: the same model and batches, four fragments every 24
steps. In turn: the loop bare, twice at once, and so by torchrun; torchft with the bounds of its waits at a second (its
lighthouse takes a replica for dead after half a second), and with its defaults; and a run. For each round:

start        seconds from the command until both replicas have ended a step
inside/bare  steps a second of both replicas, over those of the two bare loops in this round
stall        the process that trains a replica is killed (SIGKILL): the longest time between two steps of the other,
             from the kill until ten seconds later
return       seconds from the kill until the replica's next life has ended a step; who restarts it is this bench, at
             once, and in a run the run's daemon

Medians and ranges. GradientMail needs Python 3.12 and is left out; Ray has no program of this kind.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.bench.observed import COMMAND, wait_for

BENCH: Final = Path(__file__).parents[1]
OWN: Final = BENCH / "own_loop_steps.py"
START_SECONDS_MAX: Final = 120.0
RETURN_SECONDS_MAX: Final = 120.0
AFTER_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 3.0
REPLICAS: Final = 2


class Replicas(NamedTuple):
    """Two that train: where they write the ends of their steps, and what restarts one that has been killed."""

    files: Sequence[Path]
    restart: Callable[[], None]


def ends_of(file: Path) -> list[float]:
    """When its steps ended, of the lines that are whole."""
    text = file.read_text() if file.exists() else ""
    return [float(line) for line in text[: text.rfind("\n") + 1].split()]


def writer_of(file: Path) -> int:
    """The process that has it open."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if link.readlink() == file:
                return int(link.parts[2])
    raise SystemExit(f"nobody writes {file}")


@contextmanager
def bare(folder: Path, batch: int) -> Iterator[Replicas]:
    """Two loops without anything."""
    files = [folder / f"bare.{replica}" for replica in range(REPLICAS)]
    with started([[sys.executable, str(OWN), str(file), str(batch), "bare"] for file in files]):
        yield Replicas(files, lambda: None)


@contextmanager
def torchrun(folder: Path, batch: int) -> Iterator[Replicas]:
    """The same, started by torchrun."""
    launcher = [str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", str(REPLICAS)]
    with started([[*launcher, str(OWN), str(folder / "torchrun"), str(batch), "bare"]]) as [process]:
        try:
            yield Replicas([folder / f"torchrun.{rank}" for rank in range(REPLICAS)], lambda: None)
        finally:
            process.send_signal(signal.SIGTERM)  # It ends its processes, which lead sessions of their own.
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)


@contextmanager
def torchft(folder: Path, batch: int, *, is_tuned: bool) -> Iterator[Replicas]:
    """Two replicas and a lighthouse."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    lighthouse = [str(Path(sys.executable).with_name("torchft_lighthouse")), "--min_replicas", "1"]
    lighthouse += ["--bind", f"127.0.0.1:{port}"]
    if is_tuned:
        lighthouse += ["--join_timeout_ms", "500", "--heartbeat_timeout_ms", "500", "--quorum_tick_ms", "20"]
    files = [folder / f"torchft.{replica}" for replica in range(REPLICAS)]
    rest = (str(batch), f"http://127.0.0.1:{port}", "1" if is_tuned else "60")
    commands = [
        [sys.executable, "-m", "tests.bench.peers.torchft_loop", str(file), f"replica{replica}", *rest]
        for replica, file in enumerate(files)
    ]
    with started([lighthouse, *commands]) as processes:

        def restart() -> None:
            processes[-1].wait()
            processes[-1] = begun(commands[-1])

        yield Replicas(files, restart)


@contextmanager
def isthmus(folder: Path, batch: int) -> Iterator[Replicas]:
    """A run of two islands."""
    run, lines = folder / "run", folder / "isthmus"
    command = [*COMMAND, "train", "--learners", str(REPLICAS), "--tokens", str(10**12), "--quiet", "--loop", str(OWN)]
    command += ["--set", "program.fragments=4", "--set", "program.interval=24", "--run-dir", str(run)]
    with started([[*command, "--", str(lines), str(batch)]]) as [process]:
        try:
            yield Replicas([folder / f"isthmus.{slot}" for slot in range(REPLICAS)], lambda: None)
        finally:
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)


def begun(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """A process of its own session, which says nothing."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(BENCH.parents[1])}
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


@contextmanager
def started(commands: Sequence[Sequence[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes, which end with this."""
    processes = [begun(command) for command in commands]
    try:
        yield processes
    finally:
        for each in processes:
            each.kill()
            each.wait()


@contextmanager
def opened(make: Callable[[Path, int], Any], batch: int) -> Iterator[Replicas]:
    """Two replicas, each of which has ended a step."""
    with (
        tempfile.TemporaryDirectory(prefix="peers-", ignore_cleanup_errors=True) as folder,
        make(Path(folder), batch) as replicas,
    ):
        wait_for(lambda: all(ends_of(file) for file in replicas.files), "first steps", START_SECONDS_MAX)
        yield replicas


def rate(replicas: Replicas, seconds: float) -> float:
    """Steps a second of both, from now on."""
    begin = time.monotonic()
    time.sleep(seconds)
    end = time.monotonic()
    return sum(begin < at <= end for file in replicas.files for at in ends_of(file)) / (end - begin)


def death(replicas: Replicas) -> tuple[float, float]:
    """(stall of the other, return) of one kill."""
    os.kill(writer_of(replicas.files[1]), signal.SIGKILL)
    killed = time.monotonic()
    replicas.restart()

    def back() -> list[float]:
        return [at for at in ends_of(replicas.files[1]) if at > killed]

    wait_for(back, "a return", RETURN_SECONDS_MAX)
    time.sleep(max(0.0, killed + AFTER_SECONDS - time.monotonic()))
    others = [at for at in ends_of(replicas.files[0]) if killed - 1.0 < at < killed + AFTER_SECONDS]
    return max(after - before for before, after in pairwise(others)), min(back()) - killed


def measured(asked: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Kind -> figure -> values."""
    kinds: dict[str, Callable[[Path, int], Any]] = {
        "bare": bare,
        "torchrun": torchrun,
        "torchft, tuned": lambda folder, batch: torchft(folder, batch, is_tuned=True),
        "torchft, defaults": lambda folder, batch: torchft(folder, batch, is_tuned=False),
        "isthmus": isthmus,
    }
    kinds = {kind: make for kind, make in kinds.items() if asked.only is None or kind.partition(",")[0] in asked.only}
    found: dict[str, dict[str, list[float]]] = {kind: {} for kind in kinds}
    for make in kinds.values():  # Kernels and bytecode that a new environment compiles are not counted.
        with opened(make, asked.batch):
            time.sleep(SETTLE_SECONDS)
    for _ in range(asked.rounds):
        rates = dict[str, float]()
        for kind, make in kinds.items():
            print(f"{kind} ...", file=sys.stderr, flush=True)
            figures = found[kind]
            begin = time.monotonic()
            with opened(make, asked.batch) as replicas:
                first = max(min(ends_of(file)) for file in replicas.files)
                figures.setdefault("start, s", []).append(first - begin)
                time.sleep(SETTLE_SECONDS)
                rates[kind] = rate(replicas, asked.seconds)
                if "bare" in rates:
                    figures.setdefault("inside / bare", []).append(rates[kind] / rates["bare"])
                for _ in range(0 if kind in ("bare", "torchrun") else asked.kills):
                    stall, back = death(replicas)
                    figures.setdefault("stall, s", []).append(stall)
                    figures.setdefault("return, s", []).append(back)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=3, help="of each round")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--only", nargs="+", metavar="KIND", help="bare, torchrun, torchft, isthmus")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found = measured(asked)
    if asked.json:
        print(json.dumps(found))
        return
    for kind, figures in found.items():
        for name, values in figures.items():
            print(f"{kind:20} {name:14} {statistics.median(values):8.3f} ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main()
