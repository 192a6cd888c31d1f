"""What a host says of its firings."""

from __future__ import annotations

from isthmus.runtime.clock import Duration, Instant
from isthmus.runtime.host.driver import Busy, Firings


def firings(busy: Busy, now: int) -> tuple[int, int, str]:
    found: Firings = busy.firings(Instant(now))
    return found.busy, found.oldest, found.node


def test_time_counts_once_however_many_nodes_fire() -> None:
    busy = Busy()
    assert firings(busy, 5) == (0, 0, "")
    busy.began("data", Instant(10))
    busy.began("step", Instant(14))
    assert firings(busy, 20) == (10, 10, "data")
    busy.ended("data", Instant(24))
    assert firings(busy, 30) == (20, 16, "step")
    busy.ended("step", Instant(34))
    assert firings(busy, 100) == (24, 0, "")
    busy.began("step", Instant(200))
    assert firings(busy, 201) == (25, 1, "step")


def test_the_end_of_a_firing_that_was_not_counted_counts_nothing() -> None:
    busy = Busy()
    busy.ended("blocks", Instant(9))
    assert busy.firings(Instant(10)) == Firings(Duration(0), Duration(0), "")
