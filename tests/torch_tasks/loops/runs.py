"""A row of the table of loops in real processes: the script alone, and two islands of which one is killed once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.ops.learner.local_copies import LocalCopies
from isthmus.runtime.system.disk import KernelDisk
from isthmus.runtime.system.processes import ONE_THREAD
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import Run
from tests.torch_tasks.loops.ground import KILL_FROM, KILLED, budget

FOLDER = Path(__file__).parent
SCRIPTS = {"torch": FOLDER / "torch_rows.py", "jax": FOLDER / "jax_rows.py"}
STEPS = 200
"""Of the script alone; of two islands together."""


class LoopEnd(NamedTuple):
    """What a script has said after its loop: its slot, and the held-out losses by row."""

    slot: int
    losses: dict[str, float]


class IslandsEnd(NamedTuple):
    """What two islands have said, in the order of their slots, the positions at which the lives of slot 1 began, and
    the summary of their run."""

    ends: list[LoopEnd]
    begins: list[int]
    summary: dict[str, Any]


def said(text: str, word: str) -> list[Any]:
    """What a script has said under a word."""
    return [json.loads(line.removeprefix(f"{word} ")) for line in text.splitlines() if line.startswith(f"{word} ")]


def alone(
    framework: str, names: Sequence[str], seed: int, folder: Path, *, steps: int = STEPS, patience: float = PATIENCE
) -> LoopEnd:
    """Run the script of some rows without isthmus; AssertionError if it fails."""
    command = [sys.executable, str(SCRIPTS[framework]), ",".join(names), str(seed), str(steps), "alone"]
    variables = {**os.environ, **ONE_THREAD}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=patience, check=False
    )
    assert not done.returncode, done.stderr
    return LoopEnd(*said(done.stdout, "END")[0])


def islands(
    framework: str, names: Sequence[str], seed: int, folder: Path, *, steps: int = STEPS, patience: float = PATIENCE
) -> IslandsEnd:
    """Run the script of some rows as two islands, and kill that of slot 1 once, in its loop; AssertionError if it
    fails."""
    after = ("--", ",".join(names), str(seed), str(steps))
    options = ("--loop", str(SCRIPTS[framework]), "--seed", str(seed), "--set", "run.slots_max=2")
    run = Run(folder, *options, tokens=budget(steps, len(names)), after=after)
    try:
        copies = LocalCopies.on_disk(run.folder, KernelDisk(), slot=1, incarnation=1000, now=lambda: 0)
        place = folder / "place-1"
        kill_from = KILL_FROM * steps / 2
        run.wait_for(lambda: place.exists() and int(place.read_text()) >= kill_from and copies.former(), patience)
        run.wait_for(lambda: any(1 in each for each in run.voters()), patience)  # Its next life counts from there.
        (folder / KILLED).write_text("")
        run.kill("learner/1")
        run.command.wait(patience)
        summary = run.finish("done")
    finally:
        run.close()
    logs = [(run.folder / "logs" / f"learner-{slot}.log").read_text() for slot in (0, 1)]
    ends = [LoopEnd(*end) for log in logs for end in said(log, "END")]
    return IslandsEnd(ends, [position for _, position in said(logs[1], "BEGINS")], summary)
