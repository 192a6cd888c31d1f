"""The pacer by hand: what goes in, what rounds come out."""

import itertools
from types import SimpleNamespace

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.pacer import Pacer

MS = 1_000_000
SECOND = 1_000_000_000
SETTINGS = {
    "fragments": 4,
    "shards": 1,
    "interval": 24,
    "overlap": 2,
    "quorum": 1,
    "grace": True,
    "gamma": 0.8,
    "learners": 2,
    "tokens": 1_000_000,
}


class Shard:
    """A pacer with a clock that stands still unless it is set."""

    def __init__(self, slot=0, **settings):
        self.now = 5 * SECOND
        self.shown = []
        self.pacer = Pacer(**(SETTINGS | settings))
        member = SimpleNamespace(replica=SimpleNamespace(slot=slot))
        self.pacer.open(SimpleNamespace(member=member, now=lambda: self.now, publish=self.shown.append))

    def fire(self, *reports, merged=(), control=None):
        """Fire, check that both ports carry the same items, and return those."""
        inputs = {}
        if reports:
            inputs["progress"] = {(f"learner/{i}", None): report for i, report in enumerate(reports)}
        if merged:
            inputs["merged"] = {("syncer/0", merging["fragment"]): merging for merging in merged}
        if control is not None:
            inputs["control"] = control
        emitted = self.pacer(**inputs)
        assert emitted is None or emitted
        rounds = [item for port, item in emitted or [] if port == "round"]
        pulls = [item for port, item in emitted or [] if port == "pull"]
        assert all(item is pull for item, pull in zip(rounds, pulls, strict=True))
        assert all(msgpack.unpackb(msgpack.packb(item)) == item for item in rounds)
        return rounds

    def started(self, *reports):
        """Through the start, up to the first reports of learners that step."""
        opened = self.fire(*(ready(report["slot"], report["incarnation"]) for report in reports))
        assert self.fire(merged=[told(item, self.now) for item in opened]) == []
        return self.fire(*reports)


def stepping(slot, step=0, *, incarnation=1, phase="stepping", step_time=MS, delay_steps=0, tokens=None, totals=()):
    return {
        "slot": slot,
        "incarnation": incarnation,
        "phase": phase,
        "step": step,
        "tokens": step if tokens is None else tokens,
        "step_time": step_time,
        "delay_steps": delay_steps,
        "totals": list(totals),
    }


def ready(slot, incarnation=1):
    return stepping(slot, incarnation=incarnation, phase="ready", step_time=0)


def told(item, at=0, *, voters=None, left_out=(), refused=(), version=(1, 1), quorum=0, waited=0, publishing=0):
    """What came of a round that opened at `at`; everybody voted unless said otherwise."""
    return {
        "round": item["round"],
        "fragment": item["fragment"],
        "kind": item["kind"],
        "version": version,
        "voters": [slot for slot, _ in item["members"]] if voters is None else voters,
        "left_out": list(left_out),
        "refused": list(refused),
        "reason": "as told",
        "opened_at": at,
        "quorum_at": at + quorum,
        "closed_at": at + quorum + waited,
        "published_at": at + quorum + waited + publishing,
    }


def lost(item):
    """A round whose members were all gone."""
    return told(item, voters=[], version=None)


def numbers(rounds):
    return [(item["fragment"], item["kind"], item["attempt"], item["members"]) for item in rounds]


# -- the start ---------------------------------------------------------------------------------------------------------


def test_the_start_waits_for_the_learners_and_asks_the_lowest_for_everything():
    shard = Shard()
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
    shard = Shard()
    opened = shard.fire(ready(0), ready(1), ready(2))
    again = shard.fire(merged=[lost(opened[0])])
    assert numbers(again) == [(0, "initial", 1, [[1, 1]])]
    assert again[0]["round"] == 5
    again = shard.fire(merged=[told(opened[1]), lost(opened[2]), told(opened[3]), lost(again[0])])
    assert numbers(again) == [(0, "initial", 1, [[2, 1]]), (2, "initial", 1, [[2, 1]])]


def test_a_first_version_that_died_with_everybody_is_asked_of_the_next_life():
    shard = Shard(learners=1)
    opened = shard.fire(ready(0))
    assert shard.fire(merged=[lost(item) for item in opened]) == []
    assert numbers(shard.fire(ready(0, 2))) == [(p, "initial", 1, [[0, 2]]) for p in range(4)]


def test_a_new_life_before_the_loss_is_told_is_asked_once():
    shard = Shard(learners=1)
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
    shard = Shard()
    opened = shard.fire(ready(0), ready(1))
    assert shard.fire(merged=[told(item) for item in opened]) == []
    assert shard.fire(ready(0), ready(1)) == []
    assert numbers(shard.fire(stepping(1))) == [(0, "merge", 1, [[1, 1]])]


