"""What keys cost a learner and a channel.

    python -m tests.bench.long.bench_keys [learner] [channel] [--runs 3] [--pairs 8] [--seconds 2] [--json]

learner  CPU of a learner per inner step in a run with keys / in one without: two runs of one learner each, nano, under
         a machine's daemon each. Both learners are pinned to core 0 and everything else to core 1; they take turns,
         whoever is not measured is stopped with all that belongs to its run. CPU is that of all threads, from /proc.
         `--runs` times over, because two processes that do the same may differ by a tenth.
channel  bytes (or small items) a second of a channel with keys / of one without, on TCP loopback, sender and receiver
         on a core each, in turns; and CPU seconds of the sender for a GB.

Figures are medians; a pair is one turn of each.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import socket
import statistics
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.bench.bench_channel import CHUNK, MIB, SMALL_COUNT, Sides, receive
from tests.bench.bench_learner import Window, take_turn
from tests.bench.observed import ISTHMUS, pin, signal_all, threads_of, training

BAR = 1.1
STREAM_MIB = 64
MACHINE = "bench"
LISTEN_SECONDS_MAX = 30.0


# -- a learner ---------------------------------------------------------------------------------------------------------


@contextmanager
def machine(folder: Path, *, has_keys: bool) -> Iterator[Path]:
    """A daemon of its own, with keys or without; the cluster file that names it."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    command = [str(ISTHMUS), "daemon", "--name", MACHINE, "--listen", address]
    cluster = f'[[machine]]\nname = "{MACHINE}"\naddress = "{address}"\n'
    if has_keys:
        KeyPair.make().write(folder, MACHINE)
        secret = f'[keys]\nsecret = "{MACHINE}.key"\n'
        (folder / "machine.toml").write_text(secret)
        command += ["--config", str(folder / "machine.toml")]
        cluster += f'public_key = "{MACHINE}.pub"\n{secret}'
    (folder / "cluster.toml").write_text(cluster)
    state = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
    with (folder / "daemon.log").open("w") as log:
        daemon = subprocess.Popen(command, env=state, stdout=log, stderr=log)
    try:
        until = time.monotonic() + LISTEN_SECONDS_MAX
        while "listens" not in (folder / "daemon.log").read_text():
            time.sleep(0.1)
            if daemon.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the daemon does not listen: {(folder / 'daemon.log').read_text()}")
        yield folder / "cluster.toml"
    finally:
        daemon.send_signal(signal.SIGCONT)
        daemon.terminate()
        daemon.wait(60)


