"""The arithmetic of pacing: the clock of the fastest learner, the due grid, H and tau; and the start."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.fragments import partition
from isthmus.ops.model_config import ModelConfig, tensors
from isthmus.ops.syncer.pacer import START_WAIT, TRIES_MAX, Start
from isthmus.ops.syncer.schedule import PATIENCE, Adaptation, Schedule, StepClock, rounds_in_flight_max
from tests.ops.bodies import Spec

# -- rounds in flight --------------------------------------------------------------------------------------------------


def test_the_published_settings_have_two_rounds_in_flight():
    assert rounds_in_flight_max(overlap=2, fragments=24, interval=24, shards=1) == 2


def test_without_overlap_there_is_still_one_round():
    assert rounds_in_flight_max(overlap=0, fragments=8, interval=24, shards=1) == 1


@given(st.integers(1, 50), st.integers(1, 64), st.integers(1, 500), st.integers(1, 8))
def test_rounds_in_flight_are_the_ceiling_of_the_fraction(overlap, fragments, interval, shards):
    found = rounds_in_flight_max(overlap, fragments, interval, shards)
    assert (found - 1) * interval * shards < overlap * fragments <= found * interval * shards


# -- the clock of the fastest learner ----------------------------------------------------------------------------------


def hear(clock, lag_max, *reports):
    """One moment's reports, as (slot, step); the count after it."""
    for slot, step in reports:
        clock.report(slot, step)
    clock.close_up(lag_max)
    return clock.count


def test_the_clock_counts_from_the_first_reported_step():
    clock = StepClock()
    assert hear(clock, 6, (0, 700)) == 0
    assert hear(clock, 6, (0, 703)) == 3


def test_learners_of_one_speed_are_not_counted_twice():
    clock = StepClock()
    for step in range(0, 300, 3):
        for slot in range(4):
            assert hear(clock, 6, (slot, step)) == step


@given(
    st.lists(st.integers(50, 100), min_size=1, max_size=5),
    st.integers(1, 6),
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
)
def test_the_clock_runs_with_the_fastest_however_reports_fall(percents, period, phases):
    """Learner m has made percents[m] % of t steps at time t, and reports whenever it has made `period` more."""
    clock = StepClock()
    speeds = [percent / 100 for percent in percents]
    reports = sorted(
        ((number + phases[slot]) * period / speed, slot, number * period)
        for slot, speed in enumerate(speeds)
        for number in range(int(400 * speed / period))
    )
    for _, slot, step in reports:
        hear(clock, 2 * period, (slot, step))
    furthest = max(step for _, _, step in reports)
    assert furthest - 2 * period <= clock.count <= furthest + period


@given(st.permutations(range(3)), st.lists(st.integers(0, 90), min_size=9, max_size=9))
def test_the_order_of_reports_that_come_together_does_not_matter(order, steps):
    """They may be many steps late, if the host had something else to do."""
    expected, found = StepClock(), StepClock()
    for moment in range(4):
        reports = [(slot, sum(steps[slot : 3 * moment : 3])) for slot in range(3)]
        assert hear(expected, 12, *reports) == hear(found, 12, *(reports[slot] for slot in order))


def test_reports_that_come_late_together_count_once():
    clock = StepClock()
    hear(clock, 6, (0, 0), (1, 0), (2, 0))
    assert hear(clock, 6, (0, 200), (1, 199), (2, 120)) == 200


def test_a_slow_learner_takes_over_where_the_fast_one_falls_silent():
    clock = StepClock()
    for step in range(0, 121, 3):
        hear(clock, 12, (0, step), (1, step // 3))
    assert clock.count == 120
    assert hear(clock, 12, (1, 52)) == 120
    assert hear(clock, 12, (1, 60)) == 128


def test_a_forgotten_leader_is_followed_by_the_next_at_once():
    clock = StepClock()
    for slot, step in ((0, 0), (1, 0), (2, 0), (1, 3), (0, 9)):
        hear(clock, 24, (slot, step))
    clock.forget(0)
    assert hear(clock, 24, (2, 2)) == 9
    assert hear(clock, 24, (1, 5)) == 11
    assert hear(clock, 24, (0, 4000)) == 11, "a new life starts level, whatever it calls its steps"


class EagerClock(StepClock):
    """Moves up whoever is too far behind at once, each of them."""

    def close_up(self, lag_max):
        floor = self.count - lag_max
        self._positions = {slot: (step, max(position, floor)) for slot, (step, position) in self._positions.items()}


moments = st.one_of(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 300)), max_size=4), st.integers(0, 3), st.integers(0, 40)
)


