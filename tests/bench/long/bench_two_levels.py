"""Two regions of two learners with a thin link between them: the seconds until a loss, by program, with real sockets.

    python -m tests.bench.long.bench_two_levels [--tokens 1020000] [--share .85] [--seeds 1] [--json] [--folder DIR]

The language model, nano, batches of 8, in processes of this machine. Learners 0 and 2 are near, with syncer, evaluator
and recorder, learners 1 and 3 far. All connections between near and far hosts pass one relay, which carries a number of
bytes a second in each direction, all of them together: the number at which the answers of one learner of the flat run,
in int4 at its default interval, take `LONGER` times as long as the run. It does so from the time when all learners step
on; the first version crosses before. Every step has a pace, so that the two cores are not what decides.

The flat run is decoupled-diloco at its best: formats, interval and overlap follow the links. regional-diloco then has
`--share` of the tokens, and so, as nobody waits, of the time: its learning rates follow its own tokens, and an
intermediate model is not the result of a shorter run. The bar holds where it ends with the loss that the flat run ends
with, or less. streaming-diloco waits; it is stopped after `BLOCKED` times the seconds of the two levels.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from isthmus.ops.exchange.formats import FORMATS
from isthmus.programs.engine.run.host_process import PROXY
from isthmus.programs.wings.chaos.chaos_strikes import (
    SEGMENT_BYTES,
    LinkProxy,
    ProcessTable,
    Way,
    WayConditions,
    _open_files,
    owner_of,
)
from isthmus.programs.wings.chaos.chaos_trial import figures_of
from isthmus.runtime.wire.ways import Gate
from tests.bench.observed import COMMAND

TASK: Final = Path(__file__).parents[1] / "links" / "paced.py"
LEARNERS: Final = 4
FAR: Final = ("learner/1", "learner/3", "region/1")
VALUES: Final = 132_800
"""Of nano."""
STEP_TOKENS: Final = 8 * 64
LONGER: Final = 4.0
QUEUE_SECONDS: Final = 0.2
BAR: Final = 0.85
BLOCKED: Final = 2.1
"""A little more than the 2 of the bar: it has not come there in twice the time."""
FLAT: Final = {"push": "int4", "update": "int4", "interval": "auto", "overlap": "auto"}
FLAT_AUTO: Final = dict.fromkeys(FLAT, "auto")
TWO_LEVELS: Final = {"regions_push": "int4", "regions_update": "int4", "exchange": 8}
STREAMING: Final = {"push": "int4", "update": "int4"}


class Border(LinkProxy):
    """Connections between near and far hosts share a way in each direction; all others are free.

    The way has a short queue, QUEUE_SECONDS: what does not fit waits on its own connection, so that connections share.
    """

    def __init__(self) -> None:
        super().__init__(owner_of, WayConditions())
        self._called: dict[int, str] = {}
        """The host that listens at a port."""
        self._free, self._far = Way(WayConditions()), Way(WayConditions())
        self._near = Way(self._far.conditions)
        # What a far host sends is "up" on its own connections, and "down" on those that near ones have dialled.
        self._near.free_at = _Swapped(self._far.free_at)

    def throttle(self, bytes_per_second: float) -> None:
        """From now on so much passes in each direction."""
        self._far.conditions.kbits = 8 * bytes_per_second / 1e3

    @property
    def passed_bytes(self) -> int:
        """In both directions, since the beginning."""
        return self._far.passed_bytes + self._near.passed_bytes

    def _gates(self, port: int, endpoint: tuple[str, int]) -> tuple[Gate, Gate]:
        caller = host_at(port)
        called = self._called.setdefault(endpoint[1], "") or host_at(endpoint[1])
        self._called[endpoint[1]] = called
        way = self._free
        if (caller in FAR) != (called in FAR):
            way = self._far if caller in FAR else self._near
        return _BorderGate(way, "up"), _BorderGate(way, "down")


class _BorderGate(Gate):
    """One direction of one connection: a segment at a time, once the queue of the way has room for it."""

    piece_bytes = SEGMENT_BYTES

    def __init__(self, way: Way, direction: str) -> None:
        self._way, self._direction = way, direction

    @property
    def is_shut(self) -> bool:
        return False

    def due(self, size_bytes: int) -> float | None:
        kbits, now = self._way.conditions.kbits, time.monotonic()
        if kbits is None:
            return now
        free = max(now, self._way.free_at.get(self._direction, 0.0))
        if free - now > QUEUE_SECONDS:
            return None
        free += size_bytes * 8 / (1e3 * kbits)
        self._way.free_at[self._direction] = free
        return free + self._way.conditions.latency

    def passed(self, size_bytes: int, *, has_waited: bool) -> None:
        self._way.passed_bytes += size_bytes


def host_at(port: int) -> str:
    """The host of a run whose socket on loopback has this port; '' if there is none.

    Only processes with the title of a host are looked at, and these are listed again where none has it: on a busy
    machine a look at all would take longer than a dial waits.
    """
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{port:04X}") and row[9] != "0"}
    for _ in range(2 if inodes else 0):  # None where the dialling side has hung up.
        for pid, host in _hosts.items():
            if inodes & set(_open_files(Path(f"/proc/{pid}/fd"))):
                return host
        pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
        _hosts.clear()
        _hosts.update({pid: host for pid in pids if (host := owner_of(pid))})
    return ""


_hosts: Final[dict[int, str]] = {}
"""The processes with the title of a host, when they were listed last."""


class _Swapped(dict[str, float]):
    """The times of the other way, by the other direction."""

    def __init__(self, times: dict[str, float]) -> None:
        super().__init__()
        self._times = times

    def get(self, direction: str, default: Any = 0.0) -> Any:
        return self._times.get(_OTHER[direction], default)

    def __setitem__(self, direction: str, at: float) -> None:
        self._times[_OTHER[direction]] = at


_OTHER: Final = {"up": "down", "down": "up"}


@dataclass(frozen=True)
class Finished:
    """A run: seconds from the first inner step to its last evaluation, (seconds, loss) of all of them, and figures."""

    program: str
    seconds: float
    losses: Sequence[tuple[float, float]]
    crossed_bytes: int
    figures: Mapping[str, Any]

    @property
    def loss(self) -> float:
        """At the end."""
        return self.losses[-1][1]

    def seconds_to(self, loss: float) -> float | None:
        """Until an evaluation had this loss, or less."""
        return next((at for at, each in self.losses if each <= loss), None)


def run(
    program: str, settings: Mapping[str, Any], tokens: int, seed: int, rate: float, folder: Path, limit: float = 1e9
) -> Finished:
    """One run; it is stopped after `limit` seconds of training."""
    border = Border()
    command = [*COMMAND, "train", program, "--task", f"{TASK}:nano", "--learners", str(LEARNERS), "--quiet"]
    command += ["--tokens", str(tokens), "--seed", str(seed), "--run-dir", str(folder)]
    command += [part for name, value in settings.items() for part in ("--set", f"program.{name}={value}")]
    try:
        with _started(command, {PROXY: border.address}) as process:
            crossed = _follow(process, folder, border, rate, limit)
    finally:
        border.close()
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    losses = [(each["time"], each["eval_loss"]) for each in lines if each["eval_loss"] is not None]
    summary = json.loads((folder / "summary.json").read_text())
    names = ("outcome", "merged_share", "contributors_mean", "tokens_total", "tokens_lost", "wall_seconds")
    figures = {name: summary.get(name) for name in names} | {"waits": figures_of(folder).waits}
    return Finished(program, losses[-1][0], losses, crossed, figures)


@contextmanager
def _started(command: Sequence[str], more: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **more})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def _follow(process: subprocess.Popen[bytes], folder: Path, border: Border, rate: float, limit: float) -> int:
    """Throttle once all learners step; returns the bytes that crossed since, when the run is over, or stopped."""
    table, begun, before = ProcessTable(folder), None, 0
    while process.poll() is None:
        time.sleep(0.5)
        if begun is None:
            phases = [host["phase"] for host in table.status().get("hosts", ()) if host["role"] == "learner"]
            if phases.count("stepping") == LEARNERS:
                begun, before = time.monotonic(), border.passed_bytes
                border.throttle(rate)
        elif time.monotonic() - begun > limit:
            process.send_signal(signal.SIGINT)
            process.wait(120)
    return border.passed_bytes - before


def rate_of(tokens: int, interval: int, step_seconds: float) -> float:
    """Bytes a second of each direction at which a learner's answers in int4 take LONGER times as long as its steps."""
    steps = tokens / LEARNERS / STEP_TOKENS
    return FORMATS["int4"].payload([VALUES]) * steps / interval / (LONGER * steps * step_seconds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_020_000)
    parser.add_argument("--share", type=float, default=BAR, help="of the tokens, for regional-diloco")
    parser.add_argument("--interval", type=int, default=8, help="H of the flat run that the rate is for")
    parser.add_argument("--step-seconds", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--programs", nargs="+", default=["flat", "two", "streaming"])
    parser.add_argument("--set", nargs="+", default=[], help="more settings of regional-diloco: exchange=4")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    os.environ["PACED_STEP_SECONDS"] = str(asked.step_seconds)
    rate = rate_of(asked.tokens, asked.interval, asked.step_seconds)
    if not asked.json:
        print(f"the link carries {rate / 1e3:.1f} kB/s ({rate * 8 / 1e3:.0f} kbit/s) in each direction", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder, found = asked.folder or Path(place), list[Finished]()
        for seed in range(asked.seeds):
            found += _of_seed(asked, seed, rate, folder)
    if asked.json:
        print(json.dumps({"bytes_per_second": rate, "runs": [vars(each) for each in found]}))
    else:
        _print_ratios(found)


def _of_seed(asked: argparse.Namespace, seed: int, rate: float, folder: Path) -> list[Finished]:
    extra = dict(each.split("=", 1) for each in asked.set)
    few = round(asked.share * asked.tokens)
    wanted = {
        "flat": ("decoupled-diloco", FLAT, asked.tokens),
        "flat-auto": ("decoupled-diloco", FLAT_AUTO, asked.tokens),
        "two": ("regional-diloco", TWO_LEVELS | extra, few),
        "streaming": ("streaming-diloco", STREAMING, asked.tokens),
    }
    found: list[Finished] = []
    for name in asked.programs:
        program, settings, tokens = wanted[name]
        two = next((each.seconds for each in found if each.program == "regional-diloco"), 1e9)
        limit = BLOCKED * two if name == "streaming" else 1e9
        found.append(run(program, settings, tokens, seed, rate, folder / f"{name}-{seed}", limit))
        if not asked.json:
            each = found[-1]
            print(
                f"seed {seed} {program:17} loss {each.loss:.3f} after {each.seconds:6.1f} s, "
                f"{each.crossed_bytes / 1e6:.2f} MB crossed, {each.figures}",
                flush=True,
            )
    return found


def _print_ratios(found: Sequence[Finished]) -> None:
    by = {name: [each for each in found if each.program == name] for name in dict.fromkeys(r.program for r in found)}
    for flat, two in zip(by.get("decoupled-diloco", ()), by.get("regional-diloco", ()), strict=False):
        to = two.seconds_to(flat.loss)
        print(
            f"two levels / flat, seconds to {flat.loss:.3f}: "
            + (f"{to / flat.seconds:.3f}" if to is not None else f"not reached: {two.loss:.3f} at the end")
            + f" (the bar is {BAR})"
        )
    for slow, two in zip(by.get("streaming-diloco", ()), by.get("regional-diloco", ()), strict=False):
        print(f"streaming-diloco at {slow.seconds / two.seconds:.2f} times the seconds: {slow.loss:.3f}")
    if len(by.get("regional-diloco", ())) > 1:
        print(f"mean loss of two levels {statistics.mean(each.loss for each in by['regional-diloco']):.3f}")


if __name__ == "__main__":
    main()
