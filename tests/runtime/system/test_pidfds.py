"""The calls on processes by descriptor, also of an interpreter that does not have them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest

from isthmus.runtime.system.pidfds import pidfd_open, pidfd_send_signal

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
