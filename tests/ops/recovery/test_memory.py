"""What was merged is not begun anew: what a shard has to hear of in a later life, and what it does then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.ops.exchange.messages import Held
from isthmus.ops.recovery.hold import ShardMemory
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import compiled
from tests.ops.syncer.pacer_shard import ALL, SECOND, Shard, control, holding, lost, numbers, ready, stepping, told
from tests.ops.syncer.test_conductor import Score, told_of

ROLES = ("evaluator", "recorder")
OTHERS = ("learner", "syncer")

HELD_BY_ALL: Any = [("recorder", range(4)), ("evaluator", range(4))]


def context(incarnation: int, *roles: str) -> Any:
    live = frozenset(Member(Replica(role, 0), 3) for role in roles)
    told = SimpleNamespace(member=Member(Replica("syncer", 0), incarnation), members=lambda: live, clock=0)
    told.now = lambda: told.clock
    return told


# -- what may begin ----------------------------------------------------------------------------------------------------


def test_in_the_first_life_nobody_is_waited_for() -> None:
    assert ShardMemory().fresh([0, 1], context(1, *ROLES)) == [0, 1]


def test_in_the_first_life_what_is_known_to_be_merged_is_left_out() -> None:
    memory = ShardMemory()
    memory.add_recorder(control([1, 1, 4]))
    memory.add_holders(holding(("evaluator", [0, 1, 2], [2])))
    assert memory.fresh(range(4), context(1, *ROLES)) == [3], "0 and 1 are another shard's, or this one's already"


def test_later_the_recorder_and_all_live_holders_have_to_say_that_nothing_was_merged() -> None:
    memory, again = ShardMemory(), context(2, *ROLES, *OTHERS)
    assert memory.fresh([0], again) == []
    memory.add_recorder(control())
    assert memory.fresh([0], again) == []
    memory.add_holders(holding(("recorder", [])))
    assert memory.fresh([0], again) == []
    memory.add_holders(holding(("evaluator", [], [])))
    assert memory.fresh([0], again) == [0]


@pytest.mark.parametrize("late", ROLES)
def test_what_a_holder_said_before_it_knew_of_this_life_does_not_count(late: str) -> None:
    """What the life before had merged may have reached it since."""
    memory, again = ShardMemory(), context(2, *ROLES)
    memory.add_recorder(control())
    memory.add_holders(holding(*((role, []) for role in ROLES if role != late)))
    memory.add_holders(holding((late, [], []), life=1))
    assert memory.fresh([0], again) == []
    memory.add_holders(holding((late, [], [])))
    assert memory.fresh([0], again) == [0]


@pytest.mark.parametrize("holder", ROLES)
def test_a_first_version_that_somebody_holds_is_gone_on_from_as_long_as_the_holder_lives(holder: str) -> None:
    """It may have been merged into since, without a word to anybody who is left."""
    memory = ShardMemory()
    memory.add_recorder(control())
    memory.add_holders(holding(*((role, [0] if role == holder else [], []) for role in ROLES)))
    assert memory.fresh([0, 1], context(2, *ROLES)) == [1]
    assert memory.fresh([0, 1], context(2, *(role for role in ROLES if role != holder))) == [0, 1]


def test_nothing_is_merged_before_one_who_only_holds_the_model_has_all_of_it() -> None:
    memory, first = ShardMemory(), context(1, *ROLES)
    assert not memory.is_kept([0, 2], first)
    memory.add_holders(holding(("recorder", [0, 1], [])))
    assert not memory.is_kept([0, 2], first)
    memory.add_holders(holding(("evaluator", [0, 1, 2], [])))
    assert memory.is_kept([0, 2], first)
    memory.add_holders(holding(("evaluator", [], [])))
    assert memory.is_kept([0, 2], first), "it is asked for once"


def test_who_holds_the_model_is_waited_for_only_while_live_and_for_a_second() -> None:
    assert ShardMemory().is_kept([0], context(1, *OTHERS)), "nobody can hold it"
    memory, first = ShardMemory(), context(1, *ROLES)
    assert not memory.is_kept([0], first)
    first.clock += SECOND - 1
    assert not memory.is_kept([0], first)
    first.clock += 1
    assert memory.is_kept([0], first)


def test_a_holder_that_is_not_live_is_not_waited_for() -> None:
    memory = ShardMemory()
    memory.add_recorder(control())
    memory.add_holders(holding(("recorder", [])))
    assert memory.fresh([0], context(2, "recorder")) == [0]
    assert memory.fresh([0], context(2, *ROLES)) == []


@pytest.mark.parametrize("by_recorder", [True, False])
def test_later_one_merged_fragment_keeps_all_from_beginning(*, by_recorder: bool) -> None:
    """Beside it a fragment that is begun anew would make a model of two."""
    memory = ShardMemory()
    memory.add_recorder(control([1, 1, 1]) if by_recorder else control())
    memory.add_holders(holding(("recorder", []), ("evaluator", [1], [] if by_recorder else [1])))
    assert memory.fresh([0, 1], context(2, *ROLES)) == []
    memory.add_recorder(control())
    memory.add_holders(holding(("recorder", []), ("evaluator", [])))
    assert memory.fresh([0, 1], context(2, *ROLES)) == [], "what was merged once stays merged"


HEARD = st.lists(
    st.one_of(
        st.tuples(st.just("control"), st.sets(st.integers(0, 3))),
        st.tuples(st.sampled_from(ROLES), st.sets(st.integers(0, 3))),
    ),
    max_size=6,
)


@given(HEARD, st.integers(1, 3), st.sets(st.sampled_from((*ROLES, *OTHERS))))
def test_what_may_begin_is_never_merged_and_later_all_or_nothing(
    heard: list[tuple[str, set[int]]], incarnation: int, live: set[str]
) -> None:
    memory = ShardMemory()
    for who, merged in heard:
        if who == "control":
            memory.add_recorder(control(*([p, 1, 1] for p in sorted(merged))))
        else:
            memory.add_holders(holding((who, sorted(merged), sorted(merged))))
    fresh = memory.fresh(range(4), context(incarnation, *sorted(live)))
    merged = {p for _, each in heard for p in each}
    if incarnation == 1:
        assert set(fresh) == set(range(4)) - merged
    else:
        speakers = {who for who, _ in heard}
        has_all = {"control", *(live & set(ROLES))} <= speakers
        assert fresh == ([*range(4)] if has_all and not merged else [])


# -- what the recorder is told -----------------------------------------------------------------------------------------


def test_what_nobody_but_this_shard_knows_to_be_merged_is_told_to_the_recorder_once() -> None:
    memory, again = ShardMemory(), context(2, *ROLES)
    memory.add_holders(holding(("evaluator", [0, 1, 2], [0, 2])))
    assert memory.news(again) == [], "the recorder may know"
    memory.add_recorder(control([2, 1, 4]))
    [(port, item)] = memory.news(again)
    assert (port, item["holder"], item["fragments"], item["merged"]) == ("held", "syncer", [], [0])
    assert compiled(Held)(item, item, again.member) is None
    assert memory.news(again) == []


def test_a_first_life_tells_the_recorder_nothing() -> None:
    memory = ShardMemory()
    memory.add_recorder(control())
    memory.add_holders(holding(("evaluator", [0], [0])))
    assert memory.news(context(1, *ROLES)) == []


# -- the pacer ---------------------------------------------------------------------------------------------------------


def test_the_first_life_of_a_shard_is_not_delayed() -> None:
    opened = Shard(live=ROLES, **ALL).fire(ready(0), ready(1))
    assert numbers(opened) == [(p, "initial", 1, [[0, 1]]) for p in range(4)]


def test_a_shard_that_comes_back_waits_for_recorder_and_holders_before_it_begins() -> None:
    shard = Shard(incarnation=2, live=ROLES, **ALL)
    assert shard.fire(ready(0), ready(1)) == []
    assert shard.fire(control=control()) == []
    assert shard.fire(held=[("recorder", [])]) == []
    assert numbers(shard.fire(held=[("evaluator", [3], [])])) == [(p, "initial", 1, [[0, 1]]) for p in range(3)]


def test_the_first_merge_waits_until_somebody_else_has_the_first_versions() -> None:
    shard = Shard(live=ROLES, **ALL)
    opened = shard.fire(ready(0), ready(1))
    assert shard.fire(stepping(0), stepping(1), merged=[told(item, shard.now) for item in opened]) == []
    assert shard.fire(stepping(0, 50), stepping(1, 50), held=[("recorder", [0, 1, 2], [])]) == []
    assert {item["kind"] for item in shard.fire(held=[("recorder", range(4), [])])} == {"merge"}


def test_a_holder_that_has_died_meanwhile_is_not_waited_for() -> None:
    shard = Shard(incarnation=2, live=ROLES, **ALL)
    assert shard.fire(ready(0), ready(1), control=control(), held=[("recorder", [])]) == []
    shard.live.remove("evaluator")
    assert {item["kind"] for item in shard.fire(control=control())} == {"initial"}


@pytest.mark.parametrize(
    "heard",
    [
        {"control": control([2, 1, 7]), "held": [("recorder", [], []), ("evaluator", [], [])]},
        {"control": control(), "held": [("recorder", range(4), [3]), ("evaluator", [], [])]},
        {"control": control(), "held": [("recorder", [], []), ("evaluator", range(4), [0])]},
    ],
)
def test_a_shard_that_comes_back_does_not_begin_what_was_merged(heard: dict[str, Any]) -> None:
    shard = Shard(incarnation=2, live=ROLES, **ALL)
    assert shard.fire(ready(0, 2), ready(1, 2), **heard) == []
    for _ in range(90):
        shard.now += SECOND
        assert shard.fire(ready(0, 2), control=control()) == []


def test_a_shard_that_comes_back_waits_a_second_for_holders_to_look_what_they_hold() -> None:
    shard = Shard(incarnation=2, live=ROLES, **ALL)
    learner = stepping(0, epochs=[1] * 4)
    assert shard.fire(learner, held=[("recorder", range(4))]) == [], "the evaluator has not"
    shard.now += SECOND - 1
    assert shard.fire(learner) == []
    shard.now += 1
    assert {item["kind"] for item in shard.fire(learner)} == {"recover"}


def test_a_recovery_says_what_holders_know() -> None:
    shard = Shard(incarnation=2, live=ROLES, **ALL)
    rows = [[0, 1, 5, "a"], [2, 1, 4, "b"]]
    opened = shard.fire(stepping(0, epochs=[1] * 4), held=HELD_BY_ALL, given=rows)
    assert [item["known"] for item in opened] == [[[1, 5, "a"]], [], [[1, 4, "b"]], []]


def test_copies_that_holders_give_lead_to_a_recovery() -> None:
    """Learners that adopted a copy hold a version like any other."""
    shard = Shard(incarnation=2, live=ROLES, **ALL)
    merged = control(*([p, 1, 5] for p in range(4)), totals=[[0, 1, 90], [1, 1, 80]])
    assert shard.fire(ready(0, 2), ready(1, 2), control=merged, held=HELD_BY_ALL) == []
    copied = stepping(0, incarnation=2, epochs=[1, 1, 1, 0])
    opened = shard.fire(copied)
    assert numbers(opened) == [(p, "recover", 1, [[0, 2]]) for p in range(3)]
    assert shard.fire(merged=[told(item, version=(1, 5)) for item in opened]) == [], "the last one has no version yet"
    last = shard.fire(stepping(0, incarnation=2, epochs=[1] * 4))
    assert numbers(last) == [(3, "recover", 1, [[0, 2]])]
    assert shard.fire(merged=[told(last[0], version=(1, 5))])[0]["kind"] == "merge"


def test_a_recovery_whose_holders_die_does_not_begin_anew_either() -> None:
    shard = Shard(incarnation=2, live=ROLES, **ALL)
    heard = {"control": control([0, 1, 5]), "held": [("recorder", range(4)), ("evaluator", range(4))]}
    opened = shard.fire(stepping(0, epochs=[1] * 4), **heard)
    assert {item["kind"] for item in opened} == {"recover"}
    assert shard.fire(ready(0, 2), ready(1, 2), merged=[lost(item) for item in opened]) == []
    assert {item["kind"] for item in shard.fire(stepping(1, incarnation=2, epochs=[1] * 4))} == {"recover"}


# -- the conductor -----------------------------------------------------------------------------------------------------


def score(incarnation: int, *, live: tuple[str, ...] = ROLES) -> Score:
    made = Score(incarnation=incarnation)
    made.context.live = {Member(Replica(role, 0), 1) for role in live}
    return made


def test_the_first_life_of_a_conductor_is_not_delayed() -> None:
    assert told_of(score(1).fire(ready(0), ready(1))) == [("initial", 0, 0), ("initial", 1, 0)]


def test_a_conductor_that_comes_back_waits_for_recorder_and_holders_before_it_begins() -> None:
    again = score(2)
    assert again.fire(ready(0), ready(1), control=control()) == []
    assert again.fire(held=holding(("recorder", []))) == []
    opened = again.fire(held=holding(("evaluator", [])))
    assert told_of(opened) == [("initial", 0, 0), ("initial", 1, 0)]


def test_a_conductor_that_comes_back_waits_for_a_copy_of_what_was_merged() -> None:
    again = score(2)
    heard = holding(("recorder", [0, 1]), ("evaluator", []))
    assert again.fire(ready(0, 2), ready(1, 2), control=control([0, 1, 3], [1, 1, 3]), held=heard) == []
    copied = [stepping(slot, incarnation=2, epochs=[1, 1]) for slot in range(2)]
    assert told_of(again.fire(*copied)) == [("recover", 0, 0), ("recover", 1, 0)]


def test_of_a_model_made_of_modules_a_fragment_begins_as_long_as_no_merge_of_it_is_known() -> None:
    flat, modules, again = ShardMemory(), ShardMemory(is_of_modules=True), context(2, *ROLES)
    for memory in (flat, modules):
        memory.add_recorder(control([1, 1, 4]))
        memory.add_holders(holding(("recorder", [0, 1], [0])))
        assert memory.fresh(range(4), again) == []
        memory.add_holders(holding(("evaluator", [0, 1], [])))
    assert flat.fresh(range(4), again) == []
    assert modules.fresh(range(4), again) == [2, 3], "0 is merged, and 1 is kept and merged"
