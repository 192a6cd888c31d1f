"""When a host is away, of how long that is told, and that a step is no absence."""

from __future__ import annotations

from itertools import pairwise

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.host.busy import AWAY_MIN, AWAY_STEPS, Busy

STEP = seconds(1)


def at(value: float) -> Instant:
    return Instant(round(value * 1e9))


def loop(usual: Duration = STEP) -> tuple[Busy, list[tuple[Instant, Instant]]]:
    """A host whose node `step` lends its thread to a user's loop, and its absences."""
    absences: list[tuple[Instant, Instant]] = []
    busy = Busy(usual_step=lambda: usual, was_away=lambda since, until: absences.append((since, until)))
    busy.began("step", at(0))
    busy.left("step", at(0))
    return busy, absences


def test_a_loop_is_away_from_five_of_its_usual_steps_on() -> None:
    busy, _ = loop()
    assert not busy.firings(at(AWAY_STEPS - 0.001)).is_away
    told = busy.firings(at(AWAY_STEPS))
    assert (told.is_away, told.outside) == (True, seconds(AWAY_STEPS))
    assert (told.oldest, told.node) == (0, "")  # In no firing of ours that could be stuck.


def test_it_is_not_away_within_three_seconds_though_its_steps_are_short() -> None:
    busy, _ = loop(Duration(1_000_000))
    assert not busy.firings(Instant(AWAY_MIN - 1)).is_away
    assert busy.firings(Instant(AWAY_MIN)).is_away


def test_what_it_was_away_is_counted_without_the_step_that_is_in_it() -> None:
    busy, absences = loop()
    busy.back("step", at(60))
    assert (busy.away, absences) == (seconds(59), [(at(0), at(60))])
    assert busy.firings(at(61)).node == "step"  # Our code has the thread, and is timed again.


def test_steps_are_no_absences() -> None:
    busy, absences = loop()
    for begun, ended in pairwise(range(100)):
        busy.back("step", at(ended))
        busy.left("step", at(ended))
        assert not busy.firings(at(begun)).is_away
    assert (busy.away, absences) == (0, [])


def batches() -> tuple[Busy, list[tuple[Instant, Instant]]]:
    """A host whose node `data` calls the user's code, and whose node `step` waits for its batches."""
    absences: list[tuple[Instant, Instant]] = []
    busy = Busy(
        {"data": frozenset({"step"})},
        usual_step=lambda: STEP,
        was_away=lambda since, until: absences.append((since, until)),
    )
    return busy, absences


def test_a_step_that_waits_for_its_batch_is_away_in_the_users_code() -> None:
    busy, absences = batches()
    busy.began("data", at(0))
    assert busy.firings(at(6)).is_away
    busy.ended("data", at(6))
    assert (busy.away, absences) == (seconds(5), [(at(0), at(6))])


def test_batches_that_are_made_during_a_step_keep_nothing_away() -> None:
    busy, absences = batches()
    busy.began("step", at(0))
    busy.began("data", at(0))
    assert not busy.firings(at(20)).is_away
    busy.ended("step", at(20))  # From now on the next step waits for it.
    assert not busy.firings(at(24)).is_away
    assert busy.firings(at(25)).is_away
    busy.ended("data", at(30))
    assert absences == [(at(20), at(30))]
    assert busy.away == seconds(9)


def test_a_suspended_process_was_not_away_in_that_time() -> None:
    busy, absences = loop()
    busy.suspended(seconds(100), at(101))
    assert busy.firings(at(101)).outside == seconds(1)
    busy.back("step", at(102))
    assert (busy.away, absences) == (0, [])
