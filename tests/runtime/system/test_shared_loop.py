"""A loop that threads take turns with."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from isthmus.runtime.system.shared_loop import SharedLoop
from tests.patience import PATIENCE


class Running:
    """A shared loop in a thread of its own, and what its exception handler was told."""

    def __init__(self, plain: asyncio.AbstractEventLoop) -> None:
        self.loop = SharedLoop(plain)
        self.errors: list[BaseException] = []
        plain.set_exception_handler(lambda _, context: self.errors.append(context["exception"]))
        self.thread = threading.Thread(target=self.loop.run_forever, name="loop", daemon=True)
        self.thread.start()
        self.settle()  # Until the loop runs, every thread is taken for its own.

    def settle(self) -> None:
        """Wait until the loop has done what it was asked for."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(done.set)
        assert done.wait(PATIENCE)

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that the loop's thread, or none, brings about."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def on_loop(self, function: Callable[[], Any]) -> None:
        """Call a function on the loop, and wait for its end."""
        self.loop.call_soon_threadsafe(function)
        self.settle()


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(request.param())
    yield running
    running.loop.stop()
    running.thread.join(PATIENCE)
    running.loop.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def here() -> str:
    return threading.current_thread().name


# -- turns -------------------------------------------------------------------------------------------------------------


def test_what_is_asked_for_in_a_turn_is_done_at_its_end_in_that_thread_in_order(running: Running) -> None:
    seen: list[tuple[int, str]] = []
    with running.loop.turn:
        for number in range(5):
            running.loop.call_soon(lambda number: seen.append((number, here())), number)
        assert seen == []
    assert seen == [(number, here()) for number in range(5)]


def test_what_follows_from_the_end_of_a_turn_is_left_to_the_loop(running: Running) -> None:
    seen: list[str] = []

    def again() -> None:
        seen.append(here())
        if len(seen) < 20:
            running.loop.call_soon(again)

    with running.loop.turn:
        running.loop.call_soon(again)
    running.until(lambda: len(seen) == 20)
    assert seen == [here(), *["loop"] * 19]


def test_on_the_loop_a_callback_comes_after_what_is_queued_there(running: Running) -> None:
    seen: list[tuple[int, str]] = []

    def ask() -> None:
        for number in range(3):
            running.loop.call_soon(lambda number: seen.append((number, here())), number)
        seen.append((-1, here()))

    running.on_loop(ask)
    running.settle()
    assert seen == [(-1, "loop"), (0, "loop"), (1, "loop"), (2, "loop")]


def test_nobody_has_a_turn_while_another_has(running: Running) -> None:
    inside: list[str] = []
    most = [0]
    counted = [0]

    def enter() -> None:
        inside.append(here())
        most[0] = max(most[0], len(inside))
        time.sleep(0.0002)
        counted[0] += 1
        inside.pop()

    def work() -> None:
        for _ in range(100):
            with running.loop.turn:
                enter()
                running.loop.call_soon(enter)
            running.loop.call_soon_threadsafe(enter)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    running.until(lambda: counted[0] == 900)
    assert most == [1]


def test_what_a_callback_raises_at_the_end_of_a_turn_is_raised_on_the_loop_and_the_others_are_called(
    running: Running,
) -> None:
    error = ValueError("why")
    seen: list[str] = []

    def fail() -> None:
        raise error

    with running.loop.turn:
        running.loop.call_soon(fail)
        running.loop.call_soon(seen.append, "other")
    running.settle()
    assert (seen, running.errors) == (["other"], [error])


def test_a_turn_in_which_something_is_raised_ends(running: Running) -> None:
    seen: list[str] = []

    def fail() -> None:
        with running.loop.turn:
            running.loop.call_soon(seen.append, "asked")
            raise ValueError("why")

    with pytest.raises(ValueError, match="why"):
        fail()
    assert seen == ["asked"]
    running.on_loop(lambda: seen.append("loop"))
    assert seen == ["asked", "loop"]


def test_a_cancelled_callback_is_not_called(running: Running) -> None:
    seen: list[str] = []
    with running.loop.turn:
        running.loop.call_soon(seen.append, "here").cancel()
    running.on_loop(lambda: running.loop.call_soon(seen.append, "loop").cancel())
    running.settle()
    assert seen == []


# -- timers ------------------------------------------------------------------------------------------------------------


def test_a_timer_set_in_another_threads_turn_comes_on_the_loop_and_not_before_its_time(running: Running) -> None:
    seen: list[tuple[float, str]] = []
    begun = time.monotonic()
    with running.loop.turn:
        running.loop.call_later(0.02, lambda: seen.append((time.monotonic(), here())))
    running.until(lambda: bool(seen))
    ((came, thread),) = seen
    assert thread == "loop"
    assert came - begun >= 0.019


