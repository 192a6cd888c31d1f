"""Virtual time: the order of calls, limits, and firings that take as long as the model says."""

from __future__ import annotations

from statistics import fmean, stdev

import hypothesis.strategies as st
import pytest
from hypothesis import given

from isthmus.runtime.clock import Duration, Instant, milliseconds, seconds
from isthmus.runtime.host.virtual_time import InlineExecutor, VirtualClock, jittered, normally

LATE = Instant(seconds(100))


def drain(clock: VirtualClock) -> None:
    while clock.step():
        pass


# -- the clock ---------------------------------------------------------------------------------------------------------


def test_calls_are_made_in_order_of_time_and_then_of_asking() -> None:
    clock, seen = VirtualClock(), []
    for name, at in (("d", 20), ("a", 10), ("e", 20), ("b", 10)):
        clock.call_at(Instant(at), lambda name=name: seen.append((name, clock.now())))
    clock.call_soon(lambda: seen.append(("soon", clock.now())))
    clock.post(lambda: seen.append(("post", clock.now())))
    drain(clock)
    assert seen == [("soon", 0), ("post", 0), ("a", 10), ("b", 10), ("d", 20), ("e", 20)]


def test_a_call_in_the_past_is_made_now_after_what_is_due() -> None:
    clock, seen = VirtualClock(), []

    def first() -> None:
        clock.call_at(Instant(3), lambda: seen.append(("past", clock.now())))

    clock.call_at(Instant(10), first)
    clock.call_at(Instant(10), lambda: seen.append(("due", clock.now())))
    drain(clock)
    assert seen == [("due", 10), ("past", 10)]


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_a_cancelled_call_is_not_made(calls: list[tuple[int, bool]]) -> None:
    clock, seen = VirtualClock(), []
    cancels = [clock.call_at(Instant(at), lambda n=n: seen.append(n)) for n, (at, _) in enumerate(calls)]
    for cancel, (_, is_cancelled) in zip(cancels, calls, strict=True):
        if is_cancelled:
            cancel()
            cancel()
    assert (clock.due() is None) == all(is_cancelled for _, is_cancelled in calls)
    drain(clock)
    assert sorted(seen) == [n for n, (_, is_cancelled) in enumerate(calls) if not is_cancelled]
    assert [calls[n][0] for n in seen] == sorted(calls[n][0] for n in seen)
    for cancel in cancels:
        cancel()  # Too late is harmless.
    assert not clock._calls


def test_a_call_may_cancel_one_that_is_due_at_the_same_instant() -> None:
    clock, seen = VirtualClock(), []
    clock.call_at(Instant(5), lambda: cancel())
    cancel = clock.call_at(Instant(5), lambda: seen.append("cancelled"))
    drain(clock)
    assert seen == []
    assert clock.now() == 5


def test_a_run_ends_as_soon_as_its_condition_holds() -> None:
    clock, seen = VirtualClock(), []
    for at in range(10):
        clock.call_at(Instant(at), lambda at=at: seen.append(at))
    clock.run(lambda: len(seen) == 4, LATE)
    assert seen == [0, 1, 2, 3]
    clock.run(lambda: True, Instant(0))
    assert clock.now() == 3


def test_a_run_makes_no_call_beyond_its_limit() -> None:
    clock, seen = VirtualClock(), []
    clock.call_at(Instant(seconds(2)), lambda: seen.append("in time"))
    clock.call_at(Instant(seconds(2) + 1), lambda: seen.append("too late"))
    with pytest.raises(TimeoutError, match=r"not over after 2\.000 virtual seconds"):
        clock.run(lambda: len(seen) == 2, Instant(seconds(2)))
    assert seen == ["in time"]
    clock.run(lambda: len(seen) == 2, LATE)


def test_a_run_with_nothing_left_to_do_says_so() -> None:
    clock = VirtualClock()
    cancel = clock.call_at(Instant(seconds(5)), lambda: None)
    clock.call_at(Instant(seconds(1)), cancel)
    with pytest.raises(TimeoutError, match=r"nothing is left to do at 1\.000 virtual seconds"):
        clock.run(lambda: False, LATE)


