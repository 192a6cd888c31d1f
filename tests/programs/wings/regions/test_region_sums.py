"""Global shards that keep the sum of regions' answers: what a region sends when, and what counts of those that came."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange import schemas
from isthmus.ops.syncer.answer_rules import Dissent
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.ops.syncer.summed_merge import Ballot, SummedMerge
from isthmus.programs.wings.regions.region_answers import OwnersAmong, RegionAnswers, RegionShares
from isthmus.programs.wings.regions.region_parts import RegionParts
from isthmus.programs.wings.regions.regional_step import RegionalOffer
from isthmus.runtime.ids import MachineOwner, Member, Replica
from isthmus.runtime.items.schemas import compiled
from tests.ops.bodies import Context, pull
from tests.programs.wings.regions.test_regional_step import DECISION, PARTS, Region, spread

SYNCER = Replica("syncer", 0)
KIND = RegionAnswers()


class OfferingRegion(Region):
    """A region whose answers are told ahead."""

    def __init__(self, slot: int, first: Any | None) -> None:
        self.slot, self.position, self.rounds = slot, 0, 0
        self.step = RegionalOffer(PARTS, lr=1.0, momentum=0.0, parts=RegionParts(2))
        self.context = Context("region", slot)
        self.step.open(self.context)
        if first is not None:
            self.merged(first, kind="initial", work=[])

    def values(self, round_number: int, incarnation: int = 1) -> Any:
        wanted: Any = {"fragment": 0, "round": round_number, "slot": self.slot, "incarnation": incarnation}
        emitted = self.step(wanted={(SYNCER, 0): wanted})
        return dict(emitted).get("values")


class Shard:
    """A global shard that keeps sums: ballot, merge and outer step, with two live regions."""

    def __init__(self) -> None:
        rules = Dissent(), RegionShares(2), OwnersAmong()
        terms: Any = {"lr": 1.0, "momentum": 0.0, "step_tokens": 8, "rules": rules, "answers": KIND}
        self.merge = SummedMerge(PARTS, method="average", **terms)
        self.outer = OuterStep(PARTS, lr=1.0, momentum=0.0)
        self.context = Context("syncer")
        self.context.live = {Member(Replica("region", slot), 1) for slot in (0, 1)}
        self.merge.open(self.context)
        self.outer.open(Context("syncer"))
        self.ballot = Ballot(PARTS, 8, KIND)
        self.update: Any = None
        self.record: Any = None

    def close(self, round_number: int, *answers: Any, kind: str = "merge", totals: Any = ()) -> list[int]:
        """The regions whose values are wanted of a round with these answers."""
        asked: Any = {**pull(0, round_number, kind=kind, members=[[0, 1], [1, 1]]), "totals": list(totals)}
        votes: Any = {(Replica("region", vote["slot"]), 0): vote for vote in answers}
        return self._take(self.merge(**self.ballot(round=asked, answer=votes, decision=DECISION)))

    def send(self, values: Any) -> None:
        self._take(self.merge(values={(Replica("region", values["slot"]), 0): values}))

    def end(self, slot: int) -> None:
        """That region's life ends."""
        self.context.live = {each for each in self.context.live if each.replica.slot != slot}
        self._take(self.merge(tick={}))

    def _take(self, emitted: Any) -> list[int]:
        for port, item in emitted:
            if port == "gradient":
                made = self.outer(gradient=item)
                self.update, self.record = made.get("update"), made["merged"]
        return [item["slot"] for port, item in emitted if port == "wanted"]


def begun() -> tuple[Shard, OfferingRegion, OfferingRegion]:
    shard, one = Shard(), OfferingRegion(0, spread(0))
    # The first version comes whole.
    assert shard.close(1, one.answer(1, kind="initial"), kind="initial") == []
    two = OfferingRegion(1, None)
    for region in (one, two):
        region.adopt(shard.update)
    return shard, one, two


