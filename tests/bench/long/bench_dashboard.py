"""What it costs to watch a run: the dashboard's CPU, the weight and first paint of its page, and a run that is scraped.

    python -m tests.bench.long.bench_dashboard [CASE ...] [--seconds 60] [--pairs 10] [--pictures DIR] [--json]

four: CPU of the dashboard over one core, with one viewer of a real run of four learners. recorded: of a run of 256
learners that is replayed, at the rate at which a recorder would write it, without a daemon; and of the same run when it
is over. page: bytes of the page, its script and all its parts, and the first paint beside that of an empty page of the
same server, in headless Chromium, medians. scraped: steps a second of a real run's learners in windows that alternate
within it, with Debian's Prometheus scraping every second and without; the ratio of each pair.

Bars: four 0.02, recorded 0.1, page 300 kB and 3, scraped 0.99.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.bench.browser.chromium import FOUND, Chromium, Tab, chromium
from tests.bench.observed import COMMAND, cpu_seconds

LEARNERS: Final = 256
LINES_A_SECOND: Final = 5
"""Of each learner: a recorder writes at most so many."""
MERGES_A_SECOND: Final = 8
FRAGMENTS: Final = 64
PAINTS: Final = 7
WINDOW_SECONDS: Final = 10.0


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, int]]:
    """A dashboard of a run: its address, and its process."""
    command = [*COMMAND, "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


@contextmanager
def viewer(url: str) -> Iterator[list[int]]:
    """Somebody who views the page: reads its events as a browser does; the bytes, and the charts, that came."""
    came, request = [0, 0], urllib.request.Request(f"{url}run/-/events", headers={"Accept-Encoding": "gzip"})
    opened, unpacker = urllib.request.urlopen(request, timeout=120), zlib.decompressobj(31)

    def read() -> None:
        with suppress(OSError, ValueError, AttributeError):
            while data := opened.read1(1 << 16):
                came[0] += len(data)
                came[1] += unpacker.decompress(data).count(b"event: charts\n")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield came
    with suppress(OSError):
        opened.close()


def share_of_core(folder: Path, seconds: float) -> dict[str, float]:
    """The dashboard's CPU with one viewer, over one core, once the first parts have come; what it sends; and the
    processor time until then, which interpreter, imports and the files take."""
    with served(folder) as (url, pid), viewer(url) as came:
        while not came[1]:
            time.sleep(0.1)
        opening = cpu_seconds(pid)
        begun, before, bytes_before = time.monotonic(), cpu_seconds(pid), came[0]
        time.sleep(seconds)
        passed = time.monotonic() - begun
        return {
            "core": (cpu_seconds(pid) - before) / passed,
            "bytes_a_second": (came[0] - bytes_before) / passed,
            "opening_seconds": opening,
        }


@contextmanager
def training(place: Path, *more: str) -> Iterator[Path]:
    """A real run of four learners, which has stepped for a while."""
    folder = place / "run"
    command = [*COMMAND, "train", "--tokens", "100_000_000", "--quiet", "--run-dir", str(folder), *more]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 300
        while not (folder / "merges.jsonl").exists() or (folder / "merges.jsonl").stat().st_size < 20_000:
            if time.monotonic() > until or process.poll() is not None:
                raise SystemExit("the run did not begin")
            time.sleep(0.5)
        yield folder
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(120)


class Recording:
    """A run of many learners that is written as its recorder would have written it."""

    def __init__(self, folder: Path, learners: int) -> None:
        folder.mkdir()
        self._rng, self._learners, self._merges = random.Random(1), learners, 0
        (folder / "config.toml").write_text(f"[run]\nlearners = {learners}\ntokens = 10000000000\n[program]\n")
        (folder / "graph.json").write_text('{"program": "decoupled-diloco", "roles": [], "nodes": [], "edges": []}')
        self._metrics = (folder / "metrics.jsonl").open("a", buffering=1 << 20)
        self._merge_lines = (folder / "merges.jsonl").open("a", buffering=1 << 20)

    def write(self, at: float, seconds: float) -> None:
        """What a recorder writes in so many seconds from `at` on."""
        for number in range(round(LINES_A_SECOND * seconds)):
            time_now = at + number / LINES_A_SECOND
            for slot in range(self._learners):
                self._metrics.write(json.dumps(self._report(slot, time_now + slot * 1e-4)) + "\n")
        for number in range(round(MERGES_A_SECOND * seconds)):
            self._merge_lines.write(json.dumps(self._merge(at + number / MERGES_A_SECOND)) + "\n")
        self._metrics.flush()
        self._merge_lines.flush()

    def _report(self, slot: int, at: float) -> dict[str, Any]:
        step = round(at * 20 * (1 + slot % 4 / 10))
        loss = 1.5 + 4 / (1 + at / 30) + self._rng.random() / 5
        fields = {"time": round(at, 6), "learner": slot, "incarnation": 1, "phase": "stepping", "step": step}
        fields |= {"tokens": 512 * step, "loss": loss, "staleness": step % 24, "sick": False, "sick_step": 0}
        return {**fields, "bytes_sent": 4096 * step, "bytes_received": 8192 * step}

    def _merge(self, at: float) -> dict[str, Any]:
        self._merges += 1
        late = self._rng.sample(range(self._learners), self._rng.randrange(4))
        voters = [slot for slot in range(self._learners) if slot not in late]
        fields = {"time": round(at, 6), "shard": 0, "epoch": 1, "fragment": self._merges % FRAGMENTS}
        fields |= {"round": self._merges, "kind": "merge", "version": [1, self._merges // FRAGMENTS + 1]}
        fields |= {"voters": voters, "weights": [1 / len(voters)] * len(voters), "left_out": late, "origin": [1, 0]}
        tokens = [[slot, 1, 512 * self._merges] for slot in range(self._learners)]
        return {**fields, "merges": self._merges, "votes": 250 * self._merges, "merged_tokens": tokens,
                "refused": [], "reason": "grace ended", "quorum_ms": 5.0, "grace_ms_used": 9.0}  # fmt: skip


def case_four(place: Path, seconds: float) -> dict[str, Any]:
    with training(place) as folder:
        return {"four": share_of_core(folder, seconds)}


def case_recorded(place: Path, seconds: float) -> dict[str, Any]:
    """Ten minutes are there, and the next are written while they are viewed; then it is over."""
    folder, history = place / "run", 600.0
    recording = Recording(folder, LEARNERS)
    recording.write(0.0, history)
    is_over = threading.Event()

    def write() -> None:
        at, begun = history, time.monotonic()
        while not is_over.wait(max(0.0, begun + at - history - time.monotonic())):
            recording.write(at, 1.0)
            at += 1.0

    writer = threading.Thread(target=write)
    writer.start()
    try:
        growing = share_of_core(folder, seconds)
    finally:
        is_over.set()
        writer.join()
    summary = {"outcome": "done", "program": "decoupled-diloco", "learners": LEARNERS, "wall_seconds": history}
    rows = [
        {"learner": slot, "steps": 9, "tokens": 9, "stall_seconds": 0.1, "bytes_sent": 9} for slot in range(LEARNERS)
    ]
    figures = {"eval_loss_initial": 5.5, "eval_loss_final": 1.5, "goodput": 0.9, "per_learner": rows}
    (folder / "summary.json").write_text(json.dumps({**summary, **figures, "start_seconds": 1.0}))
    return {"recorded": growing, "recorded_over": share_of_core(folder, seconds)}


def weight(url: str) -> dict[str, float]:
    """Bytes of the page, its script, and its parts when it is opened, compressed as browsers ask for."""

    def length(path: str) -> tuple[int, bytes]:
        request = urllib.request.Request(f"{url}{path}", headers={"Accept-Encoding": "gzip"})
        with urllib.request.urlopen(request, timeout=60) as opened:
            data = opened.read()
            return len(data), data

    with urllib.request.urlopen(url, timeout=60) as opened:
        script = opened.read().decode().partition('<script src="/')[2].partition('"')[0]
    with viewer(url) as came:
        while not came[1]:
            time.sleep(0.1)
        parts = came[0]
    return {"document": length("")[0], "script": length(script)[0], "parts": parts}


def first_paint(browser: Chromium, url: str) -> float:
    """Milliseconds from the navigation to the first paint, in a new tab."""
    tab = Tab(browser, 1280, 800)
    tab.open(url)
    script = "performance.getEntriesByName('first-contentful-paint').map((entry) => entry.startTime)[0] ?? 0"
    tab.until(f"location.href === '{url}' && ({script}) > 0")
    painted = float(tab.value(script))
    tab.close()
    return painted


def case_page(place: Path, seconds: float, pictures: Path | None = None) -> dict[str, Any]:
    with training(place) as folder, served(folder) as (url, _):
        parts = weight(url)
        made: dict[str, Any] = {"page": {**parts, "bytes": sum(parts.values())}}
        if FOUND is None:
            print("no chromium on the PATH: first paint is left out")
            return made
        with chromium() as browser:
            first_paint(browser, url)
            pairs = [(first_paint(browser, url), first_paint(browser, f"{url}empty")) for _ in range(PAINTS)]
            page, empty = (statistics.median(column) for column in zip(*pairs, strict=True))
            made["page"] |= {"paint_ms": page, "empty_paint_ms": empty, "paint_ratio": page / empty}
            for width, height in ((1280, 800), (420, 900)) if pictures is not None else ():
                for is_dark in (False, True):
                    tab = Tab(browser, width, height, is_dark=is_dark)
                    tab.open(url)
                    tab.until("document.querySelector('#loss canvas') !== null")
                    time.sleep(2.0)
                    tab.picture(pictures / f"dashboard-{width}-{'dark' if is_dark else 'light'}.png", is_whole=True)
                    tab.close()
        return made


def steps(folder: Path) -> int:
    """The steps of all learners by now."""
    newest: dict[tuple[int, int], int] = {}
    for line in (folder / "metrics.jsonl").read_bytes().splitlines():
        with suppress(ValueError):
            report = json.loads(line)
            newest[report["learner"], report["incarnation"]] = report["step"] or 0
    return sum(newest.values())


def case_scraped(place: Path, pairs: int) -> dict[str, Any]:
    """A Prometheus goes on all the time; in every other window it has the run as its target."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        print("no prometheus on the PATH: scraped is left out")
        return {}
    with socket_of() as port, training(place, "--metrics-port", str(port)) as folder:
        config, targets = place / "prometheus.yml", place / "targets.json"
        targets.write_text("[]")
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            "scrape_configs:\n"
            f"  - {{job_name: isthmus, file_sd_configs: [{{files: ['{targets}'], refresh_interval: 1s}}]}}\n"
        )
        options = [f"--config.file={config}", f"--storage.tsdb.path={place / 'tsdb'}", "--log.level=error"]
        command = [prometheus, *options, "--web.listen-address=127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as scraper:
            try:
                return {"scraped": _alternating(folder, targets, port, pairs)}
            finally:
                scraper.terminate()
                scraper.wait(60)


def _alternating(folder: Path, targets: Path, port: int, pairs: int) -> dict[str, Any]:
    ratios = []
    for number in range(pairs):
        rates = {}
        for is_scraped in (True, False) if number % 2 else (False, True):
            targets.write_text(json.dumps([{"targets": [f"127.0.0.1:{port}"]}] if is_scraped else []))
            time.sleep(2.5)
            begun, before = time.monotonic(), steps(folder)
            time.sleep(WINDOW_SECONDS)
            rates[is_scraped] = (steps(folder) - before) / (time.monotonic() - begun)
        ratios.append(rates[True] / rates[False])
        print(f"pair {number}: {rates[True]:.2f} scraped, {rates[False]:.2f} not, {ratios[-1]:.3f}", flush=True)
    return {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios), "pairs": pairs}


@contextmanager
def socket_of() -> Iterator[int]:
    """A port that was free a moment ago."""
    import socket

    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port = int(opened.getsockname()[1])
    yield port


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    cases = ("four", "recorded", "page", "scraped")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(cases))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--pictures", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    work: dict[str, Callable[[Path], dict[str, Any]]] = {
        "four": lambda place: case_four(place, arguments.seconds),
        "recorded": lambda place: case_recorded(place, arguments.seconds),
        "page": lambda place: case_page(place, arguments.seconds, arguments.pictures),
        "scraped": lambda place: case_scraped(place, arguments.pairs),
    }
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
    measured: dict[str, Any] = {}
    for case in arguments.cases or cases:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            made = work[case](Path(place))
        measured |= made
        for name, figures in made.items():
            shown = ", ".join(f"{key} {value:.4g}" for key, value in figures.items())
            print(f"{name}: {shown}; load {os.getloadavg()[0]:.1f}", flush=True)
    if arguments.json:
        print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
