"""When the next life begins: back-off, what wipes it out, and the end of patience."""

from __future__ import annotations

import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.restarts import FAILURES_MAX, HEALTHY, Restarts

ONE, TWO = Replica("learner", 0), Replica("learner", 1)
NOW = Instant(seconds(100))


def test_the_first_is_at_once_and_the_others_later_and_later_and_then_there_is_none() -> None:
    restarts = Restarts()
    found = [restarts.delay(ONE, None, NOW) for _ in range(FAILURES_MAX + 1)]
    assert found == [seconds(delay) for delay in (0, 0.5, 1, 2, 4)] + [None]
    assert restarts.delay(ONE, None, NOW) is None
    assert restarts.failures(ONE) == FAILURES_MAX + 2


def test_each_replica_is_counted_for_itself() -> None:
    restarts = Restarts()
    assert restarts.failures(ONE) == 0
    restarts.delay(ONE, None, NOW)
    assert restarts.delay(TWO, None, NOW) == 0
    assert (restarts.failures(ONE), restarts.failures(TWO)) == (1, 1)


@pytest.mark.parametrize(("served", "failures"), [(HEALTHY, 1), (HEALTHY - 1, 4), (0, 4)])
def test_a_life_that_served_for_long_enough_wipes_out_the_failures_before_it(served: int, failures: int) -> None:
    restarts = Restarts()
    for _ in range(3):
        restarts.delay(ONE, None, NOW)
    delay = restarts.delay(ONE, Instant(NOW - served), NOW)
    assert restarts.failures(ONE) == failures
    assert delay == (0 if failures == 1 else seconds(2))


def test_after_the_end_of_patience_a_healthy_life_is_a_new_beginning() -> None:
    restarts = Restarts()
    for _ in range(2 * FAILURES_MAX):
        restarts.delay(ONE, None, NOW)
    assert restarts.delay(ONE, Instant(0), NOW) == 0
