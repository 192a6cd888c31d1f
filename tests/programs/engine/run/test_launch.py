"""A launcher and real processes: each fork server is reaped once and counted, and no host is waited for without end.

There is no run in the folder, so that a fork server refuses, and a host that is started ends at once with status 1.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isthmus.programs.engine.run import launch
from isthmus.programs.engine.run.fork_server import TITLE
from isthmus.programs.engine.run.launch import Launcher
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.system import files
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import started_at
from tests.effort import long
from tests.loops import run_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

LEARNER = Replica("learner", 0)
SUBREAPER = 36
TASK = "mine.py:task"


class Place:
    """A launcher on a loop."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.loop = folder, uvloop.new_event_loop()
        self.launch = Launcher(self.loop, folder, ["learner"], lambda replica: TASK)
        self.pids: list[int] = []
        self._others = children()

    def children(self) -> list[int]:
        """Those of this process that the launcher has started."""
        return [pid for pid in children() if pid not in self._others]

    def ask(self, incarnation: int = 1) -> None:
        self.launch(Member(LEARNER, incarnation), "tcp://127.0.0.1:1", self.pids.append)

    def servers(self) -> list[int]:
        """The pids of fork servers that are there, and run their program."""
        return [pid for pid in self.children() if b"fork" in title(pid)]

    def ready(self) -> int:
        """The pid of the fork server that is ready; 0 if there is none."""
        return next((pid for pid in self.servers() if title(pid).rstrip(b"\0") == TITLE.encode()), 0)

    def server(self) -> int:
        """The pid of the fork server that was started last, once it runs its program."""
        (pid,) = self.wait_for(self.servers)
        return int(pid)

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """Let the loop run until something has come about."""
        run_until(self.loop, what, PATIENCE)
        return what()

    def close(self) -> None:
        self.launch.close()
        for pid in self.pids:
            os.waitpid(pid, 0)
        self.wait_for(lambda: not self.children())
        self.loop.close()


def children() -> list[int]:
    """The children of this process, zombies among them, that lead a group of their own."""
    found = [int(pid) for pid in Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split()]
    return [pid for pid in found if os.getpgid(pid) != os.getpgid(0)]


def title(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.close()
    ctypes.CDLL(None).prctl(SUBREAPER, 0, 0, 0, 0)


def said(capfd: pytest.CaptureFixture[str]) -> str:
    return capfd.readouterr().out


def test_logs_stay_short_while_it_is_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    log = place.folder / "logs" / "learner-0.log"
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.05)
    launcher = Launcher(place.loop, place.folder, ["learner"], lambda replica: TASK)
    for _ in range(2):
        log.write_bytes(bytes(files.LOG_BYTES + 1))
        place.wait_for(lambda: not log.stat().st_size)
        assert files.former(log).stat().st_size == files.LOG_BYTES
    launcher.close()


