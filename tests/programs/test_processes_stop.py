"""A run that is to stop while something is not as it should be: it ends properly, with everything written."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable

import pytest

from isthmus.runtime.control import ask
from isthmus.runtime.supervision.incidents import Condemned, Hurried, Restarted
from tests.programs.process_run import ISTHMUS, Run

pytestmark = pytest.mark.timeout(120)


def test_while_learners_compile(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.host("learner/0").get("phase") == "compiling")
    assert subprocess.run([ISTHMUS, "stop", "run"], cwd=run.here, timeout=30, check=False).returncode == 0
    summary = run.finish()
    assert summary["tokens_pending"] == 0
    assert summary["eval_loss_final"] is not None


def test_while_the_syncer_is_down_and_a_learner_is_restarting(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    run.kill("learner/1")
    run.kill("syncer/0")
    summary = run.stop()
    assert Restarted() in run.incidents("syncer/0#2")
    assert run.epochs()[-1] == 2
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]


def test_while_a_learner_is_paused(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    run.kill("learner/1", signal.SIGSTOP)
    summary = run.stop()
    assert Condemned(Hurried()) in run.incidents("learner/1#1")
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 0]


def test_while_evaluator_and_daemon_die(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    daemon = run.daemon()
    run.kill("evaluator/0")
    # What the daemon has confirmed holds for the next one, too.
    assert ask(daemon["endpoint"], {"type": "stop"}) is not None
    os.kill(daemon["pid"], signal.SIGKILL)
    run.finish()
    assert run.daemon()["pid"] != daemon["pid"]
