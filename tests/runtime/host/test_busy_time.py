"""What a host says of its firings."""

from __future__ import annotations

import sys
import threading
import time

from isthmus.runtime.clock import Duration, Instant, seconds
from isthmus.runtime.host.busy import Busy, Firings
from isthmus.runtime.host.own_process import suspended


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


def test_the_thread_of_a_loop_and_those_of_nodes_report_side_by_side() -> None:
    """The loop's own thread says that it leaves and comes back while other threads begin and end firings."""
    busy = Busy({"step": frozenset({"send"})}, usual_step=lambda: Duration(1))
    faults: list[BaseException] = []
    until, pause = time.monotonic() + 0.5, sys.getswitchinterval()

    def work(node: str) -> None:
        try:
            number = 0
            while time.monotonic() < until:
                number += 1
                name = f"{node} {number % 7}"
                busy.began(name, Instant(number))
                busy.left(name, Instant(number))
                busy.suspended(Duration(1), Instant(number))
                busy.firings(Instant(number))
                busy.ended(name, Instant(number))
        except BaseException as error:
            faults.append(error)

    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b", "c")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(pause)
    assert faults == []


def test_time_in_which_the_process_was_stopped_is_no_part_of_a_firing() -> None:
    """A learner that was paused with everything else is not stuck in its step."""
    busy = Busy()
    busy.began("step", Instant(seconds(10)))
    paused = suspended(late=40.0, computed=0.25)
    assert paused == seconds(39.75)
    busy.suspended(paused, Instant(seconds(52)))
    assert firings(busy, seconds(52)) == (seconds(2.25), seconds(2.25), "step")
    busy.suspended(seconds(60), Instant(seconds(53)))
    assert firings(busy, seconds(53)) == (0, 0, "step"), "no firing begins in the future"


def test_a_late_beat_of_a_process_that_computes_or_that_is_hardly_late_is_no_suspension() -> None:
    assert suspended(late=5.0, computed=4.5) == 0
    assert suspended(late=0.9, computed=0.0) == 0
