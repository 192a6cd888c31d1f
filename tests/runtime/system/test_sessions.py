"""What a process has started ends with it: its session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.system.processes import kill_session, spawn_leader, started_at
from tests.patience import wait_for

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
    wait_for(lambda: started_at(int(done.stdout)) is None)  # The kernel ends it, in its own time.


@pytest.mark.process
@pytest.mark.parametrize("can", [True, False], ids=["by the library", "by a program before it"])
def test_a_program_is_started_as_the_leader_of_a_session(
    can: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spawn = os.posix_spawn

    def without(*arguments: Any, **more: Any) -> int:
        if "setsid" in more:
            raise NotImplementedError("posix_spawn: setsid unavailable on this platform")
        return spawn(*arguments, **more)

    if not can:
        monkeypatch.setattr(os, "posix_spawn", without)
    program = "import os, sys; print(os.getsid(0) == os.getpid(), sys.argv[1:], os.environ['MARK'])"
    with (tmp_path / "output").open("wb") as output:
        files = [(os.POSIX_SPAWN_DUP2, output.fileno(), 1)]
        pid = spawn_leader([sys.executable, "-c", program, "a", "b"], {**os.environ, "MARK": "x"}, files)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "output").read_text() == "True ['a', 'b'] x\n"
