"""The fork server by itself: its daemon may die at any moment, and it too, without leaving anything behind."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
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
fork_server.Forks(Path(sys.argv[1]), ProcessLine.inherited(sys.argv[2]), {}).serve(request)
"""
"""Forks one host, for which there is no run: it says so in its log, if it is let go."""
SPARE = """
import os, sys
from pathlib import Path
from isthmus.programs.engine.run import fork_server, spare
from isthmus.runtime.system.lines import ProcessLine
spare.AFTER_SECONDS, spare.has_room = 0.0, lambda run_spec: True
spare.warm = lambda folder, run_spec, body: (folder / f"warm-{os.getpid()}").write_text("")
fork_server.spec.load = lambda folder: None
forks = fork_server.Forks(Path(sys.argv[1]), ProcessLine.inherited(sys.argv[2]), {}, object())
while request := forks.next_request():
    forks.serve(request)
"""
"""Serves requests with a spare, which writes a file where others compile."""
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


@pytest.mark.parametrize("what", ["taken", "for another role", "killed", "its server dies"])
def test_a_spare_is_the_next_learner_unless_it_is_dead(tmp_path: Path, what: str) -> None:
    (tmp_path / "logs").mkdir()
    daemon, its = ProcessLine.pair()
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    try:
        command = [sys.executable, "-c", SPARE, str(tmp_path), str(its.fileno())]
        with subprocess.Popen(command, pass_fds=[its.fileno()], process_group=0) as server:
            its.close()
            spare = spare_of(tmp_path)
            if what == "its server dies":
                server.kill()
                assert os.waitpid(spare, 0) == (spare, 0)
                return
            if what == "killed":
                os.kill(spare, signal.SIGKILL)
                os.waitpid(spare, 0)
            daemon.send(REQUEST if what != "for another role" else {**REQUEST, "name": "evaluator/0"})
            answer = daemon.next()
            assert answer is not None
            assert (answer["pid"] == spare) == (what == "taken")
            os.waitpid(answer["pid"], 0)  # There is no run: it has said so in its log.
            assert (tmp_path / "logs" / f"{'evaluator' if what == 'for another role' else 'learner'}-0.log").exists()
            daemon.close()
            assert server.wait(60) == 0
            while True:  # What waits for a request, in the group of its server, ends with it.
                try:
                    os.waitpid(-server.pid, 0)
                except ChildProcessError:
                    break
    finally:
        ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)
        daemon.close()


def spare_of(folder: Path) -> int:
    """The pid of the first spare, once it is warm, and a child of this process."""
    until = time.monotonic() + PATIENCE
    while True:
        for path in folder.glob("warm-*"):
            pid = path.name.removeprefix("warm-")
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] == str(os.getpid()):
                return int(pid)
        assert time.monotonic() < until
        time.sleep(0.01)