def test_what_a_call_raises_ends_the_run_and_the_clock_goes_on() -> None:
    clock, seen = VirtualClock(), []
    clock.call_soon(lambda: 1 // 0)
    clock.call_soon(lambda: seen.append(1))
    with pytest.raises(ZeroDivisionError):
        clock.run(lambda: False, LATE)
    clock.run(lambda: bool(seen), LATE)


# -- the executor ------------------------------------------------------------------------------------------------------


def test_a_body_is_called_at_once_and_its_result_appears_after_its_duration() -> None:
    clock = VirtualClock()
    executor = InlineExecutor(clock, lambda node: milliseconds(node))
    seen: list[tuple[object, ...]] = []
    for node in (7, 3, 5):
        executor.submit(
            node,
            lambda node=node: seen.append(("called", node, clock.now())) or node,
            lambda result, error: seen.append(("done", result, error, clock.now())),
        )
    drain(clock)
    assert seen[:3] == [("called", 7, 0), ("called", 3, 0), ("called", 5, 0)]
    assert seen[3:] == [("done", node, None, milliseconds(node)) for node in (3, 5, 7)]


@pytest.mark.parametrize("error", [ValueError("why"), SystemExit(3)])
def test_what_a_body_raises_appears_after_its_duration(error: BaseException) -> None:
    clock = VirtualClock()
    executor = InlineExecutor(clock, lambda node: milliseconds(2))
    seen: list[tuple[object, object, Instant]] = []

    def work() -> None:
        raise error

    executor.submit(0, work, lambda result, caught: seen.append((result, caught, clock.now())))
    drain(clock)
    assert seen == [(None, error, milliseconds(2))]


def test_an_interrupt_is_no_result() -> None:
    def work() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        InlineExecutor(VirtualClock(), lambda node: Duration(0)).submit(0, work, lambda result, error: None)


def test_a_closed_executor_calls_nobody() -> None:
    clock, seen = VirtualClock(), []
    executor = InlineExecutor(clock, lambda node: milliseconds(1))
    executor.submit(0, lambda: seen.append("called"), lambda result, error: seen.append("done"))
    executor.close()
    executor.submit(0, lambda: seen.append("late"), lambda result, error: seen.append("done"))
    drain(clock)
    assert seen == ["called"]


@given(st.integers(0, 10**10), st.floats(0, 1), st.integers())
def test_jitter_stays_within_its_share_and_is_the_same_for_the_same_seed(nanos: int, jitter: float, seed: int) -> None:
    draw, again = (jittered(Duration(nanos), jitter, seed) for _ in range(2))
    drawn = [draw() for _ in range(20)]
    assert drawn == [again() for _ in range(20)]
    assert all(nanos * (1 - jitter) - 1 <= duration <= nanos * (1 + jitter) + 1 for duration in drawn)
    assert all(duration >= 0 and isinstance(duration, int) for duration in drawn)


def test_jitter_spreads_evenly_and_differs_between_seeds() -> None:
    drawn = [jittered(milliseconds(10), 0.2, seed)() for seed in range(1000)]
    assert len(set(drawn)) > 990
    assert abs(sum(drawn) / len(drawn) - milliseconds(10)) < 0.02 * milliseconds(10)
    assert min(drawn) < milliseconds(8.05)
    assert max(drawn) > milliseconds(11.95)
    assert {jittered(milliseconds(10), 0.0, seed)() for seed in range(5)} == {milliseconds(10)}


def test_normal_jitter_has_its_deviation_and_no_duration_is_nothing() -> None:
    draw = jittered(milliseconds(10), 0.1, 7, normally)
    drawn = [draw() / milliseconds(10) for _ in range(4000)]
    assert fmean(drawn) == pytest.approx(1.0, abs=0.01)
    assert stdev(drawn) == pytest.approx(0.1, abs=0.01)
    wild = jittered(milliseconds(10), 5.0, 7, normally)
    assert min(wild() for _ in range(100)) == milliseconds(10) / 20
