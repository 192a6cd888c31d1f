"""The memory limit of a real control group is what `train`, `doctor` and `plan` go by."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from isthmus.runtime.system.control_groups import ROOT, memory_most

LIMIT: Final = 1 << 30
FIRST, SECOND = ROOT / "memory", ROOT / "cgroup.controllers"
ISTHMUS: Final = str(Path(sys.executable).with_name("isthmus"))
SECONDS_MAX: Final = 300

pytestmark = [
    pytest.mark.engine,
    pytest.mark.process,
    pytest.mark.skipif(os.geteuid() != 0, reason="control groups are made as root"),
    pytest.mark.skipif(not (FIRST.is_dir() or SECOND.exists()), reason="no control group of memory is mounted"),
]


@pytest.fixture(scope="module")
def group() -> Iterator[Path]:
    """A control group with a limit."""
    is_first = FIRST.is_dir()
    made = (FIRST if is_first else ROOT) / f"isthmus-{os.getpid()}"
    made.mkdir()
    try:
        (made / ("memory.limit_in_bytes" if is_first else "memory.max")).write_text(str(LIMIT))
        yield made
    finally:
        made.rmdir()


def typed(group: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What a command says that is typed in a control group."""
    script = f'echo $$ > "{group}/cgroup.procs" && exec "$@"'
    command = ["sh", "-c", script, "sh", ISTHMUS, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)


def test_a_plan_knows_what_the_container_may_have(group: Path, tmp_path: Path) -> None:
    assert memory_most() > LIMIT
    found = json.loads(typed(group, tmp_path, "plan", "--parameters", "1e8", "--step-seconds", "1", "--json").stdout)
    assert (found["memory_here_bytes"], found["learners_here"]) == (LIMIT, 0)


def test_the_doctor_looks_at_what_the_container_has_left(group: Path, tmp_path: Path) -> None:
    found = json.loads(typed(group, tmp_path, "doctor", "--json").stdout)
    (memory,) = (row for row in found["checks"] if row["name"] == "memory")
    amount, unit = memory["found"].split()[:2]
    assert float(amount) * {"MB": 10**6, "GB": 10**9}[unit] <= LIMIT


def test_a_model_that_does_not_fit_is_refused_before_it_starts(group: Path, tmp_path: Path) -> None:
    large = ("--set", "task.width=1024", "--set", "task.layers=8", "--set", "task.heads=8")
    done = typed(group, tmp_path, "train", *large, "--tokens", "20000", "--learners", "2")
    assert (done.returncode, "Placing 2 learners" in done.stderr, list(tmp_path.iterdir())) == (2, True, []), (
        done.stderr
    )
