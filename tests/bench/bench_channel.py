"""The ZeroMQ channel against a plain TCP socket.

    python -m tests.bench.bench_channel [--json]

Two processes, the sender's loop on core 0, the receiver on core 1. Items of 4 and 64 MiB go through the channel as
views of chunks, with digests made, in a thread as that of a node, and checked, and through a TCP socket with `sendall`
and `recv_into` into memory that is there already. `stream`: items are handed over at once; the bar is for these.
`alone`: each item waits until the one before it was acknowledged, as the TCP side waits for a byte; an item of 4 MiB
then pays for two digests and six hand-overs between threads that nothing hides, and bare pyzmq sockets reach 0.7 to
0.9. The cases take turns within each repeat; the figures are medians, and the ratio is that of medians of one run. The
first repeat warms memory and is not counted. Beside the bar, too: a 64 MiB array that the receiver gets as one piece of
memory, and small items a second.

`shared` is the same channel with shared memory (`run.shared_memory`), beside TCP and a copy in memory; its bars are for
a stream of 64 MiB. CPU seconds a GB are those of both processes, all threads.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import uvloop

from isthmus.runtime.channels.contract import Endpoints, Parcel
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import encode
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.wire.channel import WireChannel
from isthmus.runtime.wire.security_keys import Keyring
from isthmus.runtime.wire.segment_links import SegmentDesk
from isthmus.runtime.wire.zmq_sockets import ZmqSockets
from tests.bench.observed import cpu_seconds

BAR = 0.7
SHARED_BARS = {"tcp": 2.5, "memcpy": 0.5}
MIB = 1 << 20
CHUNK = 4 * MIB
SENDER, RECEIVER = (Member(Replica("bench", slot), 1) for slot in range(2))
RUN = {"run": "bench", "fingerprint": "bench"}
SMALL = {"slot": 3, "phase": "stepping", "x": np.arange(4, dtype=np.float32)}
SMALL_COUNT = 20_000
BURST = 100


class Sink:
    """A receiver that looks at nothing and keeps nothing."""

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        """Let go of an item."""

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        """Nobody counts."""


def receive(pipe: Any, core: int, keys: Keyring | None = None, is_shared: bool = False) -> None:
    """The other process: a channel that listens, and a TCP server in a thread."""
    os.sched_setaffinity(0, {core})
    loop = uvloop.new_event_loop()
    machine_of = {SENDER: "sender"}.get
    sockets = ZmqSockets(loop, keys, desk=SegmentDesk() if is_shared else None)
    channel = WireChannel(RECEIVER, clock=LoopClock(loop), sockets=sockets, machine_of=machine_of, **RUN)
    channel.open(Sink())
    server = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=serve_tcp, args=(server,), daemon=True).start()
    pipe.send((channel.bind("tcp://127.0.0.1:0"), server.getsockname()[1]))
    loop.add_reader(pipe.fileno(), loop.stop)
    loop.run_forever()
    channel.close()


def serve_tcp(server: socket.socket) -> None:
    """For each request (size, count, whether each is acknowledged): receive so much into the same memory."""
    memory = bytearray(64 * MIB)
    connection, _ = server.accept()
    while request := connection.recv(32):
        size, count, is_alone = (int(part) for part in request.split())
        view = memoryview(memory)[:size]
        connection.sendall(b"g")
        for index in range(count):
            got = 0
            while got < size:
                got += connection.recv_into(view[got:])
            if is_alone or index == count - 1:
                connection.sendall(b"a")


class Sides:
    """The sending process: both ways to the other one. Each returns the seconds that it took."""

    def __init__(
        self, endpoints: Endpoints, port: int, keys: Keyring | None = None, *, is_shared: bool = False
    ) -> None:
        self.loop = uvloop.new_event_loop()
        up = self.loop.create_future()
        self._acknowledged: Callable[[], None] = lambda: None
        self.channel = WireChannel(
            SENDER,
            clock=LoopClock(self.loop),
            sockets=ZmqSockets(self.loop, keys, desk=SegmentDesk() if is_shared else None),
            watch=lambda *transfer: self._acknowledged(),
            on_peer_up=lambda peer: up.set_result(None),
            **RUN,
        )
        self.channel.open(Sink())
        self.channel.connect(RECEIVER, endpoints)
        self.loop.run_until_complete(up)
        self.node = ThreadPoolExecutor(1)
        """As a node's thread, which encodes what it emits, beside the loop."""
        # Its threads begin before this one is bound to a core.
        self.by_channel(np.zeros(MIB), 8 * MIB, 1, is_alone=True)
        self.tcp = socket.create_connection(("127.0.0.1", port))
        self.tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def by_channel(self, item: Any, size: int, count: int, is_alone: bool) -> float:
        """Send an item so often."""

        def send(parcel: Parcel) -> None:
            self.channel.send(RECEIVER, parcel, replaces=False)

        def emit() -> None:
            self.loop.call_soon_threadsafe(send, Parcel(1, None, item, None, 0, size, encode(item)))

        return self._timed(partial(self.node.submit, emit), count, 1 if is_alone else count)

    def small(self) -> float:
        """Many small items, a burst a turn of the loop, five thousand ahead of their acknowledgement."""

        def burst() -> None:
            for _ in range(BURST):
                self.channel.send(RECEIVER, Parcel(1, None, SMALL, None, 0, 32, encode(dict(SMALL))), replaces=False)

        return self._timed(burst, SMALL_COUNT // BURST, 50, BURST)

    def _timed(self, send: Callable[[], object], count: int, ahead: int, each: int = 1) -> float:
        """Call `send`, which sends `each` items, `count` times, at most `ahead` times beyond what was acknowledged."""
        done, sent = 0, 0
        ended = 0.0

        def go_on() -> None:
            nonlocal sent
            if sent < min(count, done // each + ahead):
                sent += 1
                send()
                self.loop.call_soon(go_on)

        def acknowledged() -> None:
            nonlocal done, ended
            done += 1
            if done == count * each:
                ended = time.perf_counter()
                self.loop.stop()
            elif done % each == 0:
                go_on()

        self._acknowledged = acknowledged
        begun = time.perf_counter()
        self.loop.call_soon(go_on)
        self.loop.run_forever()
        return ended - begun

    def small_by_tcp(self) -> float:
        """As many small sends, of as many bytes as an encoded small item, each a system call."""
        item = bytes(encode(SMALL).size_bytes)
        self.tcp.sendall(f"{len(item) * SMALL_COUNT} 1 0".encode().ljust(32))
        self.tcp.recv(1)
        begun = time.perf_counter()
        for _ in range(SMALL_COUNT):
            self.tcp.sendall(item)
        self.tcp.recv(1)
        return time.perf_counter() - begun

    def by_tcp(self, buffer: Any, size: int, count: int, is_alone: bool) -> float:
        """Send a buffer so often."""
        self.tcp.sendall(f"{size} {count} {int(is_alone)}".encode().ljust(32))
        self.tcp.recv(1)
        begun = time.perf_counter()
        for _ in range(count):
            self.tcp.sendall(buffer)
            if is_alone:
                self.tcp.recv(1)
        if not is_alone:
            self.tcp.recv(1)
        return time.perf_counter() - begun


def copy(source: Any, target: Any, count: int) -> float:
    """Copy memory so often, on one core."""
    begun = time.perf_counter()
    for _ in range(count):
        np.copyto(target, source)
    return time.perf_counter() - begun


def cases_of(sides: Sides, shared: Sides, total_mib: int) -> dict[str, tuple[Callable[[], float], float]]:
    """Name -> (what to run, bytes or items that it moves)."""
    rng = np.random.default_rng(1)
    cases: dict[str, tuple[Callable[[], float], float]] = {}
    for mib in (4, 64):
        size, count = mib * MIB, max(1, total_mib // mib)
        flat = rng.standard_normal(size // 4, dtype=np.float32)
        views = [flat[at : at + CHUNK // 4] for at in range(0, len(flat), CHUNK // 4)]
        for name, is_alone in (("alone", True), ("stream", False)):
            moved = float(size * count)
            cases[f"tcp {mib} {name}"] = partial(sides.by_tcp, flat.data.cast("B"), size, count, is_alone), moved
            cases[f"channel {mib} {name}"] = partial(sides.by_channel, views, size, count, is_alone), moved
            cases[f"shared {mib} {name}"] = partial(shared.by_channel, views, size, count, is_alone), moved
        if mib == 64:
            cases["channel 64 whole"] = partial(sides.by_channel, flat, size, count, True), float(size * count)
            cases["shared 64 whole"] = partial(shared.by_channel, flat, size, count, True), float(size * count)
        target = np.empty_like(flat)
        cases[f"memcpy {mib}"] = partial(copy, flat, target, count), float(size * count)
    cases["small"] = sides.small, float(SMALL_COUNT)
    cases["tcp small"] = sides.small_by_tcp, float(SMALL_COUNT)
    return cases


def measure(
    cases: dict[str, tuple[Callable[[], float], float]], repeats: int, pids: Sequence[int]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Of each case, taken in turns: bytes (or items) a second, and CPU seconds of these processes for 1e9 of them."""
    rates: dict[str, list[float]] = {name: [] for name in cases}
    costs: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name, (case, moved) in cases.items():
            before = sum(map(cpu_seconds, pids))
            seconds = case()
            if turn:
                rates[name].append(moved / seconds)
                costs[name].append((sum(map(cpu_seconds, pids)) - before) / moved * 1e9)
    return rates, costs


def main() -> None:
    """Measure, print, and say whether the bar is met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print figures instead of a table")
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--mib", type=int, default=256, help="MiB that each case moves in a repeat")
    options = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    sides, pipes, processes = [], [], []
    for is_shared in (False, True):
        here, there = spawn.Pipe()
        process = spawn.Process(target=receive, args=(there, 1, None, is_shared), daemon=True)
        process.start()
        endpoints, port = here.recv()
        sides.append(Sides(endpoints, port, is_shared=is_shared))
        pipes.append(here)
        processes.append(process)
    os.sched_setaffinity(0, {0})
    pids = [os.getpid(), *(process.pid for process in processes if process.pid is not None)]
    rates, costs = measure(cases_of(*sides, options.mib), options.repeats, pids)
    unlent = sides[1].channel.statistics().get("items_unlent", 0)
    for side, pipe, process in zip(sides, pipes, processes, strict=True):
        side.channel.close()
        pipe.send("over")
        process.join(10)
    report(rates, costs, unlent, options.json)


def report(rates: dict[str, list[float]], costs: dict[str, list[float]], unlent: int, as_json: bool) -> None:
    """Print the figures and the verdict."""
    medians = {name: statistics.median(each) for name, each in rates.items()}
    figures = {name: {"median": medians[name], "min": min(each), "max": max(each)} for name, each in rates.items()}
    ratios = {
        f"{mib} {name}": medians[f"channel {mib} {name}"] / medians[f"tcp {mib} {name}"]
        for mib in (4, 64)
        for name in ("alone", "stream")
    }
    ratios["64 whole"] = medians["channel 64 whole"] / medians["tcp 64 alone"]
    is_met = all(ratio >= BAR for name, ratio in ratios.items() if "stream" in name)
    shared = {
        f"{mib} {name} / {limit}": medians[f"shared {mib} {name}"] / medians[f"{limit} {mib}{of}"]
        for mib in (4, 64)
        for name in ("alone", "stream")
        for limit, of in (("tcp", f" {name}"), ("memcpy", ""))
    }
    are_met = all(shared[f"64 stream / {limit}"] >= bar for limit, bar in SHARED_BARS.items())
    cpu = {name: statistics.median(each) for name, each in costs.items() if "small" not in name}
    if as_json:
        told = {"bench": "channel", "bar": BAR, "is_met": is_met, "rates": figures, "ratios": ratios}
        told |= {"shared": shared, "shared_bars": SHARED_BARS, "shared_is_met": are_met}
        print(json.dumps(told | {"cpu_seconds_a_gb": cpu, "items_unlent": unlent}))
        return
    print(f"{'case':<20}{'median':>10}{'min':>10}{'max':>10}{'':>11}{'CPU s a GB':>12}")
    for name, f in figures.items():
        scale, unit = (1e3, "k items/s") if "small" in name else (1e9, "GB/s")
        line = "".join(f"{f[key] / scale:>10.2f}" for key in ("median", "min", "max"))
        print(f"{name:<20}{line}  {unit:<9}{cpu.get(name, float('nan')):>12.3f}")
    for name, ratio in ratios.items():
        print(f"channel / tcp, {name}: {ratio:.2f}")
    print(f"bar {BAR} for streams: {'met' if is_met else 'MISSED'}")
    for name, ratio in shared.items():
        print(f"shared {name}: {ratio:.2f}")
    print(f"bars {SHARED_BARS} for a stream of 64 MiB: {'met' if are_met else 'MISSED'}; {unlent} items not lent")


if __name__ == "__main__":
    main()
