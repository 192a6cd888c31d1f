"""The pacer by hand: ordinary rounds, their terms, and learners that come and go."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.syncer.pacer import RENEWAL_NS, RENEWED_AT_ONCE
from isthmus.ops.syncer.slow_learners import SpeedTerms
from isthmus.ops.syncer.terms import EDGE_WAIT
from tests.ops.syncer.pacer_shard import ALL, MS, SECOND, Shard, control, leaving, lost, numbers, ready, stepping, told

AHEAD = SpeedTerms(ahead=True)
# -- rounds ------------------------------------------------------------------------------------------------------------


def test_fragments_open_at_p_h_over_p_and_then_every_h_steps():
    shard = Shard()
    opened = [(0, item) for item in shard.started(stepping(0, 100), stepping(1, 50))]
    for step in range(1, 60):
        merged = [told(opened[-1][1])]
        opened += [
            (step, item) for item in shard.fire(stepping(0, 100 + step), stepping(1, 50 + step // 2), merged=merged)
        ]
    assert [(step, item["fragment"]) for step, item in opened] == list(zip(range(0, 60, 6), itertools.cycle(range(4))))
    assert [item["round"] for _, item in opened] == list(range(5, 15))


def test_as_many_rounds_as_tau_asks_for_and_the_longest_overdue_first():
    shard = Shard(overlap=12)  # ceil(12 * 4 / 24) = 2.
    first = shard.started(stepping(0), stepping(1))
    opened = shard.fire(stepping(0, 20))
    assert numbers(first + opened) == [(p, "merge", 1, [[0, 1], [1, 1]]) for p in (0, 1)]
    assert numbers(shard.fire(stepping(0, 30), merged=[told(opened[0])]))[0][:2] == (2, "merge")
    assert numbers(shard.fire(merged=[told(first[0])]))[0][:2] == (3, "merge")
    assert shard.pacer.statistics()["rounds_in_flight"] == shard.pacer.statistics()["rounds_in_flight_max"] == 2


def test_never_two_rounds_of_one_fragment():
    shard = Shard(fragments=1, overlap=48, learners=1)
    (item,) = shard.started(stepping(0))
    assert shard.pacer.statistics()["rounds_in_flight_max"] == 2
    assert shard.fire(stepping(0, 100)) == []
    assert shard.fire(merged=[told(item)])[0]["round"] == item["round"] + 1


def test_a_merge_of_no_open_round_changes_nothing():
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    assert shard.fire(merged=[told(item | {"round": 1}, voters=[])]) == []
    assert shard.fire(merged=[told(item | {"fragment": 2}, voters=[])]) == []
    assert shard.pacer.statistics()["rounds_in_flight"] == 1
    assert len(shard.fire(stepping(0, 6), merged=[told(item)])) == 1


def test_each_shard_opens_its_own_fragments():
    shards = [Shard(slot, shards=3, fragments=7, **ALL) for slot in range(3)]
    firsts = [shard.fire(ready(0), ready(1)) for shard in shards]
    assert [[item["fragment"] for item in opened] for opened in firsts] == [[0, 3, 6], [1, 4], [2, 5]]
    for shard, opened in zip(shards, firsts, strict=True):
        shard.fire(merged=[told(item) for item in opened])
    begun = [shard.fire(stepping(0), stepping(1)) for shard in shards]
    assert [numbers(opened) for opened in begun] == [[(0, "merge", 1, [[0, 1], [1, 1]])], [], []]
    assert [item["fragment"] for item in shards[1].fire(stepping(0, 3))] == []
    assert [item["fragment"] for item in shards[1].fire(stepping(0, 4))] == [1]


def test_totals_are_what_lives_say_of_themselves_and_of_the_dead_what_is_believed():
    shard = Shard()
    shard.fire(control=control(totals=[[7, 1, 5]]))
    (item,) = shard.started(
        stepping(0, tokens=40, totals=[[0, 1, 30], [1, 1, 90], [8, 1, 9]]),
        stepping(1, incarnation=2, tokens=10, totals=[[7, 1, 3], [1, 1, 80]]),
    )
    assert item["totals"] == [[0, 1, 40], [1, 1, 80], [1, 2, 10], [7, 1, 5]]


@pytest.mark.slow
@given(st.permutations(range(3)), st.lists(st.integers(0, 50), min_size=6, max_size=6))
def test_the_order_in_a_firing_does_not_matter(order, steps):
    expected, found = Shard(learners=3, overlap=24), Shard(learners=3, overlap=24)
    for now in (0, 3):
        reports = [stepping(slot, 50 * now + steps[now + slot]) for slot in range(3)]
        mixed = [reports[slot] for slot in order]
        if now == 0:
            assert expected.started(*reports) == found.started(*mixed)
        else:
            assert expected.fire(*reports) == found.fire(*mixed)
    for step in range(400, 440):
        assert expected.fire(stepping(2, step)) == found.fire(stepping(2, step))


# -- terms -------------------------------------------------------------------------------------------------------------


def test_all_are_waited_for_until_each_has_a_step_time_and_never_again():
    shard = Shard()
    (item,) = shard.started(stepping(0, 1), stepping(1, 1, step_time=0))
    assert (item["count_min"], item["grace"]) == (2, None)
    (item,) = shard.fire(stepping(0, 7), stepping(1, 7), merged=[told(item)])
    assert (item["count_min"], item["grace"]) == (1, int(0.8 * 2 * MS))
    (item,) = shard.fire(stepping(0, 13), stepping(2, 0, step_time=0), merged=[told(item)])
    assert (item["count_min"], item["members"]) == (1, [[0, 1], [1, 1], [2, 1]])
    assert item["grace"] is not None


def test_a_learner_with_long_steps_is_asked_ahead_of_the_round_by_its_step():
    shard = Shard(speeds=AHEAD, learners=3)
    (item,) = shard.started(stepping(0), stepping(1, step_time=2 * MS), stepping(2, step_time=4 * MS))
    seen, early = [], []
    for step in range(1, 7):
        opened = shard.fire(stepping(0, step), merged=[told(item)] if step == 1 else [])
        seen += [(step, pull["fragment"], [slot for slot, _ in pull["members"]]) for pull in shard.ahead]
        early = shard.ahead or early
    assert seen == [(3, 1, [2]), (5, 1, [1, 2])]
    assert early[0]["round"] == item["round"] + 1
    assert numbers(opened) == [(1, "merge", 1, [[0, 1], [1, 1], [2, 1]])]
    assert opened[0]["round"] == early[0]["round"]


def test_none_is_asked_ahead_whose_steps_are_less_than_twice_as_long_and_without_the_option():
    for shard, step_time in ((Shard(speeds=AHEAD), 2 * MS - 1), (Shard(), 4 * MS)):
        shard.started(stepping(0), stepping(1, step_time=step_time))
        for step in range(1, 6):
            shard.fire(stepping(0, step))
            assert shard.ahead == []


def test_a_round_that_opens_first_makes_the_number_of_one_that_was_asked_for_void():
    shard = Shard(speeds=AHEAD, learners=3)
    (item,) = shard.started(stepping(0), stepping(1, step_time=4 * MS), stepping(2))
    shard.fire(stepping(0, 3), merged=[told(item)])
    (asked,) = shard.ahead
    (parting,) = shard.fire(leaving(2, 3, 2))
    assert (parting["fragment"], parting["round"]) == (2, asked["round"] + 1)
    (item,) = shard.fire(stepping(0, 6), merged=[told(parting)])
    assert (item["fragment"], item["round"]) == (1, asked["round"] + 2)


def test_no_number_is_void_where_a_lead_is_longer_than_the_interval_and_rounds_end_out_of_turn():
    shard = Shard(speeds=AHEAD, interval=4, overlap=4)
    opened = shard.started(stepping(0), stepping(1, step_time=10 * MS))
    asked, due, numbers_opened = [], {}, []
    for step in range(1, 100):
        due |= {item["round"]: (step + (0 if item["fragment"] % 2 else 2), item) for item in opened}
        over = [number for number, (at, _) in due.items() if at == step]
        reports = stepping(0, step), stepping(1, step // 10, step_time=10 * MS)
        opened = shard.fire(*reports, merged=[told(due[number][1]) for number in over])
        asked += [item["round"] for item in shard.ahead]
        numbers_opened += [item["round"] for item in opened]
    assert len(asked) > 50
    assert set(asked) - set(numbers_opened[-1:]) >= set(numbers_opened[4:-1])
    assert {number for number in asked if number < numbers_opened[-1]} <= set(numbers_opened)


def test_a_final_round_is_asked_for_anew():
    shard = Shard(speeds=AHEAD)
    (item,) = shard.started(stepping(0), stepping(1, step_time=4 * MS))
    shard.fire(stepping(0, 3), merged=[told(item)])
    (asked,) = shard.ahead
    opened = shard.fire(control=control(stop=True))
    assert [item["kind"] for item in opened] == ["final"] * 4
    assert asked["round"] not in [item["round"] for item in opened]
    assert [item["round"] for item in opened] == sorted(item["round"] for item in opened)


def test_the_quorum_is_at_most_the_members():
    shard = Shard(quorum=3, learners=2)
    (item,) = shard.started(stepping(0), stepping(1))
    assert item["count_min"] == 2


def test_grace_in_closed_form():
    """Slowest 1.5 ms, tau 2: 3 ms; quorum 0.5, publication 0.1; delays of 2 steps are 1.5 and 2.25 ms, in the median
    1.875: without publication and half the grace of 0.4 these are 1.575 of transfer, half of it for the update."""
    shard = Shard(late="refuse")
    (item,) = shard.started(stepping(0, delay_steps=2), stepping(1, step_time=3 * MS // 2, delay_steps=2))
    merging = told(item, 77 * SECOND, quorum=MS // 2, waited=4 * MS // 10, publishing=MS // 10)
    (item,) = shard.fire(stepping(0, 6, delay_steps=2), merged=[merging])
    sync = 0.1 + (1.875 - 0.1 - 0.2) / 2
    assert item["grace"] == pytest.approx(0.8 * (3 - 0.5 - sync) * MS, abs=1)
    statistics = shard.shown[-1]
    assert statistics == shard.pacer.statistics()
    assert statistics["xi_step"] == 3 * MS // 2
    assert statistics["xi_quorum"] == MS // 2
    assert statistics["xi_sync"] == pytest.approx(sync * MS, abs=1)


def test_grace_is_never_negative_and_without_grace_it_is_nothing():
    for grace in (True, False):
        shard = Shard(grace=grace, late="refuse")
        (item,) = shard.started(stepping(0), stepping(1))
        assert item["grace"] == (int(1.6 * MS) if grace else 0)
        (item,) = shard.fire(stepping(0, 6), merged=[told(item, quorum=9 * MS)])
        assert item["grace"] == 0


def test_answers_that_are_late_count_in_the_next_round_or_are_refused():
    for late, chain in (("count", 0), ("refuse", None)):
        shard = Shard(late=late)
        (item,) = shard.started(stepping(0), stepping(1))
        assert (item["fragment"], item["chain"]) == (0, chain)


def test_rounds_that_waited_for_all_teach_nothing_about_the_rest():
    shard = Shard()
    (item,) = shard.started(stepping(0, step_time=0), stepping(1, step_time=0))
    merging = told(item, quorum=5 * SECOND)
    (item,) = shard.fire(stepping(0, 6, delay_steps=900), stepping(1, 6, delay_steps=900), merged=[merging])
    assert item["grace"] == int(1.6 * MS)


def test_who_was_left_out_four_times_is_required_in_the_fifth_round():
    shard = Shard(fragments=1, late="refuse")
    (item,) = shard.started(stepping(0), stepping(1))
    for step in (24, 48, 72, 96):
        assert (item["required"], item["deadline"]) == ([], None)
        (item,) = shard.fire(stepping(0, step), merged=[told(item, voters=[0], left_out=[1])])
    assert (item["required"], item["deadline"]) == ([1], 4 * 2 * MS)
    (item,) = shard.fire(stepping(0, 120), merged=[told(item)])
    assert item["required"] == []


def test_a_new_life_is_not_required_for_what_the_former_missed():
    shard = Shard(fragments=1)
    (item,) = shard.started(stepping(0), stepping(1))
    for step in (24, 48, 72):
        (item,) = shard.fire(stepping(0, step), merged=[told(item, voters=[0], left_out=[1])])
    assert shard.fire(merged=[told(item, voters=[0], left_out=[1])]) == []
    (item,) = shard.fire(stepping(0, 96), stepping(1, incarnation=2))
    assert (item["members"], item["required"]) == ([[0, 1], [1, 2]], [])


def test_first_and_last_rounds_of_a_fragment_wait_for_all_for_a_while_and_teach_nothing():
    """Late answers to the first would be stale, and after the last there is no round in which they could count."""
    shard = Shard(fragments=1, tokens=240)
    (item,) = shard.started(stepping(0), stepping(1))
    assert (item["required"], item["deadline"], item["grace"]) == ([0, 1], EDGE_WAIT, int(1.6 * MS))
    (item,) = shard.fire(stepping(0, 24), stepping(1, 24), merged=[told(item, quorum=9 * MS)])
    assert (item["required"], item["deadline"], item["grace"]) == ([], None, int(1.6 * MS)), "the grace of before"
    assert shard.fire(stepping(1, 72), stepping(0, 71)) == []
    (item,) = shard.fire(merged=[told(item)])
    assert item["required"] == [], "97 tokens are left, of which two intervals of both take 96"
    (item,) = shard.fire(stepping(0, 96), stepping(1, 96), merged=[told(item)])
    assert (item["required"], item["deadline"]) == ([0, 1], EDGE_WAIT)


def test_the_first_round_after_a_shard_came_back_waits_for_all():
    shard = Shard(incarnation=2, fragments=1)
    opened = shard.fire(stepping(0, 90, epochs=(1,)), stepping(1, 90, epochs=(1,)), held=[("recorder", [0])])
    while opened and opened[0]["kind"] != "merge":
        opened = shard.fire(stepping(0, 120, epochs=(2,)), merged=[told(opened[0])])
    assert opened[0]["required"] == [0, 1]


def test_an_answer_that_is_refused_is_an_answer():
    shard = Shard(fragments=1)
    (item,) = shard.started(stepping(0), stepping(1))
    for step in range(24, 240, 24):
        (item,) = shard.fire(stepping(0, step), merged=[told(item, voters=[0], refused=[[1, "stale"]])])
        assert (item["required"], item["members"]) == ([], [[0, 1], [1, 1]])


# -- who comes and goes ------------------------------------------------------------------------------------------------


def test_a_learner_that_begins_to_step_is_let_into_the_open_round():
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    assert shard.fire(ready(2)) == []
    (renewed,) = shard.fire(stepping(2, step_time=0))
    assert renewed == item | {
        "attempt": 2,
        "members": [[0, 1], [1, 1], [2, 1]],
        "required": [0, 1, 2],
        "totals": [[0, 1, 0], [1, 1, 0], [2, 1, 0]],
    }
    assert shard.fire(stepping(2, 1)) == []


def test_an_open_round_of_many_is_renewed_for_several_at_a_time():
    many = RENEWED_AT_ONCE + 2
    shard = Shard(learners=many)
    assert len(shard.started(*(stepping(slot) for slot in range(many)))) == 1
    shard.fire(*(ready(slot) for slot in range(many, many + 3)))
    (first,) = shard.fire(stepping(many))
    assert (first["attempt"], len(first["members"])) == (2, many + 1)
    shard.now += (many + 1) * RENEWAL_NS - 1
    assert shard.fire(stepping(many + 1)) == []
    assert shard.fire(stepping(many + 2)) == []
    shard.now += 1
    (second,) = shard.fire(stepping(0, 1))
    assert (second["attempt"], len(second["members"])) == (3, many + 3)


def test_a_new_life_replaces_the_former_in_everything():
    shard = Shard()
    (item,) = shard.started(stepping(0, 500), stepping(1))
    (renewed,) = shard.fire(ready(0, 2))
    assert numbers([renewed]) == [(0, "merge", 2, [[1, 1]])]
    assert renewed["round"] == item["round"]
    assert shard.fire(stepping(0, 900, tokens=7000)) == [], "a last report of the former life"
    (renewed,) = shard.fire(stepping(0, 3, incarnation=2))
    assert numbers([renewed]) == [(0, "merge", 3, [[0, 2], [1, 1]])]
    assert renewed["totals"][0] == [0, 1, 7000]
    assert shard.fire(stepping(0, 8, incarnation=2), merged=[told(renewed)]) == [], "five steps since its first report"
    assert len(shard.fire(stepping(0, 9, incarnation=2))) == 1


def test_a_round_whose_members_are_all_over_comes_back_by_itself():
    shard = Shard(learners=1)
    (item,) = shard.started(stepping(0))
    assert shard.fire(stepping(0, incarnation=2)) == []
    (item,) = shard.fire(stepping(0, 6, incarnation=2), merged=[lost(item)])
    assert numbers([item]) == [(1, "merge", 1, [[0, 2]])]


def test_a_member_without_a_trace_in_two_rounds_is_gone_until_it_reports():
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    (item,) = shard.fire(stepping(0, 6), merged=[told(item, voters=[0])])
    assert item["members"] == [[0, 1], [1, 1]]
    (item,) = shard.fire(stepping(0, 12), merged=[told(item, voters=[0])])
    assert item["members"] == [[0, 1]]
    (renewed,) = shard.fire(stepping(1, 6))
    assert numbers([renewed]) == [(2, "merge", 2, [[0, 1], [1, 1]])]
    for step in (18, 24):
        (item,) = shard.fire(stepping(0, step), merged=[told(renewed, voters=[0])])
        assert item["members"] == [[0, 1], [1, 1]], "the round had closed before the renewal came"
        renewed = item


def test_an_answer_without_steps_leaves_no_trace_and_is_no_death():
    """Nothing can be merged of the first round, which opens at step 0."""
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    for step in range(6, 60, 6):
        (item,) = shard.fire(stepping(0, step), stepping(1, step), merged=[lost(item)])
        assert item["members"] == [[0, 1], [1, 1]]


def test_with_the_fastest_gone_the_next_sets_the_pace_at_once():
    shard = Shard(overlap=12)
    (item,) = shard.started(stepping(0), stepping(1))
    (other,) = shard.fire(stepping(0, 7), stepping(1, 3))
    assert shard.fire(merged=[told(item, voters=[1]), told(other, voters=[1])]) == []
    (item,) = shard.fire(stepping(1, 8))
    assert numbers([item]) == [(2, "merge", 1, [[1, 1]])]


def test_nobody_left_opens_nothing():
    shard = Shard(overlap=12)
    (item,) = shard.started(stepping(0), stepping(1))
    (other,) = shard.fire(stepping(0, 50))
    assert shard.fire(merged=[lost(item), lost(other)]) == []
    assert shard.fire(ready(0, 2), ready(1, 2)) == []


def test_tau_zero_is_paced_too():
    shard = Shard(overlap=0)
    (item,) = shard.started(stepping(0), stepping(1))
    assert (item["count_min"], item["grace"]) == (1, 0)
