"""Threads and the real clock."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import uvloop

from isthmus.runtime.clock import Instant, milliseconds
from isthmus.runtime.host.threads import ThreadExecutor
from isthmus.runtime.system.loop_clock import LoopClock
from isthmus.runtime.system.shared_loop import SharedLoop
from tests.patience import PATIENCE


class Running:
    """A loop in a thread of its own, with its clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.plain, self.loop = loop, SharedLoop(loop)
        self.clock = LoopClock(self.loop)
        self.errors: list[Any] = []
        loop.set_exception_handler(lambda _, context: self.errors.append(context))
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function on the loop and wait for its result."""
        results: list[Any] = []
        done = threading.Event()

        def callback() -> None:
            results.append(function())
            done.set()

        self.loop.call_soon_threadsafe(callback)
        assert done.wait(PATIENCE)
        return results[0]

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(PATIENCE)
        self.loop.close()


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    running = Running(request.param())
    yield running
    if not running.loop.is_closed():
        running.close()
    assert running.errors == []


@pytest.fixture
def executor(running: Running) -> Iterator[ThreadExecutor]:
    executor = ThreadExecutor(running.loop, "learner/0")
    yield executor
    executor.close()
    assert executor.join(PATIENCE)


class Results:
    """What `done` was called with, by whom."""

    def __init__(self, count: int) -> None:
        self.seen: list[tuple[Any, BaseException | None]] = []
        self.threads: set[str] = set()
        self._count = count
        self._all = threading.Event()

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.seen.append((result, error))
        self.threads.add(threading.current_thread().name)
        if len(self.seen) == self._count:
            self._all.set()

    def wait(self) -> list[tuple[Any, BaseException | None]]:
        assert self._all.wait(PATIENCE)
        return self.seen


# -- the executor ------------------------------------------------------------------------------------------------------


def test_a_nodes_work_is_done_in_order_and_told_in_one_thread(executor: ThreadExecutor) -> None:
    results = Results(200)
    for number in range(200):
        work = lambda number=number: (number, threading.current_thread().name)  # noqa: E731
        executor.submit(3, work, results)
    assert results.wait() == [((number, "learner/0:3"), None) for number in range(200)]
    assert results.threads == {"learner/0:3"}


def test_no_two_firings_of_one_node_run_at_once_and_nodes_do_not_wait_for_each_other(executor: ThreadExecutor) -> None:
    results = Results(40)
    busy: Counter[int] = Counter()
    together = threading.Barrier(4)
    overlaps: list[int] = []

    def work(node: int, number: int) -> None:
        busy[node] += 1
        if busy[node] > 1:
            overlaps.append(node)
        if number == 0:
            together.wait(PATIENCE)  # Passes only if all four nodes run at the same time.
        busy[node] -= 1

    for number in range(10):
        for node in range(4):
            executor.submit(node, lambda node=node, number=number: work(node, number), results)
    assert results.wait() == [(None, None)] * 40
    assert overlaps == []


class StrangeError(BaseException):
    """Not an Exception."""


@pytest.mark.parametrize("error", [ValueError("why"), SystemExit(1), StrangeError()])
def test_what_work_raises_is_told_and_the_thread_goes_on(executor: ThreadExecutor, error: BaseException) -> None:
    results = Results(2)

    def work() -> None:
        raise error

    executor.submit(0, work, results)
    executor.submit(0, lambda: "next", results)
    assert results.wait() == [(None, error), ("next", None)]


def test_work_that_has_begun_ends_after_a_close_and_nobody_is_told(running: Running) -> None:
    executor = ThreadExecutor(running.loop, "learner/0")
    begun, go_on = threading.Event(), threading.Event()
    seen: list[str] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)
        seen.append("ended")

    executor.submit(0, work, lambda result, error: seen.append("told"))
    executor.submit(0, lambda: seen.append("second"), lambda result, error: seen.append("told"))
    assert begun.wait(PATIENCE)
    executor.close()
    assert not executor.join(0.0)
    go_on.set()
    assert executor.join(PATIENCE)
    running.call(lambda: None)
    assert seen == ["ended"]


def test_what_done_raises_is_raised_on_the_loop_and_the_thread_goes_on(running: Running) -> None:
    executor = ThreadExecutor(running.loop, "learner/0")
    raised: list[Any] = []
    running.call(lambda: running.plain.set_exception_handler(lambda loop, told: raised.append(told["exception"])))
    results, error = Results(1), ValueError("why")

    def done(result: Any, caught: BaseException | None) -> None:
        raise error

    executor.submit(0, lambda: "first", done)
    executor.submit(0, lambda: "next", results)
    assert results.wait() == [("next", None)]
    running.call(lambda: None)
    assert raised == [error]
    executor.close()
    assert executor.join(PATIENCE)


def test_a_closed_executor_takes_no_work_and_starts_no_thread(running: Running) -> None:
    executor = ThreadExecutor(running.loop, "learner/0")
    executor.close()
    executor.submit(0, lambda: 1 // 0, lambda result, error: None)
    assert executor.join(0.0)


def test_threads_end_when_the_loop_has_been_closed_before(running: Running) -> None:
    executor = ThreadExecutor(running.loop, "learner/0")
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert go_on.wait(PATIENCE)

    executor.submit(0, work, lambda result, error: None)
    assert begun.wait(PATIENCE)
    running.close()
    go_on.set()
    executor.close()
    assert executor.join(PATIENCE)


# -- the clock ---------------------------------------------------------------------------------------------------------


def test_time_only_grows(running: Running) -> None:
    instants = [running.clock.now() for _ in range(1000)]
    assert instants == sorted(instants)
    assert instants[0] >= 0


@pytest.mark.parametrize("delay_ms", [-5.0, 0.0, 0.02, 0.4, 0.6, 1.0, 1.49, 2.51, 4.999, 7.3])
def test_a_call_is_never_early(running: Running, delay_ms: float) -> None:
    results = Results(20)
    clock = running.clock

    def ask() -> None:
        at = Instant(clock.now() + milliseconds(delay_ms))
        clock.call_at(at, lambda: results(clock.now() - at, None))

    for _ in range(20):
        running.call(ask)
    assert min(late for late, _ in results.wait()) >= 0


def test_a_cancelled_call_is_not_made(running: Running) -> None:
    seen: list[str] = []
    clock = running.clock
    over = threading.Event()

    def ask() -> None:
        now = clock.now()
        cancels = [
            clock.call_at(Instant(now + milliseconds(delay)), lambda delay=delay: seen.append(delay))
            for delay in (-1, 0, 0.3, 1, 2)
        ]
        for cancel in cancels:
            cancel()
            cancel()
        clock.call_at(Instant(now + milliseconds(4)), over.set)

    running.call(ask)
    assert over.wait(PATIENCE)
    assert seen == []


def test_calls_from_any_thread_are_made_on_the_loop_in_order(running: Running) -> None:
    results = Results(101)
    for number in range(100):
        running.clock.post(lambda number=number: results(number, None))
    running.call(lambda: running.clock.call_soon(lambda: results(100, None)))
    assert [number for number, _ in results.wait()] == list(range(101))
    assert results.threads == {running.thread.name}


def test_a_post_to_a_closed_loop_is_forgotten(running: Running) -> None:
    running.close()
    running.clock.post(lambda: None)