def test_an_answer_is_told_and_its_values_follow_once() -> None:
    _, one, _ = begun()
    one.merged(spread(1))
    told, held = one.answer(2), one.step._held[0]
    assert (told["gradient"].size, told["work"]) == (0, [[0, 1, 0, 80, 10]])
    assert one.values(2, incarnation=2) is None  # It is for another life.
    values = one.values(2)
    np.testing.assert_array_equal(values["gradient"], held.anchor - one.theta)
    assert one.values(2)["gradient"].size == 0
    told_form = schemas.told(KIND.form(PARTS, 8), PARTS)
    for item, form in ((told, told_form), (values, schemas.answer_values(PARTS))):
        assert compiled(form)(item, {}, Member(Replica("region", 0), 1)) is None


def test_values_of_an_answer_that_another_has_replaced_are_none() -> None:
    shard, one, two = begun()
    for region in (one, two):
        region.merged(spread(1 + region.slot))
    assert shard.close(2, one.answer(2), two.answer(2)) == [0, 1]
    one.answer(3)
    shard.send(one.values(2))
    shard.send(two.values(2))
    assert (shard.record["voters"], shard.record["left_out"]) == ([1], [0])
    # What was left out stays the region's own, and is in its next answer.
    one.adopt(shard.update)
    assert one.answer(4)["work"] == [[0, 1, 0, 80, 10]]


def test_a_merge_of_regions_is_the_mean_by_tokens_and_each_keeps_the_rest() -> None:
    shard, one, two = begun()
    for region in (one, two):
        region.merged(spread(1 + region.slot))
    anchor = one.step._held[0].anchor
    totals = [[0, 1, 300], [1, 1, 100]]
    shard.close(2, one.answer(2), two.answer(2), totals=totals)
    own, other = one.values(2), two.values(2)
    shard.send(other)
    shard.send(own)
    assert (shard.record["voters"], shard.record["weights"]) == ([0, 1], pytest.approx([0.75, 0.25]))
    expected = anchor - (0.75 * own["gradient"].astype(np.float64) + 0.25 * other["gradient"])
    np.testing.assert_allclose(shard.update["values"], expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    one.adopt(shard.update)
    assert one.step._held[0].sent == {}
    np.testing.assert_allclose(one.theta, shard.update["values"], rtol=1e-5, atol=1e-6 * np.abs(expected).max())


def test_a_region_that_ends_leaves_the_others_no_more_than_their_share() -> None:
    shard, one, two = begun()
    for region in (one, two):
        region.merged(spread(1 + region.slot))
    anchor = one.step._held[0].anchor
    shard.close(2, one.answer(2), two.answer(2), totals=[[0, 1, 300], [1, 1, 100]])
    shard.send(two.values(2))
    shard.end(0)
    assert (shard.record["voters"], shard.record["left_out"]) == ([1], [0])
    assert shard.record["weights"] == [pytest.approx(0.25)]
    own = anchor - two.theta
    np.testing.assert_allclose(shard.update["values"], anchor - np.float32(0.25) * own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("comes", [(0, 1), (0,), (1,)])
def test_an_owner_has_no_more_of_those_that_came_than_it_may(comes: tuple[int, ...]) -> None:
    """Of all regions ann would have .8, and may have .35; what of that is away is nobody's."""
    shard, one, two = begun()
    within = {0: 0.9, 1: 0.5}
    for region in (one, two):
        region.context.owners["learner", region.slot] = MachineOwner("ann", 0.35)
        region.merged(spread(1 + region.slot), share=within[region.slot])
    shard.close(2, one.answer(2), two.answer(2), totals=[[0, 1, 300], [1, 1, 100]])
    for region in (one, two):
        if region.slot in comes:
            shard.send(region.values(2))
    for slot in {0, 1}.difference(comes):
        shard.end(slot)
    record = shard.record
    assert record["voters"] == list(comes)
    hers = sum(within[slot] * weight for slot, weight in zip(comes, record["weights"], strict=True))
    assert 0.1 < hers <= 0.35 + 1e-9
    if len(comes) == 2:
        assert hers == pytest.approx(0.35)
