"""A shard that keeps sums: who is asked for values and when, what is left out, and the merge that comes of the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.formats import FORMATS
from isthmus.ops.kernels import coding
from isthmus.ops.learner.fragment_offer import NOTHING
from isthmus.ops.learner.fragment_send import norms
from isthmus.ops.syncer.answer_rules import usual_rules
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.summed_merge import ASKED_MAX, Ballot, SummedMerge
from isthmus.runtime.ids import MachineOwner, Member, Replica
from tests.ops.bodies import Context, pull
from tests.ops.syncer.test_merge_and_outer_step import DECISION, PARTS, answer

SECOND = 10**9
Change = Callable[[Any], Any]


def life(slot: int, incarnation: int = 1) -> Member:
    return Member(Replica("learner", slot), incarnation)


class Shard:
    """A ballot and a merge, opened, with the first version, and learners that send what is wanted when they are to."""

    def __init__(self, learners: int = 3, **more: Any) -> None:
        self.merge = SummedMerge(PARTS, **{"method": "rda", "lr": 0.5, "momentum": 0.5, "step_tokens": 8, **more})
        self.context = Context("syncer")
        self.context.live = {life(slot) for slot in range(learners)}
        self.merge.open(self.context)
        self.ballot = Ballot(PARTS, 8)
        self.round = self.version = 0
        self.answers: dict[int, Any] = {}
        self.wanted: list[int] = []
        self.merged: list[Any] = []
        self.first = np.linspace(-1, 1, PARTS[0].size).astype(np.float32)
        self.close({**answer(0, self.first, base=None), "kind": "initial"}, kind="initial")

    def close(self, *answers: Any, kind: str = "merge") -> None:
        """Close a round with these answers, told without values."""
        self.round += 1
        self.answers = {vote["slot"]: {**vote, "round": self.round, "kind": kind} for vote in answers}
        told = {
            (Replica("learner", slot), self.round): vote if kind == "initial" else {**vote, "gradient": NOTHING}
            for slot, vote in self.answers.items()
        }
        closed = self.ballot(round=pull(0, self.round, kind=kind), answer=told, decision=DECISION)["closed"]
        self._take(self.merge(closed=closed))

    def send(self, slot: int, **change: Any) -> None:
        """Send the values of an answer, which were wanted."""
        self.wanted.remove(slot)
        vote = self.answers[slot]
        fields = ("fragment", "round", "slot", "incarnation", "gradient", "format", "scales")
        values = {name: vote[name] for name in fields if name in vote} | change
        self._take(self.merge(values={(Replica("learner", slot), 0): values}))

    def wait(self, seconds: float) -> None:
        self.context.at += round(seconds * SECOND)
        self._take(self.merge(tick={}))

    def _take(self, emitted: Iterable[tuple[str, Any]]) -> None:
        for port, item in emitted:
            if port == "wanted":
                self.wanted.append(item["slot"])
            if port == "gradient":
                self.merged.append(item)

    @property
    def newest(self) -> Any:
        return self.merged[-1]

    @property
    def record(self) -> Any:
        return self.newest["merging"]

    def outer(self) -> Any:
        """The outer gradient."""
        units = np.repeat(self.newest["scale"], np.diff(PARTS[0].offsets))
        return self.newest["direction"] * units


def noise(seed: int) -> Any:
    return np.random.default_rng(seed).normal(size=PARTS[0].size).astype(np.float32)


@pytest.mark.parametrize("method", ["rda", "average"])
@pytest.mark.parametrize("form", ["float32", "int4"])
def test_the_merge_is_that_of_a_shard_that_keeps_answers(method: Any, form: str) -> None:
    votes = [answer(slot, noise(slot), end=80 * (slot + 1), steps=10 * (slot + 1)) for slot in range(3)]
    if form != "float32":
        votes = [
            {**vote, **coding.item_fields("gradient", coding.encode(vote["gradient"], PARTS[0], form))}
            for vote in votes
        ]
    shard = Shard(method=method)
    shard.close(*votes)
    assert len(shard.merged) == 1  # The first version.
    for slot in (1, 2, 0):
        shard.send(slot)
    whole = Merge(PARTS, method=method, lr=0.5, momentum=0.5, step_tokens=8)
    whole.open(Context("syncer"))
    whole(round=pull(0, 1, kind="initial"), answer={0: {**answer(0, shard.first, base=None), "kind": "initial"}})
    expected: Any = whole(round=pull(0, 1), answer={vote["slot"]: vote for vote in votes})["gradient"]
    units = np.repeat(expected["scale"], np.diff(PARTS[0].offsets))
    np.testing.assert_allclose(shard.outer(), expected["direction"] * units, rtol=1e-5, atol=1e-6)
    for name in ("version", "clock", "positions", "work"):
        assert shard.newest[name] == expected[name], name
    for name in ("voters", "refused", "merged_tokens", "votes"):
        assert shard.record[name] == expected["merging"][name], name
    assert shard.record["weights"] == pytest.approx(expected["merging"]["weights"])


def test_a_fragment_may_begin_as_a_version_that_was_published_without_an_answer() -> None:
    shard = Shard()
    begun: Any = {"fragment": 1, "version": [1, 0], "largest": 1.0, "clock": [], "positions": []}
    shard.merge(begun={("region", 1): begun})
    vote = {**answer(0, 0.5), "fragment": 1}
    size, units = PARTS[1].size, len(PARTS[1].units)
    vote |= {"gradient": np.ones(size, np.float32), "norms": norms(np.ones(size, np.float32), PARTS[1])}
    told: Any = {**vote, "gradient": NOTHING}
    closed = shard.ballot(round=pull(1, 1), answer={(Replica("learner", 0), 1): told}, decision=DECISION)["closed"]
    assert [port for port, _ in shard.merge(closed=closed)] == ["wanted"]
    emitted = dict(shard.merge(values={(Replica("learner", 0), 0): {**vote, "round": 1}}))
    assert emitted["gradient"]["version"] == [1, 1]
    assert emitted["gradient"]["scale"].shape == (units,)


def test_a_few_are_asked_at_a_time_and_the_next_when_one_has_come() -> None:
    shard = Shard(20)
    shard.close(*(answer(slot, noise(slot)) for slot in range(20)))
    # The fragment is half of the model, and answers are of float32: together they are at most the shard's part.
    part = sum(each.size for each in PARTS)
    most = min(ASKED_MAX, part // PARTS[0].size)
    assert shard.wanted == list(range(most))
    shard.send(1)
    assert shard.wanted == [0, *range(2, most + 1)]
    while shard.wanted:
        shard.send(shard.wanted[0])
        assert len(shard.wanted) <= most
    assert shard.record["voters"] == list(range(20))


def test_codes_are_asked_for_by_their_size() -> None:
    shard = Shard(20)
    votes = [answer(slot, noise(slot)) for slot in range(20)]
    shard.close(
        *(
            {**vote, **coding.item_fields("gradient", coding.encode(vote["gradient"], PARTS[0], "int1"))}
            for vote in votes
        )
    )
    codes = FORMATS["int1"].payload(unit.size for unit in PARTS[0].units)
    assert len(shard.wanted) == min(ASKED_MAX, 4 * sum(each.size for each in PARTS) // codes)
    assert len(shard.wanted) > 1


def test_what_was_added_counts_and_who_ends_before_is_left_out() -> None:
    shard = Shard(4)
    shard.close(*(answer(slot, 1.0 + slot) for slot in range(4)))
    for slot in (0, 1):
        shard.send(slot)
    shard.context.live = {life(slot) for slot in (2, 3)} | {life(0, 2)}
    shard.wait(0.1)
    # Learner 1 has ended, too: its values are in the sum.
    shard.send(2)
    shard.context.live.discard(life(3))
    shard.wait(0.1)
    assert shard.record["voters"] == [0, 1, 2]
    assert shard.record["left_out"] == [3]
    assert shard.record["weights"] == pytest.approx([1 / 3] * 3)
    assert [row[0] for row in shard.newest["clock"]] == [0, 1, 2]
    assert [row[0] for row in shard.newest["lives"]] == [0, 1, 2, 3]


def test_values_that_do_not_come_are_left_out_and_their_learner_is_asked_last_from_then_on() -> None:
    shard = Shard(3)
    shard.close(*(answer(slot, 1.0) for slot in range(3)))
    for slot in [slot for slot in shard.wanted if slot]:
        shard.send(slot)
    while shard.wanted != [0]:
        shard.send(next(slot for slot in shard.wanted if slot))
    shard.wait(0.5)
    assert len(shard.merged) == 1
    shard.wait(1.0)  # The others took milliseconds.
    assert shard.record["voters"] == [1, 2]
    assert shard.record["left_out"] == [0]
    shard.wanted.clear()
    shard.close(*(answer(slot, 1.0, base=(1, 1), begin=80, end=160) for slot in (1, 2)), answer(0, 1.0))
    assert shard.wanted[0] == 1


def test_where_none_comes_all_are_left_out_in_the_end() -> None:
    shard = Shard(2)
    shard.close(*(answer(slot, 1.0) for slot in range(2)))
    for _ in range(4):
        shard.wait(30.0)
    assert shard.record["left_out"] == [0, 1]
    assert shard.newest["direction"] is None


CODES = coding.item_fields("gradient", coding.encode(noise(9), PARTS[0], "int4"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda vote: {"gradient": np.full(PARTS[0].size, np.nan, np.float32)}, "not finite"),
        (lambda vote: {"gradient": 3 * vote["gradient"]}, "norms of other values"),
        (lambda vote: CODES, "values in another format"),
    ],
)
def test_what_is_wrong_with_values_is_seen_before_they_are_added(change: Change, why: str) -> None:
    shard = Shard(2)
    shard.close(answer(0, 1.0), answer(1, 2.0))
    shard.send(0, **change(shard.answers[0]))
    shard.send(1)
    assert shard.record["refused"] == [[0, why]]
    assert shard.record["voters"] == [1]
    assert np.isfinite(shard.outer()).all()


def test_values_that_nobody_wants_are_ignored() -> None:
    shard = Shard(3)
    shard.close(answer(0, 1.0), answer(1, 1.0))
    for change in ({"round": 7}, {"incarnation": 2}):
        shard.wanted.append(0)
        shard.send(0, **change)
    shard.answers[2] = {**answer(2, 9.0), "round": shard.round}
    shard.wanted.append(2)
    shard.send(2)
    assert len(shard.merged) == 1
    for slot in (0, 1):
        shard.send(slot)
        if slot == 0:
            shard.wanted.append(0)
            shard.send(0)  # A second time.
    assert shard.record["voters"] == [0, 1]


def test_an_answer_that_was_replaced_is_left_out() -> None:
    shard = Shard(2)
    shard.close(answer(0, 1.0), answer(1, 2.0))
    shard.send(0, gradient=NOTHING)
    shard.send(1)
    assert (shard.record["left_out"], shard.record["voters"]) == ([0], [1])


def test_too_long_an_answer_is_shortened_by_what_was_told_and_counts_with_its_direction() -> None:
    shard = Shard(5)
    shard.close(*(answer(slot, 1.0) for slot in range(4)), answer(4, 100.0))
    while shard.wanted:
        shard.send(shard.wanted[0])
    assert [slot for slot, _ in shard.record["shortened"]] == [4]
    # Lengths 1, 1, 1, 1 and 10, all in one direction.
    np.testing.assert_allclose(shard.outer(), np.full(PARTS[0].size, 14 / 5), rtol=1e-5)


def test_a_bound_on_answers_holds_for_each_by_its_own_values() -> None:
    length_max = 0.5 * float(np.sqrt(sum(each.size for each in PARTS)))
    shard = Shard(2, rules=usual_rules(length_max=length_max))
    shard.close(answer(0, 1.0), answer(1, 0.25))
    while shard.wanted:
        shard.send(shard.wanted[0])
    assert [slot for slot, _ in shard.record["clipped"]] == [0]
    np.testing.assert_allclose(shard.outer(), np.full(PARTS[0].size, 0.375), rtol=1e-4)


def test_a_cap_holds_also_where_the_values_of_others_do_not_come() -> None:
    shard = Shard(4, rules=usual_rules(share_max=0.25))
    shard.context.owners = {("learner", slot): MachineOwner(f"owner {slot}") for slot in range(4)}
    shard.close(*(answer(slot, 1.0, end=800 if slot == 0 else 80, steps=100 if slot == 0 else 10) for slot in range(4)))
    while shard.wanted and shard.wanted != [3]:
        shard.send(next(slot for slot in shard.wanted if slot != 3))
    shard.context.live.discard(life(3))
    shard.wait(0.1)
    assert shard.record["voters"] == [0, 1, 2]
    assert shard.record["weights"] == pytest.approx([0.25] * 3)
    np.testing.assert_allclose(shard.outer(), np.full(PARTS[0].size, 0.75), rtol=1e-5)


def test_weights_of_sites_are_those_of_the_sites_whose_values_came() -> None:
    shard = Shard(3, rules=usual_rules(site_weight="equal"))
    shard.context.machines = {("learner", slot): f"site-{slot}" for slot in range(3)}
    shard.close(*(answer(slot, 1.0, end=80 * (slot + 1), steps=10 * (slot + 1)) for slot in range(3)))
    while shard.wanted and shard.wanted != [2]:
        shard.send(next(slot for slot in shard.wanted if slot != 2))
    shard.context.live.discard(life(2))
    shard.wait(0.1)
    assert shard.record["weights"] == pytest.approx([0.5, 0.5])
    np.testing.assert_allclose(shard.outer(), np.full(PARTS[0].size, 1.0), rtol=1e-5)


def test_the_next_round_of_a_fragment_waits_for_the_merge_before_it() -> None:
    shard = Shard(2)
    shard.close(answer(0, 1.0))
    waiting = shard.answers
    shard.close(answer(1, 1.0))
    assert shard.wanted == [0]
    of_second, shard.answers = shard.answers, waiting
    shard.send(0)
    shard.answers = of_second
    shard.send(1)
    assert [each["version"] for each in shard.merged] == [[1, 0], [1, 1], [1, 2]]
