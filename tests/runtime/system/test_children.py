"""Processes of ours beside one: they know what they are to know, are started again, and end with it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isthmus.runtime.system import children
from isthmus.runtime.system.children import Child, KeptChild, Succession
from isthmus.runtime.system.lines import ProcessLine
from isthmus.runtime.system.processes import started_at
from isthmus.runtime.system.waiting import readable
from tests.loops import run_until
from tests.patience import PATIENCE

pytestmark = pytest.mark.process

ECHO = """
import os, sys
from isthmus.runtime.system.children import serve_line
from isthmus.runtime.system.waiting import readable
line = serve_line("echo", sys.argv[-1])
while not line.is_over:
    readable([line], None)
    for message in line.hear():
        line.send({"heard": message, "pid": os.getpid(), "arguments": sys.argv[1:-1]})
line.send({"last": True})
if sys.argv[1:] and sys.argv[1] == "slow":
    import time
    time.sleep(1000)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    tmp_path.joinpath("echoing.py").write_text(ECHO)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return "echoing"


def test_a_child_hears_and_says_and_its_last_words_are_heard(module: str) -> None:
    child = Child(module, ["one", 2])
    child.line.send({"a": 1})
    assert readable([child.line], PATIENCE)
    assert child.line.hear() == [{"heard": {"a": 1}, "pid": child.pid, "arguments": ["one", "2"]}]
    assert not child.wait(0.0)
    assert child.end(PATIENCE) == [{"last": True}]
    assert child.status == 0


def test_one_that_does_not_end_is_killed_and_what_it_said_is_heard(module: str) -> None:
    child = Child(module, ["slow"])
    child.line.end()
    assert readable([child.line], PATIENCE)
    assert child.end(0.05) == [{"last": True}]
    assert child.status == -signal.SIGKILL


def test_one_that_cannot_be_watched_is_not_left(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def refused(pid: int) -> int:
        seen.append(pid)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(children, "pidfd_open", refused)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="Too many open files"):
        Child(module)
    assert started_at(seen[0]) is None
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # Of jax, where a test before this one has imported it.
def test_one_that_was_forked_is_adopted_and_another_thread_may_kill_it() -> None:
    line, its = ProcessLine.pair()
    pid = os.fork()
    if pid == 0:
        ProcessLine(its).send({"pid": os.getpid()})
        signal.pause()
    its.close()
    child = Child.adopted(pid, line)
    assert child.line.next() == {"pid": pid}
    assert not child.reap()
    thread = threading.Thread(target=child.kill)
    thread.start()
    thread.join()
    assert child.reap(PATIENCE)
    assert (child.status, started_at(pid)) == (-signal.SIGKILL, None)
    assert child.cpu_seconds > 0
    child.kill()  # Of one that is over nothing is signalled, whoever has its number.
    assert child.wait(0.0)
    assert child.end() == []


def test_of_one_that_others_have_reaped_the_status_is_unknown(module: str) -> None:
    child = Child(module)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)
    assert child.reap(PATIENCE)
    assert child.status is None


STARTING = """
import subprocess, sys
from isthmus.runtime.system.children import serve_line
line = serve_line("starting", sys.argv[-1])
line.send({"pid": subprocess.Popen(["sleep", "600"]).pid})
line.next()
"""


@pytest.mark.parametrize("is_reaped", [True, False])
def test_what_it_has_started_lives_on_where_it_is_only_reaped(module: str, tmp_path: Path, *, is_reaped: bool) -> None:
    (tmp_path / f"{module}.py").write_text(STARTING)
    child = Child(module, leads=True)
    said = child.line.next()
    assert said is not None
    child.line.end()
    assert child.wait(PATIENCE)
    if is_reaped:
        assert child.reap()
    else:
        child.end()
    assert child.status == 0
    assert (started_at(said["pid"]) is not None) == is_reaped
    if is_reaped:
        os.kill(said["pid"], signal.SIGKILL)


class Policy:
    """Of a succession: what has ended, and when the next one is due."""

    def __init__(self, module: str) -> None:
        self.module, self.now, self.delay, self.refuses = module, 0.0, 0.0, False
        self.ended: list[Child | OSError] = []
        self.children = Succession(self._start, self._follow, clock=lambda: self.now)

    def _start(self) -> Child:
        if self.refuses:
            raise OSError("no room")
        return Child(self.module)

    def _follow(self, ended: Child | OSError) -> float:
        self.ended.append(ended)
        if isinstance(ended, Child):
            ended.reap()
        self.now += 5.0  # To see to it takes its time.
        return self.delay


