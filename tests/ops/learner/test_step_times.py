"""The times of steps leave out what a host was away."""

from __future__ import annotations

from isthmus.ops.learner.step_times import StepTimes


class Clock:
    """Time, and what of it was away, in seconds."""

    def __init__(self) -> None:
        self.now = self.away = 100.0

    def times(self) -> StepTimes:
        return StepTimes(lambda: round(self.now * 1e9), lambda: round(self.away * 1e9))

    def go(self, seconds: float, away: float = 0.0) -> None:
        self.now += seconds
        self.away += away


def test_neither_the_average_nor_the_usual_step_has_time_away_in_it() -> None:
    clock = Clock()
    times = clock.times()
    times.begin()
    for away in (0.0, 0.0, 0.0, 600.0, 0.0):
        clock.go(1.0 + away, away)
        times.stepped()
    assert (times.average, times.usual) == (10**9, 10**9)
    assert times.stepping(round(clock.now * 1e9)) == 5 * 10**9
    assert times.away == 600 * 10**9


def test_what_it_was_away_before_its_first_step_is_none_of_its_time() -> None:
    clock = Clock()
    times = clock.times()
    clock.go(50.0, 40.0)
    assert (times.away, times.stepping(round(clock.now * 1e9)), times.usual) == (0, 0, 0)
    times.begin()
    clock.go(2.0)
    times.stepped()
    assert (times.away, times.stepping(round(clock.now * 1e9)), times.average) == (0, 2 * 10**9, 0)


def test_a_pause_of_its_own_is_no_part_of_a_step() -> None:
    clock = Clock()
    times = clock.times()
    times.begin()
    clock.go(1.0)
    times.stepped()
    clock.go(4.0)
    times.pause(3 * 10**9)
    times.stepped()
    assert times.usual == 10**9
