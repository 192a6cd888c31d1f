"""The rules of a merge: a list in whose order judges are asked, and what a rule of one's own may do."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.exchange.requested import Format
from isthmus.ops.kernels import averaging, coding
from isthmus.ops.kernels.averaging import Merged
from isthmus.ops.kernels.bounds import MERGES_MIN
from isthmus.ops.syncer.answer_rules import (
    OPPOSED,
    PAST_MIN,
    AnswerJudge,
    AnswerRule,
    Dissent,
    InfluenceCap,
    JudgePlace,
    LengthBounds,
    LengthCap,
    RoundTally,
    SiteWeights,
    usual_rules,
)
from isthmus.ops.syncer.merge import Merge
from isthmus.runtime.ids import MachineOwner, Replica
from tests.ops.bodies import Context, SmallTask, fragments_of, pull
from tests.ops.syncer.test_merge_and_outer_step import answer

PARTS = fragments_of(SmallTask(), 2)


def opened(rules: Sequence[AnswerRule], **more: Any) -> Merge:
    merge = Merge(PARTS, lr=1.0, momentum=0.0, rules=rules, **{"method": "average", **more})
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
    judge = LengthBounds().begin(JudgePlace(Context("syncer"), PARTS, None, None))  # type: ignore[arg-type]
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
    sites = usual_rules(site_weight={"b": 2.0, "a": 1.0}, length_max=0.5)
    assert sites == (
        LengthBounds(), Dissent("tell"), LengthCap(0.5), SiteWeights((("a", 1.0), ("b", 2.0))), InfluenceCap(1.0)
    )  # fmt: skip
    assert usual_rules(site_weight="equal") == (LengthBounds(), Dissent("tell"), SiteWeights(), InfluenceCap(1.0))


# -- sites -------------------------------------------------------------------------------------------------------------


NO_OWNER: Mapping[int, MachineOwner] = {}


def at_sites(
    machines: Sequence[str], rules: Sequence[AnswerRule], owners: Mapping[int, MachineOwner] = NO_OWNER
) -> Any:
    """A merge whose learners, by slot, are on these machines."""
    merge = opened(rules)
    merge._context.machines = {("learner", slot): name for slot, name in enumerate(machines)}
    merge._context.owners = {("learner", slot): owner for slot, owner in owners.items()}
    return merge


FOUR = ("a", "b", "c", "d")
TENFOLD = [answer(slot, 1.0) for slot in range(3)] + [answer(3, 1.0, end=800)]
"""Answers of 1:1:1:10 tokens, in as many steps: by tokens they weigh 1:1:1:100."""


@pytest.mark.parametrize(
    ("site_weight", "machines", "expected"),
    [
        (None, FOUR, [1 / 103, 1 / 103, 1 / 103, 100 / 103]),
        ("equal", FOUR, [1 / 4] * 4),
        ({"a": 2.0, "b": 0.5}, FOUR, [2 / 4.5, 0.5 / 4.5, 1 / 4.5, 1 / 4.5]),
        ("equal", "aabb", [1 / 4, 1 / 4, 1 / 202, 100 / 202]),
        ({"a": 3.0, "away": 9.0}, "aaab", [1 / 4, 1 / 4, 1 / 4, 1 / 4]),
        ("equal", "aaaa", [1 / 103, 1 / 103, 1 / 103, 100 / 103]),
        ("equal", ("", "", "", "d"), [1 / 6, 1 / 6, 1 / 6, 1 / 2]),
    ],
    ids=["by-tokens", "equal", "named", "two-each", "absent", "one-site", "no-name"],
)
def test_a_site_counts_by_its_weight_and_its_answers_by_their_tokens(
    site_weight: Any, machines: Sequence[str], expected: list[float]
) -> None:
    told = fired(at_sites(machines, usual_rules(site_weight=site_weight)), *TENFOLD)
    assert told["merging"]["weights"] == pytest.approx(expected)
    assert told["merging"]["capped"] == []


def test_an_answer_without_work_has_no_share_and_its_site_is_in_no_merge() -> None:
    idle = answer(1, 0.0, end=0, steps=0)
    told = fired(at_sites("abc", [SiteWeights()]), answer(0, 1.0), idle, answer(2, 1.0, end=160))
    assert (told["merging"]["voters"], told["merging"]["weights"]) == ([0, 2], [0.5, 0.5])
    # Beside one that has some, too.
    told = fired(at_sites("aab", [SiteWeights()]), answer(0, 1.0), idle, answer(2, 1.0, end=160))
    assert (told["merging"]["voters"], told["merging"]["weights"]) == ([0, 2], [0.5, 0.5])


def test_an_owner_has_no_more_than_its_most_of_what_its_sites_have() -> None:
    ann = MachineOwner("ann", 0.4)
    told = fired(at_sites(FOUR, usual_rules(site_weight="equal"), {0: ann, 1: ann}), *TENFOLD)
    assert told["merging"]["weights"] == pytest.approx([0.2, 0.2, 0.3, 0.3])
    assert told["merging"]["capped"] == [["ann", pytest.approx(0.5), 0.4]]


# -- an absolute bound -------------------------------------------------------------------------------------------------

SHORT = math.sqrt(PARTS[0].size / sum(part.size for part in PARTS))
"""Of a bound for the whole model, that of an answer about the first fragment."""


def merged_length(told: Any) -> float:
    """The length of a merged gradient."""
    return float(np.linalg.norm(Merged(told["direction"], told["scale"]).gradient(PARTS[0])))


def as_codes(vote: Any, form: Format) -> Any:
    return {**vote, **coding.item_fields("gradient", coding.encode(vote["gradient"], PARTS[0], form))}


@pytest.mark.parametrize("method", ["average", "rda"])
@pytest.mark.parametrize("form", ["float32", "bf16", "int8", "int4", "int1"])
def test_no_answer_counts_with_more_than_an_absolute_bound(method: Any, form: Format) -> None:
    ramp = np.linspace(-1, 1, PARTS[0].size)
    most = 0.25 * float(np.linalg.norm(ramp))
    votes = [as_codes(answer(slot, scale * ramp), form) for slot, scale in enumerate((1.0, 0.5, 0.01))]
    merge = opened([LengthCap(most / SHORT)], method=method)
    told = fired(merge, *votes)
    clipped = dict(told["merging"]["clipped"])
    # Codes of one bit are shorter than what they stand for, or longer: the bound is of both lengths.
    assert clipped == {0: pytest.approx(0.25, rel=0.2), 1: pytest.approx(0.5, rel=0.2)}
    if form == "float32":
        assert clipped == {0: pytest.approx(0.25, rel=1e-5), 1: pytest.approx(0.5, rel=1e-5)}
    assert told["merging"]["weights"] == pytest.approx([1 / 3] * 3)
    assert merged_length(told) <= most
    alone = fired(opened([LengthCap(most / SHORT)], method=method), votes[0])
    assert merged_length(alone) <= most
    assert merged_length(alone) >= 0.8 * most
    assert "shortened" in told["merging"]  # That is of proportions, and says nothing here.
    assert told["merging"]["shortened"] == []


def test_an_answer_whose_claimed_norms_are_short_is_bounded_by_its_values() -> None:
    """Norms may be a little less than those of the values: where values count, so does their length."""
    vote = answer(0, 1.0)
    longest = math.sqrt(PARTS[0].size)
    told = fired(opened([LengthCap(0.95 * longest / SHORT)]), {**vote, "norms": vote["norms"] * np.float32(0.9999)})
    assert told["merging"]["clipped"] == [[0, pytest.approx(0.95, rel=1e-5)]]


def test_what_is_within_the_bound_is_merged_bit_for_bit_and_nothing_is_said_of_it() -> None:
    votes = [answer(slot, 0.1 * (1 + slot)) for slot in range(3)]
    bounded, free = fired(opened([LengthCap(1e3)]), *votes), fired(opened(()), *votes)
    assert "clipped" not in bounded["merging"]
    assert bounded["direction"].tobytes() == free["direction"].tobytes()


def test_what_is_out_of_proportion_is_refused_by_its_own_length() -> None:
    votes = [answer(slot, 1e-3) for slot in range(3)] + [answer(3, 1e3)]
    told = fired(opened(usual_rules(length_max=1e-4)), *votes)
    assert told["merging"]["refused"] == [[3, "out of proportion"]]
    assert [slot for slot, _ in told["merging"]["clipped"]] == [0, 1, 2]


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


def test_where_answers_come_one_at_a_time_each_is_compared_with_the_last_merge() -> None:
    fragment = Fragment(0, (Unit("a", 0, 2000, (2000,)),))
    judge = Dissent("refuse").begin(JudgePlace(Context("syncer"), [fragment], coding, averaging))
    direction = np.random.default_rng(0).normal(size=2000).astype(np.float32)
    vote = {**answer(0, 1.0), "steps": 10}
    votes = [{**vote, "slot": 0, "gradient": direction}, {**vote, "slot": 1, "gradient": -direction}]
    fates = []
    for number in range(MERGES_MIN + 1):
        tally: Any = RoundTally(pull(0, number), {"refused": [], "opposed": []}, votes, (1, 0))  # type: ignore[arg-type, typeddict-item]
        fates.append([judge.arrived(tally, each) for each in votes])
        judge.moved(0, Merged(direction, np.full(1, 2.0, np.float32)))
        if number == 0:  # There is nothing to compare with.
            assert "agreement" not in tally.record
    assert fates == [[1.0, 1.0]] * MERGES_MIN + [[1.0, 0.0]]
    assert tally.record["agreement"] == [[0, 1.0], [1, -1.0]]
    assert tally.record["opposed"] == [[1, MERGES_MIN]]
    assert tally.record["refused"] == [[1, OPPOSED]]
    # One on an older version may pull elsewhere, and ends no row.
    late: Any = RoundTally(pull(0, 20), {"refused": [], "opposed": []}, votes, (1, 7))  # type: ignore[arg-type, typeddict-item]
    assert judge.arrived(late, votes[0]) == 1.0
    assert "agreement" not in late.record
