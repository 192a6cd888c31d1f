"""Whose word counts of the tokens that lives of learners have trained."""

from __future__ import annotations

from typing import Any

from isthmus.ops.recovery.hold import LIVES_MAX, RelayedTotals

DEAD = (5, 1)


def said(slot: int, tokens: int, *others: tuple[int, int, int], incarnation: int = 1) -> Any:
    return {"slot": slot, "incarnation": incarnation, "tokens": tokens, "totals": [list(each) for each in others]}


def hear(relayed: RelayedTotals, *reports: Any, learners: int = 3) -> dict[tuple[int, int], int]:
    for report in reports:
        relayed.add_learner(report, lambda: range(learners), learners)
    return {(slot, incarnation): tokens for slot, incarnation, tokens in relayed.totals.rows() if tokens}


def test_a_life_speaks_for_itself_and_nobody_else_does() -> None:
    relayed = RelayedTotals()
    totals = hear(relayed, said(0, 10), said(1, 20, (0, 1, 99)), said(2, 30, (0, 1, 99), (1, 1, 99)))
    relayed.add_recorder([[0, 1, 99]])
    assert totals == hear(relayed) == {(0, 1): 10, (1, 1): 20, (2, 1): 30}


def test_of_the_dead_more_than_half_are_believed_in_as_much_as_they_all_say() -> None:
    relayed = RelayedTotals()
    assert DEAD not in hear(relayed, said(0, 1, (*DEAD, 10**9)))
    assert hear(relayed, said(1, 1, (*DEAD, 80)))[DEAD] == 80
    assert hear(relayed, said(2, 1, (*DEAD, 90)))[DEAD] == 90
    assert hear(relayed, said(0, 1, (*DEAD, 10**10)))[DEAD] == 90


def test_one_that_says_it_twice_is_one() -> None:
    relayed = RelayedTotals()
    totals = hear(relayed, *[said(0, 1, (*DEAD, 50), incarnation=life) for life in (1, 2, 3)])
    assert DEAD not in totals


def test_whom_one_speaks_of_is_there_to_be_waited_for_before_it_is_believed() -> None:
    relayed = RelayedTotals()
    assert hear(relayed, said(1, 20, (0, 1, 10), (2, 1, 30))) == {(1, 1): 20}
    assert relayed.slots() == {0, 1, 2}


def test_who_is_gone_has_no_voice() -> None:
    relayed = RelayedTotals()
    relayed.add_learner(said(3, 1, (*DEAD, 10**9)), lambda: [0, 1, 3], 3)
    relayed.add_learner(said(0, 1, (*DEAD, 10**9)), lambda: [0, 1], 2)
    assert relayed.totals.of(*DEAD) == 0
    relayed.add_learner(said(1, 1, (*DEAD, 7)), lambda: [0, 1], 2)
    assert relayed.totals.of(*DEAD) == 7


def test_the_recorder_is_believed_of_the_dead_and_one_that_is_alone_of_all() -> None:
    relayed = RelayedTotals()
    relayed.add_recorder([[*DEAD, 70]])
    assert hear(relayed)[DEAD] == 70
    assert hear(relayed, said(0, 1, (*DEAD, 75)), learners=1)[DEAD] == 75


def test_what_is_made_up_takes_bounded_memory() -> None:
    relayed = RelayedTotals()
    hear(relayed, said(0, 1, *((slot, 1, 9) for slot in range(10, 10 + 3 * LIVES_MAX))))
    assert len(relayed._claims) == LIVES_MAX
    totals = hear(relayed, said(1, 1, *((slot, 1, 9) for slot in range(10, 12))))
    assert totals[10, 1] == 9
