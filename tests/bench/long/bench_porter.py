"""What it costs to go through the porter of a daemon.

    python -m tests.bench.long.bench_porter [channel] [join] [--json]

channel  Items of 64 MiB, relayed / dialled, with and without keys, on TCP loopback in turns; and how late heartbeats of
         a machine reach its home meanwhile, which go through the same porter four times a second.
join     Two machines join a run in turns, in network namespaces (needs root): one reaches every port of the home, the
         other the daemon's alone. From the command, with keys that are admitted, to the first merge of the newcomer.

Figures are medians, and all values.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from isthmus.programs.wings.one_port.porter import Porter
from isthmus.runtime.wire.control_client import ControlClient
from isthmus.runtime.wire.control_server import ControlServer
from isthmus.runtime.wire.security_keys import KeyPair, Keyring
from tests.bench.bench_channel import CHUNK, MIB, Sides, receive
from tests.bench.observed import ISTHMUS, wait_for
from tests.programs.engine.machine.namespaces import Namespaces, why_not

RATIO_BAR, LATE_SECONDS_BAR, JOIN_BAR = 0.5, 0.2, 1.3
BEAT_SECONDS = 0.25
COUNT = 3
WAIT_SECONDS_MAX = 90.0
PORT = 7400


def guard(pipe: Any) -> None:
    """The process of a daemon with a porter; its hosts listen at the endpoints that come first."""
    loop = uvloop.new_event_loop()
    endpoints = pipe.recv()
    late: list[float] = []

    def on_message(peer: bytes, message: Any) -> None:
        late.append(time.monotonic() - message["at"])

    def on_pipe() -> None:
        pipe.recv()
        pipe.send(list(late))
        late.clear()

    porter = Porter(loop, "tcp://127.0.0.1:*", None, lambda: endpoints, print)
    server = ControlServer(loop, Porter.inner, on_message)
    porter.start(server.endpoint)
    loop.add_reader(pipe.fileno(), on_pipe)
    pipe.send(porter.endpoint)
    loop.run_forever()


def beat(endpoint: str) -> None:
    """The process of another machine, which reports four times a second."""
    loop = uvloop.new_event_loop()
    client = ControlClient(loop, endpoint, lambda message: None)

    def say() -> None:
        client.send({"type": "beat", "at": time.monotonic()})
        loop.call_later(BEAT_SECONDS, say)

    loop.call_soon(say)
    loop.run_forever()


def channel(repeats: int) -> dict[str, list[float]]:
    """Rates, GB/s, of both ways, a value for each repeat; and all delays of heartbeats."""
    sender, receiver = KeyPair.make(), KeyPair.make()
    spawn = multiprocessing.get_context("spawn")
    figures: dict[str, list[float]] = {}
    flat = np.random.default_rng(1).standard_normal(64 * MIB // 4, dtype=np.float32)
    views = [flat[at : at + CHUNK // 4] for at in range(0, len(flat), CHUNK // 4)]
    for name, rings in (
        ("plain", (None, None)),
        ("keys", (Keyring(sender), Keyring(receiver, {sender.public: "sender"}))),
    ):
        processes: list[tuple[Any, Any]] = []
        sides: dict[str, Sides] = {}

        def begin(target: Callable[..., None], *arguments: Any, made: list[tuple[Any, Any]] = processes) -> Any:
            here, there = spawn.Pipe()
            process = spawn.Process(target=target, args=(there, *arguments) if target is not beat else arguments)
            process.start()
            made.append((process, here))  # The pipe, too: the other process ends with it.
            return here

        try:
            # One receiver for each way: a host has one connection with another one.
            for way in ("dialled", "relayed"):
                endpoints, port = begin(receive, 1, rings[1]).recv()
                if way == "relayed":
                    daemon = begin(guard)
                    daemon.send(list(endpoints[:2]))
                    porter = daemon.recv()
                    endpoints = endpoints._replace(porter=porter, is_inside=True)
                    begin(beat, porter)
                sides[way] = Sides(endpoints, port, rings[0])
            for number in range(repeats + 1):
                for way in (("dialled", "relayed"), ("relayed", "dialled"))[number % 2]:
                    daemon.send("reset")
                    daemon.recv()
                    seconds = sides[way].by_channel(views, flat.nbytes, COUNT, False)
                    daemon.send("delays")
                    late = daemon.recv()
                    if number:
                        figures.setdefault(f"{name}, {way}, GB/s", []).append(COUNT * flat.nbytes / seconds / 1e9)
                        figures.setdefault(f"{name}, {way}, heartbeats late, s", []).append(max(late, default=0.0))
        finally:
            for process, _ in processes:
                process.terminate()
                process.join()
    return figures


class Home:
    """The daemon alpha with a run that does not end; beta reaches all its ports, gamma one."""

    def __init__(self, folder: Path, net: Namespaces, joins: int) -> None:
        self.folder, self.net = folder, net
        self.address = f"tcp://{self.net.addresses['alpha']}:{PORT}"
        names = [f"{machine}-{number}" for machine in ("beta", "gamma") for number in range(joins)]
        for name in ("alpha", *names):
            KeyPair.make().write(folder, name)
            (folder / f"{name}.toml").write_text(f'[keys]\nsecret = "{name}.key"\n')
        admitted = ", ".join(f'"{name}.pub"' for name in names)
        (folder / "alpha.toml").write_text(f'[keys]\nsecret = "alpha.key"\nadmitted = [{admitted}]\n')
        machine = f'[[machine]]\nname = "alpha"\naddress = "{self.address}"\npublic_key = "alpha.pub"\nislands = 1\n'
        (folder / "cluster.toml").write_text(f'[keys]\nsecret = "alpha.key"\n{machine}')
        words = ("daemon", "--name", "alpha", "--listen", self.address, "--config", "alpha.toml")
        self.daemon = self.begin("alpha", *words)

    def train(self) -> None:
        """Start the run."""
        command = ("train", "--cluster", "cluster.toml", "--detach", "--quiet", "--tokens", str(10**12))
        wait_for(
            lambda: self.begin("alpha", *command, "--run-dir", "run").wait() == 0, "a run that starts", WAIT_SECONDS_MAX
        )
        wait_for(lambda: len(self.lines("merges.jsonl")) > 20, "20 merges", WAIT_SECONDS_MAX)

    def begin(self, machine: str, *words: str) -> subprocess.Popen[bytes]:
        """A command typed on a machine."""
        environment = {**os.environ, "XDG_STATE_HOME": str(self.folder / f"state-{machine}")}
        command = [*self.net.prefix(machine), str(ISTHMUS), *words]
        with (self.folder / f"{machine}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The complete lines of a file of the run."""
        path = self.folder / "run" / name
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def join(self, machine: str, number: int) -> float:
        """Seconds from the command to the first merge with the newcomer, which then leaves."""
        known, name = len(self.lines("events.jsonl")), f"{machine}-{number}"
        begun = time.monotonic()
        options = ("--name", name, "--server-key", "alpha.pub", "--config", f"{name}.toml")
        joining = self.begin(machine, "join", self.address, *options)
        try:
            wait_for(
                lambda: any(line["kind"] == "joined" for line in self.lines("events.jsonl")[known:]),
                "a slot for who joins",
                WAIT_SECONDS_MAX,
            )
            event = next(line for line in self.lines("events.jsonl")[known:] if line["kind"] == "joined")
            slot = int(event["host"].rpartition("/")[2])
            wait_for(
                lambda: any(slot in line["voters"] for line in self.lines("merges.jsonl")),
                "its first merge",
                WAIT_SECONDS_MAX,
            )
            return time.monotonic() - begun
        finally:
            joining.send_signal(signal.SIGINT)
            joining.wait()

    def end(self) -> None:
        """End the daemon, and with it the run."""
        for _ in range(2):
            self.daemon.send_signal(signal.SIGINT)
            time.sleep(0.5)
        self.daemon.wait(WAIT_SECONDS_MAX)


