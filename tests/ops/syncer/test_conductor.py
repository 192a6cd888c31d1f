"""The conductor: the order of turns, the budget, and learners and syncers that come back."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.ops.step_tokens import AtMost
from isthmus.ops.syncer.conductor import Conductor, open_rounds_max
from isthmus.ops.syncer.pacer import OVERDUE, START_WAIT
from isthmus.ops.syncer.terms import FINAL_MIN, FINAL_ROUND_TRIPS, FINAL_STEPS, last
from isthmus.runtime.ids import Member, Replica
from tests.ops.bodies import Context
from tests.ops.syncer.pacer_shard import SECOND, holding, lost, ready, stepping, told


class Score:
    """A conductor, fed by hand; `all_of` are the reports of learners, one token a step."""

    def __init__(self, *, incarnation: int = 1, **settings: Any) -> None:
        given = {"fragments": 2, "interval": 8, "overlap": 0, "learners": 2, "tokens": 100, "tokens_per_batch": 1}
        self.conductor = Conductor(**{**given, **settings})
        self.context = Context("syncer", incarnation=incarnation)
        self.conductor.open(self.context)

    def fire(self, *reports: Any, merged: Any = (), control: Any = None, held: Any = None) -> list[Any]:
        """The turns that open; both ports carry the same."""
        emitted = self.conductor(
            progress={(Replica("learner", report["slot"]), i): report for i, report in enumerate(reports)} or None,
            merged={("syncer/0", merging["fragment"]): merging for merging in merged} or None,
            control=None if control is None else {(Replica("recorder", 0), None): control},
            held=held,
        )
        rounds = [turn for port, turn in emitted or [] if port == "round"]
        assert rounds == [turn for port, turn in emitted or [] if port == "pull"]
        return rounds

    def begun(self, *reports: Any) -> list[Any]:
        """Through the first versions, up to the first turns."""
        initial = self.fire(*(ready(report["slot"]) for report in reports))
        assert [turn["kind"] for turn in initial] == ["initial"] * len(initial)
        assert self.fire(merged=[told(turn) for turn in initial]) == []
        return self.fire(*reports)


def told_of(turns: list[Any]) -> list[tuple[str, int, int]]:
    return [(turn["kind"], turn["fragment"], turn["steps"]) for turn in turns]


def test_fragments_take_turns_and_each_merge_opens_the_next() -> None:
    score, seen = Score(interval=7), []
    turns = score.begun(stepping(0), stepping(1))
    for count in range(1, 6):
        seen += told_of(turns)
        turns = score.fire(stepping(0, 4 * count), stepping(1, 4 * count), merged=[told(each) for each in turns])
    assert seen == [("merge", p, steps) for p, steps in ((0, 3), (1, 4), (0, 3), (1, 4), (0, 3))]


@pytest.mark.parametrize("is_held", [True, False])
def test_the_first_turn_waits_for_a_holder_of_all_first_versions_for_a_second_at_most(*, is_held: bool) -> None:
    score = Score()
    score.context.live = {Member(Replica(role, 0), 1) for role in ("syncer", "recorder", "evaluator")}
    assert score.begun(stepping(0), stepping(1)) == []
    assert score.fire(held=holding(("recorder", [0], []))) == []
    score.context.at += SECOND // 2
    assert bool(score.fire(held=holding(("evaluator", [0, 1], [])) if is_held else None)) == is_held
    score.context.at += SECOND // 2
    assert bool(score.fire()) != is_held, "nothing but a tick has come"


def test_nobody_begins_before_all_do_and_not_for_ever_later() -> None:
    late = Score(learners=3)
    initial = [*late.fire(ready(0), ready(1), ready(2))]
    late.fire(merged=[told(turn) for turn in initial])
    assert late.fire(stepping(0), stepping(1)) == []
    late.context.at += START_WAIT
    (turn,) = late.fire(stepping(0))
    assert turn["members"] == [[0, 1], [1, 1]]


def test_who_was_waited_for_at_the_first_version_is_not_waited_for_again() -> None:
    score = Score(learners=3)
    assert score.fire(ready(0), ready(1)) == []
    score.context.at += START_WAIT
    initial = score.fire(ready(0), ready(1))
    assert {turn["kind"] for turn in initial} == {"initial"}
    score.context.live = {
        Member(Replica("learner", 0), 1),
        Member(Replica("learner", 1), 1),
        Member(Replica("syncer", 0), 1),
    }
    assert score.fire(stepping(0), merged=[told(turn) for turn in initial]) == []  # The other lives, and may yet step.
    (turn,) = score.fire(stepping(0), stepping(1))
    assert turn["members"] == [[0, 1], [1, 1]]


def test_one_that_has_died_since_is_not_waited_for_either() -> None:
    score = Score(learners=3)
    score.fire(ready(0), ready(1))
    score.context.at += START_WAIT
    initial = score.fire(ready(0), ready(1))
    score.context.live = {Member(Replica("learner", 0), 1), Member(Replica("syncer", 0), 1)}
    (turn,) = score.fire(stepping(0), merged=[told(turn) for turn in initial])
    assert turn["members"] == [[0, 1]]


def test_rounds_within_the_overlap_are_open_at_once() -> None:
    assert [open_rounds_max(tau, 4, 8) for tau in range(8)] == [1, 1, 2, 2, 3, 3, 4, 4]
    score = Score(fragments=4, overlap=5)
    assert told_of(score.begun(stepping(0), stepping(1))) == [("merge", p, 2) for p in range(3)]


def test_the_last_turns_take_the_steps_that_the_budget_has_left() -> None:
    score = Score(tokens=22)  # 11 steps of two learners: captures after 4 and 8, and the end after 3 more.
    turns = score.begun(stepping(0), stepping(1))
    for step in (4, 8):
        turns = score.fire(stepping(0, step), stepping(1, step), merged=[told(turn) for turn in turns])
    assert told_of(turns) == [("final", 0, 3), ("final", 1, 3)]
    assert not score.conductor.is_finished
    score.fire(merged=[told(turn) for turn in turns])
    assert score.conductor.is_finished


def test_who_asks_for_the_end_gets_it_after_the_open_round() -> None:
    score = Score(overlap=3)
    turns = score.begun(stepping(0), stepping(1))
    assert score.fire(control={"stop": True, "tokens": 100, "totals": [], "published": []}) == []
    assert told_of(score.fire(merged=[told(turn) for turn in turns])) == [("final", 0, 3), ("final", 1, 3)]


def test_a_learner_that_comes_back_is_a_member_of_the_next_round() -> None:
    score = Score()
    turns = score.begun(stepping(0), stepping(1))
    assert score.fire(stepping(1, 0, incarnation=2)) == []
    (turn,) = score.fire(merged=[told(turns[0], voters=[0])])
    assert turn["members"] == [[0, 1], [1, 2]]


def test_what_a_dead_learner_did_not_train_is_made_up_for() -> None:
    score = Score(tokens=16)
    turns = score.begun(stepping(0), stepping(1))
    # Of 16 tokens 4 are trained, not 8: the end, 4 steps of two away, is 8 steps of one away.
    assert told_of(score.fire(stepping(1, incarnation=2), merged=[told(turns[0], voters=[0])])) == [("merge", 1, 4)]


def test_members_without_a_trace_are_left_out_until_they_are_heard_of() -> None:
    score = Score()
    turns = score.begun(stepping(0), stepping(1))
    for _ in range(2):
        turns = score.fire(merged=[lost(turn) for turn in turns])
    assert turns == []
    (turn,) = score.fire(stepping(1, 1))
    assert turn["members"] == [[1, 1]]


def test_a_syncer_that_comes_back_hears_everybody_first_and_goes_on_from_what_learners_hold() -> None:
    score = Score(incarnation=2, tokens=200)
    held = [stepping(slot, 40, epochs=[1, 1]) for slot in range(2)]
    assert score.fire(held[0]) == []  # The other one may hold a newer version.
    asked = score.fire(held[1])
    assert [(turn["kind"], turn["round"] >> 32, len(turn["members"])) for turn in asked] == [("recover", 1, 2)] * 2
    # Only one of those that answered is told, and those who wait at their gates report nothing new.
    turns = score.fire(merged=[told(turn, voters=[0]) for turn in asked])
    assert [turn["members"] for turn in turns] == [[[0, 1], [1, 1]]]
    for count in range(14):  # 60 steps of each are left, of which every turn takes 4: the end comes with the 15th.
        assert turns[0]["kind"] == "merge", count
        done = 44 + 4 * count
        turns = score.fire(stepping(0, done), stepping(1, done), merged=[told(turn) for turn in turns])
    assert told_of(turns) == [("final", 0, 4), ("final", 1, 4)]


# -- the end is bounded ------------------------------------------------------------------------------------------------


def ending(*, step_time: int = 1) -> tuple[Score, list[Any]]:
    """Two learners whose final rounds have just opened."""
    score = Score(overlap=3)
    turns = score.begun(stepping(0, step_time=step_time), stepping(1, step_time=step_time))
    stop: Any = {"stop": True, "tokens": 100, "totals": [], "published": []}
    score.fire(control=stop)
    return score, score.fire(merged=[told(turn) for turn in turns])


def test_a_final_round_waits_for_learners_within_a_bound_that_is_learned() -> None:
    _, turns = ending()
    assert {(turn["kind"], turn["count_min"], turn["grace"]) for turn in turns} == {("final", 1, FINAL_MIN)}
    _, turns = ending(step_time=FINAL_MIN)
    assert {turn["grace"] for turn in turns} == {FINAL_STEPS * (turns[0]["steps"] + 1) * FINAL_MIN}
    assert last(FINAL_MIN, 1, 3).grace == FINAL_ROUND_TRIPS * FINAL_MIN


def test_a_final_round_that_nobody_answers_is_closed_with_nobody() -> None:
    score, turns = ending()
    score.context.at += round(OVERDUE * FINAL_MIN) - SECOND
    assert score.fire(stepping(0)) == []
    score.context.at += 2 * SECOND
    closed = score.fire(stepping(0))
    assert [(turn["round"], turn["attempt"], turn["members"]) for turn in closed] == [
        (turn["round"], 2, []) for turn in turns
    ]
    score.context.at += FINAL_MIN * 10
    assert score.fire(stepping(0)) == []
    score.fire(merged=[lost(turn) for turn in closed])
    assert score.conductor.is_finished


def test_where_tokens_are_counted_turns_go_on_until_the_count_is_the_budget() -> None:
    """Two learners with 3 tokens a step of at most 8: 10 steps of both make the 60 of the budget, not 4."""
    score = Score(fragments=1, interval=4, tokens=60, tokens_per_batch=8, step_tokens=AtMost(8))
    turns, steps, seen = score.begun(stepping(0), stepping(1)), 0, []
    while turns[0]["kind"] == "merge":
        (turn,) = turns
        steps += turn["steps"]
        seen.append(turn["steps"])
        clock = [[slot, 1, 3 * steps] for slot in (0, 1)]
        reached = {"fragment": 0, "clock": clock, "positions": [[0, steps], [1, steps]], "states": []}
        emitted = score.conductor(merged={("syncer/0", 0): told(turn)}, reached={("syncer/0", 0): reached})
        turns = [item for port, item in emitted or [] if port == "round"]
    assert (sum(seen), seen[-1]) == (10, 2)
    assert [(turn["kind"], turn["steps"]) for turn in turns] == [("final", 0)]
