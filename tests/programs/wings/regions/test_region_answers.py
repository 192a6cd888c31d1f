"""The most that an owner has of the merges in its region."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.ops.exchange.messages import Merging
from isthmus.ops.kernels import averaging, coding
from isthmus.ops.syncer.answer_rules import JudgePlace, RoundTally
from isthmus.programs.wings.regions.region_answers import OwnersWithin
from isthmus.runtime.ids import MachineOwner
from tests.ops.bodies import Context, SmallTask, fragments_of, pull

PARTS = fragments_of(SmallTask(), 2)


def shares(
    weights: dict[int, float], totals: dict[int, int], owners: dict[int, MachineOwner], share_max: float = 1.0
) -> tuple[list[float], Any]:
    """What learners with these weights have of a merge of region 0 of two, and who was capped."""
    context = Context("region", 2)  # A second shard of region 0.
    context.owners = {("learner", slot): owner for slot, owner in owners.items()}
    judge = OwnersWithin(share_max, regions=2).begin(JudgePlace(context, PARTS, coding, averaging))
    record: Merging = {"capped": []}  # type: ignore[typeddict-item]
    asked: Any = {**pull(0, 2), "totals": [[slot, 1, tokens] for slot, tokens in totals.items()]}
    votes: Any = [{"slot": slot, "fragment": 0} for slot in weights]
    tally = RoundTally(asked, record, votes, (1, 0), list(weights.values()))
    judge.share(tally)
    return tally.parts, record["capped"]


def test_a_share_of_the_model_is_more_of_a_region_that_is_a_part_of_it() -> None:
    """Region 0 has two fifths of the tokens: an owner that may have .3 of the model has three quarters of it."""
    totals, owners = {0: 300, 2: 100, 1: 600}, {0: MachineOwner("ann", 0.3)}
    assert shares({0: 9.0, 2: 1.0}, totals, owners) == (
        pytest.approx([0.75, 0.25]),
        [["ann", 0.9, pytest.approx(0.75)]],
    )
    assert shares({0: 1.0, 2: 1.0}, totals, owners) == ([1.0, 1.0], [])
    # Alone, it has that, and the rest is a gradient of zero.
    assert shares({0: 9.0}, totals, owners)[0] == pytest.approx([0.75])


def test_a_region_that_is_no_more_than_the_share_bounds_nobody() -> None:
    assert shares({0: 9.0, 2: 1.0}, {0: 200, 2: 100, 1: 700}, {0: MachineOwner("ann", 0.3)}) == ([9.0, 1.0], [])


def test_a_region_that_knows_of_no_tokens_is_the_whole_run() -> None:
    assert shares({0: 9.0, 2: 1.0}, {}, {}, share_max=0.6)[0] == pytest.approx([0.6, 0.4])


def test_an_owners_learners_have_it_together() -> None:
    totals, owner = {0: 100, 2: 100, 4: 100, 1: 0}, MachineOwner("ann", 0.5)
    found, capped = shares({0: 1.0, 2: 1.0, 4: 1.0}, totals, {0: owner, 2: owner})
    assert found == pytest.approx([0.25, 0.25, 0.5])
    assert [name for name, *_ in capped] == ["ann"]
