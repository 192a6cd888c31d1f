"""A run whose disk is full for a while: `python -m tests.programs.engine.run.full_disk_run FOLDER`, a small file
system.

It fills the disk under a run that trains, kills a learner, stops the run, and makes room again; and prints what it saw
on the way as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from isthmus.programs.engine.snapshots.snapshot_files import FOLDER
from isthmus.programs.engine.snapshots.snapshots import Snapshots
from isthmus.runtime.supervision.incidents import Delayed
from isthmus.runtime.system.disk import DISK
from tests.programs.engine.run.process_run import Run

STEPS_MORE = 100


def main(folder: Path) -> dict[str, Any]:
    """What was seen."""
    run = Run(folder, "--set", "run.snapshot_every_seconds=0.3")
    filler = folder / "filler"
    try:
        run.wait_for(lambda: run.merges() >= 4 and _snapshot(run))
        _fill(filler)
        before = run.wait_for(lambda: run.steps() if _files(run, "waiting") else None)
        unkept = run.wait_for(lambda: _snapshots_error(run))
        full = run.wait_for(lambda: run.status().get("full"))
        kept = _snapshot(run)
        survivor = "learner/1"
        run.wait_for(lambda: run.steps().get(survivor, 0) >= before[survivor] + STEPS_MORE)
        run.kill("learner/0")
        refused = run.wait_for(lambda: _reason(run, "learner/0") or None)
        more = run.steps()[survivor]
        run.wait_for(lambda: run.steps().get(survivor, 0) >= more + STEPS_MORE)
        still = _snapshot(run)
        filler.unlink()
        run.wait_for(lambda: _snapshot(run) > still and not _snapshots_error(run))
        run.wait_for(lambda: not run.status()["full"])
        back = run.wait_for(lambda: run.host("learner/0").get("incarnation") == 2 and run.steps().get("learner/0"))
        _fill(filler)
        run.command.send_signal(2)
        unsaved = run.wait_for(lambda: _unsaved(run))
        filler.unlink()
        summary = run.finish()
        lines = {path.stem: path.read_text().splitlines() for path in sorted(run.folder.glob("*.jsonl"))}
        return {
            "refused": refused,
            "full": full,
            "unkept": unkept,
            "snapshots": [kept, still],
            "back": back,
            "unsaved": unsaved,
            "summary": summary,
            "lines": {name: len([json.loads(line) for line in each]) for name, each in lines.items()},
        }
    finally:
        run.close()


def _fill(filler: Path) -> None:
    """Leave no room on the disk."""
    size = 1 << 20
    with filler.open("ab", buffering=0) as file:
        while size:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


def _files(run: Run, name: str) -> int:
    return sum(counts[name] for counts in run.status()["training"].get("files", {}).values())


def _snapshot(run: Run) -> int:
    """The number of the newest snapshot that is whole; 0 if there is none."""
    found = Snapshots(run.folder / FOLDER, None, DISK).read().manifest
    return 0 if found is None else found.number


def _snapshots_error(run: Run) -> str | None:
    """Why the disk did not take the last snapshot."""
    return (run.status()["training"].get("snapshots") or {}).get("error")


def _reason(run: Run, name: str) -> str:
    """Why the next life of a host has to wait; empty if it has not."""
    told = run.incident(name)
    return told.error if isinstance(told, Delayed) else ""


def _unsaved(run: Run) -> str | None:
    told = run.status()["training"].get("unsaved") or {}
    return told.get("error") if told.get("fragments") else None


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
