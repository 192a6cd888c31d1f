"""The pacer by hand: the start and the end of a run."""

import pytest

from isthmus.ops.syncer.terms import FINAL_MIN
from isthmus.runtime.ids import Member, Replica
from tests.ops.syncer.pacer_shard import ALL, SECOND, Shard, control, lost, numbers, ready, stepping, told

# -- the start ---------------------------------------------------------------------------------------------------------


def test_the_start_waits_for_the_learners_and_asks_the_lowest_for_everything():
    shard = Shard(**ALL)
    assert shard.fire(ready(3)) == []
    assert shard.fire(ready(3)) == [], "the same learner again"
    opened = shard.fire(ready(1))
    assert numbers(opened) == [(p, "initial", 1, [[1, 1]]) for p in range(4)]
    assert [item["round"] for item in opened] == [1, 2, 3, 4]
    assert all(
        (item["count_min"], item["grace"], item["required"], item["deadline"]) == (1, 0, [], None) for item in opened
    )
    assert shard.fire(ready(0)) == [], "a lower slot comes too late"


def test_the_start_waits_a_minute_at_most():
    shard = Shard(learners=4)
    assert shard.fire(ready(2)) == []
    shard.now += 60 * SECOND - 1
    assert shard.fire(ready(2)) == []
    shard.now += 1
    assert numbers(shard.fire(ready(2)))[0] == (0, "initial", 1, [[2, 1]])


def test_the_next_lowest_gives_the_first_version_where_the_lowest_died():
    shard = Shard(**ALL)
    opened = shard.fire(ready(0), ready(1), ready(2))
    again = shard.fire(merged=[lost(opened[0])])
    assert numbers(again) == [(0, "initial", 1, [[1, 1]])]
    assert again[0]["round"] == 5
    again = shard.fire(merged=[told(opened[1]), lost(opened[2]), told(opened[3]), lost(again[0])])
    assert numbers(again) == [(0, "initial", 1, [[2, 1]]), (2, "initial", 1, [[2, 1]])]


def test_a_first_version_that_died_with_everybody_is_asked_of_the_next_life():
    shard = Shard(learners=1, **ALL)
    opened = shard.fire(ready(0))
    assert shard.fire(merged=[lost(item) for item in opened]) == []
    assert numbers(shard.fire(ready(0, 2))) == [(p, "initial", 1, [[0, 2]]) for p in range(4)]


def test_a_new_life_before_the_loss_is_told_is_asked_once():
    shard = Shard(learners=1, **ALL)
    opened = shard.fire(ready(0))
    assert shard.fire(ready(0, 2)) == []
    assert numbers(shard.fire(merged=[lost(opened[1])])) == [(1, "initial", 1, [[0, 2]])]


def test_a_first_version_that_nobody_can_give_fails_the_run():
    shard = Shard(learners=1, fragments=1)
    opened = shard.fire(ready(0))
    for _ in range(15):
        opened = shard.fire(merged=[told(opened[0], refused=[[0, "not finite"]], voters=[], version=None)])
        assert numbers(opened) == [(0, "initial", 1, [[0, 1]])]
    with pytest.raises(RuntimeError, match=r"starting fragment 0: expected .* found none in 16 rounds"):
        shard.fire(merged=[lost(opened[0])])


def test_nothing_is_due_before_somebody_steps():
    shard = Shard(**ALL)
    opened = shard.fire(ready(0), ready(1))
    assert shard.fire(merged=[told(item) for item in opened]) == []
    assert shard.fire(ready(0), ready(1)) == []
    assert numbers(shard.fire(stepping(1))) == [(0, "merge", 1, [[1, 1]])]


def test_a_learner_may_step_before_its_initial_rounds_are_told():
    """The update and what is told of it take different ways."""
    shard = Shard(**ALL)
    opened = shard.fire(ready(0), ready(1))
    assert shard.fire(stepping(0), stepping(1), merged=[told(item) for item in opened[:3]]) == []
    assert numbers(shard.fire(merged=[told(opened[3])])) == [(0, "merge", 1, [[0, 1], [1, 1]])]