def test_what_it_refuses_is_started_from_nothing(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    assert place.launch.prepare([LEARNER, Replica("syncer", 0)]) == [Replica("syncer", 0), LEARNER]
    place.ask()
    place.wait_for(lambda: place.pids)
    assert "learner/0#1 is started from nothing: preparing the hosts failed" in said(capfd)
    assert place.launch.cpu_seconds == 0.0
    server = place.server()
    place.launch.close()
    assert server not in place.children()
    used = place.launch.cpu_seconds
    assert 0 < used < PATIENCE
    place.launch.close()
    assert place.launch.cpu_seconds == used


@pytest.mark.parametrize("is_reaped", [False, long(True)], ids=["reaped-here", "reaped-by-others"])
def test_one_that_dies_is_counted_where_that_can_be(
    place: Place, capfd: pytest.CaptureFixture[str], is_reaped: bool
) -> None:
    place.ask()
    server = place.server()
    os.kill(server, signal.SIGKILL)
    if is_reaped:
        os.waitpid(server, 0)
    place.wait_for(lambda: place.pids)
    assert (place.launch.cpu_seconds > 0) is not is_reaped
    assert f"the fork server {'has ended' if is_reaped else 'was ended by SIGKILL'}; look at" in said(capfd)
    place.ask(2)
    place.wait_for(lambda: len(place.pids) == 2)
    assert place.server() != server


@pytest.mark.long
def test_one_that_was_ready_is_replaced_at_once_and_not_for_ever(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "UNASKED_MAX", 2)
    place.ask()
    place.wait_for(lambda: place.pids)
    known = list[int]()
    for _ in range(3):
        place.wait_for(lambda: place.ready() not in (0, *known))
        known.append(place.ready())
        os.kill(known[-1], signal.SIGKILL)
    told = list[str]()

    def is_told(words: str) -> bool:
        told.append(said(capfd))
        return words in "".join(told)

    place.wait_for(lambda: is_told("the next host that computes gets a new one"))
    assert "".join(told).count("a new one is started") == 2
    place.ask(2)
    place.wait_for(lambda: len(place.pids) == 2)
    assert place.ready()


def test_one_that_reads_no_requests_is_not_waited_for(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place.launch.prepare([LEARNER]) == [LEARNER]
    monkeypatch.setattr(ProcessLine, "offer", lambda line, message: False)  # It has no room for another one.
    place.ask()
    assert len(place.pids) == 1
    assert "from nothing: the fork server takes no request" in said(capfd)


@pytest.mark.long
def test_one_that_is_stopped_while_it_prepares_is_not_waited_for(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "ANSWER_TICKS_MAX", 2)
    place.ask()
    server = place.server()
    os.kill(server, signal.SIGSTOP)
    place.wait_for(lambda: place.pids)
    assert "from nothing: the fork server did not answer for 2 s, and was killed" in said(capfd)
    assert server not in place.children()


@pytest.mark.long
def test_one_that_is_busy_preparing_has_longer(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "TICK_SECONDS", 0.02)
    monkeypatch.setattr(launch, "ANSWER_TICKS_MAX", 50)
    held = place.folder / "held"
    held.touch()
    wait = f"import os, time\nwhile os.path.exists({str(held)!r}):\n    time.sleep(0.02)\n"
    (place.folder / "sitecustomize.py").write_text(wait)  # Each Python that begins from now on waits.
    monkeypatch.setenv("PYTHONPATH", str(place.folder))
    place.ask()
    busy_until = place.loop.time() + 2.0
    place.wait_for(lambda: place.loop.time() > busy_until)
    assert place.pids == []
    monkeypatch.setattr(launch, "ANSWER_TICKS_MAX", 1 << 20)  # It has answered in its own time, from here on.
    held.unlink()  # There is no spec to prepare by.
    place.wait_for(lambda: place.pids)
    assert "preparing the hosts failed" in said(capfd)


def test_a_machine_without_room_is_asked_until_there_is_some(
    place: Place, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place.ask()
    server, spawn, tries = place.server(), os.posix_spawn, list[int]()

    def refuse(*given: Any, **more: Any) -> int:
        tries.append(1)
        if len(tries) < 3:
            raise BlockingIOError("no room")
        return spawn(*given, **more)

    monkeypatch.setattr(launch, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(os, "posix_spawn", refuse)
    os.kill(server, signal.SIGKILL)
    place.wait_for(lambda: place.pids)
    assert len(tries) == 3
    assert said(capfd).count("learner/0#1 cannot be started") == 1


def test_without_room_nothing_is_prepared_and_whoever_asks_is_told(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **more: Any) -> int:
        raise BlockingIOError("no room")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert place.launch.prepare([LEARNER]) == [LEARNER]
    with pytest.raises(BlockingIOError, match="no room"):
        place.ask()


@pytest.mark.long
def test_a_disk_that_takes_no_log_costs_the_log(place: Place) -> None:
    (place.folder / "logs").rmdir()
    place.ask()
    place.wait_for(lambda: place.pids)
    assert started_at(place.server()) is not None
