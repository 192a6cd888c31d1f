"""Which learners are slow, and what a pacer does about them: they are asked ahead, and keep what they train."""

import pytest

from isthmus.ops.syncer.schedule import LearnerReport
from isthmus.ops.syncer.slow_learners import TURNS, PaceVerdict, SlowLearners, SpeedTerms
from isthmus.ops.syncer.terms import Terms
from tests.ops.syncer.pacer_shard import MS, Shard, control, stepping, told

AUTO = SpeedTerms(ahead="auto", carry="auto")


def observed(slow, *times, turns=TURNS):
    """The verdicts of so many turns in which learners have these step times."""
    learners = [LearnerReport(slot, 1, "stepping", time, 0) for slot, time in enumerate(times)]
    return [verdict for _ in range(turns) for verdict in slow.observe(learners)]


@pytest.mark.parametrize(
    ("times", "slots"),
    [
        ((10, 10, 10, 100), {3}),
        ((10, 10, 20, 40), {2, 3}),
        ((100, 100, 189, 189), set()),
        ((10, 100), {1}),
        ((10, 100, 100, 100), set()),
        ((10, 100, 100, 210), {3}),
        ((10, 0, 0, 100), {3}),
        ((0, 0), set()),
        ((10,), set()),
        ((), set()),
    ],
)
def test_slow_are_those_whose_steps_take_twice_the_median(times, slots):
    slow = SlowLearners()
    verdicts = observed(slow, *times)
    assert slow.slots == slots == {verdict.slot for verdict in verdicts if verdict.is_slow}


def test_a_verdict_takes_patience_and_ends_only_well_below_its_limit():
    slow = SlowLearners()
    assert observed(slow, 10, 10, 20, turns=TURNS - 1) == observed(slow, 10, 10, 10, turns=1) == []
    assert observed(slow, 10, 10, 20, turns=TURNS - 1) == []
    assert observed(slow, 10, 10, 30, turns=1) == [PaceVerdict(2, True, 30, 10)]
    assert observed(slow, 10, 10, 15, turns=3 * TURNS) == []
    assert observed(slow, 10, 10, 14) == [PaceVerdict(2, False, 14, 10)]
    assert slow.slots == set()


def test_a_new_life_is_judged_anew():
    slow = SlowLearners()
    observed(slow, 10, 10, 20)
    slow.forget(2)
    assert slow.slots == set()
    assert observed(slow, 10, 10, 20, turns=TURNS - 1) == []


def paced(shard, *step_times, steps=120, before=()):
    """Run a shard whose learners take these times a step for so many steps of slot 0: all rounds, and pulls ahead."""
    opened, ahead, first = [*before], [], 1 + steps * bool(before)
    for step in range(first, first + steps):
        reports = [stepping(slot, step * MS // time, step_time=time) for slot, time in enumerate(step_times)]
        merged = [told(item) for item in opened[-1:]]
        opened += shard.fire(*reports, merged=merged)
        ahead += shard.ahead
    return opened, ahead


def begun(*step_times, **settings):
    shard = Shard(learners=len(step_times), **settings)
    (item,) = shard.started(*(stepping(slot, step_time=time) for slot, time in enumerate(step_times)))
    shard.fire(merged=[told(item)])
    return shard


def test_a_slow_learner_is_asked_ahead_and_told_to_carry_from_the_round_that_is_told():
    shard = begun(MS, MS, MS, 10 * MS, speeds=AUTO)
    opened, ahead = paced(shard, MS, MS, MS, 10 * MS)
    (change,) = shard.changes
    assert (change["setting"], change["slot"], change["reason"]) == ("pace", 3, "slow steps")
    assert (change["step_time"], change["median"], change["before"]) == (10 * MS, MS, "usual")
    carrying = {item["round"] for item in [*opened, *ahead] if "carry" in item}
    assert carrying == {item["round"] for item in [*opened, *ahead] if item["round"] >= change["round"]}
    assert {tuple(item["carry"]) for item in opened if "carry" in item} == {(3,)}
    assert ahead
    assert {tuple(slot for slot, _ in item["members"]) for item in ahead} == {(3,)}
    assert shard.shown[-1]["slow"] == [3]
    opened, ahead = paced(shard, MS, MS, MS, MS, before=opened[-1:])
    assert [each["reason"] for each in shard.changes] == ["slow steps", "usual steps"]
    assert not any("carry" in item for item in opened[-3:])
    assert "slow" not in shard.pacer.statistics()


@pytest.mark.parametrize(
    "step_times", [(MS, MS, MS, 19 * MS // 10 - 1), (MS, 10 * MS, 10 * MS, 10 * MS), (MS, MS, 0, MS)]
)
def test_where_nobody_is_slow_rounds_are_as_they_are_without(step_times):
    times = tuple(time or MS for time in step_times)
    shards = [begun(*step_times, speeds=speeds) for speeds in (AUTO, SpeedTerms())]
    found, expected = (paced(shard, *times) for shard in shards)
    assert found == expected
    assert len(found[0]) > 5
    assert not found[1]
    assert not shards[0].changes


def test_with_the_other_terms_only_what_they_name_is_done():
    for speeds, is_asked, carries in (
        (SpeedTerms(ahead="auto"), True, False),
        (SpeedTerms(carry="auto"), False, True),
        (SpeedTerms(ahead=True, carry=True), True, False),
    ):
        shard = begun(MS, MS, MS, 10 * MS, speeds=speeds)
        opened, ahead = paced(shard, MS, MS, MS, 10 * MS)
        assert bool(ahead) == is_asked
        assert any("carry" in item for item in opened) == carries
        assert bool(shard.changes) == speeds.by_speed


def test_last_rounds_tell_nobody_to_carry():
    shard = begun(MS, MS, MS, 10 * MS, speeds=AUTO)
    opened, _ = paced(shard, MS, MS, MS, 10 * MS)
    last = shard.fire(merged=[told(opened[-1])], control=control(stop=True))
    assert {item["kind"] for item in last} == {"final"}
    assert not any("carry" in item for item in last)


def waited(terms, delays, *, step, waits):
    """One more round of one fragment: `waits` for all, or not; learners report these delays, in steps."""
    times = (MS, MS, MS, 10 * MS)
    learners = [LearnerReport(slot, 1, "stepping", times[slot], delay, step=step) for slot, delay in enumerate(delays)]
    merging = {"fragment": 0, "opened_at": 0, "quorum_at": 0, "closed_at": 0, "published_at": 0, "left_out": []}
    terms.observe(merging, [0, 1, 2, 3], [], learners, is_usual=not waits, is_late=False, sweep=8)
    return terms.round_trip_steps(learners)


def test_a_wait_for_a_slow_learner_is_no_round_trip():
    """Delays are of the last answer: those of a round that waited for a slow learner are its step."""
    terms = Terms(8, 2, 1, 0.8)
    waited(terms, [10, 10, 10, 1], step=1, waits=True)
    for step in (1, 2, 3):
        assert waited(terms, [10, 10, 10, 1], step=step, waits=False) < 1
    assert waited(terms, [1, 1, 1, 1], step=4, waits=False) == pytest.approx(0.5)
    assert terms.adaptation.interval == 8
    for step in range(5, 20):  # Those of usual rounds do count.
        found = waited(terms, [10, 10, 10, 1], step=step, waits=False)
    assert found == pytest.approx(9.5)
    assert terms.adaptation.interval > 8
