"""When the next life begins: back-off, what wipes it out, and the end of patience."""

from __future__ import annotations

import msgspec
import pytest

from isthmus.runtime.clock import Instant, seconds
from isthmus.runtime.ids import Replica
from isthmus.runtime.supervision.incidents import Raised
from isthmus.runtime.supervision.liveness import (
    FAILURES_MAX,
    HEALTHY,
    HEALTHY_IF_KILLED,
    LONG,
    Repeated,
    Repeats,
    Restarts,
)

ONE, TWO = Replica("learner", 0), Replica("learner", 1)
NOW = Instant(seconds(100))
BOOM, OTHER = Raised("data", "ValueError", "boom", "mine.py", 12), Raised("data", "ValueError", "boom", "mine.py", 13)


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


@pytest.mark.parametrize(("served", "failures"), [(HEALTHY_IF_KILLED, 1), (HEALTHY_IF_KILLED - 1, 4)])
def test_a_life_that_was_killed_need_not_have_served_for_long(served: int, failures: int) -> None:
    restarts = Restarts()
    for _ in range(3):
        restarts.delay(ONE, None, NOW)
    restarts.delay(ONE, Instant(NOW - served), NOW, is_killed=True)
    assert restarts.failures(ONE) == failures


def test_after_the_end_of_patience_a_healthy_life_is_a_new_beginning() -> None:
    restarts = Restarts()
    for _ in range(2 * FAILURES_MAX):
        restarts.delay(ONE, None, NOW)
    assert restarts.delay(ONE, Instant(0), NOW) == 0


# -- what every learner meets again ------------------------------------------------------------------------------------


def test_an_error_that_every_learner_meets_is_the_programs_at_its_second_time() -> None:
    repeats = Repeats()
    repeats.ended(ONE, BOOM, None, NOW)
    repeats.ended(TWO, BOOM, None, NOW)
    assert repeats.common([ONE, TWO], bool) is None
    repeats.ended(TWO, BOOM, NOW, NOW)
    assert repeats.common([ONE, TWO], bool) == Repeated(BOOM, 2)


def test_an_error_is_the_same_whatever_its_message_names() -> None:
    repeats = Repeats()
    for slot, learner in enumerate((ONE, TWO, TWO)):
        told = msgspec.structs.replace(BOOM, message=f"no batch for slot {slot}")
        repeats.ended(learner, told, None, NOW)
    found = repeats.common([ONE, TWO], bool)
    assert found is not None
    assert found.lives == 2
    repeats.ended(TWO, Raised("data", "ValueError", "of no line", "", 0), None, NOW)
    repeats.ended(ONE, Raised("data", "ValueError", "another, of no line", "", 0), None, NOW)
    assert repeats.common([ONE, TWO], bool) is None


@pytest.mark.parametrize("error", [BOOM, Raised("data", "ValueError", "of no line", "", 0)])
def test_an_error_is_the_same_where_its_machine_keeps_the_text(error: Raised) -> None:
    repeats = Repeats()
    for learner in (ONE, TWO, TWO):
        repeats.ended(learner, error if learner == ONE else error.kept_on("beta", "learner/1"), None, NOW)
    for learners in ([ONE, TWO], [TWO, ONE]):
        assert repeats.common(learners, bool) == Repeated(error, 2), "the one with its text"
    other = Raised("data", "ValueError", "another, of no line", "", 0).kept_on("beta", "learner/1")
    repeats.ended(TWO, other, None, NOW)
    assert repeats.common([ONE, TWO], bool) is None


def test_an_error_of_one_learner_alone_is_not_the_programs() -> None:
    repeats = Repeats()
    for _ in range(5):
        repeats.ended(ONE, BOOM, None, NOW)
    assert repeats.common([ONE, TWO], bool) is None
    repeats.ended(TWO, OTHER, None, NOW)  # Of another line.
    assert repeats.common([ONE, TWO], bool) is None
    assert repeats.common([ONE], bool) == Repeated(BOOM, 5)
    assert repeats.common([], bool) is None


def test_a_life_that_ends_otherwise_or_served_for_long_begins_a_new_row() -> None:
    repeats = Repeats()
    repeats.ended(ONE, BOOM, None, NOW)
    repeats.ended(ONE, None, None, NOW)
    assert repeats.common([ONE], bool) is None
    repeats.ended(ONE, BOOM, None, NOW)
    repeats.ended(ONE, BOOM, NOW, Instant(NOW + LONG))
    assert repeats.common([ONE], bool) is None
    repeats.ended(ONE, BOOM, NOW, Instant(NOW + LONG - 1))
    assert repeats.common([ONE], bool) == Repeated(BOOM, 2)
