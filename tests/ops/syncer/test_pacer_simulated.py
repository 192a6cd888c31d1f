"""The pacer in a small world (pacer_world): what holds over a run, whatever the speeds and the delays."""

from collections import Counter

import pytest

from tests.effort import long
from tests.ops.syncer.pacer_world import SPEEDS, STEP, UNEVEN, World

OTHERS = (SPEEDS, (1.0,) * 4, (1.0,), (0.9, 0.3, 1.0, 0.35, 0.95, 0.7))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speeds", "link_steps"),
    [
        *((UNEVEN, steps) for steps in (0.0, 0.4, 1.0, 1.4)),
        *((speeds, 0.4) for speeds in OTHERS),
        *(long(speeds, steps) for speeds in OTHERS for steps in (0.0, 1.0, 1.4)),
    ],
)
def test_the_mean_interval_is_h_whatever_the_latency(speeds, link_steps):
    world = World(speeds=speeds, link_steps=link_steps).run(60 * 24)
    assert world.pacers[0].interval == 24
    assert world.intervals(since=20 * 24) == pytest.approx([24] * 8, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("fragments", "interval"), [(7, 24), long(24, 24), long(4, 30), (1, 20), (5, 8)])
def test_the_mean_interval_is_h_whatever_the_layout(fragments, interval):
    world = World(speeds=UNEVEN, fragments=fragments, interval=interval).run(60 * interval)
    assert world.pacers[0].interval == interval
    assert world.intervals(since=20 * interval) == pytest.approx([interval] * fragments, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("speeds", [SPEEDS, UNEVEN])
def test_fragments_are_staggered(speeds):
    """Each fragment opens in its own P-th of the interval, late by reports and links but never before."""
    world = World(speeds=speeds).run(80 * 24)
    first = world.openings()[0][0]
    for time, item in world.openings(since=20 * 24):
        late = (time - first - item["fragment"] * 24 / 8) % 24
        assert min(late, 24 - late) <= 4, (time, item)


@pytest.mark.slow
def test_without_limits_of_latency_everybody_contributes_and_without_grace_few_do():
    assert World(speeds=UNEVEN).run(80 * 24).contributors_mean(since=480) >= 3.5
    assert World(speeds=UNEVEN, grace=False).run(80 * 24).contributors_mean(since=480) <= 2.5


def test_updates_come_within_tau_slowest_steps():
    """From opening to publication with the way to the learners: what the grace is measured by."""
    world = World(speeds=UNEVEN, link_steps=0.4).run(80 * 24)
    budget = world.pacers[0].overlap * STEP / min(UNEVEN)
    took = [merging["published_at"] + world.link - merging["opened_at"] for merging in world.merges(480)]
    assert max(took) <= budget * 1.1
    assert sum(took) / len(took) <= budget


@pytest.mark.slow
def test_rounds_in_flight_are_used_where_rounds_are_long():
    """(Never more than allowed, never two of one fragment: the world asserts that at each opening.)"""
    world = World(fragments=24, interval=24, link_steps=1.2).run(40 * 24)
    ends = [(merging["published_at"], -1) for merging in world.merges(480)]
    begins = [(merging["opened_at"], 1) for merging in world.merges(480)]
    running = peak = 0
    for _, change in sorted(ends + begins):
        running += change
        peak = max(peak, running)
    assert 2 <= peak <= world.pacers[0].statistics()["rounds_in_flight_max"]


def test_tau_is_raised_where_there_is_no_slack_and_not_where_there_is():
    assert World(speeds=UNEVEN, link_steps=0.1).run(40 * 24).pacers[0].overlap == 2
    slow = World(speeds=UNEVEN, link_steps=1.2).run(40 * 24).pacers[0]
    assert 2 < slow.overlap <= 6
    assert slow.statistics()["slack"] >= slow.statistics()["xi_step"]
    assert slow.interval == 24


def test_tau_is_raised_where_long_rounds_keep_others_waiting():
    """All four must answer, and there is no grace that would ask for slack; one round in flight is too few."""
    world = World(speeds=UNEVEN, link_steps=1.0, grace=False, quorum=4).run(80 * 24)
    assert world.pacers[0].overlap > 3
    assert world.intervals(since=40 * 24) == pytest.approx([24] * 8, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("link_steps", [3.0, long(8.0)])
def test_the_interval_is_lengthened_until_the_round_trip_fits_and_comes_back(link_steps):
    world = World(speeds=UNEVEN, link_steps=link_steps).run(240 * 24)
    pacer = world.pacers[0]
    assert 4 * pacer.statistics()["round_trip_steps"] <= pacer.interval <= 24 * link_steps
    assert world.intervals(since=120 * 24) == pytest.approx([pacer.interval] * 8, rel=0.02)
    assert world.contributors_mean(since=120 * 24) >= 3.5
    world.link = round(0.2 * STEP)
    assert world.run(300 * 24).pacers[0].interval == 24


@pytest.mark.slow
@pytest.mark.parametrize("interval", [24, long(96)])
def test_a_very_slow_learner_is_heard_every_fifth_round_of_each_fragment(interval):
    """At an eighth of the speed it is beyond twice the median, hence beyond most graces."""
    world = World(speeds=(1.0, 1.0, 0.9, 0.129), interval=interval).run(300 * 24)
    for fragment in range(8):
        heard = ["x" if 3 in each["voters"] else "." for each in world.merges(960) if each["fragment"] == fragment]
        assert "." * 5 not in "".join(heard)
    assert sum(3 in each["left_out"] for each in world.merges(960)) > 0.2 * len(world.merges(960))


@pytest.mark.slow
def test_a_stuck_learner_is_waited_for_less_and_less():
    world = World(speeds=UNEVEN).run(480)
    world.learners[3].boundary = lambda: None  # Alive for the quorum, but never at a boundary again.
    world.run(300 * 24)
    requiring = [time for time, item in world.openings(since=480) if item["required"]]
    opened = len(world.openings(since=480))
    assert 0 < len(requiring) <= 0.02 * opened
    assert opened >= 0.8 * 300 * 8


def test_two_shards_open_their_own_fragments_only_and_keep_the_interval():
    world = World(speeds=UNEVEN, shards=2, link_steps=0.4).run(80 * 24)  # The world asserts whose each opening is.
    assert Counter(item["fragment"] for _, item in world.openings("initial")) == dict.fromkeys(range(8), 1)
    assert world.intervals(since=480) == pytest.approx([24] * 8, rel=0.02)


@pytest.mark.slow
def test_the_run_goes_on_when_learners_die_and_return():
    world = World(speeds=UNEVEN).run(400)
    world.kill(0)
    world.run(400)
    world.kill(1)
    world.run(24)
    assert all(merging["voters"] == [2, 3] for merging in world.merges(824))
    assert all(set(map(tuple, item["members"])) == {(2, 1), (3, 1)} for _, item in world.openings(since=860))
    world.join(0)
    world.run(24)
    assert any([0, 2] in item["members"] for _, item in world.openings(since=840))
    world.run(80 * 24)
    assert world.intervals(since=1000) == pytest.approx([24] * 8, rel=0.02)
    assert world.contributors_mean(since=1000) >= 2.7


def test_the_pace_is_that_of_the_fastest_who_is_left():
    world = World(speeds=(1.0, 0.5)).run(400)
    world.kill(0)
    world.run(60 * 24)
    assert world.intervals(since=500) == pytest.approx([48] * 8, rel=0.02)


def test_a_fast_learner_that_falls_silent_does_not_stop_the_pace():
    world = World(speeds=(1.0, 0.5)).run(400)
    world.learners[0].boundary = lambda: None
    world.run(60 * 24)
    assert world.openings(since=400 + 60)[0][0] < 400 + 90
    assert world.intervals(since=500) == pytest.approx([48] * 8, rel=0.1)


def test_the_initial_rounds_move_on_when_their_learner_dies():
    world = World(speeds=(1.0, 1.0, 1.0), link_steps=1.0, shards=2).run(1.5)
    assert [item["members"] for _, item in world.openings("initial")] == [[[0, 1]]] * 2, "one for each shard"
    world.kill(0)
    world.run(60)
    assert [item["members"] for _, item in world.openings("initial")[2:]] == [[[1, 1]]] * 8
    assert world.openings("merge")


def test_nobody_left_means_nothing_opens():
    world = World(speeds=(1.0, 1.0)).run(200)
    world.kill(0)
    world.kill(1)
    world.run(10)
    opened = len(world.log)
    world.run(1000)
    assert len(world.log) == opened
    assert not world.rounds


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_a_run_ends_with_one_final_round_of_each_fragment(shards):
    world = World(speeds=UNEVEN, shards=shards, tokens=2000, link_steps=0.7)
    world.run(5000)
    assert all(pacer.is_finished for pacer in world.pacers)
    finals = [merging for merging in world.mergings if merging["kind"] == "final"]
    assert Counter(merging["fragment"] for merging in finals) == dict.fromkeys(range(8), 1)
    assert all(merging["voters"] == [0, 1, 2, 3] for merging in finals)
    first = min(merging["opened_at"] for merging in finals)
    for shard in range(shards):
        own = [merging for merging in world.mergings if merging["fragment"] % shards == shard]
        assert len({merging["opened_at"] for merging in own if merging["kind"] == "final"}) == 1, "all at once"
        begin = next(merging["opened_at"] for merging in own if merging["kind"] == "final")
        assert all(merging["published_at"] <= begin for merging in own if merging["kind"] != "final")
    assert sum(learner.step for learner in world.learners.values()) >= 2000
    assert first <= (2000 / sum(UNEVEN) + 24) * STEP


def test_a_learner_that_dies_in_the_final_round_does_not_hold_it_up():
    world = World(speeds=(1.0, 1.0, 0.01), tokens=1000)
    while not world.openings("final"):
        world.run(1)
    world.kill(2)
    world.run(10)
    assert world.pacers[0].is_finished
    assert all(each["voters"] == [0, 1] for each in world.mergings if each["kind"] == "final")


def test_the_same_world_twice_opens_the_same_rounds():
    logs = [World(speeds=UNEVEN, shards=2).run(40 * 24).log for _ in range(2)]
    assert logs[0] == logs[1]