@given(st.lists(moments, max_size=30), st.integers(0, 40))
def test_the_clock_counts_as_one_that_moves_up_each_learner_at_once(moments, lag_max):
    clock, eager = StepClock(), EagerClock()
    for moment in moments:
        if isinstance(moment, list):
            assert hear(clock, lag_max, *moment) == hear(eager, lag_max, *moment)
        elif moment <= 3:
            clock.forget(moment)
            eager.forget(moment)
        else:
            lag_max = moment  # H has changed.
        assert clock.count == eager.count


def test_the_clock_outlives_its_learners():
    clock = StepClock()
    hear(clock, 6, (0, 0), (0, 5))
    clock.forget(0)
    clock.forget(0)
    assert hear(clock, 6, (0, 0), (0, 2)) == 7


# -- when fragments are due --------------------------------------------------------------------------------------------


def test_fragments_are_first_due_at_p_h_over_p():
    schedule = Schedule(range(8), 8, 24)
    assert [schedule.due(count) for count in (0, 2, 3, 6)] == [[0], [0], [0, 1], [0, 1, 2]]
    assert Schedule([1, 3], 4, 10).due(7) == [1]  # 2.5 and 7.5: global numbers, not those of the shard.


def test_the_longest_overdue_comes_first():
    schedule = Schedule(range(3), 3, 9)
    schedule.serve(0, 0)
    assert schedule.due(9) == [1, 2, 0]
    schedule.serve(1, 9)
    assert schedule.due(9) == [2, 0]


def test_excess_is_carried_so_that_the_interval_is_h():
    schedule = Schedule([0], 1, 10)
    opened, count = [], 0
    while len(opened) < 100:
        if schedule.due(count):
            schedule.serve(0, count)
            opened.append(count)
        count += 7  # Every opening is up to 7 steps late.
    assert (opened[-1] - opened[0]) / 99 == pytest.approx(10, abs=7 / 99)


@given(st.integers(1, 50), st.integers(0, 10_000))
def test_no_burst_after_a_long_silence(interval, silence):
    schedule = Schedule([0], 1, interval)
    assert schedule.due(silence)
    schedule.serve(0, silence)
    ahead = -schedule.late_steps(0, silence)
    assert (silence + ahead) % interval == pytest.approx(0), "it left its own grid"
    if silence > interval:
        assert interval / 2 <= ahead < interval * 3 / 2
    else:
        assert ahead == interval - silence


def test_a_longer_interval_keeps_the_stagger():
    schedule = Schedule(range(4), 4, 8)
    for fragment in range(4):
        schedule.serve(fragment, 2 * fragment)
    schedule.stretch(16, 6)  # 2, 4, 6 and 8 steps were left.
    assert [-schedule.late_steps(fragment, 6) for fragment in range(4)] == [4, 8, 12, 16]
    schedule.serve(0, 10)
    assert -schedule.late_steps(0, 10) == 16


# -- H and tau ---------------------------------------------------------------------------------------------------------


def observe(adaptation, count, round_trip=0.0, is_tight=False, sweep=8):
    for _ in range(count):
        adaptation.observe(round_trip, is_tight, sweep)
    return adaptation.interval, adaptation.overlap


def test_the_interval_grows_to_four_round_trips_and_a_step_after_patience():
    adaptation = Adaptation(24, 2)
    assert observe(adaptation, PATIENCE - 1, 6.1) == (24, 2)
    assert observe(adaptation, 1, 5.9) == (24, 2), "one round that fits starts the count anew"
    assert observe(adaptation, PATIENCE, 10.2) == (48, 2)
    assert observe(adaptation, 100, 10.2) == (48, 2), "it fits now, and hysteresis keeps it"


