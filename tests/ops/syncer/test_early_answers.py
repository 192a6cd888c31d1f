"""What merge does with answers before their round closes: nothing that its result shows."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.fragments import Fragment, Unit
from isthmus.ops.kernels import averaging, coding
from isthmus.ops.learner.fragment_send import norms
from isthmus.ops.syncer import merge as merge_node
from isthmus.ops.syncer.answer_rules import usual_rules
from isthmus.ops.syncer.merge import EARLY_SIZE_MIN, Merge
from isthmus.programs.wings.regions.region_answers import RegionShares
from isthmus.runtime.ids import MachineOwner, Replica
from tests.effort import examples
from tests.ops.bodies import Context, pull

PARTS = tuple(Fragment(p, (Unit(f"{p}a", 0, 40, (40,), "rda"), Unit(f"{p}b", 0, 7, (7,), "average"))) for p in range(2))
SIZE = PARTS[0].size
INTERVAL_TOKENS = 80


@pytest.fixture(autouse=True, scope="module")
def small_fragments_are_large() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_node, "EARLY_SIZE_MIN", 1)
        yield


def answer(p: int, slot: int, round: int, values: Any, *, form: str = "float32", **more: Any) -> Any:
    """An answer to a round, on the newest version, of INTERVAL_TOKENS in 10 steps."""
    plain = np.broadcast_to(np.asarray(values, np.float32), (SIZE,)).copy()
    sent = coding.item_fields("gradient", coding.encode(plain, PARTS[p], form))
    return {
        "fragment": p,
        "round": round,
        "kind": "merge",
        "slot": slot,
        "incarnation": 1,
        "base": [1, 0],
        "begin": INTERVAL_TOKENS * round,
        "end": INTERVAL_TOKENS * (round + 1),
        "steps": 10,
        "clock": [],
        "positions": [[slot, 10 * round]],
        "state": None,
        "norms": norms(plain, PARTS[p]),
        **sent,
        **more,
    }


class Shard:
    """A merge node whose fragments have begun; some answers come early."""

    def __init__(self, limit: float | None = None, **more: Any) -> None:
        context = Context("syncer")
        if limit is not None:
            context.owners = {("learner", 0): MachineOwner("half", limit)}
        self.merge = Merge(PARTS, method="rda", lr=0.5, momentum=0.5, **more)
        self.merge.open(context)
        for p in range(len(PARTS)):
            first = {**answer(p, 0, 0, np.ones(SIZE)), "kind": "initial", "base": None}
            self.merge(round=pull(p, p, kind="initial"), answer={(Replica("learner", 0), p): first})

    def early(self, *votes: Any) -> None:
        assert self.merge.take_early is not None
        for vote in votes:
            self.merge.take_early(vote)

    def fire(self, p: int, number: int, votes: list[Any]) -> Any:
        inbox = {(Replica("learner", vote["slot"]), number): vote for vote in votes}
        return self.merge(round=pull(p, number), answer=inbox)["gradient"]


def as_bits(item: Any) -> Any:
    """The item with arrays as bytes."""
    if isinstance(item, dict):
        return {name: as_bits(each) for name, each in item.items()}
    return item.tobytes() if isinstance(item, np.ndarray) else item


def votes_of(p: int, number: int, base: list[int], rng: np.random.Generator, count: int) -> list[Any]:
    """Answers of so many slots: some of which the merge will refuse, shorten, or find of no weight."""
    votes = []
    for slot in range(count):
        values = (1 + rng.random()) * rng.standard_normal(SIZE)
        steps = int(rng.integers(1, 11))
        end = INTERVAL_TOKENS * number + 8 * steps
        more = {"base": base, "steps": steps, "end": end}
        fault = rng.integers(0, 16)
        if fault == 0:
            values *= 50.0  # Too long: shortened.
        elif fault == 1:
            values *= 1e6  # Out of proportion.
        elif fault == 2:
            values[3] = np.nan
        elif fault == 3:
            more["begin"] = 0  # Merged before, from the second round on.
        elif fault == 4:
            more |= {"steps": 0, "end": INTERVAL_TOKENS * number}
        elif fault == 5:
            more["norms"] = np.array([-1e-31, 1.0], np.float32)
        elif fault == 6:
            values *= 1e-35
        elif fault == 7:
            more |= {"begin": end + 8, "former": [[0, 90, 10, 1]]}
        form = str(rng.choice(["float32", "float32", *CODED])) if np.isfinite(values).all() else "float32"
        votes.append(answer(p, slot, number, values, form=form, **more))
    return votes


@pytest.mark.slow
@settings(max_examples=examples(100), deadline=None)
@given(
    st.integers(0, 10**9),
    st.sampled_from([1, 2, 3, 4, 5, 8, 9, 11]),
    st.sampled_from([None, 0.1]),
    st.sampled_from([None, 1.5 * math.sqrt(sum(part.size for part in PARTS))]),
    st.data(),
)
def test_the_merge_has_the_same_bits_whatever_came_early(
    seed: int, count: int, limit: float | None, longest: float | None, data: st.DataObject
) -> None:
    """Rounds of two fragments in turns. Answers come in any order, come twice, come and are left out; rounds close by a
    quorum, are withdrawn; one learner's share may be limited, all lengths may be, and one may pull against all others.
    """
    rng = np.random.default_rng(seed)
    early, plain = (Shard(limit, rules=usual_rules(opposed="refuse", length_max=longest)) for _ in range(2))
    bases = [[1, 0], [1, 0]]
    number = 1
    for _ in range(3):
        rounds = [(p, votes_of(p, number + p, bases[p], rng, count)) for p in range(2)]
        arrivals = [(p, slot) for p in range(2) for slot in range(count)]
        for p, slot in data.draw(st.permutations(arrivals)):
            vote = rounds[p][1][slot]
            if rng.integers(0, 12) == 0:  # An answer that the quorum then does not count: its learner answers again.
                early.early(answer(p, slot, number, rng.random(SIZE)))
            if rng.integers(0, 3):
                early.early(vote)
        for p, votes in rounds:
            counted = [vote for vote in votes if rng.integers(0, 5)] if rng.integers(0, 2) else votes
            order = [counted[at] for at in rng.permutation(len(counted))]
            found = early.fire(p, number + p, order)
            assert as_bits(found) == as_bits(plain.fire(p, number + p, counted))
            bases[p] = found["version"]
        number += 2


def test_three_of_four_answers_leave_two_to_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    swept: list[int] = []
    sum_of = averaging._sum

    def counting(contributions: Any, *given: Any, held: Any = None, **more: Any) -> Any:
        swept.append(sum(held is None or not held[0] <= slot < held[1] for slot in contributions))
        return sum_of(contributions, *given, held=held, **more)

    monkeypatch.setattr(averaging, "_sum", counting)
    votes = [answer(0, slot, 1, np.random.default_rng(slot).random(SIZE)) for slot in range(4)]
    for last in range(4):
        shard = Shard()
        swept.clear()
        shard.early(*(vote for vote in votes if vote["slot"] != last))
        assert swept == [2]
        shard.fire(0, 1, votes)
        assert swept == [2, 2]  # The last sweep checks the last answer, too.


def test_values_are_read_once_to_be_checked_and_those_of_the_last_answer_in_the_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[Any] = []
    norms_of = averaging.unit_norms
    monkeypatch.setattr(averaging, "unit_norms", lambda values, part: read.append(values) or norms_of(values, part))
    shard = Shard()
    votes = [answer(0, slot, 1, np.random.default_rng(slot).random(SIZE)) for slot in range(3)]
    read.clear()
    shard.early(*votes[:2])
    assert [values is vote["gradient"] for values, vote in zip(read, votes, strict=False)] == [True, True]
    votes[2]["gradient"][3] = np.inf
    assert shard.fire(0, 1, votes)["merging"]["refused"] == [[2, "not finite"]]
    assert len(read) == 2


def test_one_fragment_is_summed_at_a_time_and_the_next_when_that_is_merged() -> None:
    shard = Shard()
    votes = {p: [answer(p, slot, 1, 1.0 + slot) for slot in range(4)] for p in range(2)}
    shard.early(votes[0][0], votes[0][1], votes[1][0], votes[1][1])
    sums = shard.merge._early
    assert (sums._summing, set(sums._sum._there)) == (0, {0, 1})  # type: ignore[union-attr]
    shard.fire(0, 1, votes[0])
    assert sums._summing is None
    shard.early(votes[1][2])
    assert (sums._summing, set(sums._sum._there)) == (1, {0, 1, 2})  # type: ignore[union-attr]


@pytest.mark.slow
def test_after_a_merge_nothing_of_its_answers_is_kept() -> None:
    shard = Shard()
    votes = [answer(0, slot, 1, 1.0 + slot) for slot in range(4)]
    gone = [weakref.ref(vote["gradient"]) for vote in votes]
    shard.early(*votes[:3])
    shard.fire(0, 1, votes)
    votes.clear()
    gc.collect()
    assert [each() for each in gone] == [None] * 4


@pytest.mark.parametrize("kind", ["initial", "recover"])
def test_first_versions_are_not_summed(kind: str) -> None:
    shard = Shard()
    shard.early({**answer(0, 0, 1, 1.0), "kind": kind})
    assert not shard.merge._early._examined


def test_short_fragments_and_regions_take_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    given: Any = {"method": "rda", "lr": 0.5, "momentum": 0.5}
    assert Merge(PARTS, rules=(RegionShares(2),), **given).take_early is None
    monkeypatch.setattr(merge_node, "EARLY_SIZE_MIN", EARLY_SIZE_MIN)
    assert Merge(PARTS, **given).take_early is None
    large = Fragment(1, (Unit("a", 0, EARLY_SIZE_MIN, (EARLY_SIZE_MIN,)),))
    assert Merge((PARTS[0], large), **given).take_early is not None
