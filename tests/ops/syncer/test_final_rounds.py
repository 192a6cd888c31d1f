"""The end of a shard: for how long its final rounds wait for a learner that is live and says nothing."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.ops.syncer.pacer import OVERDUE
from isthmus.ops.syncer.schedule import LearnerReport
from isthmus.ops.syncer.terms import FINAL_MIN, FINAL_ROUND_TRIPS, FINAL_STEPS, Terms
from tests.ops.syncer.pacer_shard import ALL, MS, SECOND, Shard, control, lost, numbers, ready, stepping, told
from tests.ops.syncer.pacer_world import STEP, World

LATEST = round(OVERDUE * FINAL_MIN)


def learner(slot: int, step_time: int) -> LearnerReport:
    return LearnerReport(slot, 1, "stepping", step_time, 0)


# -- the bound ---------------------------------------------------------------------------------------------------------


def test_the_bound_is_many_usual_round_trips_of_all_fragments() -> None:
    terms = Terms(24, 2, 1, 0.8)
    stepping_now = [learner(0, 100 * MS), learner(1, 150 * MS)]
    assert terms.final(4, stepping_now) == (1, FINAL_MIN, [], None)
    shape: Any = {"fragment": 0, "left_out": [], "opened_at": 0, "quorum_at": 2 * SECOND}
    shape |= {"closed_at": 2 * SECOND, "published_at": 3 * SECOND}
    terms.observe(shape, [0, 1], [], stepping_now, is_usual=True, is_late=False, sweep=4)
    usual = 2 * SECOND + SECOND + 150 * MS
    assert terms.final(4, stepping_now) == (1, FINAL_ROUND_TRIPS * 4 * usual, [], None)
    assert terms.final(1, stepping_now).grace == FINAL_ROUND_TRIPS * usual


def test_a_learner_that_is_too_slow_to_set_the_pace_has_time_for_its_step() -> None:
    terms = Terms(24, 2, 1, 0.8)
    slow = [learner(0, MS), learner(1, MS), learner(2, 30 * SECOND)]
    assert terms.final(4, slow).grace == FINAL_STEPS * 30 * SECOND
    assert terms.final(4, []).grace == FINAL_MIN


# -- the pacer by hand -------------------------------------------------------------------------------------------------


def ending(*, step_time: int = MS) -> tuple[Shard, list[Any]]:
    """A shard of two learners and two fragments whose final rounds have just opened."""
    shard = Shard(fragments=2, **ALL)
    (item,) = shard.started(stepping(0, step_time=step_time), stepping(1, step_time=step_time))
    opened = shard.fire(control=control(stop=True), merged=[told(item)])
    assert numbers(opened) == [(p, "final", 1, [[0, 1], [1, 1]]) for p in range(2)]
    return shard, opened


def test_an_overdue_round_without_a_vote_is_renewed_once_with_nobody() -> None:
    shard, opened = ending()
    shard.now += LATEST
    assert shard.fire(control=control()) == []
    shard.now += 1
    renewed = shard.fire(control=control())
    assert numbers(renewed) == [(p, "final", 2, []) for p in range(2)]
    assert [item["round"] for item in renewed] == [item["round"] for item in opened]
    shard.now += 10 * FINAL_MIN
    assert shard.fire(stepping(2), ready(1, 2), control=control()) == [], "nobody takes part any more"
    shard.fire(merged=[lost(item) for item in renewed])
    assert shard.pacer.is_finished


def test_a_round_that_was_closed_by_its_grace_is_the_end_of_its_fragment() -> None:
    shard, opened = ending()
    shard.now += FINAL_MIN + SECOND
    assert shard.fire(merged=[told(opened[0], shard.now, voters=[0], left_out=[1])]) == []
    assert not shard.pacer.is_finished
    shard.now += FINAL_MIN
    (last,) = shard.fire(control=control())
    assert numbers([last]) == [(1, "final", 2, [])]
    assert shard.fire(merged=[lost(last)]) == []
    assert shard.pacer.is_finished


def test_who_comes_back_does_not_put_off_the_end() -> None:
    shard, _ = ending()
    shard.now += FINAL_MIN
    assert numbers(shard.fire(stepping(2)))[0] == (0, "final", 2, [[0, 1], [1, 1], [2, 1]])
    shard.now += LATEST - FINAL_MIN + 1
    assert numbers(shard.fire(control=control())) == [(p, "final", 3, []) for p in range(2)]


def test_ordinary_rounds_are_never_overdue() -> None:
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    shard.now += 100 * FINAL_MIN
    assert shard.fire(stepping(0), stepping(1), control=control()) == []
    assert shard.fire(merged=[told(item)]) == []


@pytest.mark.parametrize(("trip", "bound"), [(1, 1), (3, 3)])
def test_the_bound_of_a_shard_is_learned_from_its_rounds(trip: int, bound: int) -> None:
    shard = Shard()
    opened = shard.started(stepping(0, step_time=100 * MS), stepping(1, step_time=100 * MS))
    for count in range(1, 9):
        at, shard.now = shard.now, shard.now + trip * SECOND
        merged = [told(item, at, quorum=trip * SECOND) for item in opened]
        steps = 24 * count
        opened = shard.fire(
            stepping(0, steps, step_time=100 * MS), stepping(1, steps, step_time=100 * MS), merged=merged
        )
    opened = shard.fire(control=control(stop=True), merged=[told(item, shard.now) for item in opened])
    assert {item["kind"] for item in opened} == {"final"}
    expected = FINAL_ROUND_TRIPS * 4 * (bound * SECOND + 100 * MS)
    assert {item["grace"] for item in opened} == {max(FINAL_MIN, expected)}


# -- the pacer in a small world ----------------------------------------------------------------------------------------


def ended(*silent: int) -> World:
    """A world that has come to its end, in which some learners do not answer the final rounds."""
    world = World(speeds=(1.0, 1.0, 0.8), tokens=3_000)
    for slot in silent:
        world.learners[slot].answers_end = False
    for second in range(60):
        world.after(second * SECOND, world.fire, {"control": {("recorder/0", None): control()}})
    while not world.pacers[0].is_finished and world.now < 60 * SECOND:
        world.run(SECOND / STEP)
    return world


def of_the_end(world: World) -> list[Any]:
    found = [merging for merging in world.mergings if merging["kind"] == "final"]
    assert len(found) == 8
    assert world.pacers[0].is_finished
    return found


def took_seconds(merging: Any) -> float:
    return (merging["closed_at"] - merging["opened_at"]) / SECOND


@pytest.mark.slow
def test_an_end_with_everybody_takes_no_longer_than_their_answers() -> None:
    for merging in of_the_end(ended()):
        assert merging["voters"] == [0, 1, 2]
        assert took_seconds(merging) < 0.01


@pytest.mark.slow
def test_an_end_with_a_silent_learner_is_that_of_the_others() -> None:
    for merging in of_the_end(ended(1)):
        assert (merging["voters"], merging["left_out"]) == ([0, 2], [1])
        assert took_seconds(merging) == pytest.approx(20, abs=0.01)


@pytest.mark.slow
def test_an_end_with_nobody_but_silent_learners_is_what_was_merged() -> None:
    for merging in of_the_end(ended(0, 1, 2)):
        assert (merging["voters"], merging["version"]) == ([], None)
        assert 25 < took_seconds(merging) <= 26
