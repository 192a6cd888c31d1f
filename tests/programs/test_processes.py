"""Runs as real processes over ZeroMQ, with real deaths: who dies, and that the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from isthmus.runtime.supervision.incidents import Restarted
from tests.programs.event_lines import KILLED
from tests.programs.process_run import ISTHMUS, Run

pytestmark = pytest.mark.timeout(120)


def test_a_run_comes_to_its_end_and_leaves_everything_behind(start: Callable[..., Run]) -> None:
    run = start(tokens=100_000)
    summary = run.finish("done")
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]
    assert summary["tokens_pending"] == 0
    assert Restarted() not in run.incidents()


def test_a_learner_that_is_killed_comes_back_and_the_others_go_on(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    run.kill("learner/1")
    run.wait_for(lambda: (h := run.host("learner/1")).get("phase") == "stepping" and h["incarnation"] == 2)
    run.wait_for_merges(20)
    assert run.host("learner/0")["incarnation"] == 1
    summary = run.stop()
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 1]
    assert summary["per_learner"][0]["stall_seconds"] < 5
    assert KILLED in run.incidents("learner/1#1")
    assert Restarted() in run.incidents("learner/1#2")


def test_a_syncer_that_is_killed_comes_back_with_what_its_learners_hold(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    steps = run.steps()
    run.kill("syncer/0")

    def all_have_stepped(since: dict[str, int]) -> bool:
        return all(step > since[name] + 20 for name, step in run.steps().items())

    # Nobody is there to merge, and the learners step.
    run.wait_for(lambda: all_have_stepped(steps) and run.host("syncer/0")["phase"] in ("gone", "starting"))
    run.wait_for(lambda: run.epochs()[-1:] == [2])
    assert run.host("syncer/0")["incarnation"] == 2
    run.wait_for_merges(20)
    # The evaluator's turn: a gap in the curve, and the run goes on.
    run.kill("evaluator/0")
    run.wait_for_merges(20)
    run.wait_for(lambda: (h := run.host("evaluator/0")).get("incarnation") == 2 and h["phase"] == "serving")
    summary = run.stop()
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 0]
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]


def test_a_daemon_that_is_killed_is_replaced_and_adopts_the_hosts(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(10)
    before = run.pids()
    os.kill(before["daemon"], signal.SIGKILL)

    def adopted() -> dict[str, Any] | None:
        now = run.pids()
        return now if now["daemon"] != before["daemon"] and len(now) == len(before) else None

    after = run.wait_for(adopted)
    assert {**after, "daemon": 0} == {**before, "daemon": 0}
    run.wait_for_merges(10)
    run.stop()


def test_isthmus_stop_ends_a_run_and_logs_shows_a_log(start: Callable[..., Run]) -> None:
    run = start(learners=1)
    run.wait_for_merges(5)
    assert subprocess.run([ISTHMUS, "stop", "run"], cwd=run.here, timeout=30, check=False).returncode == 0
    run.finish()
    logs = subprocess.run([ISTHMUS, "logs", "learner/9", "run"], cwd=run.here, capture_output=True, text=True,
                          timeout=30, check=False)  # fmt: skip
    assert logs.returncode == 2
    assert "learner/" in logs.stderr
