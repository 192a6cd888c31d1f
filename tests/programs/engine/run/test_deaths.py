"""Runs as real processes over ZeroMQ, with real deaths: who dies, and that the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.supervision.incidents import Restarted
from tests.patience import PATIENCE
from tests.programs.engine.results.event_lines import KILLED
from tests.programs.engine.run.process_run import ISTHMUS, Run

pytestmark = pytest.mark.process


def call(*words: str, here: Path) -> subprocess.CompletedProcess[str]:
    """A command that is typed beside the run."""
    return subprocess.run([ISTHMUS, *words], cwd=here, capture_output=True, text=True, timeout=PATIENCE, check=False)


def is_stepping(run: Run, name: str, incarnation: int) -> bool:
    host = run.host(name)
    return host.get("phase") == "stepping" and host["incarnation"] == incarnation


def test_every_process_of_a_run_dies_and_the_others_go_on(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    names = {"isthmus-daemon-", "isthmus-fork-se", "isthmus-learner", "isthmus-syncer-", "isthmus-evaluat"}
    assert names <= (comms := run.comms())
    assert not [comm for comm in comms if " " in comm or "/" in comm]  # Slurm could parse none of a job.
    run.kill("learner/1")
    run.wait_for(lambda: is_stepping(run, "learner/1", 2))
    run.wait_for_merges(20)
    # A syncer that is stopped merges nothing, and the learners step; its next life has what they hold.
    syncer = run.kill("syncer/0", signal.SIGSTOP)
    steps = run.steps()
    run.wait_for(lambda: all(step > steps[name] + 20 for name, step in run.steps().items()))
    os.kill(syncer, signal.SIGKILL)
    run.wait_for(lambda: run.epochs()[-1:] == [2])
    run.wait_for_merges(20)
    # The evaluator's turn: a gap in the curve.
    run.kill("evaluator/0")
    run.wait_for(lambda: (h := run.host("evaluator/0")).get("incarnation") == 2 and h["phase"] == "serving")
    # The daemon's: the next one adopts the hosts.
    before = run.pids()
    used = sum(host["cpu_seconds"] for host in run.status()["hosts"] if host["role"] != "daemon")
    os.kill(before["daemon"], signal.SIGKILL)

    def adopted() -> dict[str, Any] | None:
        now = run.pids()
        return now if now["daemon"] != before["daemon"] and len(now) == len(before) else None

    after = run.wait_for(adopted)
    assert {**after, "daemon": 0} == {**before, "daemon": 0}
    run.wait_for_merges(10)
    assert call("stop", "run", here=run.here).returncode == 0
    summary = run.finish()
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 1]
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]
    assert summary["cpu_seconds_total"] > used  # Of hosts that the daemon at the end did not start.
    assert KILLED in run.incidents("learner/1#1")
    assert Restarted() in run.incidents("learner/1#2")
    assert Restarted() not in run.incidents("learner/0#1")
    logs = call("logs", "learner/9", "run", here=run.here)
    assert logs.returncode == 2
    assert "learner/1" in logs.stderr
