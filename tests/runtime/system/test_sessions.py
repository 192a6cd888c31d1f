"""What a process has started ends with it: its session."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from isthmus.runtime.system.processes import kill_session, started_at

POOL = """
import os, sys, time

if os.fork():
    sys.stdin.readline()
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep(1000)
"""
PREPARING = """
import os, time
from isthmus.programs.engine.run.preparing import in_child

def work():
    worker = os.fork()  # It has the other end of the pipe, too, as the workers of a pool have.
    if not worker:
        time.sleep(1000)
    return {"worker": worker}

print(in_child(work)["worker"])
"""


@pytest.mark.process
def test_a_worker_in_the_session_of_a_host_ends_with_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", POOL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True
    ) as leader:
        assert leader.stdin is not None
        assert leader.stdout is not None
        worker = int(leader.stdout.readline())
        kill_session(leader.pid)
        assert started_at(worker) is not None, "the leader lives, and its session is left alone"
        leader.stdin.close()
        os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
        kill_session(leader.pid)
        assert leader.stdout.read() == "", "the worker had the other end"
    assert started_at(worker) is None


@pytest.mark.process
def test_a_worker_that_a_task_starts_while_it_is_prepared_holds_up_nothing_and_ends() -> None:
    done = subprocess.run([sys.executable, "-c", PREPARING], capture_output=True, text=True, timeout=60, check=True)
    assert started_at(int(done.stdout)) is None
