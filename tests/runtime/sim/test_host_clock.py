"""The clock of one host in a universe: skewed, paused, dead."""

from __future__ import annotations

import pytest

from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.host.virtual_time import VirtualClock
from isthmus.runtime.sim.faults import Kill
from isthmus.runtime.sim.machine import HostClock


def test_a_clock_that_runs_fast_is_early_and_never_calls_before_its_time() -> None:
    universe = VirtualClock()
    clock = HostClock(universe)
    clock.skew(seconds(5), 1000)
    shown: list[int] = []
    clock.call_at(Instant(seconds(15)), lambda: shown.append(clock.now()))
    universe.run(lambda: bool(shown), Instant(seconds(20)))
    assert universe.now() == pytest.approx(seconds(10) / 1.001, abs=2)
    assert seconds(15) <= shown[0] <= seconds(15) + 2


def test_a_call_waits_on_where_the_clock_has_become_slower() -> None:
    universe = VirtualClock()
    clock = HostClock(universe)
    shown: list[int] = []
    clock.call_at(Instant(seconds(1)), lambda: shown.append(clock.now()))
    clock.skew(Duration(0), -500_000)
    universe.run(lambda: bool(shown), Instant(seconds(5)))
    assert (universe.now(), shown) == (seconds(2), [seconds(1)])


def test_what_comes_while_a_host_is_paused_happens_in_order_when_it_goes_on() -> None:
    universe = VirtualClock()
    clock = HostClock(universe)
    told: list[str] = []
    cancel = clock.call_at(Instant(milliseconds(1)), lambda: told.append("cancelled"))
    clock.call_at(Instant(milliseconds(2)), lambda: told.append("second"))
    clock.is_paused = True
    clock.run(lambda: told.append("first"))
    while universe.step():
        pass
    assert told == []
    cancel()
    clock.resume()
    assert told == ["first", "second"]


def test_nothing_happens_in_a_dead_host() -> None:
    universe = VirtualClock()
    clock = HostClock(universe)
    told: list[str] = []
    clock.post(lambda: told.append("posted"))
    clock.is_dead = True
    clock.run(lambda: told.append("run"))
    while universe.step():
        pass
    assert told == []


def test_a_fault_has_one_moment() -> None:
    with pytest.raises(ValueError, match="say one of at=SECONDS"):
        Kill("learner/0")
    with pytest.raises(ValueError, match="say one of at=SECONDS"):
        Kill("learner/0", at=1.0, at_step=3)
