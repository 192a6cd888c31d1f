"""What a daemon that has no descriptor left makes of its processes: nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.runtime.clock import Instant
from isthmus.runtime.daemon import ground
from isthmus.runtime.daemon.ground import LocalProcesses
from isthmus.runtime.daemon.ledger import identity
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.system.idleness import IdleWatch, Used

MEMBER = Member(Replica("learner", 0), 1)
FULL = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Loop:
    """A loop whose calls are made by hand."""

    def __init__(self) -> None:
        self.due: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.readers: dict[int, tuple[Callable[..., Any], tuple[Any, ...]]] = {}

    def call_soon(self, call: Callable[..., Any], *arguments: Any) -> None:
        self.due.append((call, arguments))

    def call_later(self, seconds: float, call: Callable[..., Any], *arguments: Any) -> None:
        self.due.append((call, arguments))

    def add_reader(self, descriptor: int, call: Callable[..., Any], *arguments: Any) -> None:
        self.readers[descriptor] = call, arguments

    def remove_reader(self, descriptor: int) -> None:
        del self.readers[descriptor]

    def turn(self) -> None:
        due, self.due = self.due, []
        for call, arguments in due:
            call(*arguments)

    def see_ends(self) -> None:
        for call, arguments in list(self.readers.values()):
            call(*arguments)


class Watched:
    def __init__(self) -> None:
        self.loop, self.ends = Loop(), list[Exited]()
        self.processes = LocalProcesses(self.loop)  # type: ignore[arg-type]

    def watch(self, pid: int) -> None:
        self.processes.watch(MEMBER, pid, lambda member, how, seconds: self.ends.append(how))


def refused(pid: int) -> int:
    raise FULL


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    yield process
    process.kill()
    process.returncode = 0  # Another has reaped it.


@pytest.mark.process
def test_a_process_that_cannot_be_watched_has_not_ended(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    with monkeypatch.context() as patch:
        patch.setattr(ground, "pidfd_open", refused)
        watched.watch(child.pid)
        for _ in range(3):
            watched.loop.turn()
        assert watched.ends == []
    watched.loop.turn()
    assert len(watched.loop.readers) == 1
    os.kill(child.pid, 40)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    watched.loop.see_ends()
    assert watched.ends == [Exited(signal="SIGRTMIN+6")]


@pytest.mark.process
def test_it_is_killed_and_its_end_told_without_a_descriptor(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched()
    monkeypatch.setattr(ground, "pidfd_open", refused)
    watched.watch(child.pid)
    watched.processes.kill(MEMBER)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    for _ in range(2):
        watched.loop.turn()
    assert watched.ends == [Exited(signal="SIGKILL")]


@pytest.mark.process
def test_what_raises_at_an_end_does_not_keep_it_from_being_told(
    child: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def raises(number: int) -> str:
        raise ValueError(number)

    watched = Watched()
    watched.watch(child.pid)
    os.kill(child.pid, signal.SIGTERM)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    monkeypatch.setattr(ground, "signal_name", raises)
    with pytest.raises(ValueError, match="15"):
        watched.loop.see_ends()
    assert watched.ends == [Exited()]


def test_one_that_is_gone_has_ended() -> None:
    watched = Watched()
    watched.watch(1 << 22)
    watched.loop.turn()
    assert watched.ends == [Exited()]


def test_who_cannot_be_looked_at_is_not_idle() -> None:
    looks: list[Any] = [Used(0, 0), Used(0, 0), FULL, Used(0, 0), Used(0, 0)]

    def used_by(pid: int) -> dict[tuple[int, int], Used]:
        found = looks.pop(0)
        if isinstance(found, OSError):
            raise found
        return {(1, 1): found}

    watch = IdleWatch[str](used_by)
    idle = [watch.look({"a": 1}, Instant(i * 10**9))["a"] / 1e9 for i in range(5)]
    assert idle[1] == 1.0
    assert idle[2] == 0.0
    assert idle[4] < 4.0


def test_a_folder_that_cannot_be_looked_at_is_not_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: Path, **keywords: Any) -> Any:
        raise OSError(errno.EIO, "broken")

    assert identity(tmp_path / "none") is None
    monkeypatch.setattr(Path, "stat", stat)
    with pytest.raises(OSError, match="broken"):
        identity(tmp_path)
