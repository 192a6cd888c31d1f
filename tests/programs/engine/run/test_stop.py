"""A run that is to stop while something is not as it should be: it ends properly, with everything written."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.runtime.supervision.incidents import Condemned, Hurried, Restarted
from isthmus.runtime.wire.control_client import ask
from tests.patience import PATIENCE
from tests.programs.engine.run.process_run import FOREVER, ISTHMUS, Run

ODD = Path(__file__).parents[2] / "odd_graphs.py"
pytestmark = pytest.mark.process


@pytest.mark.soak
def test_while_learners_compile(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for(lambda: run.host("learner/0").get("phase") == "compiling")
    assert subprocess.run([ISTHMUS, "stop", "run"], cwd=run.here, timeout=PATIENCE, check=False).returncode == 0
    summary = run.finish()
    assert summary["tokens_pending"] == 0
    assert summary["eval_loss_final"] is not None


@pytest.mark.soak
def test_while_the_syncer_is_down_and_a_learner_is_restarting(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    run.kill("learner/1")
    run.kill("syncer/0")
    summary = run.stop()
    assert Restarted() in run.incidents("syncer/0#2")
    assert run.epochs()[-1] == 2
    assert summary["eval_loss_final"] < 0.5 * summary["eval_loss_initial"]


@pytest.mark.soak
def test_while_a_learner_is_paused(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    run.kill("learner/1", signal.SIGSTOP)
    summary = run.stop()
    assert Condemned(Hurried()) in run.incidents("learner/1#1")
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 0]


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_graph_whose_bodies_hear_nothing_is_set_aside_at_a_signal(start: Callable[..., Run], number: int) -> None:
    """It has no role of learners, gives no model, and would train for ever."""
    run = start(str(ODD) + ":without_learners")
    run.wait_for(lambda: run.status()["training"].get("tokens"))
    run.command.send_signal(number)
    out, error = run.command.communicate(timeout=PATIENCE)
    assert run.command.returncode == 75, (out, error, run.story())
    summary = run.summary()
    assert summary["outcome"] == "interrupted"
    assert 0 < summary["tokens_total"] < FOREVER
    assert [row["tokens"] > 0 for row in summary["per_learner"]] == [True, True]
    run.wait_until_gone()


@pytest.mark.soak
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
