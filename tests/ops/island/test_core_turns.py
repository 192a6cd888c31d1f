"""Turns at the cores: in order of arrival, and only where more come than there are turns."""

from __future__ import annotations

import threading
import time

import pytest

from isthmus.ops.island.life import Turnstile
from tests.patience import PATIENCE


def test_nobody_needs_a_turn_where_no_more_come_than_there_are_turns() -> None:
    turnstile = Turnstile(2)
    needed = []
    for _ in range(4):
        needed.append(turnstile.is_needed)
        turnstile.join()
    assert [*needed, turnstile.is_needed] == [False, False, False, True, True]


def test_no_more_than_there_are_turns_are_in_and_those_who_wait_are_served_in_order() -> None:
    turnstile, order, inside, most = Turnstile(2), list[int](), list[int](), list[int]()
    may_leave = [threading.Event() for _ in range(6)]
    came = threading.Condition()

    def pass_through(number: int) -> None:
        with turnstile:
            with came:
                order.append(number)
                inside.append(number)
                most.append(len(inside))
                came.notify_all()
            assert may_leave[number].wait(PATIENCE)
            inside.remove(number)

    threads = []
    for number in range(6):
        threads.append(threading.Thread(target=pass_through, args=(number,)))
        threads[-1].start()
        until = time.monotonic() + PATIENCE
        while len(order) + len(turnstile._waiting) <= number and time.monotonic() < until:
            time.sleep(0.001)
    assert order == [0, 1]
    for number in range(6):
        may_leave[number].set()
        with came:
            assert came.wait_for(lambda number=number: len(order) >= min(6, number + 3), PATIENCE)  # type: ignore[misc]
    for thread in threads:
        thread.join(PATIENCE)
    assert order == [0, 1, 2, 3, 4, 5]
    assert max(most) == 2


def test_a_turn_comes_back_from_whoever_raises() -> None:
    turnstile = Turnstile(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), turnstile:
            raise ZeroDivisionError
    with turnstile:
        pass


def test_there_is_at_least_one_turn() -> None:
    with pytest.raises(ValueError, match="expected at least 1 turn, found 0"):
        Turnstile(0)
