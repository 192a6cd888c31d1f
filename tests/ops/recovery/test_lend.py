"""The lend node, fed by hand: whom it asks, what it gives, and when it takes back what it said."""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.ops.recovery.hold import packed
from isthmus.ops.recovery.lend import Lend
from isthmus.runtime.ids import Member, Replica
from tests.ops.bodies import Context

LEAF = packed(np.arange(3.0))


class Lender:
    """A lend node, and which lives of which slots are there."""

    def __init__(self, *lives: tuple[int, int]) -> None:
        self.lend, self.context = Lend(role="learner"), Context("recorder")
        self.lend.open(self.context)
        self.live(*lives)

    def live(self, *lives: tuple[int, int]) -> None:
        self.context.live = {Member(Replica("learner", slot), life) for slot, life in lives}

    def fire(self, *moments: dict[str, Any]) -> list[tuple[Any, ...]]:
        """(slot, life, to, by, number of leaves) of what is said."""
        emitted = self.lend({(Replica("learner", item["slot"]), None): item for item in moments} or None)
        assert emitted is None or emitted
        return [
            (loan["slot"], loan["incarnation"], loan["to"], loan["by"], len(loan["leaves"]))
            for _, loan in emitted or []
        ]


def told(slot: int, life: int = 1, *, lacks: bool = False, to: Any = None, leaves: Any = ()) -> dict[str, Any]:
    standing = {"lacks": lacks, "lends": not lacks}
    return {"slot": slot, "incarnation": life, **standing, "to": to, "step": 70, "leaves": list(leaves)}


def over(*lives: tuple[int, int]) -> list[tuple[Any, ...]]:
    return [(slot, life, None, None, 0) for slot, life in lives]


def test_nobody_is_asked_while_all_lack_or_nobody_does() -> None:
    node = Lender((0, 1), (1, 1))
    assert node.fire(told(0, lacks=True), told(1, lacks=True)) == []
    assert node.fire(told(0), told(1)) == []
    assert node.fire({**told(0), "lends": False}, {**told(1), "lacks": True, "lends": False}) == []


def test_what_one_lends_goes_to_who_lacks_it_and_is_taken_back_afterwards() -> None:
    node = Lender((0, 1), (1, 1), (2, 3))
    assert node.fire(told(0), told(1), told(2, 3, lacks=True)) == [(0, 1, [2, 3], None, 0)]
    assert node.fire() == []
    assert node.fire(told(0, to=[2, 3], leaves=[LEAF])) == [(2, 3, None, [0, 1], 1)]
    assert node.fire() == []
    assert node.fire(told(2, 3)) == over((0, 1), (2, 3))
    assert node.fire() == []


def test_one_loan_at_a_time_and_the_next_is_of_who_has_lent_least() -> None:
    node = Lender((0, 1), (1, 1), (2, 1), (3, 1))
    assert node.fire(told(0), told(1), told(2, lacks=True), told(3, lacks=True)) == [(0, 1, [2, 1], None, 0)]
    assert node.fire(told(0, to=[2, 1], leaves=[LEAF])) == [(2, 1, None, [0, 1], 1)]
    assert node.fire(told(2)) == [*over((0, 1), (2, 1)), (1, 1, [3, 1], None, 0)]


def test_one_that_has_none_that_are_good_or_dies_is_asked_no_more() -> None:
    node = Lender((0, 1), (1, 1), (2, 1))
    assert node.fire(told(0), told(1), told(2, lacks=True)) == [(0, 1, [2, 1], None, 0)]
    assert node.fire(told(0, to=[2, 1])) == [*over((0, 1), (2, 1)), (1, 1, [2, 1], None, 0)]
    node.live((0, 1), (2, 1))
    assert node.fire() == over((1, 1), (2, 1))
    assert node.fire() == []


def test_a_borrower_that_goes_or_can_wait_no_longer_ends_the_loan_in_any_state() -> None:
    for answers in (False, True):
        for is_gone in (False, True):
            node = Lender((0, 1), (2, 1))
            node.fire(told(0), told(2, lacks=True))
            if answers:
                assert node.fire(told(0, to=[2, 1], leaves=[LEAF])) == [(2, 1, None, [0, 1], 1)]
            if is_gone:
                node.live((0, 1))
            assert node.fire(*([] if is_gone else [told(2)])) == over((0, 1), (2, 1))
            assert node.fire() == []


def test_a_loan_that_is_given_outlives_the_lender() -> None:
    node = Lender((0, 1), (2, 1))
    node.fire(told(0), told(2, lacks=True))
    node.fire(told(0, to=[2, 1], leaves=[LEAF]))
    node.live((0, 2), (2, 1))
    assert node.fire(told(0, 2)) == []
    assert node.fire(told(2)) == over((0, 1), (2, 1))


def test_what_an_earlier_life_says_late_counts_for_nothing() -> None:
    node = Lender((0, 2), (2, 1))
    assert node.fire(told(0, 2), told(2, lacks=True)) == [(0, 2, [2, 1], None, 0)]
    assert node.fire(told(0, 1, to=[2, 1], leaves=[LEAF])) == []
    assert node.fire(told(0, 2, to=[2, 1], leaves=[LEAF])) == [(2, 1, None, [0, 2], 1)]


def test_only_learners_of_one_path_lend_to_each_other() -> None:
    node = Lender((0, 1), (1, 1), (2, 1), (3, 1))
    node.lend = Lend(role="learner", period=2)
    node.lend.open(node.context)
    assert node.fire(told(0), told(2), told(3, lacks=True)) == []
    assert node.fire(told(1)) == [(1, 1, [3, 1], None, 0)]
