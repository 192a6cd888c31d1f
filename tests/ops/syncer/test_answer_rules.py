"""The rules of a merge: a list in whose order judges are asked, and what a rule of one's own may do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from isthmus.ops.syncer.answer_rules import (
    PAST_MIN,
    AnswerJudge,
    AnswerRule,
    Dissent,
    InfluenceCap,
    JudgePlace,
    LengthBounds,
    RoundTally,
    usual_rules,
)
from isthmus.ops.syncer.merge import Merge
from isthmus.runtime.ids import Replica
from tests.ops.bodies import Context, SmallTask, fragments_of, pull
from tests.ops.syncer.test_merge_and_outer_step import answer

PARTS = fragments_of(SmallTask(), 2)


def opened(rules: Sequence[AnswerRule], **more: Any) -> Merge:
    merge = Merge(PARTS, method="average", lr=1.0, momentum=0.0, rules=rules, **more)
    merge.open(Context("syncer"))
    first = {**answer(0, 1.0, base=None), "kind": "initial"}
    merge(round=pull(0, 1, kind="initial"), answer={(Replica("learner", 0), 1): first})
    return merge


def fired(merge: Merge, *votes: Any) -> Any:
    return merge(round=pull(0, 2), answer={(Replica("learner", vote["slot"]), 2): vote for vote in votes})["gradient"]


class Asked(AnswerJudge):
    """Notes when it is asked, leaves one slot out, and gives half of what there is to nobody."""

    keepers = ("a",)

    def __init__(self, name: str, out: int, asked: list[Any]) -> None:
        self._name, self._out, self._asked = name, out, asked

    def begun(self, fragment: int, past: Sequence[float]) -> None:
        self._asked.append((self._name, "begun", fragment))

    def judge(self, tally: RoundTally) -> None:
        self._asked.append((self._name, "judge", [vote["slot"] for vote in tally.answers]))
        tally.refuse(f"by {self._name}", lambda vote: vote["slot"] == self._out)

    def share(self, tally: RoundTally) -> None:
        self._asked.append((self._name, "share", tally.parts))
        total, half = sum(tally.parts), tally.whole / 2
        tally.divide([part / total * half for part in tally.parts], half)

    def merged(self, tally: RoundTally) -> None:
        self._asked.append((self._name, "merged", [vote["slot"] for vote in tally.voters()]))

    def kept(self, fragment: int) -> list[float]:
        return [7.0] if self._name in self.keepers else []


@dataclass(frozen=True)
class Own:
    """A rule of one's own."""

    name: str
    out: int
    asked: Any
    sums_early: ClassVar[bool] = True

    def begin(self, place: JudgePlace) -> AnswerJudge:
        return Asked(self.name, self.out, self.asked)


def test_judges_are_asked_in_the_order_of_the_list_and_what_they_leave_goes_on() -> None:
    asked: list[Any] = []
    told = fired(opened([Own("a", 0, asked), Own("bb", 2, asked)]), *(answer(slot, 1.0) for slot in range(4)))
    assert told["merging"]["refused"] == [[0, "by a"], [2, "by bb"]]
    assert told["merging"]["voters"] == [1, 3]
    assert told["merging"]["weights"] == [0.125, 0.125]
    assert told["lengths"] == [7.0]
    assert asked == [
        ("a", "begun", 0), ("bb", "begun", 0),
        ("a", "judge", [0, 1, 2, 3]), ("bb", "judge", [1, 2, 3]),
        ("a", "share", [640.0, 640.0]), ("bb", "share", [0.25, 0.25]),
        ("a", "merged", [1, 3]), ("bb", "merged", [1, 3]),
    ]  # fmt: skip


def test_two_rules_that_keep_something_for_a_next_life_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Asked, "keepers", ("a", "bb"))
    with pytest.raises(AssertionError, match="only one rule"):
        opened([Own("a", 0, []), Own("bb", 2, [])])


def test_a_merge_without_rules_weighs_by_tokens_and_steps_and_still_books_and_checks() -> None:
    merge = opened(())
    told = fired(merge, answer(0, 1.0, end=160, steps=20), answer(1, 3.0), answer(2, np.nan))
    assert told["merging"]["weights"] == pytest.approx([2 / 3, 1 / 3])
    assert told["merging"]["refused"] == [[2, "not finite"]]
    assert told["lengths"] == []
    assert fired(merge, answer(0, 1.0))["merging"]["refused"] == [[0, "already merged"]]


def test_what_a_life_has_kept_of_a_fragment_begins_the_next() -> None:
    judge = LengthBounds().begin(JudgePlace(Context("syncer"), PARTS, None))  # type: ignore[arg-type]
    assert judge.kept(0) == []
    judge.begun(0, [1.0] * PAST_MIN)
    assert judge.kept(0) == [1.0] * PAST_MIN


def test_shares_are_of_all_answers() -> None:
    tally = RoundTally(pull(0, 1), {"refused": []}, [answer(0, 1.0)], (1, 0))  # type: ignore[typeddict-item]
    with pytest.raises(AssertionError):
        tally.divide([0.5, 0.5], 1.0)


def test_the_usual_rules_are_those_of_the_settings_in_one_order() -> None:
    assert usual_rules() == (LengthBounds(), Dissent("tell"), InfluenceCap(1.0))
    assert usual_rules(bounded=False, opposed="refuse", share_max=0.4) == (Dissent("refuse"), InfluenceCap(0.4))


class Wrong(AnswerJudge):
    """A judge of which one thing is wrong."""

    def __init__(self, how: str) -> None:
        self._how = how

    def judge(self, tally: RoundTally) -> None:
        if self._how == "loses one":
            tally.answers = tally.answers[1:]
        elif self._how == "refuses one that counts":
            tally.record["refused"].append([tally.answers[0]["slot"], "for no reason"])
        elif self._how == "divides too early":
            tally.divide([0.5] * len(tally.answers), 1.0)

    def share(self, tally: RoundTally) -> None:
        if self._how == "refuses too late":
            tally.refuse("too late", lambda vote: True)
        elif self._how == "loses one when it shares":
            tally.answers = tally.answers[1:]
        elif self._how == "gives more than there is":
            tally.divide([1.0] * len(tally.answers), 1.0)
        elif self._how == "gives less than it says":
            tally.divide([0.25] * len(tally.answers), 1.0)
        elif self._how == "gives less than nothing":
            tally.divide([2.0, *[-1.0 / (len(tally.answers) - 1)] * (len(tally.answers) - 1)], 1.0)


@dataclass(frozen=True)
class WrongRule:
    how: str
    sums_early: ClassVar[bool] = True

    def begin(self, place: JudgePlace) -> AnswerJudge:
        return Wrong(self.how)


@pytest.mark.parametrize(
    "how",
    [
        "loses one", "refuses one that counts", "divides too early", "refuses too late", "loses one when it shares",
        "gives more than there is", "gives less than it says", "gives less than nothing",
    ],
)  # fmt: skip
def test_a_rule_that_breaks_what_the_merge_relies_on_stops_it(how: str) -> None:
    merge = opened([WrongRule(how)])
    with pytest.raises(AssertionError):
        fired(merge, *[answer(slot, 1.0) for slot in range(3)])
    told = fired(opened([WrongRule("nothing")]), *[answer(slot, 1.0) for slot in range(3)])
    assert told["merging"]["voters"] == [0, 1, 2]
