"""Processes that end by any of the kernel's 64 signals, and commands that inherit odd settings of their parent."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from isthmus.programs.engine.run.interrupts import SAME_NOTICE_SECONDS
from isthmus.runtime.errors import INTERRUPTED_STATUS
from isthmus.runtime.supervision.incidents import Ended, Exited
from isthmus.runtime.system.processes import signal_name, started_at
from tests.effort import long, soaked
from tests.programs.engine.run.process_run import PAUSE, Run

pytestmark = pytest.mark.process

HOSTS = ("learner/1", "evaluator/0", "recorder/0", "syncer/0")


def is_back(run: Run, name: str, incarnation: int) -> bool:
    host = run.host(name)
    return bool(host) and host["incarnation"] == incarnation and host.get("phase") in ("stepping", "serving", "ready")


@pytest.mark.further
@pytest.mark.parametrize("number", [long(6), long(9), long(11), long(34), 40, long(64)])
def test_every_process_may_end_by_any_signal(start: Callable[..., Run], number: int) -> None:
    run = start()
    run.wait_for_merges(5)
    for name in HOSTS:
        run.kill(name, number)
        run.wait_for(lambda name=name: is_back(run, name, 2))
    run.wait_for_merges(5)
    first = run.fork_server()
    os.kill(first, number)
    run.wait_for(lambda: started_at(first) is None)
    run.wait_for(lambda: run.fork_server() != first)
    daemon = run.pids()["daemon"]
    os.kill(daemon, number)
    run.wait_for(lambda: run.daemon().get("pid") not in (None, daemon) and run.status()["outcome"] == "running")
    run.wait_for_merges(5)
    for name in HOSTS:
        assert Ended(Exited(signal=signal_name(number))) in run.incidents(f"{name}#1"), name
    assert f"the fork server was ended by {signal_name(number)}" in (run.folder / "logs" / "daemon.log").read_text()
    os.kill(run.command.pid, number)
    out, error = run.command.communicate()
    assert run.command.returncode == -number
    run.wait_until_gone()
    assert "Traceback" not in out + error + run.story()
    assert run.summary()["outcome"] == "failed"


REAL_TIME = range(signal.SIGRTMIN, signal.SIGRTMAX + 1)


@pytest.mark.further
def test_a_parent_that_blocks_the_signals_without_names(start: Callable[..., Run]) -> None:
    former = signal.pthread_sigmask(signal.SIG_BLOCK, REAL_TIME)
    try:
        run = start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
    run.wait_for_merges(5)
    run.kill("learner/1")
    run.wait_for(lambda: is_back(run, "learner/1", 2))
    run.stop()


SECONDS_MAX = 10.0
"""From the second signal until nothing of a run lives."""


@pytest.mark.parametrize("what", ["learner/1", soaked("syncer/0"), soaked("recorder/0"), "daemon"])
@pytest.mark.parametrize("number", [signal.SIGTERM, soaked(signal.SIGHUP), signal.SIGINT])
@pytest.mark.long
def test_a_second_signal_ends_it_whatever_is_stopped(start: Callable[..., Run], what: str, number: int) -> None:
    run = start()
    run.wait_for_merges(5)
    os.kill(run.pids()[what], signal.SIGSTOP)
    os.kill(run.command.pid, number)
    PAUSE.wait(2 * SAME_NOTICE_SECONDS)  # As notices of two things.
    begun = time.monotonic()
    if run.command.poll() is None:
        os.kill(run.command.pid, number)
    error = run.command.communicate()[1]
    run.wait_until_gone()
    assert time.monotonic() - begun < SECONDS_MAX
    assert run.command.returncode == (1 if number == signal.SIGINT else INTERRUPTED_STATUS), error
    assert "Traceback" not in error + run.story()
