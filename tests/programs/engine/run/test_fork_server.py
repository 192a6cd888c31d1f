"""The fork server by itself: its daemon may die at any moment, and it too, without leaving anything behind."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.waiting import readable
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

SUBREAPER = 36
FORK = """
import os, signal, sys
from pathlib import Path
from isthmus.programs.engine.run import fork_server
from isthmus.runtime.system.lines import ProcessLine
if sys.argv[3] == "dies":
    ProcessLine.send = lambda daemon, answer: os.kill(os.getpid(), signal.SIGKILL)
request = {"name": "learner/0", "incarnation": 1, "endpoint": "tcp://127.0.0.1:1"}
fork_server._fork(Path(sys.argv[1]), ProcessLine.inherited(sys.argv[2]), request, {})
"""
"""Forks one host, for which there is no run: it says so in its log, if it is let go."""
REQUEST = {"name": "learner/0", "incarnation": 1, "endpoint": "tcp://127.0.0.1:1"}


def command_of(folder: Path, its: socket.socket) -> list[str]:
    """The command of a fork server for a run in a folder, with its end of the line."""
    return [sys.executable, "-m", "isthmus.programs.engine.run.fork_server", str(folder), "task", str(its.fileno())]


@pytest.mark.long
@pytest.mark.parametrize("answered", [0, 1], ids=["before-an-answer", "with-an-answer-unread"])
def test_without_its_daemon_it_ends(tmp_path: Path, answered: int) -> None:
    daemon, its = ProcessLine.pair()
    command = command_of(tmp_path, its)
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=[its.fileno()])
    its.close()
    # There is no run in the folder, so a request is refused: an answer that nobody may be there to hear.
    daemon.send(REQUEST)
    if answered:
        assert readable([daemon], PATIENCE)
    daemon.close()
    _, error = server.communicate(timeout=PATIENCE)
    assert (server.returncode, error) == (0, "")


def test_it_says_why_it_cannot_fork(tmp_path: Path) -> None:
    daemon, its = ProcessLine.pair()
    with subprocess.Popen(command_of(tmp_path, its), pass_fds=[its.fileno()]) as server:
        its.close()
        daemon.send(REQUEST)
        assert daemon.next() == {"ready": True}
        answer = daemon.next()
        assert answer is not None
        assert "preparing the hosts failed" in answer["refused"]
        daemon.close()
        assert server.wait(60) == 0


@pytest.mark.parametrize("how", ["dies", "answers"])
def test_a_host_begins_only_once_its_pid_is_known(tmp_path: Path, how: str) -> None:
    (tmp_path / "logs").mkdir()
    daemon, its = ProcessLine.pair()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        command = [sys.executable, "-c", FORK, str(tmp_path), str(its.fileno()), how]
        with subprocess.Popen(command, pass_fds=[its.fileno()], process_group=0) as server:
            its.close()
            said = daemon.next()
            assert server.wait(60) == (-signal.SIGKILL if how == "dies" else 0)
            host = said["pid"] if said else -server.pid
            _, status = os.waitpid(host, 0)  # Of a host whose pid nobody knows it is known that it is in the group.
            assert os.waitstatus_to_exitcode(status) == (0 if how == "dies" else 1)
            with pytest.raises(ChildProcessError):
                os.waitpid(-server.pid, os.WNOHANG)
    finally:
        ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)
        daemon.close()
    assert (tmp_path / "logs" / "learner-0.log").exists() == (how == "answers")
