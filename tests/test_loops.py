"""A test that waits on a loop ends, whatever is raised there and whenever its time is up."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator

import pytest
import uvloop

from tests.loops import run_until


class TimeIsUp(BaseException):
    """What a time limit's signal raises, wherever it comes."""


@pytest.fixture(params=[uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def loop(request: pytest.FixtureRequest) -> Iterator[asyncio.AbstractEventLoop]:
    made: asyncio.AbstractEventLoop = request.param()
    yield made
    made.close()


def never() -> bool:
    return False


def busy(loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    def go_on() -> None:
        sum(range(20_000))
        loop.call_soon(go_on)

    return go_on


def test_it_ends_when_it_holds_and_not_later_than_told(loop: asyncio.AbstractEventLoop) -> None:
    begun = loop.time()
    run_until(loop, lambda: loop.time() > begun + 0.01)
    assert loop.time() > begun + 0.01
    with pytest.raises(AssertionError, match=r"within 0\.01 s"):
        run_until(loop, never, 0.01)


def test_what_the_condition_or_a_callback_raises_is_raised(loop: asyncio.AbstractEventLoop) -> None:
    with pytest.raises(ZeroDivisionError):
        run_until(loop, lambda: 1 // 0)
    loop.call_soon(lambda: [].pop())
    with pytest.raises(IndexError):
        run_until(loop, never)
    run_until(loop, lambda: True)


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_a_signal_that_raises_ends_it(loop: asyncio.AbstractEventLoop, is_busy: bool) -> None:
    def give_up(*_: object) -> None:
        raise TimeIsUp

    before = signal.signal(signal.SIGUSR2, give_up)
    if is_busy:
        loop.call_soon(busy(loop))
    loop.call_later(0.05, signal.raise_signal, signal.SIGUSR2)
    try:
        with pytest.raises(TimeIsUp):
            run_until(loop, never)
    finally:
        signal.signal(signal.SIGUSR2, before)
