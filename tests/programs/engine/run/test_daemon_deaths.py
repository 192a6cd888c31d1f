"""Runs whose daemon dies again and again: the next one is waited for, and a run that is given up leaves its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import Run, press_until_over
from tests.programs.engine.run.test_full_disk import SIZE, why_not

pytestmark = [pytest.mark.process, pytest.mark.soak]

DEATHS_MAX = 6
"""The first is followed at once, the others after 0.5, 1, 2 and 4 s; the sixth is the last."""
HEALTHY_SECONDS = 11.0


def kill_daemon(run: Run) -> float:
    """Kill the daemon that answers; when."""
    run.wait_for(lambda: run.status()["outcome"] == "running")
    os.kill(run.daemon()["pid"], signal.SIGKILL)
    return time.monotonic()


def kill_next(run: Run) -> float:
    """Kill the daemon after the present one, which is dead."""
    former = run.daemon()["pid"]
    run.wait_for(lambda: run.daemon()["pid"] != former)
    return kill_daemon(run)


def kill_daemons(run: Run, count: int) -> list[float]:
    """Kill so many in a row; when."""
    return [kill_daemon(run), *(kill_next(run) for _ in range(count - 1))]


def published(run: Run) -> list[int]:
    """The tokens of each learner, as the recorder has published them."""
    return [learner["tokens"] for learner in run.status()["training"].get("learners", {}).values()]


def test_daemons_that_die_again_and_again_fail_the_run_which_says_so(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: min(published(run), default=0))
    run.wait_for_merges(30)  # More than a second: the command asks four times in one.
    at = kill_daemons(run, DEATHS_MAX)
    assert at[-1] - at[0] > 7.5
    out, error = run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 1
    told = f"its daemon ended {DEATHS_MAX} times in a row, the last time by SIGKILL; look at "
    assert told in error
    assert "Traceback" not in out + error
    run.wait_until_gone()
    summary, over = run.summary(), json.loads((run.folder / "over.json").read_text())
    assert (summary["outcome"], over["outcome"]) == ("failed", "failed")
    assert summary["error"] == over["error"]
    assert summary["error"].startswith(told)
    assert min(summary["outer_steps"], summary["cpu_seconds_total"], summary["bytes_sent_total"]) > 0
    assert [learner["steps"] > 0 for learner in summary["per_learner"]] == [True, True]
    assert (run.folder / "report.html").exists()


def test_daemons_that_have_served_for_a_while_are_forgiven(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(10)
    before = run.pids()
    kill_daemons(run, 4)
    run.wait_for(lambda: run.status()["outcome"] == "running")
    healthy_at = time.monotonic() + HEALTHY_SECONDS
    run.wait_for(lambda: time.monotonic() > healthy_at)
    kill_daemons(run, 4)
    after = run.wait_for(lambda: now if len(now := run.pids()) == len(before) else None)
    assert {**after, "daemon": 0} == {**before, "daemon": 0}
    run.stop()


def test_a_second_ctrl_c_ends_a_run_that_has_no_daemon(start: Callable[..., Run]) -> None:
    run = start(learners=1)
    run.wait_for_merges(1)
    kill_daemons(run, 5)  # The next one is waited for, for four seconds.
    error = press_until_over(run.command)
    assert run.command.returncode == 1
    assert "ended at once by a second Ctrl-C" in error
    run.wait_until_gone()
    assert run.summary()["outcome"] == "failed"


@pytest.mark.skipif(bool(why_not()), reason=why_not())
@pytest.mark.parametrize("how", ["mended", "abandoned"])
def test_a_full_disk_is_not_the_daemons_fault(tmp_path: Path, how: str) -> None:
    mount = (
        f'mount -t tmpfs -o size={SIZE} tmpfs "$1" && exec "$2" -m tests.programs.engine.run.daemonless_run "$1" "$3"'
    )
    ended = subprocess.run(
        ["unshare", "-Urm", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, how],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=Path(__file__).parents[4],
    )
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["error"].count("no daemon can be started, because ") == 1
    assert "cannot be written: No space left on device. Make room there" in seen["error"]
    assert "Traceback" not in seen["error"]
    if how == "mended":
        assert (seen["status"], seen["outcome"], seen["restarts"]) == (0, "stopped", [0, 0])
    else:
        assert seen["status"] == 1
        assert f"its daemon could not be started {DEATHS_MAX} times in a row, because " in seen["error"]
