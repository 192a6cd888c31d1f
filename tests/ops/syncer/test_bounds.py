"""How loud one learner may be in a merge."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.learner.fragment_send import norms
from isthmus.ops.recovery.hold import digest_of
from isthmus.ops.syncer.answer_rules import BOUND, PAST_MIN, REFUSED, NormHistory, length, usual_rules
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.merge_books import are_own
from isthmus.runtime.ids import Replica
from tests.ops.bodies import Context, SmallTask, fragments_of, pull

PARTS = fragments_of(SmallTask(), 2)
PART = PARTS[0]


def answer(slot: int, values: Any, *, begin: int = 0, end: int = 80, **more: Any) -> Any:
    gradient = np.full(PART.size, values, np.float32)
    vote = {"fragment": 0, "round": 1, "kind": "merge", "slot": slot, "incarnation": 1, "base": [1, 0]}
    told = {"begin": begin, "end": end, "steps": 10, "clock": [], "positions": [[slot, end // 8]], "state": None}
    return {**vote, **told, "gradient": gradient, "norms": norms(gradient, PART), **more}


class Shard:
    """A merge node that has begun."""

    def __init__(self, **settings: Any) -> None:
        self.merge = Merge(PARTS, method="average", lr=0.5, momentum=0.5, **settings)
        self.merge.open(Context("syncer"))
        first = {**answer(0, 1.0), "kind": "initial", "base": None}
        self.merge(round=pull(0, 1, kind="initial"), answer={(Replica("learner", 0), 1): first})

    def fire(self, *answers: Any) -> tuple[Any, Any]:
        gradient = self.fire_whole(*answers)
        scale = np.repeat(gradient["scale"], np.diff(PART.offsets))
        return gradient["merging"], scale * gradient["direction"]

    def fire_whole(self, *answers: Any) -> Any:
        votes = {(Replica("learner", vote["slot"]), 1): vote for vote in answers}
        return self.merge(round=pull(0, 2), answer=votes)["gradient"]


def test_a_length_is_that_of_all_units() -> None:
    assert length(np.array([3.0, 4.0], np.float32)) == 5.0


@pytest.mark.parametrize(("factor", "share"), [(1.0, 1.0), (BOUND, 1.0), (2 * BOUND, 0.5), (REFUSED, BOUND / REFUSED)])
def test_what_is_too_long_beside_its_peers_is_shortened_to_the_bound(factor: float, share: float) -> None:
    assert NormHistory().shares([2.0, 2.0 * factor, 2.0]) == [1.0, pytest.approx(share), 1.0]


def test_what_is_out_of_all_proportion_is_refused() -> None:
    assert NormHistory().shares([2.0, 2.0 * REFUSED * 1.01, 2.0]) == [1.0, 0.0, 1.0]


def test_one_that_is_alone_is_compared_with_the_past_once_there_is_enough_of_it() -> None:
    norm_histories = NormHistory()
    for _ in range(PAST_MIN - 1):
        assert norm_histories.shares([1e9]) == [1.0]
        norm_histories.merged([1.0])
    assert norm_histories.shares([1e9]) == [1.0]
    norm_histories.merged([1.0])
    assert norm_histories.shares([1e9]) == [0.0]
    assert norm_histories.shares([2 * BOUND]) == [0.5]


def test_a_shard_that_comes_back_knows_the_lengths_of_the_version_that_it_goes_on_from() -> None:
    shard = Shard()
    for count in range(PAST_MIN):
        told = shard.fire_whole(answer(0, 1.0, begin=80 * count, end=80 * (count + 1), base=[1, count]))["lengths"]
    assert told == [length(answer(0, 1.0)["norms"])] * PAST_MIN
    merge = Merge(PARTS, method="average", lr=0.5, momentum=0.5)
    merge.open(Context("syncer", incarnation=2))
    held = {**answer(0, 1.0), "kind": "recover", "base": [1, PAST_MIN]}
    digest = digest_of(held["gradient"], held["clock"], held["positions"])
    known = [[1, PAST_MIN, digest, []], [1, PAST_MIN, digest, told], [1, PAST_MIN - 1, "older", [7.0]]]
    merge(round=pull(0, 1, kind="recover", known=known), answer={(Replica("learner", 0), 1): held})
    loud = answer(0, 2 * BOUND, base=[1, PAST_MIN])
    found = merge(round=pull(0, 2), answer={(Replica("learner", 0), 1): loud})["gradient"]
    assert found["merging"]["shortened"] == [[0, pytest.approx(0.5)]]
    assert found["lengths"] == pytest.approx([*told, BOUND * told[0]])


def test_a_quiet_peer_does_not_make_the_usual_too_long() -> None:
    norm_histories = NormHistory()
    norm_histories.merged([5.0] * PAST_MIN)
    assert norm_histories.shares([5.0, 1e-6]) == [1.0, 1.0]
    assert norm_histories.shares([0.0, 5.0]) == [1.0, 1.0]


def test_norms_are_compared_with_those_of_the_values() -> None:
    actual = np.array([1.0, 0.0, 2.0])
    assert are_own(np.array([1.05, 0.0, 1.9], np.float32), actual)
    assert not are_own(np.array([1.2, 0.0, 2.0], np.float32), actual)
    assert not are_own(np.array([1.0, 1e-3, 2.0], np.float32), actual)
    assert not are_own(np.array([1.0, -1e-31, 2.0], np.float32), actual)


def test_a_merge_shortens_what_is_too_long_and_says_so() -> None:
    merging, direction = Shard().fire(answer(0, 1.0), answer(1, 1.0), answer(2, 100.0))
    assert merging["voters"] == [0, 1, 2]
    assert merging["shortened"] == [[2, pytest.approx(0.1)]]
    np.testing.assert_allclose(direction, (1.0 + 1.0 + 10.0) / 3, rtol=1e-6)


def test_without_the_bound_it_counts_as_it_is() -> None:
    merging, direction = Shard(rules=usual_rules(bounded=False)).fire(answer(0, 1.0), answer(1, 1.0), answer(2, 1e6))
    assert (merging["voters"], merging["shortened"]) == ([0, 1, 2], [])
    np.testing.assert_allclose(direction, (1.0 + 1.0 + 1e6) / 3, rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (answer(2, 3e37), "out of proportion"),
        (answer(2, np.inf), "not finite"),
        (answer(2, 1.0, norms=np.full(len(PART.units), 1e30, np.float32)), "norms of other values"),
    ],
)
def test_one_wrong_answer_is_refused_and_the_others_are_merged(wrong: Any, why: str) -> None:
    merging, direction = Shard().fire(answer(0, 1.0), answer(1, 1.0), wrong)
    assert merging["voters"] == [0, 1]
    assert merging["refused"] == [[2, why]]
    np.testing.assert_array_equal(direction, 1.0)