@contextmanager
def home(joins: int) -> Iterator[Home]:
    """A home in a folder of its own."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        closing(Namespaces("alpha", "beta", "gamma")) as net,
    ):
        net.wall_in("alpha", PORT, against="gamma")
        made = Home(Path(folder), net, joins)
        try:
            made.train()
            yield made
        finally:
            made.end()


def join(joins: int) -> dict[str, list[float]]:
    """Seconds to the first merge, for both machines."""
    if fault := why_not():
        raise SystemExit(f"no namespaces: {fault}")
    figures: dict[str, list[float]] = {"all ports open, s": [], "one port open, s": []}
    with home(joins + 1) as made:
        for number in range(joins + 1):
            for machine in (("beta", "gamma"), ("gamma", "beta"))[number % 2]:
                seconds = made.join(machine, number)
                if number:
                    figures["one port open, s" if machine == "gamma" else "all ports open, s"].append(seconds)
    return figures


def spread(values: list[float]) -> str:
    """Median, and every value."""
    return f"{statistics.median(values):.3f} ({', '.join(f'{value:.3f}' for value in sorted(values))})"


def ratio(figures: dict[str, list[float]], over: str, under: str) -> float:
    """Of two medians."""
    return statistics.median(figures[over]) / statistics.median(figures[under])


def main() -> None:
    """Measure, and say whether the bars are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["channel", "join"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--joins", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    figures: dict[str, list[float]] = {}
    ratios: dict[str, tuple[float, float, bool]] = {}
    if "channel" in asked.what:
        figures |= channel(asked.repeats)
        for name in ("plain", "keys"):
            value = ratio(figures, f"{name}, relayed, GB/s", f"{name}, dialled, GB/s")
            ratios[f"{name}: relayed / dialled"] = value, RATIO_BAR, value >= RATIO_BAR
            late = max(figures[f"{name}, relayed, heartbeats late, s"])
            ratios[f"{name}: heartbeats late at most, s"] = late, LATE_SECONDS_BAR, late <= LATE_SECONDS_BAR
    if "join" in asked.what:
        figures |= join(asked.joins)
        value = ratio(figures, "one port open, s", "all ports open, s")
        ratios["first merge: one port / all open"] = value, JOIN_BAR, value <= JOIN_BAR
    if asked.json:
        print(json.dumps({"figures": figures, "ratios": {name: value for name, (value, _, _) in ratios.items()}}))
        return
    for name, values in figures.items():
        print(f"{name:38} {spread(values)}")
    for name, (value, bar, is_met) in ratios.items():
        print(f"{name:38} {value:.3f}, bar {bar}: {'met' if is_met else 'missed'}")


if __name__ == "__main__":
    main()
