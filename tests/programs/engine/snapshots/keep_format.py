"""Keeps a run folder of the present format of snapshots and books, for the tests of later versions.

    .venv/bin/python -m tests.programs.engine.snapshots.keep_format

Type it before a format is changed, if `formats/` has none of the present one: it makes `formats/NUMBER/PROGRAM`, of a
decoupled program and of one in lock-step, whose snapshots have whole states of learners. Each run is set aside by
SIGTERM after some snapshots. What no later version reads is left out. See docs/contributing.md.
"""

from __future__ import annotations

import json
import platform
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Final

from isthmus.programs.engine.request.spec import SOURCES
from isthmus.programs.engine.snapshots.snapshot_files import BEFORE, FOLDER, MANIFEST
from isthmus.programs.engine.snapshots.snapshots import FORMAT
from isthmus.runtime.daemon.ledger import FILE as LEDGER
from isthmus.runtime.errors import INTERRUPTED_STATUS
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import Run

KEPT: Final = Path(__file__).with_name("formats")
PROGRAMS: Final = ("decoupled-diloco", "streaming-diloco")
TASK: Final = "paced.py"
KEPT_TASK: Final = "paced.txt"
"""Of it, as it was then: no file of Python, so that nothing puts it in order."""
HERE: Final = "/kept"
"""What the folder is called in which the run was made; `copied` writes that of now in its place."""
NOT_READ: Final = (
    *("logs", "tape", "spans", "borders", "report.html", "trace.json", "compiled.jsonl", "phases.jsonl", "seats.jsonl"),
    *("daemon.json", "run.lock", "*-shm", "*-wal"),
)
SIZE_MAX: Final = 100_000
"""Bytes of one folder."""


def make(program: str, to: Path) -> None:
    """Train by a program, set it aside, and keep its folder, with the file of its task beside it."""
    with tempfile.TemporaryDirectory() as name:
        here = Path(name)
        sets = [f"run.program={program}", "run.snapshot_every_seconds=0.3"]
        sets += ["program.interval=32", "program.fragments=2", "run.moments_every=1"]
        run = Run(here, *(part for each in sets for part in ("--set", each)))
        try:
            snapshots = run.folder / FOLDER
            run.wait_for(lambda: all((snapshots / each).exists() for each in (MANIFEST, BEFORE)))
            kept = '"moments-' if program == PROGRAMS[0] else '"leaves"'
            run.wait_for(lambda: kept in (snapshots / MANIFEST).read_text())
            run.command.terminate()
            run.command.communicate(timeout=PATIENCE)
            assert run.command.returncode == INTERRUPTED_STATUS
        finally:
            run.close()
        with closing(sqlite3.connect(run.folder / LEDGER)) as ledger:
            ledger.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copytree(run.folder, to / "run", ignore=shutil.ignore_patterns(*NOT_READ))
        shutil.copy(here / TASK, to / KEPT_TASK)
        _shorten(to / "run" / SOURCES)
        _replace(to, {str(here): HERE, str(Path(sys.executable).parent): HERE, platform.node(): "machine"})


def copied(number: int, program: str, to: Path) -> Path:
    """A copy of a kept run folder, in the folder `to`, in which its task is, too."""
    shutil.copytree(KEPT / str(number) / program, to, dirs_exist_ok=True)
    (to / KEPT_TASK).rename(to / TASK)
    _replace(to, {HERE: str(to)})
    return to / "run"


def _shorten(path: Path) -> None:
    """Leave out of the sources most files of isthmus: any later version has others."""
    noted = json.loads(path.read_text())
    noted["files"]["isthmus"] = dict(list(noted["files"]["isthmus"].items())[:8])
    path.write_text(json.dumps(noted, indent=2))


def _replace(folder: Path, texts: Mapping[str, str]) -> None:
    """Write other texts in place of some, in all files of text below a folder."""
    for path in folder.rglob("*"):
        if path.suffix in (".json", ".jsonl", ".toml"):
            text = path.read_text()
            for was, now in texts.items():
                text = text.replace(was, now)
            path.write_text(text)


def main() -> int:
    """Make what is missing of the present format."""
    for program in PROGRAMS:
        folder = KEPT / str(FORMAT) / program
        if folder.exists():
            print(f"{folder} is there")
            continue
        make(program, folder)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        print(f"{folder}: {size:,} bytes")
        if size > SIZE_MAX:
            print(f"that is more than {SIZE_MAX:,}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
