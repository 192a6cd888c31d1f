"""Processes of ours beside one: they know what they are to know, are started again, and end with it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import uvloop

from isthmus.runtime.system import children
from isthmus.runtime.system.children import Child, KeptChild
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
        kept.child._say()
    os.kill(pid, signal.SIGCONT)
    kept.until(lambda: kept.heard()[-1]["number"] == 39)
    assert len(kept.heard()) < 40


def test_a_state_of_more_than_a_line_has_room_for_arrives_though_it_changes_no_more(kept: Kept) -> None:
    kept.until(kept.heard)
    kept.state = {"fill": "x" * (4 << 20)}
    kept.until(lambda: kept.heard()[-1] == kept.state)