def learner(pairs: int, seconds: float) -> dict[str, list[float]]:
    """CPU milliseconds a step and steps a second of both learners, a value for each pair."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        runs = []
        for name in ("plain", "keys"):
            cluster = stack.enter_context(machine(folder / name, has_keys=name == "keys"))
            run = stack.enter_context(training(folder / name / "run", "--cluster", str(cluster), learners=1))
            pin(run.others("learner/0"), 1)
            pin([run.pids["learner/0"]], 0)
            signal_all(run.pids.values(), signal.SIGSTOP)
            runs.append(run)
        windows: list[list[Window]] = [[], []]
        for number in range(pairs):
            for side in (number % 2, 1 - number % 2):
                run = runs[side]
                windows[side].append(take_turn(run.pids["learner/0"], seconds, run.others("learner/0")))
        figures: dict[str, list[float]] = {}
        for name, run, taken in zip(("plain", "keys"), runs, windows, strict=True):
            signal_all(run.pids.values(), signal.SIGCONT)
            names = {thread: name_of(run.pids["learner/0"], thread) for thread in threads_of(run.pids["learner/0"])}
            run.stop()
            turns = [window.turn([ended for _, ended in run.spans("learner/0", "inner-step")]) for window in taken]
            figures[f"{name}, CPU ms a step"] = [1e3 * turn.cpu for turn in turns]
            figures[f"{name}, steps/s"] = [turn.rate for turn in turns]
            for turn in turns:
                spent: dict[str, float] = defaultdict(float)
                for thread, cpu in turn.threads.items():
                    spent[names.get(thread, "gone")] += 1e3 * cpu
                for thread, cpu in spent.items():
                    figures.setdefault(f"{name}, thread {thread}, ms a step", []).append(cpu)
    both = zip(figures["keys, CPU ms a step"], figures["plain, CPU ms a step"], strict=True)
    return figures | {"learner: CPU a step, keys / plain": [keys / plain for keys, plain in both]}


def name_of(pid: int, thread: int) -> str:
    """What a thread is called."""
    return Path(f"/proc/{pid}/task/{thread}/comm").read_text().strip()


# -- a channel ---------------------------------------------------------------------------------------------------------


def channel(repeats: int) -> dict[str, list[float]]:
    """Rates of both channels and the sender's CPU, a value for each repeat."""
    sender, receiver = KeyPair.make(), KeyPair.make()
    spawn = multiprocessing.get_context("spawn")
    os.sched_setaffinity(0, {0})
    sides: dict[str, Sides] = {}
    pipes = []
    for name, rings in (
        ("plain", (None, None)),
        ("keys", (Keyring(sender), Keyring(receiver, {sender.public: "sender"}))),
    ):
        here, there = spawn.Pipe()
        process = spawn.Process(target=receive, args=(there, 1, rings[1]), daemon=True)
        process.start()
        sides[name] = Sides(*here.recv(), rings[0])
        pipes.append((here, process))
    flat = np.random.default_rng(1).standard_normal(STREAM_MIB * MIB // 4, dtype=np.float32)
    views = [flat[at : at + CHUNK // 4] for at in range(0, len(flat), CHUNK // 4)]
    moves: dict[str, Callable[[Sides], tuple[float, float]]] = {
        "4 MiB stream": lambda side: timed(partial(side.by_channel, views[0], CHUNK, 32, False), 32 * CHUNK / 1e9),
        "64 MiB stream": lambda side: timed(
            partial(side.by_channel, views, flat.nbytes, 3, False), 3 * flat.nbytes / 1e9
        ),
        "small": lambda side: timed(side.small, SMALL_COUNT / 1e3),
    }
    figures: dict[str, list[float]] = {}
    for number in range(repeats + 1):
        for case, move in moves.items():
            for name in (("plain", "keys"), ("keys", "plain"))[number % 2]:
                rate, cpu = move(sides[name])
                if number:
                    figures.setdefault(f"{name}, {case}, rate", []).append(rate)
                    figures.setdefault(f"{name}, {case}, sender's CPU", []).append(cpu)
    for side, (here, process) in zip(sides.values(), pipes, strict=True):
        side.channel.close()
        here.send("over")
        process.join(10)
    for case in moves:
        both = zip(figures[f"keys, {case}, rate"], figures[f"plain, {case}, rate"], strict=True)
        figures[f"channel: {case}, keys / plain"] = [keys / plain for keys, plain in both]
    return figures


def timed(move: Callable[[], float], amount: float) -> tuple[float, float]:
    """(GB or thousand items a second, CPU seconds of this process for one of them)."""
    before = time.process_time()
    seconds = move()
    return amount / seconds, (time.process_time() - before) / amount


# -- both --------------------------------------------------------------------------------------------------------------


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", choices=["learner", "channel", []], default=[])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    figures: dict[str, list[float]] = {}
    if "learner" in asked.what or not asked.what:
        for _ in range(asked.runs):
            for name, values in learner(asked.pairs, asked.seconds).items():
                figures.setdefault(name, []).extend(values)
    if "channel" in asked.what or not asked.what:
        figures |= channel(asked.pairs)
    medians = {name: statistics.median(values) for name, values in figures.items()}
    is_met = medians.get("learner: CPU a step, keys / plain", 0.0) <= BAR
    if asked.json:
        print(json.dumps({"bench": "keys", "bar": BAR, "is_met": is_met, "medians": medians, "figures": figures}))
        return
    for name, values in figures.items():
        if len(values) < 2 or (" thread " in name and medians[name] < 0.003):
            continue
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:<50}{middle:>9.3f}  ({low:.3f} to {high:.3f})")
    if "learner: CPU a step, keys / plain" in medians:
        print(f"bar {BAR} for the learner's CPU: {'met' if is_met else 'MISSED'}")


if __name__ == "__main__":
    main()
