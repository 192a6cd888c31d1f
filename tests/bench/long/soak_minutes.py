"""A run of a hundred real minutes: what grows in each process after the first twenty, on the disk, and in the books.

    python -m tests.bench.long.soak_minutes [--minutes 100] [--settled 20] [--learners 2] [--folder DIR] [--json]

`isthmus train` with a small model whose steps sleep (`links/paced.py`), so that two cores have room. Every quarter of a
minute the memory of each process (PSS, where the kernel tells it to us), its descriptors and its threads are read, and
the bytes of the run folder. After minute `--settled` a line is fitted to each; told is what it grows by until the end,
as a share of what it was. BAR, a hundredth, was written down before; the disk has none, because tapes, lines and
snapshots fill it up to bounds of their own. The books agree if `summary.json` has no difference in them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.bench.observed import Run, training

TASK: Final = Path(__file__).parents[1] / "links" / "paced.py"
SAMPLE_SECONDS: Final = 15.0
BAR: Final = 0.01
FIGURES: Final = ("memory", "descriptors", "threads")
DISK: Final = "run folder"


def sample(pid: int) -> dict[str, float]:
    """The figures of a process; without those that cannot be read, as where it has just ended."""
    found: dict[str, float] = {}
    with suppress(OSError):
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        found["memory"] = 1024.0 * next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        found["descriptors"] = float(len(list(Path(f"/proc/{pid}/fd").iterdir())))
        found["threads"] = float(len(list(Path(f"/proc/{pid}/task").iterdir())))
    return found


def bytes_in(folder: Path) -> float:
    """What the files of a folder have."""
    found = 0.0
    for path in folder.rglob("*"):
        with suppress(OSError):
            found += path.stat().st_size
    return found


def growth(times: Sequence[float], values: Sequence[float], since: float) -> float | None:
    """What a line through the values since a moment rises by until the last one, as a share of its begin; None of fewer
    than three."""
    late = [(at, value) for at, value in zip(times, values, strict=True) if at >= since]
    if len(late) < 3:
        return None
    slope, _ = np.polyfit(*zip(*late, strict=True), 1)
    middle = float(np.mean([value for _, value in late]))
    rise = float(slope) * (late[-1][0] - late[0][0])
    begin = middle - rise / 2
    return rise / begin if begin else 0.0


def follow(run: Run, minutes: float) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """By process, and of the folder, the figures with their seconds."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {}
    begun = time.monotonic()
    while (at := time.monotonic() - begun) < 60 * minutes:
        for name, pid in run.pids.items():
            for figure, value in sample(pid).items():
                found.setdefault(name, {}).setdefault(figure, []).append((at, value))
        found.setdefault(DISK, {}).setdefault("bytes", []).append((at, bytes_in(run.folder)))
        time.sleep(max(0.0, SAMPLE_SECONDS - (time.monotonic() - begun - at)))
    return found


def figures_of(
    samples: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], since: float
) -> list[dict[str, Any]]:
    """A row for each process and figure: its value at last, and its growth since."""
    rows = []
    for name, of in samples.items():
        for figure, pairs in of.items():
            times, values = zip(*pairs, strict=True)
            rows.append({"of": name, "figure": figure, "last": values[-1], "growth": growth(times, values, since)})
    return rows


def is_within(row: Mapping[str, Any]) -> bool | None:
    """Whether a growth is within the bar; None where it has none, or was not measured."""
    return None if row["of"] == DISK or row["growth"] is None else row["growth"] <= BAR


def measured(minutes: float, settled: float, learners: int, folder: Path) -> dict[str, Any]:
    """The whole of it."""
    load = os.getloadavg()[0]
    with training(folder, "--task", f"{TASK}:small_asleep", learners=learners) as run:
        samples = follow(run, minutes)
        summary = run.stop()
    return {
        "minutes": minutes,
        "settled": settled,
        "learners": learners,
        "load": load,
        "rows": figures_of(samples, 60 * settled),
        "books_differ": len(summary["books"]["differences"]),
        "tokens": summary["tokens_total"],
    }


def table(found: Mapping[str, Any]) -> str:
    """It, in Markdown."""
    lines = [f"| of | figure | at last | growth after minute {found['settled']:g} | within 1 % |", "| --- " * 5 + "|"]
    for row in found["rows"]:
        told = {True: "yes", False: "no", None: ""}[is_within(row)]
        grown = "not measured" if row["growth"] is None else f"{100 * row['growth']:+.2f} %"
        last = f"{row['last'] / 1e6:.1f} MB" if row["figure"] in ("memory", "bytes") else f"{row['last']:.0f}"
        lines.append(f"| {row['of']} | {row['figure']} | {last} | {grown} | {told} |")
    books = "agree" if not found["books_differ"] else f"have {found['books_differ']} differences"
    return "\n".join([*lines, "", f"{found['minutes']:g} minutes, {found['tokens']:,} tokens; the books {books}."])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=100.0)
    parser.add_argument("--settled", type=float, default=20.0, help="minutes that do not count")
    parser.add_argument("--learners", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where the run goes; by default it is deleted")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measured(asked.minutes, asked.settled, asked.learners, asked.folder or Path(place, "run"))
    print(json.dumps(found) if asked.json else table(found))
    return int(bool(found["books_differ"]) or any(is_within(row) is False for row in found["rows"]))


if __name__ == "__main__":
    sys.exit(main())
