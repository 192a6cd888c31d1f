"""The guest of a loop's daemon: it has one life, and leaves as its loop has said, also where that is gone already."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from isthmus.programs.engine.machine.loop_guest import OVER_SECONDS, LoopGuest
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.supervision.incidents import Exited
from isthmus.runtime.system.lines import ProcessLine

FIRST, SECOND = (Member(Replica("learner", 3), number) for number in (1, 2))


class Machine:
    """What a guest knows of its daemon: whether it was asked to end, and what for later."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.has_ended = False
        self.delays: list[float] = []

    def request_end(self) -> None:
        self.has_ended = True

    def later(self, seconds: float, call: Any) -> None:
        self.delays.append(seconds)


class Loop:
    """As much of an event loop as a guest needs: its readers, by descriptor."""

    def __init__(self) -> None:
        self.readers: dict[int, Any] = {}

    def add_reader(self, descriptor: int, call: Any) -> None:
        self.readers[descriptor] = call

    def remove_reader(self, descriptor: int) -> None:
        self.readers.pop(descriptor, None)

    def call_soon(self, call: Any, *arguments: Any) -> None:
        call(*arguments)


class Visit:
    """A guest of this process, attached, with the loop's end of its socket and the ends of its life."""

    def __init__(self) -> None:
        self.loops, its = ProcessLine.pair()
        self.guest, self.loop = LoopGuest(os.getpid(), ProcessLine(its)), Loop()
        self.machine = Machine(self.loop)
        self.guest.start(self.machine)  # type: ignore[arg-type]
        self.ends: list[tuple[Member, Exited]] = []

    def say(self, **fields: Any) -> None:
        self.loops.send(fields)

    def watch(self, member: Member) -> None:
        self.guest.watch(member, os.getpid(), lambda who, end, seconds: self.ends.append((who, end)))

    def close(self) -> None:
        os.close(self.guest._pidfd)
        self.loops.close()
        self.guest._line.close()


@pytest.fixture
def visit() -> Iterator[Visit]:
    visit = Visit()
    yield visit
    visit.close()


def test_a_guest_that_has_a_life_gets_no_second(visit: Visit, tmp_path: Path) -> None:
    launch, started = visit.guest.life(tmp_path), list[int]()
    launch(FIRST, "ipc://x", started.append)
    visit.watch(FIRST)
    with pytest.raises(OSError):
        launch(SECOND, "ipc://x", started.append)
    assert started == [os.getpid()]
    told = visit.loops.hear()
    assert [each["life"]["incarnation"] for each in told] == [1]
    assert visit.ends == []


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("is_heard", [False, True])
def test_a_loop_that_said_how_it_ended_has_ended_so_where_it_is_gone_too(
    visit: Visit, tmp_path: Path, is_heard: bool, is_over: bool
) -> None:
    """Its end may be seen before what it said is read: this process is seen to end by the reader of its descriptor."""
    visit.guest.begin(tmp_path, FIRST, "ipc://x")
    visit.watch(FIRST)
    visit.say(ended=3, is_over=is_over)
    if is_heard:
        visit.loop.readers[visit.guest._line.fileno()]()
    visit.loop.readers[visit.guest._pidfd]()
    assert visit.ends == [(FIRST, Exited(3))]
    assert visit.machine.has_ended == (not is_over)
    assert visit.machine.delays == ([OVER_SECONDS] if is_over else [])


def test_a_loop_that_is_gone_without_a_word_has_left_by_itself(visit: Visit, tmp_path: Path) -> None:
    visit.guest.begin(tmp_path, FIRST, "ipc://x")
    visit.watch(FIRST)
    visit.loop.readers[visit.guest._pidfd]()
    assert visit.ends == [(FIRST, Exited())]
    assert visit.machine.has_ended
