"""A learner that is killed goes on with what it had, from its machine's memory; nothing stays there behind its run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from isthmus.runtime.system import run_memory
from tests.programs.engine.run.process_run import FOREVER, Run

pytestmark = pytest.mark.process


@pytest.mark.further
def test_a_killed_learner_goes_on_with_what_it_had_and_nothing_stays_behind_its_run(tmp_path: Path) -> None:
    if not run_memory.room_in(run_memory.ROOT):
        pytest.skip(f"{run_memory.ROOT} has no room here")
    # Without a merge before the end no version has any of its work, whenever it is killed.
    run = Run(tmp_path, "--set", "program.interval=100000", tokens=FOREVER)
    try:
        run.wait_for(run.folder.exists)
        memory = run_memory.path_of(run.folder)
        run.wait_for(lambda: any((memory / "local").glob("learner-1.fragment-*")))
        assert memory.stat().st_mode & 0o077 == memory.parent.stat().st_mode & 0o077 == 0
        run.kill("learner/1")
        run.wait_for(lambda: [began for began in began_of(run.folder) if began[:2] == (1, 2)])
        summary = run.stop()
    finally:
        run.close()
    ((_, _, kind, life, step),) = [began for began in began_of(run.folder) if began[:2] == (1, 2)]
    assert (kind, life) == ("memory", 1)
    assert step >= 4
    assert summary["books"]["differences"] == []
    assert not memory.exists()


def began_of(folder: Path) -> list[tuple[int, int, str, int, int]]:
    """(slot, life, how it began, of which life, after which step) of each that has told."""
    path = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [(line["learner"], line["incarnation"], *line["began"]) for line in lines if line.get("began")]