@pytest.mark.parametrize("is_set_on_loop", [True, False])
@pytest.mark.parametrize("is_cancelled_on_loop", [True, False])
@pytest.mark.slow
def test_a_timer_may_be_cancelled_in_any_turn(
    running: Running, is_set_on_loop: bool, is_cancelled_on_loop: bool
) -> None:
    seen: list[str] = []
    timers: list[Any] = []

    def in_turn(is_on_loop: bool, function: Callable[[], Any]) -> None:
        if is_on_loop:
            running.on_loop(function)
        else:
            with running.loop.turn:
                function()

    in_turn(is_set_on_loop, lambda: timers.append(running.loop.call_later(0.5, seen.append, "came")))
    in_turn(is_cancelled_on_loop, lambda: timers[0].cancel())
    later = threading.Event()
    running.on_loop(lambda: running.loop.call_later(0.6, later.set))
    assert later.wait(PATIENCE)
    assert seen == []


# -- files -------------------------------------------------------------------------------------------------------------


class Reader:
    """Reads a pipe, and notes what came, and in which thread."""

    def __init__(self, running: Running, pipe: tuple[int, int]) -> None:
        self.seen: list[tuple[bytes, str]] = []
        self.fd = pipe[0]
        with running.loop.turn:
            running.loop.add_reader(self.fd, lambda: self.seen.append((os.read(self.fd, 100), here())))


def test_the_loop_sees_to_a_file_that_can_be_read(running: Running, pipe: tuple[int, int]) -> None:
    reader = Reader(running, pipe)
    os.write(pipe[1], b"one")
    running.until(lambda: bool(reader.seen))
    os.write(pipe[1], b"two")
    running.until(lambda: len(reader.seen) == 2)
    assert reader.seen == [(b"one", "loop"), (b"two", "loop")]


def test_who_has_the_turn_may_see_to_it_instead(running: Running, pipe: tuple[int, int]) -> None:
    reader = Reader(running, pipe)
    with running.loop.turn:
        running.loop.poll()
        os.write(pipe[1], b"one")
        running.loop.poll()
    running.settle()
    assert reader.seen == [(b"one", here())]


def test_a_loop_that_does_not_listen_leaves_files_until_it_does(running: Running, pipe: tuple[int, int]) -> None:
    reader = Reader(running, pipe)
    with running.loop.turn:
        running.loop.listen(False)
    os.write(pipe[1], b"one")
    waited = threading.Event()
    running.on_loop(lambda: running.loop.call_later(0.05, waited.set))
    assert waited.wait(PATIENCE)
    assert reader.seen == []
    with running.loop.turn:
        running.loop.poll()
    assert reader.seen == [(b"one", here())]
    os.write(pipe[1], b"two")
    with running.loop.turn:
        running.loop.listen(True)
    running.until(lambda: len(reader.seen) == 2)
    assert reader.seen[1] == (b"two", "loop")


def test_a_file_that_is_watched_no_more_is_let_alone(running: Running, pipe: tuple[int, int]) -> None:
    reader = Reader(running, pipe)
    with running.loop.turn:
        os.write(pipe[1], b"one")
        assert running.loop.remove_reader(reader.fd)
        assert not running.loop.remove_reader(reader.fd)
        running.loop.poll()
    running.settle()
    assert reader.seen == []


def test_a_reader_may_end_another(running: Running) -> None:
    seen: list[int] = []
    pipes = [os.pipe() for _ in range(2)]
    with running.loop.turn:
        for one, other in (pipes, pipes[::-1]):

            def read(mine: int = one[0], theirs: int = other[0]) -> None:
                seen.append(mine)
                running.loop.remove_reader(mine)
                running.loop.remove_reader(theirs)

            running.loop.add_reader(one[0], read)
        for _, end in pipes:
            os.write(end, b"x")
        running.loop.poll()
    running.settle()
    assert len(seen) == 1
    for ends in pipes:
        for end in ends:
            os.close(end)


def test_what_a_reader_raises_is_raised_on_the_loop_and_the_turn_goes_on(running: Running) -> None:
    error = ValueError("why")
    ends = os.pipe()

    def fail() -> None:
        os.read(ends[0], 1)
        raise error

    seen: list[str] = []
    with running.loop.turn:
        running.loop.add_reader(ends[0], fail)
        os.write(ends[1], b"x")
        running.loop.poll()
        seen.append("went on")
        running.loop.remove_reader(ends[0])
    running.settle()
    assert (seen, running.errors) == (["went on"], [error])
    for end in ends:
        os.close(end)
