"""The fork server by itself: its daemon may die at any moment, and then it ends without a word."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

REQUEST = json.dumps({"name": "learner/0", "incarnation": 1, "endpoint": "tcp://127.0.0.1:1"}).encode()


@pytest.mark.parametrize("answered", [0, 1], ids=["before-an-answer", "with-an-answer-unread"])
def test_without_its_daemon_it_ends(tmp_path: Path, answered: int) -> None:
    daemon, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "isthmus.programs.fork_server", str(tmp_path), str(its.fileno())]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, pass_fds=[its.fileno()])
    its.close()
    daemon.settimeout(60)
    # There is no run in the folder, so a request is refused: an answer that nobody may be there to hear.
    daemon.send(REQUEST)
    if answered:
        assert daemon.recv(1, socket.MSG_PEEK)
    daemon.close()
    _, error = server.communicate(timeout=60)
    assert (server.returncode, error) == (0, "")


def test_it_says_why_it_cannot_fork(tmp_path: Path) -> None:
    daemon, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "isthmus.programs.fork_server", str(tmp_path), str(its.fileno())]
    with daemon, subprocess.Popen(command, pass_fds=[its.fileno()]) as server:
        its.close()
        daemon.settimeout(60)
        daemon.send(REQUEST)
        assert "preparing the hosts failed" in json.loads(daemon.recv(1 << 16))["refused"]
        daemon.close()
        assert server.wait(60) == 0