def test_a_learner_may_step_before_its_initial_rounds_are_told():
    """The update and what is told of it take different ways."""
    shard = Shard()
    opened = shard.fire(ready(0), ready(1))
    assert shard.fire(stepping(0), stepping(1), merged=[told(item) for item in opened[:3]]) == []
    assert numbers(shard.fire(merged=[told(opened[3])])) == [(0, "merge", 1, [[0, 1], [1, 1]])]


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
    shards = [Shard(slot, shards=3, fragments=7, overlap=10) for slot in range(3)]
    firsts = [shard.fire(ready(0), ready(1)) for shard in shards]
    assert [[item["fragment"] for item in opened] for opened in firsts] == [[0, 3, 6], [1, 4], [2, 5]]
    for shard, opened in zip(shards, firsts, strict=True):
        shard.fire(merged=[told(item) for item in opened])
    begun = [shard.fire(stepping(0), stepping(1)) for shard in shards]
    assert [numbers(opened) for opened in begun] == [[(0, "merge", 1, [[0, 1], [1, 1]])], [], []]
    assert [item["fragment"] for item in shards[1].fire(stepping(0, 3))] == []
    assert [item["fragment"] for item in shards[1].fire(stepping(0, 4))] == [1]


def test_totals_are_everything_heard():
    shard = Shard()
    shard.fire(control={"stop": False, "totals": [[7, 1, 5]]})
    (item,) = shard.started(
        stepping(0, tokens=40, totals=[[0, 1, 30], [1, 1, 90]]),
        stepping(1, incarnation=2, tokens=10, totals=[[7, 1, 3]]),
    )
    assert item["totals"] == [[0, 1, 40], [1, 1, 90], [1, 2, 10], [7, 1, 5]]


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


def test_the_quorum_is_at_most_the_members():
    shard = Shard(quorum=3, learners=2)
    (item,) = shard.started(stepping(0), stepping(1))
    assert item["count_min"] == 2


def test_grace_in_closed_form():
    """Slowest 1.5 ms, tau 2: 3 ms; quorum 0.5, publication 0.1; delays of 2 steps are 1.5 and 2.25 ms, in the median
    1.875: without publication and half the grace of 0.4 these are 1.575 of transfer, half of it for the update."""
    shard = Shard()
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
        shard = Shard(grace=grace)
        (item,) = shard.started(stepping(0), stepping(1))
        assert item["grace"] == (int(1.6 * MS) if grace else 0)
        (item,) = shard.fire(stepping(0, 6), merged=[told(item, quorum=9 * MS)])
        assert item["grace"] == 0


def test_rounds_that_waited_for_all_teach_nothing_about_the_rest():
    shard = Shard()
    (item,) = shard.started(stepping(0, step_time=0), stepping(1, step_time=0))
    merging = told(item, quorum=5 * SECOND)
    (item,) = shard.fire(stepping(0, 6, delay_steps=900), stepping(1, 6, delay_steps=900), merged=[merging])
    assert item["grace"] == int(1.6 * MS)


def test_who_was_left_out_four_times_is_required_in_the_fifth_round():
    shard = Shard(fragments=1)
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
        "totals": [[0, 1, 0], [1, 1, 0], [2, 1, 0]],
    }
    assert shard.fire(stepping(2, 1)) == []


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


def test_a_member_that_is_not_accounted_for_is_gone_until_it_reports():
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    (item,) = shard.fire(stepping(0, 6), merged=[told(item, voters=[0])])
    assert item["members"] == [[0, 1]]
    (renewed,) = shard.fire(stepping(1, 6))
    assert numbers([renewed]) == [(1, "merge", 2, [[0, 1], [1, 1]])]
    (item,) = shard.fire(stepping(0, 12), merged=[told(renewed, voters=[0])])
    assert item["members"] == [[0, 1], [1, 1]], "the round had closed before the renewal came"


def test_with_the_fastest_gone_the_next_sets_the_pace_at_once():
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    (item,) = shard.fire(stepping(0, 7), stepping(1, 3), merged=[told(item)])
    assert shard.fire(merged=[told(item, voters=[1])]) == []
    (item,) = shard.fire(stepping(1, 8))
    assert numbers([item]) == [(2, "merge", 1, [[1, 1]])]


