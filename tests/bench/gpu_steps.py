"""The steps that are measured on a GPU, one after another, each bounded in time and each by itself.

    tests/bench/on_a_gpu.sh [--minutes 12] [--out DIR] [--wheels DIR] [--data DIR] [--tiny] [--long] [--only STEP]...
    tests/bench/on_a_gpu.sh --fetch-wheels DIR [--python 3.12] [--without NAME,...]

A step is a process that writes lines of JSON as it measures. Each line is in DIR/gpu.jsonl at once, and DIR/gpu.json
has what all lines come to, so that a machine that is taken away leaves what was done; DIR/gpu.html is a page of it
after every step. Each step has a limit of its own (`LIMITS`, whose order is that of their worth), and no more than what
is left of --minutes. One that fails, or runs past its limit, is recorded, and the next begins: whatever it has started
is killed before, since this process adopts what daemons leave behind.

What was done is in DIR/state.json, and another call with the same DIR leaves it out, also on another machine with the
same card: it goes on where the first was cut off. What was compiled is in DIR/xla, for all steps and calls. Figures of
another card or tree are refused. With --long it is one step alone, that of the 26 million parameters, which takes
DIR/long.state up again.

--tiny does the same with small models on a CPU. Exit status 0 if every step was done, 1 if not, 2 with one message if
the machine, the wheels or the text do not suffice, and nothing was started.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

from tests.bench import gpu_figures, gpu_machine, gpu_measures
from tests.bench.gpu_machine import RefusedError

LIMITS: Final[Mapping[str, float]] = {
    "learner": 200.0,
    "torch": 150.0,
    "kill": 80.0,
    "memory": 80.0,
    "exchange": 80.0,
    "line": 80.0,
}
"""Seconds. The first compiles gpt-124m (80 s on the cores of an H200's machine, 20 of them one call of ptxas); the rest
read that. On that machine memory took 12 s, the exchange 26 s, a cell of the line 50 to 75 s."""
STATE: Final = "state.json"
"""The steps that were done, with the seconds that each took."""
XLA: Final = "xla"
MINUTES: Final = 12.0
LONG: Final = "long"
SECONDS_MIN: Final = 15.0
"""A step that would have less is not begun: it starts Python and jax."""
RESERVE_SECONDS: Final = 8.0
"""For the last page, and for what is ended."""
KILL_SECONDS: Final = 10
LINE_MARGIN_SECONDS: Final = 30.0
"""The line looks at its clock between calls; this is how long compiling one of its programs may take."""
LINE_MINUTES_MIN: Final = 0.5
LOOK_SECONDS: Final = 0.2
LOG_BYTES_MAX: Final = 1 << 20
ERROR_LETTERS_MAX: Final = 1000
_SUBREAPER: Final = 36
"""PR_SET_CHILD_SUBREAPER, prctl(2)."""


class Bench(NamedTuple):
    """What all steps have in common: where they write, and with what they run."""

    folder: Path
    scratch: Path
    variables: Mapping[str, str]
    data: Path | None
    is_tiny: bool
    until: float

    def write(self, step: str, **fields: Any) -> None:
        """Append a line, and bring gpu.json up to date."""
        line = json.dumps({"step": step, **fields})
        print(line, flush=True)
        with (self.folder / gpu_figures.LINES).open("a") as stream:
            stream.write(line + "\n")
        gpu_figures.write(self.folder)

    def say(self, text: str) -> None:
        """Tell who watches, and no file."""
        print(text, flush=True)

    def command(self, step: str, out: Path, seconds: float) -> list[str]:
        """The module of a step, and its options."""
        options = ["--out", str(out), *(["--data", str(self.data)] if self.data else [])]
        if step not in ("line", LONG):
            return ["tests.bench.gpu_measures", step, *options, *(["--tiny"] if self.is_tiny else [])]
        minutes = max((seconds - LINE_MARGIN_SECONDS) / 60, LINE_MINUTES_MIN)
        size = ["--long", "--state", str(self.folder / "long.state")] if step == LONG else []
        return [
            "tests.bench.long.bench_line",
            *options,
            "--minutes",
            f"{minutes:.2f}",
            "--json",
            *size,
            *(["--tiny"] if self.is_tiny else []),
        ]


def carry_out(bench: Bench, steps: Sequence[str]) -> bool:
    """Every step; whether all were done."""
    is_whole = True
    for step in steps:
        if step in done(bench.folder):
            bench.say(f"{step}: done by a call before, {done(bench.folder)[step]:.0f} s")
            continue
        limit = math.inf if bench.is_tiny else LIMITS.get(step, math.inf)  # Small steps are over soon, unless many run.
        seconds = min(limit, bench.until - time.monotonic() - RESERVE_SECONDS)
        if seconds < SECONDS_MIN:
            bench.write(step, event="left out", state="not reached", error=f"{max(seconds, 0):.0f} s were left for it")
            is_whole = False
            continue
        is_whole &= _carry_out(bench, step, seconds)
        draw(bench)
    return is_whole


def done(folder: Path) -> dict[str, float]:
    """The steps that were done, and how long each took; none of a state that cannot be read."""
    try:
        return {str(step): float(seconds) for step, seconds in json.loads((folder / STATE).read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _note_done(folder: Path, step: str, seconds: float) -> None:
    new = folder / f"{STATE}.new"
    new.write_text(json.dumps({**done(folder), step: round(seconds, 1)}) + "\n")
    os.replace(new, folder / STATE)


def _carry_out(bench: Bench, step: str, seconds: float) -> bool:
    bench.write(step, event="begun", seconds_max=round(seconds, 1))
    begun = time.monotonic()
    state, error = "failed", None
    try:
        state, error = _run(bench, step, seconds)
    except RefusedError as refused:
        error = str(refused)
    except BaseException as raised:
        error = f"{type(raised).__name__} {raised}"
        raise
    finally:
        bench.write(step, event="ended", state=state, seconds=round(time.monotonic() - begun, 2), error=error)
    if state == "done" and step != LONG:
        _note_done(bench.folder, step, time.monotonic() - begun)
    return state in ("done", gpu_figures.LACKS)


def _run(bench: Bench, step: str, seconds: float) -> tuple[str, str | None]:
    """How a step ended, and why if it is not done; its lines are written as they come."""
    out, log = bench.scratch / f"{step}.jsonl", bench.scratch / f"{step}.log"
    name, *options = bench.command(step, out, seconds)
    bounded = ["timeout", f"--kill-after={KILL_SECONDS}", f"{seconds:.1f}", sys.executable, "-m", name]
    lines = _lines(out)
    try:
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*bounded, *options], cwd=bench.scratch, env=dict(bench.variables), stdout=stream, stderr=stream
            )
        while process.poll() is None:
            for line in next(lines):
                bench.write(step, **line)
            time.sleep(LOOK_SECONDS)
    finally:
        end_descendants()
        for line in next(lines):
            bench.write(step, **line)
        _keep(log, bench.folder / "log.txt", step)
    if process.returncode == 0:
        return "done", None
    if process.returncode == gpu_measures.LACKS_STATUS:
        return gpu_figures.LACKS, log.read_text(errors="replace").strip()[-ERROR_LETTERS_MAX:]
    if process.returncode in (124, 128 + signal.SIGKILL, -signal.SIGKILL):
        return "cut off", f"it ran past its {seconds:.0f} s"
    said = log.read_text(errors="replace").strip().splitlines()
    return "failed", (" ".join(said[-3:]) or f"exit status {process.returncode}")[-ERROR_LETTERS_MAX:]


def _lines(path: Path) -> Iterator[list[dict[str, Any]]]:
    """The whole lines that a growing file has got since the last look; it may not be there yet."""
    at = 0
    while True:
        text = path.read_bytes()[at:] if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        at += len(whole)
        told = [json.loads(line) for line in whole.splitlines()]
        yield [{key: value for key, value in line.items() if key != "step"} for line in told]


def _keep(log: Path, into: Path, step: str) -> None:
    """Append the end of a step's log to that of all."""
    with into.open("ab") as stream:
        stream.write(f"== {step}\n".encode() + log.read_bytes()[-LOG_BYTES_MAX:])


def draw(bench: Bench) -> None:
    """The page, by a process that has what pages are made with."""
    command = [sys.executable, "-m", "tests.bench.gpu_figures", str(bench.folder / gpu_figures.JSON), "--draw"]
    subprocess.run(command, env=dict(bench.variables), check=False, timeout=60)


def adopt_descendants() -> None:
    """From now on processes whose parents have died are children of this one."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> None:
    """Kill every process that this one started, or that one of them did."""
    while found := _descendants(os.getpid()):
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _descendants(root: int) -> list[int]:
    """The pids of all that descend from a process, but for those that have ended."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(fields[1])
    found, frontier = list[int](), {root}
    while frontier:
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
        found += sorted(frontier)
    return found


# -- the command -------------------------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="on_a_gpu.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--minutes", type=float, default=MINUTES, help=f"for all of it; {MINUTES:g} if absent")
    options.add_argument("--out", type=Path, default=Path("runs/gpu"), metavar="DIR", help="runs/gpu if absent")
    options.add_argument("--wheels", type=Path, metavar="DIR", help="wheels of what this Python lacks")
    options.add_argument("--data", type=Path, metavar="DIR", help="text; Python's standard library if absent")
    options.add_argument("--tiny", action="store_true", help="small models, on a CPU")
    options.add_argument("--long", action="store_true", help="26 million parameters, and nothing else")
    options.add_argument("--only", choices=LIMITS, action="append", help="this step; may be repeated")
    options.add_argument("--fetch-wheels", type=Path, metavar="DIR", help="make a folder of wheels, by a network")
    options.add_argument("--python", default="3.12", metavar="X.Y", help="for which --fetch-wheels is; 3.12 if absent")
    options.add_argument("--megabytes-max", type=float, default=gpu_machine.WHEELS_MEGABYTES_MAX, metavar="N")
    options.add_argument("--without", default="", metavar="NAME,...", help="what that machine has, and is large")
    return options


def opened(asked: argparse.Namespace, scratch: Path, began: float) -> Bench:
    """The bench of a machine that suffices, its first line written; RefusedError of one that does not."""
    if not 1.0 <= asked.minutes < math.inf:
        do = "A few steps of seconds each are begun and ended in that time."
        raise RefusedError("Reading --minutes", "at least 1", str(asked.minutes), do)
    if asked.wheels is not None and not asked.wheels.is_dir():
        do = "Make it where there is a network: tests/bench/on_a_gpu.sh --fetch-wheels DIR"
        raise RefusedError("Reading --wheels", "a folder of wheels", f"none at {asked.wheels}", do)
    needed = gpu_machine.requirements()
    gpu_machine.check_base(needed, gpu_machine.installed)
    files = [] if asked.wheels is None else sorted(asked.wheels.iterdir())
    wheels = [wheel for path in files if (wheel := gpu_machine.wheel_of(path)) is not None]
    rest = [each for each in needed if each.name not in gpu_machine.BASE]
    python = sys.version_info[:2]
    taken = gpu_machine.chosen(rest, gpu_machine.installed, wheels, python, asked.wheels)
    gpu_machine.make_site(scratch / "site", taken)
    variables = gpu_machine.environment(scratch / "site", is_tiny=asked.tiny)
    found = gpu_machine.probe(variables, asked.data, is_tiny=asked.tiny)
    card = None if found["gpu"] is None else gpu_machine.card(found["gpu"])
    gpu_machine.check_memory(card)
    if found["gpu"] is not None:
        variables |= {"CUDA_VISIBLE_DEVICES": found["gpu"], "JAX_PLATFORMS": "cuda"}
    machine = {
        "card": found["device_kind"],
        "memory_bytes": None if card is None else card.total_bytes,
        "driver": None if card is None else card.driver,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": found["versions"],
        "commit": gpu_machine.commit(),
        "sources": gpu_machine.sources(),
        "is_tiny": asked.tiny,
    }
    data = None if asked.data is None else asked.data.absolute()
    variables |= compiled_in(asked.out.absolute() / XLA)
    bench = Bench(asked.out.absolute(), scratch, variables, data, asked.tiny, began + 60 * asked.minutes)
    gpu_figures.check_folder(bench.folder, machine)
    bench.write("machine", **machine, minutes=asked.minutes, at=datetime.now(UTC).isoformat(timespec="seconds"))
    return bench


def compiled_in(folder: Path) -> dict[str, str]:
    """The variables by which all steps keep what they compile in a folder, however small it is."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def fetched(asked: argparse.Namespace) -> None:
    """Make the folder of wheels, and tell of it."""
    without = [each for each in asked.without.split(",") if each]
    files = gpu_machine.fetch_wheels(asked.fetch_wheels, asked.python, without, asked.megabytes_max)
    for path in files:
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}")
    print(f"{sum(path.stat().st_size for path in files) / 1e6:8.2f} MB in {len(files)} wheels")


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt(f"signal {number}")


def main(arguments: Sequence[str] | None = None) -> int:
    began = time.monotonic()
    asked = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _end)
    scratch = Path(tempfile.mkdtemp(prefix="isthmus-gpu-"))
    try:
        if asked.fetch_wheels is not None:
            fetched(asked)
            return 0
        bench = opened(asked, scratch, began)
        adopt_descendants()
        is_whole = carry_out(bench, (LONG,) if asked.long else tuple(asked.only or LIMITS))
        print(gpu_figures.table(gpu_figures.read(bench.folder / gpu_figures.JSON)))
        print(f"{bench.folder / gpu_figures.JSON} and {gpu_figures.PAGE}, in {time.monotonic() - began:.0f} s")
    except RefusedError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt as error:
        print(f"Ended by {error or 'Ctrl-C'}; what was measured is in {asked.out}.", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
