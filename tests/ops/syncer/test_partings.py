"""Rounds for learners that leave: at once, for what they have, and no more than for that."""

from isthmus.ops.syncer.pacer import PARTINGS_MAX
from isthmus.ops.syncer.terms import EDGE_WAIT
from tests.ops.syncer.pacer_shard import ALL, Shard, leaving, stepping, told


def shard():
    """Two learners that step, with every fragment merged once, and the first due again."""
    made = Shard(**ALL)
    opened = made.started(stepping(0), stepping(1))
    for step in (6, 12, 18, 24):
        opened += made.fire(stepping(0, step), stepping(1, step))
    made.fire(merged=[told(item, made.now) for item in {item["fragment"]: item for item in opened}.values()])
    return made


def test_what_one_that_leaves_has_is_merged_at_once_with_all_that_step_and_waits_for_it():
    opened = shard().fire(leaving(0, 25, 1, 2), stepping(1, 25))
    assert [item["fragment"] for item in opened] == [1, 2]
    for item in opened:
        assert item["kind"] == "merge"
        assert item["members"] == [[0, 1], [1, 1]]
        assert 0 in item["required"]
        assert item["deadline"] == EDGE_WAIT


def test_a_fragment_whose_round_is_open_needs_no_other():
    made = shard()
    (open_round,) = made.fire(stepping(0, 30), stepping(1, 30))
    assert made.fire(leaving(0, 31, open_round["fragment"])) == []


def test_no_other_round_opens_for_one_that_has_answered():
    made = shard()
    (item,) = made.fire(leaving(0, 25, 1))
    assert made.fire(leaving(0, 25, 1), merged=[told(item, made.now)]) == []


def test_one_whose_answer_does_not_come_is_asked_again_but_not_for_ever():
    made, count = shard(), 0
    opened = made.fire(leaving(0, 25, 1))
    while opened:
        count += len(opened)
        opened = made.fire(merged=[told(item, made.now, voters=[1], left_out=[0]) for item in opened])
    assert count == PARTINGS_MAX


def test_the_last_of_all_is_waited_for_by_nobody_else():
    made = shard()
    opened = made.fire(leaving(0, 25, 1), leaving(1, 25, 1, 3))
    assert [(item["fragment"], item["members"]) for item in opened] == [(1, [[0, 1], [1, 1]]), (3, [[0, 1], [1, 1]])]
    assert {item["count_min"] for item in opened} == {1}


def test_the_next_life_in_its_slot_is_one_that_steps():
    made = shard()
    made.fire(leaving(0, 25))
    opened = made.fire(stepping(0, 1, incarnation=2), stepping(1, 31))
    assert opened
    assert all(item["members"] == [[0, 2], [1, 1]] and item["deadline"] != EDGE_WAIT for item in opened)


def test_a_round_that_is_due_while_all_leave_has_a_quorum():
    made = shard()
    made.fire(stepping(0, 29), stepping(1, 29))
    opened = made.fire(stepping(0, 40), stepping(1, 40), leaving(0, 40), leaving(1, 40))
    assert opened
    assert {item["count_min"] for item in opened} == {1}