def test_a_round_trip_of_a_quarter_fits():
    assert observe(Adaptation(24, 2), 100, 6.0) == (24, 2)


def test_the_interval_comes_back_slowly_and_not_below_what_was_asked():
    adaptation = Adaptation(24, 2)
    observe(adaptation, PATIENCE, 24.0)
    assert adaptation.interval == 100
    assert observe(adaptation, 8, 18.76)[0] == 100, "above three quarters nothing shrinks"
    assert observe(adaptation, 8, 2.0)[0] == 87
    assert observe(adaptation, 15, 2.0, sweep=20)[0] == 87, "a whole sweep must fit"
    assert observe(adaptation, 400, 2.0)[0] == 24


def test_the_overlap_grows_by_one_to_a_quarter_of_the_interval():
    adaptation = Adaptation(24, 2)
    assert observe(adaptation, PATIENCE - 1, is_tight=True) == (24, 2)
    assert observe(adaptation, 1) == (24, 2)
    assert observe(adaptation, PATIENCE, is_tight=True) == (24, 3)
    assert observe(adaptation, 50 * PATIENCE, is_tight=True) == (24, 6)
    assert observe(adaptation, 50 * PATIENCE) == (24, 6)


def test_an_overlap_above_a_quarter_stays_as_asked():
    assert observe(Adaptation(8, 5), 50, is_tight=True) == (8, 5)


def test_the_overlap_comes_back_with_the_interval():
    adaptation = Adaptation(24, 2)
    observe(adaptation, PATIENCE, 19.0)
    assert observe(adaptation, 100 * PATIENCE, 19.0, is_tight=True) == (80, 20)
    assert observe(adaptation, 100 * PATIENCE, 1.0) == (24, 6)


# -- the start ---------------------------------------------------------------------------------------------------------


def test_a_start_waits_for_all_or_a_minute():
    start = Start(learners=3)
    assert start.giver([], 5) is None
    assert start.giver([[1, 1]], 10) is None
    assert start.giver([[0, 1], [1, 1]], 10 + START_WAIT - 1) is None
    assert start.giver([[0, 1], [1, 1]], 10 + START_WAIT) == [0, 1]
    assert Start(learners=2).giver([[0, 1], [3, 1]], 0) == [0, 1]


def test_a_start_that_has_begun_does_not_wait_again():
    start = Start(learners=2)
    assert start.giver([[0, 1], [1, 1]], 0) == [0, 1]
    assert start.giver([[1, 1]], 1) == [1, 1]


def test_the_next_lowest_is_asked_then_all_over_again_and_at_last_the_run_fails():
    start = Start(learners=1)
    live = [[0, 1], [2, 1]]
    for count in range(TRIES_MAX - 1):
        assert start.giver(live, 0) == live[count % 2]
        start.failed(3, live[count % 2], "not finite")
    with pytest.raises(RuntimeError, match=f"starting fragment 3.*in {TRIES_MAX} rounds.*not finite"):
        start.failed(3, [2, 1], "not finite")


MODELS = {
    "nano": (ModelConfig(256, 2, 64, 4, 64), 8),
    "gpt-124m": (ModelConfig(50_304, 12, 768, 12, 1024, tied=True), 24),
}


@pytest.mark.parametrize("model", MODELS)
def test_the_peak_of_a_link_is_near_its_mean(model: str) -> None:
    """Bytes due in each interval of H / P steps, by layout and schedule."""
    config, count = MODELS[model]
    named = {name: Spec(name, each.shape) for name, each in tensors(config).items()}
    for name in {"embedding", "head"} & named.keys():
        named[name] = replace(named[name], merge="average")
    sizes = [fragment.size for fragment in partition(list(named.values()), count)]
    schedule, due = Schedule(range(count), count, 24), Counter[int]()
    for step in range(20 * 24):
        for fragment in schedule.due(step):
            due[step * count // 24] += sizes[fragment]
            schedule.serve(fragment, step)
    intervals = [due[number] for number in range(20 * count)]
    assert sum(intervals) == 20 * sum(sizes)
    assert max(intervals) <= 1.34 * sum(intervals) / len(intervals)
