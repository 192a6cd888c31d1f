"""The calls on processes by descriptor, also of an interpreter that does not have them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from typing import Final

import pytest

from isthmus.runtime.system.pidfds import exit_status, pidfd_open, pidfd_send_signal

pytestmark = pytest.mark.process


@pytest.fixture(params=["the interpreter's", "by number"])
def calls(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "by number":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
        monkeypatch.delattr(signal, "pidfd_send_signal", raising=False)


@pytest.mark.usefixtures("calls")
def test_a_process_is_watched_and_signalled_by_its_descriptor() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watch = pidfd_open(process.pid)
        assert not os.get_inheritable(watch)
        assert select.select([watch], [], [], 0)[0] == []
        pidfd_send_signal(watch, signal.SIGKILL)
        assert select.select([watch], [], [], 60)[0] == [watch]
        assert process.wait() == -signal.SIGKILL
        with pytest.raises(ProcessLookupError):
            pidfd_send_signal(watch, signal.SIGKILL)
        os.close(watch)
    with pytest.raises(OSError, match="Bad file descriptor"):
        pidfd_send_signal(watch, 0)
    with pytest.raises(ProcessLookupError):
        pidfd_open(process.pid)


OF_ANOTHER: Final = """
import os, sys
if not os.fork():
    print(os.getpid(), flush=True)
    os.read({ends}, 1)
    {end}
sys.stdin.readline()
os.wait()
print("reaped", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("end", "status"), [("os._exit(0)", 0), ("os._exit(7)", 7), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)]
)
def test_how_a_process_of_another_parent_has_ended_is_known(end: str, status: int) -> None:
    ends, let = os.pipe()
    command = [sys.executable, "-c", OF_ANOTHER.format(end=end, ends=ends)]
    pipes = subprocess.PIPE, subprocess.PIPE
    with subprocess.Popen(command, -1, None, *pipes, pass_fds=(ends,)) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watch = pidfd_open(pid)
        assert exit_status(watch, pid) is None, "it lives"
        os.write(let, b"!")
        assert select.select([watch], [], [], 60)[0] == [watch]
        assert exit_status(watch, pid) == status, "it is not reaped"
        parent.stdin.write(b"reap\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == b"reaped\n"
        is_told = tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)
        assert exit_status(watch, pid) == (status if is_told else None)
        for each in (watch, ends, let):
            os.close(each)