def test_in_a_succession_the_next_one_is_started_once_it_is_due(module: str) -> None:
    policy = Policy(module)
    children = policy.children
    assert children.go_on()
    first = children.child
    assert first is not None
    children.look()
    assert not children.go_on()  # One is there.
    first.kill()
    assert first.wait(PATIENCE)
    policy.delay = 2.0
    children.look()
    assert (policy.ended, children.child, children.seconds) == ([first], None, 2.0)
    policy.now += 1.5
    assert not children.go_on()
    policy.now += 0.5
    policy.refuses = True
    assert not children.go_on()
    assert isinstance(policy.ended[1], OSError)
    assert children.seconds == 2.0
    policy.now, policy.refuses = policy.now + 2.0, False
    assert children.go_on()
    assert children.child is not None
    children.child.end()


class Kept:
    """A kept child with what it was told, and what it has said."""

    def __init__(self, module: str) -> None:
        self.loop = uvloop.new_event_loop()
        self.state: dict[str, Any] = {"number": 0}
        self.said: list[Mapping[str, Any]] = []
        self.lines: list[str] = []
        self.begun: list[float] = []
        self.module, self.refuses = module, 0
        self.child = KeptChild("the echo", self._start, state=lambda: dict(self.state), hear=self.said.append)
        self.child.start(self.loop, self.lines.append)

    def _start(self) -> Child:
        self.begun.append(self.loop.time())
        if self.refuses:
            self.refuses -= 1
            raise OSError("no room")
        return Child(self.module)

    def until(self, holds: Any) -> None:
        run_until(self.loop, holds)

    def heard(self) -> list[Any]:
        return [each["heard"] for each in self.said if "heard" in each]


@pytest.fixture
def kept(module: str) -> Iterator[Kept]:
    made = Kept(module)
    yield made
    made.child.close()
    made.loop.close()


def test_a_state_is_told_when_it_changes_and_to_each_that_is_started(kept: Kept) -> None:
    kept.until(lambda: kept.heard() == [{"number": 0}])
    kept.state["number"] = 1
    kept.until(lambda: kept.heard() == [{"number": 0}, {"number": 1}])
    assert kept.child.pid is not None
    os.kill(kept.child.pid, signal.SIGKILL)
    kept.until(lambda: len(kept.heard()) == 3)
    assert kept.heard()[2] == {"number": 1}
    assert len({each["pid"] for each in kept.said}) == 2
    assert kept.lines == ["the echo has died, and is started again; connections through it are made anew"]


def test_what_it_said_before_its_end_is_heard(kept: Kept) -> None:
    kept.until(kept.heard)
    kept.child.close()
    kept.child.close()
    assert kept.child.pid is None


def test_it_is_started_once_a_second_at_most_also_where_there_is_no_room(kept: Kept) -> None:
    kept.refuses = 1
    for number in range(3):
        kept.until(lambda number=number: kept.child.pid is not None and len(kept.heard()) == number + 1)
        assert kept.child.pid is not None
        os.kill(kept.child.pid, signal.SIGKILL)
    kept.until(lambda: len(kept.heard()) == 4)
    assert all(later - earlier >= 0.99 for earlier, later in pairwise(kept.begun))
    assert [line for line in kept.lines if "cannot be started" in line] == [
        "the echo cannot be started, which is tried again: no room"
    ]


def test_a_line_that_is_full_gets_the_newest_state_later(kept: Kept) -> None:
    kept.until(kept.heard)
    pid = kept.child.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    for number in range(1, 40):
        kept.state = {"number": number, "fill": "x" * 20_000}
        assert kept.child._children.child is not None
        kept.child._say_to(kept.child._children.child)
    os.kill(pid, signal.SIGCONT)
    kept.until(lambda: kept.heard()[-1]["number"] == 39)
    assert len(kept.heard()) < 40


def test_a_state_of_more_than_a_line_has_room_for_arrives_though_it_changes_no_more(kept: Kept) -> None:
    kept.until(kept.heard)
    kept.state = {"fill": "x" * (4 << 20)}
    kept.until(lambda: kept.heard()[-1] == kept.state)