def test_no_more_first_versions_are_asked_for_than_rounds_may_be_in_flight():
    shard = Shard(overlap=12)  # ceil(12 * 4 / 24) = 2.
    opened = shard.fire(ready(0), ready(1))
    assert numbers(opened) == [(p, "initial", 1, [[0, 1]]) for p in (0, 1)]
    assert shard.fire(ready(2)) == []
    opened = shard.fire(merged=[told(opened[1])])
    assert numbers(opened) == [(2, "initial", 1, [[0, 1]])]
    assert numbers(shard.fire(merged=[lost(opened[0])])) == [(2, "initial", 1, [[1, 1]])], "the next gives the rest"


# -- the end -----------------------------------------------------------------------------------------------------------


def ends(shard, opened):
    """The final rounds come back one by one."""
    for item in opened:
        assert not shard.pacer.is_finished
        assert shard.fire(merged=[told(item)]) == []
    return shard.pacer.is_finished


@pytest.mark.parametrize(
    "end",
    [
        {"control": control(stop=True)},
        {"control": control(totals=[[9, 1, 1_000_000]])},
        {"reports": [stepping(0, 30, tokens=600_000), stepping(1, 30, tokens=400_000)]},
        {"reports": [stepping(each, 30, totals=[[5, 1, 999_970]]) for each in range(2)]},
        {"reports": [stepping(each, 30, phase="final") for each in range(2)]},
    ],
)
def test_the_end_waits_for_open_rounds_and_opens_all_final_ones_at_once(end):
    shard = Shard(**ALL)
    (item,) = shard.started(stepping(0), stepping(1))
    assert shard.fire(*end.get("reports", ()), control=end.get("control")) == []
    assert shard.fire(stepping(3, phase="final")) == [], "that one takes no more part in an ordinary round"
    assert shard.fire(stepping(0, 40), stepping(2, 1))[0]["attempt"] == 2, "open rounds are renewed still"
    opened = shard.fire(merged=[told(item)])
    assert numbers(opened) == [(p, "final", 1, [[0, 1], [1, 1], [2, 1], [3, 1]]) for p in range(4)]
    assert all((item["count_min"], item["grace"]) == (1, FINAL_MIN) for item in opened)
    assert shard.fire(stepping(0, 90)) == []
    assert ends(shard, opened)


def test_a_budget_that_is_not_spent_does_not_end_the_run():
    shard = Shard()
    shard.started(stepping(0, tokens=599_999), stepping(1, tokens=400_000))
    assert not shard.pacer.statistics()["is_stopping"]
    shard.fire(stepping(0, tokens=600_000))
    assert shard.pacer.statistics()["is_stopping"]


def test_a_final_round_without_votes_ends_its_fragment():
    shard = Shard(fragments=2, **ALL)
    (item,) = shard.started(stepping(0), stepping(1))
    opened = shard.fire(control=control(stop=True), merged=[told(item)])
    assert shard.fire(merged=[lost(item) for item in opened]) == []
    assert shard.pacer.is_finished


def test_a_run_whose_learners_are_all_gone_comes_to_its_end():
    shard = Shard(fragments=2, **ALL)
    (item,) = shard.started(stepping(0), stepping(1))
    opened = shard.fire(control=control(stop=True), merged=[lost(item)])
    assert numbers(opened) == [(p, "final", 1, [[0, 1], [1, 1]]) for p in range(2)]
    shard.fire(merged=[lost(item) for item in opened])
    assert shard.pacer.is_finished


def test_final_rounds_are_renewed_for_who_comes_and_for_who_comes_back():
    shard = Shard(fragments=2, **ALL)
    (item,) = shard.started(stepping(0), stepping(1))
    shard.fire(control=control(stop=True), merged=[told(item)])
    renewed = shard.fire(stepping(2))
    assert numbers(renewed) == [(p, "final", 2, [[0, 1], [1, 1], [2, 1]]) for p in range(2)]
    assert shard.fire(stepping(0, 9, phase="final")) == []
    renewed = shard.fire(ready(1, 2))
    assert numbers(renewed) == [(p, "final", 3, [[0, 1], [2, 1]]) for p in range(2)]
    assert all((item["count_min"], item["grace"]) == (1, FINAL_MIN) for item in renewed)
    assert ends(shard, renewed)