def test_nobody_left_opens_nothing():
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    assert shard.fire(stepping(0, 50), merged=[]) == []
    assert shard.fire(merged=[lost(item)]) == []
    assert shard.fire(ready(0, 2), ready(1, 2)) == []


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
        {"control": {"stop": True, "totals": []}},
        {"control": {"stop": False, "totals": [[9, 1, 1_000_000]]}},
        {"reports": [stepping(0, 30, tokens=600_000), stepping(1, 30, tokens=400_000)]},
        {"reports": [stepping(0, 30, totals=[[5, 1, 999_970]])]},
        {"reports": [stepping(1, 30, phase="final")]},
    ],
)
def test_the_end_waits_for_open_rounds_and_opens_all_final_ones_at_once(end):
    shard = Shard()
    (item,) = shard.started(stepping(0), stepping(1))
    assert shard.fire(*end.get("reports", ()), control=end.get("control")) == []
    assert shard.fire(stepping(3, phase="final")) == [], "that one takes no more part in an ordinary round"
    assert shard.fire(stepping(0, 40), stepping(2, 1))[0]["attempt"] == 2, "open rounds are renewed still"
    opened = shard.fire(merged=[told(item)])
    assert numbers(opened) == [(p, "final", 1, [[0, 1], [1, 1], [2, 1], [3, 1]]) for p in range(4)]
    assert all((item["count_min"], item["grace"]) == (4, None) for item in opened)
    assert shard.fire(stepping(0, 90)) == []
    assert ends(shard, opened)


def test_a_budget_that_is_not_spent_does_not_end_the_run():
    shard = Shard()
    shard.started(stepping(0, tokens=599_999), stepping(1, tokens=400_000))
    assert not shard.pacer.statistics()["is_stopping"]
    shard.fire(stepping(0, tokens=600_000))
    assert shard.pacer.statistics()["is_stopping"]


def test_a_final_round_without_votes_ends_its_fragment():
    shard = Shard(fragments=2)
    (item,) = shard.started(stepping(0), stepping(1))
    opened = shard.fire(control={"stop": True, "totals": []}, merged=[told(item)])
    assert shard.fire(merged=[lost(item) for item in opened]) == []
    assert shard.pacer.is_finished


def test_a_run_whose_learners_are_all_gone_comes_to_its_end():
    shard = Shard(fragments=2)
    (item,) = shard.started(stepping(0), stepping(1))
    opened = shard.fire(control={"stop": True, "totals": []}, merged=[lost(item)])
    assert numbers(opened) == [(p, "final", 1, [[0, 1], [1, 1]]) for p in range(2)]
    shard.fire(merged=[lost(item) for item in opened])
    assert shard.pacer.is_finished


def test_final_rounds_are_renewed_for_who_comes_and_for_who_comes_back():
    shard = Shard(fragments=2)
    (item,) = shard.started(stepping(0), stepping(1))
    shard.fire(control={"stop": True, "totals": []}, merged=[told(item)])
    renewed = shard.fire(stepping(2))
    assert numbers(renewed) == [(p, "final", 2, [[0, 1], [1, 1], [2, 1]]) for p in range(2)]
    assert shard.fire(stepping(0, 9, phase="final")) == []
    renewed = shard.fire(ready(1, 2))
    assert numbers(renewed) == [(p, "final", 3, [[0, 1], [2, 1]]) for p in range(2)]
    assert all((item["count_min"], item["grace"]) == (2, None) for item in renewed)
    assert ends(shard, renewed)


def test_a_stop_before_anybody_is_there_starts_as_usual_and_ends_at_once():
    shard = Shard()
    assert shard.fire(control={"stop": True, "totals": []}) == []
    assert shard.fire(ready(0)) == []
    opened = shard.fire(ready(1))
    assert {item["kind"] for item in opened} == {"initial"}
    assert shard.fire(merged=[told(item) for item in opened]) == []
    opened = shard.fire(stepping(1))
    assert numbers(opened) == [(p, "final", 1, [[1, 1]]) for p in range(4)]
    renewed = shard.fire(stepping(0))
    assert ends(shard, renewed)


def test_a_stop_while_the_first_version_is_under_way_lets_it_come():
    shard = Shard(learners=1, fragments=2)
    opened = shard.fire(ready(0))
    assert shard.fire(control={"stop": True, "totals": []}) == []
    assert shard.fire(merged=[told(opened[0])]) == []
    assert not shard.pacer.is_finished
    opened = shard.fire(stepping(0), merged=[told(opened[1])])
    assert [item["kind"] for item in opened] == ["final", "final"]
    assert ends(shard, opened)


def test_a_shard_without_fragments_ends_with_the_run():
    shard = Shard(slot=3, shards=4, fragments=2)
    assert shard.fire(ready(0), ready(1)) == shard.fire(stepping(0, 50)) == []
    assert not shard.pacer.is_finished
    assert shard.fire(control={"stop": True, "totals": []}) == []
    assert shard.pacer.is_finished
