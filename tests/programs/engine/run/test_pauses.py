"""Processes that are stopped for a while (SIGSTOP), and resumed: they hang, and nobody waits for them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable

import pytest

from isthmus.runtime.cores.membership_messages import Excused
from isthmus.runtime.supervision.incidents import Adopted, Restarted
from tests.programs.engine.run.process_run import Run, press_until_over

pytestmark = pytest.mark.process

SILENT_SECONDS = 5.5
"""Longer than a channel keeps a connection with somebody who is silent."""


@pytest.mark.soak
def test_a_learner_that_is_paused_is_called_stopped_and_comes_back_as_it_was(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(20)
    pid = run.kill("learner/1", signal.SIGSTOP)
    paused = time.monotonic()
    run.wait_for(lambda: run.host("learner/1")["state"] == "stopped", 10)
    told = run.incident("learner/1")
    assert isinstance(told, Excused)
    assert (told.excuse, told.pid, told.machine) == ("stopped", pid, "")
    step = run.steps()["learner/1"]
    run.wait_for_merges(20)
    run.wait_for(lambda: time.monotonic() > paused + SILENT_SECONDS)
    before = run.merges()
    os.kill(pid, signal.SIGCONT)

    def has_voted() -> bool:
        lines = (run.folder / "merges.jsonl").read_text().splitlines()[before:]
        return any(1 in json.loads(line)["voters"] for line in lines)

    # Sooner than the learner could find out by silence that its connections were given up: it is told.
    run.wait_for(has_voted, 4)
    run.wait_for(lambda: run.steps()["learner/1"] > step)
    host = run.host("learner/1")
    assert (host["state"], host["incarnation"], host["pid"]) == ("alive", 1, pid)
    summary = run.stop()
    assert [learner["restarts"] for learner in summary["per_learner"]] == [0, 0]


@pytest.mark.soak
def test_a_daemon_that_is_paused_is_not_replaced_and_hears_afterwards_what_was_asked(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(10)
    before = run.pids()
    os.kill(before["daemon"], signal.SIGSTOP)
    run.wait_for_merges(10)
    run.signal(signal.SIGINT)
    # The command asks the daemon to stop, and gives up after 2 s; at 20 merges a second this is when it asks again.
    run.wait_for_merges(50)
    assert run.daemon()["pid"] == before["daemon"]
    os.kill(before["daemon"], signal.SIGCONT)
    run.finish()
    assert not {Adopted(), Restarted()} & set(run.incidents())


@pytest.mark.soak
def test_a_second_ctrl_c_ends_a_run_whose_daemon_does_not_answer(start: Callable[..., Run]) -> None:
    run = start(learners=1)
    run.wait_for_merges(1)
    os.kill(run.daemon()["pid"], signal.SIGSTOP)
    error = press_until_over(run.command)
    assert run.command.returncode == 1
    assert "its daemon did not answer" in error
    assert "Traceback" not in error
    run.wait_until_gone()