def test_a_stop_before_anybody_is_there_starts_as_usual_and_ends_at_once():
    shard = Shard(**ALL)
    assert shard.fire(control=control(stop=True)) == []
    assert shard.fire(ready(0)) == []
    opened = shard.fire(ready(1))
    assert {item["kind"] for item in opened} == {"initial"}
    assert shard.fire(merged=[told(item) for item in opened]) == []
    opened = shard.fire(stepping(1))
    assert numbers(opened) == [(p, "final", 1, [[1, 1]]) for p in range(4)]
    renewed = shard.fire(stepping(0))
    assert ends(shard, renewed)


def test_a_stop_while_the_first_version_is_under_way_lets_it_come():
    shard = Shard(learners=1, fragments=2, **ALL)
    opened = shard.fire(ready(0))
    assert shard.fire(control=control(stop=True)) == []
    assert shard.fire(merged=[told(opened[0])]) == []
    assert not shard.pacer.is_finished
    opened = shard.fire(stepping(0), merged=[told(opened[1])])
    assert [item["kind"] for item in opened] == ["final", "final"]
    assert ends(shard, opened)


def test_a_shard_without_fragments_ends_with_the_run():
    shard = Shard(slot=3, shards=4, fragments=2)
    assert shard.fire(ready(0), ready(1)) == shard.fire(stepping(0, 50)) == []
    assert not shard.pacer.is_finished
    assert shard.fire(control=control(stop=True)) == []
    assert shard.pacer.is_finished


# -- a shard that comes back -------------------------------------------------------------------------------------------


def test_a_shard_that_comes_back_asks_everybody_who_holds_a_version():
    shard = Shard(**ALL)
    opened = shard.fire(stepping(0, 90, epochs=[1] * 4), stepping(2, 80, epochs=[1] * 4))
    assert numbers(opened) == [(p, "recover", 1, [[0, 1], [2, 1]]) for p in range(4)]
    assert {(item["count_min"], item["grace"]) for item in opened} == {(1, SECOND)}
    assert [item["kind"] for item in shard.fire(merged=[told(item, shard.now) for item in opened])] in ([], ["merge"])


def test_a_shard_that_comes_back_waits_for_those_of_whom_the_first_one_speaks():
    """One word is not believed of the others' tokens; that they are there to be heard it tells."""
    shard = Shard(**ALL)
    others = [[slot, 1, 90] for slot in (0, 2)]
    assert shard.fire(stepping(1, 80, epochs=[1] * 4, totals=others)) == []
    assert shard.fire(stepping(0, 90, epochs=[1] * 4)) == []
    opened = shard.fire(stepping(2, 90, epochs=[1] * 4))
    assert numbers(opened) == [(p, "recover", 1, [[0, 1], [1, 1], [2, 1]]) for p in range(4)]


@pytest.mark.parametrize("incarnation", [2, 3])
def test_a_shard_that_comes_back_uses_no_number_of_a_round_of_a_former_life(incarnation):
    """Answers to the rounds of a former life may still be on their way, and learners remember what they answered."""
    holders = [stepping(slot, 90, epochs=[1] * 4) for slot in (0, 2)]
    former = Shard(**ALL).fire(*holders)
    shard = Shard(incarnation=incarnation, **ALL)
    opened = shard.fire(*holders)
    assert [item["round"] for item in former] == [1, 2, 3, 4]
    assert [item["round"] - ((incarnation - 1) << 32) for item in opened] == [1, 2, 3, 4]
    assert shard.fire(merged=[told(item) for item in former]) == []
    statistics = shard.pacer.statistics()
    assert (statistics["rounds_in_flight"], statistics["rounds_opened"]) == (4, 4)


def test_a_recovery_that_nobody_answered_is_tried_again():
    shard = Shard(**ALL)
    opened = shard.fire(stepping(0, 90, epochs=[1] * 4))
    assert [item["kind"] for item in shard.fire(merged=[lost(opened[1])])] == ["recover"]


def test_a_shard_that_comes_back_believes_no_single_learner_that_the_run_is_over():
    """It has heard of one of three so far: the others have work to do, and would lose it."""
    shard = Shard(incarnation=2, fragments=2)
    shard.members = lambda: frozenset(Member(Replica("learner", slot), 1) for slot in range(3))
    shard.pacer._context.members = shard.members
    shard.fire(stepping(0, 9, phase="final", epochs=(1, 1)))
    assert not shard.pacer.statistics()["is_stopping"]
    shard.fire(stepping(1, 9, phase="final", epochs=(1, 1)))
    assert shard.pacer.statistics()["is_stopping"], "two of three are more than half"
