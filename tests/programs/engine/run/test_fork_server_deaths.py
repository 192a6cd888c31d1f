"""Runs whose fork server dies or hangs, at every moment: hosts get their next lives, and the run comes to its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from isthmus.runtime.system.processes import started_at
from tests.programs.engine.run.process_run import Run

pytestmark = [pytest.mark.process, pytest.mark.soak]


def wait_for_death(run: Run, pid: int) -> None:
    run.wait_for(lambda: started_at(pid) is None)


def wait_for_life(run: Run, name: str, incarnation: int) -> None:
    run.wait_for(lambda: (h := run.host(name)).get("phase") == "stepping" and h["incarnation"] == incarnation)


def said(run: Run) -> str:
    """The log of the daemon."""
    return (run.folder / "logs" / "daemon.log").read_text()


@pytest.mark.parametrize("is_daemon_stopped", [False, True], ids=["seen", "unseen"])
def test_one_that_is_killed_while_idle_is_replaced(start: Callable[..., Run], is_daemon_stopped: bool) -> None:
    run = start()
    run.wait_for_merges(10)
    first, daemon = run.fork_server(), run.daemon()["pid"]
    if is_daemon_stopped:  # So that it sees the end of the process and that of the socket at once.
        os.kill(daemon, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    wait_for_death(run, first)
    os.kill(daemon, signal.SIGCONT)
    run.wait_for(lambda: run.fork_server() != first)  # Before anybody asks for it.
    run.kill("learner/1")
    wait_for_life(run, "learner/1", 2)
    assert said(run).count("the fork server was ended by SIGKILL") == 1
    assert "from nothing" not in said(run)
    run.stop()


def test_one_that_is_killed_with_a_request_open_leaves_it_to_the_daemon(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(10)
    server = run.fork_server()
    os.kill(server, signal.SIGSTOP)
    run.kill("learner/1")
    run.wait_for(lambda: run.host("learner/1").get("phase") == "gone")
    assert "from nothing" not in said(run)
    os.kill(server, signal.SIGKILL)
    wait_for_life(run, "learner/1", 2)
    assert "learner/1#2 is started from nothing: the fork server was ended by SIGKILL" in said(run)
    run.stop()


def test_one_that_hangs_is_killed_after_a_while(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(10)
    server = run.fork_server()
    os.kill(server, signal.SIGSTOP)
    run.kill("learner/1")
    wait_for_life(run, "learner/1", 2)
    assert "learner/1#2 is started from nothing: the fork server did not answer for 10 s, and was killed" in said(run)
    assert started_at(server) is None
    # Its daemon dies while the next one is stopped, too, and takes it along.
    run.kill("learner/0")
    second, daemon = run.fork_server(), run.daemon()["pid"]
    os.kill(second, signal.SIGSTOP)
    os.kill(daemon, signal.SIGKILL)
    wait_for_death(run, second)
    run.wait_for(lambda: run.daemon()["pid"] != daemon)
    wait_for_life(run, "learner/0", run.wait_for(lambda: run.host("learner/0").get("incarnation")))
    run.stop()


def test_one_that_is_killed_at_the_end_is_not_missed(start: Callable[..., Run]) -> None:
    run = start()
    run.wait_for_merges(10)
    daemon = run.daemon()["pid"]
    os.kill(daemon, signal.SIGSTOP)
    os.kill(run.fork_server(), signal.SIGKILL)
    run.command.send_signal(signal.SIGINT)
    os.kill(daemon, signal.SIGCONT)
    run.finish()
