"""A real run on a disk that is full for a while: training goes on, no life gets a number that is not written, the
last snapshot stays, nothing is lost once there is room again, and the model is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

pytestmark = [pytest.mark.process, pytest.mark.soak]

SIZE = "16m"


def why_not() -> str:
    """Why there can be no small disk here; empty if there can be."""
    if shutil.which("unshare") is None:
        return "no `unshare` here"
    tried = subprocess.run(
        ["unshare", "-Urm", "mount", "-t", "tmpfs", "tmpfs", "/mnt"], capture_output=True, text=True, check=False
    )
    return f"no mounts in a user namespace: {tried.stderr.strip()}" if tried.returncode else ""


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_a_disk_that_is_full_for_a_while_costs_nothing_but_time(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size={SIZE} tmpfs "$1" && exec "$2" -m tests.programs.engine.run.full_disk_run "$1"'
    ended = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert "noting learner/0#2: " in seen["refused"]
    assert "daemon.sqlite cannot be written: database or disk is full" in seen["refused"]
    assert seen["full"] == [str(tmp_path.resolve())]
    assert seen["unkept"] == "No space left on device"
    kept, still = seen["snapshots"]
    assert still == kept > 0
    assert seen["back"] > 0
    assert seen["unsaved"] == "No space left on device"
    summary = seen["summary"]
    assert [learner["restarts"] for learner in summary["per_learner"]] == [1, 0]
    assert (summary["lines_lost"], summary["lines_torn"], summary["error"]) == (0, 0, None)
    assert {name for name, count in seen["lines"].items() if not count} <= {"changes"}, "no link has become slow"
