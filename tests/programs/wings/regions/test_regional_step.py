"""The regional-step node: what a region answers, and what it keeps when a global version comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.formats import CODED
from isthmus.ops.exchange.requested import Format
from isthmus.ops.exchange.token_accounts import ANSWERS_OPEN_MAX, FragmentAccount, RegionWork
from isthmus.ops.syncer.answer_rules import Dissent
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.programs.wings.regions.region_answers import OwnersAmong, RegionAnswers, RegionShares
from isthmus.programs.wings.regions.region_parts import RegionParts
from isthmus.programs.wings.regions.regional_step import RegionalStep
from isthmus.runtime.ids import MachineOwner, Replica
from tests.ops.bodies import Context, SmallTask, fragments_of, pull

PARTS = fragments_of(SmallTask(), 2)
SIZE = PARTS[0].size
DECISION = {"reason": "", "opened_at": 1, "quorum_at": 2, "closed_at": 3, "left_out": []}


def spread(seed: int) -> Any:
    """Values of any magnitude: the difference of two of them is rounded."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=SIZE) * 10.0 ** rng.integers(-8, 2, SIZE)).astype(np.float32)


class Region:
    """A regional step, opened, of a region that gives the `first` version of fragment 0, or begins from another's."""

    def __init__(self, slot: int, first: Any | None, push: Format = "float32") -> None:
        self.slot, self.position, self.rounds = slot, 0, 0
        self.step = RegionalStep(PARTS, lr=1.0, momentum=0.0, push=push, parts=RegionParts(2))
        self.context = Context("region", slot)
        self.step.open(self.context)
        if first is not None:
            self.merged(first, kind="initial", work=[])

    def merged(self, direction: Any, *, kind: str = "merge", work: Any = None, share: float = 1.0) -> dict[str, Any]:
        """The region merges a gradient of its learner, whose slot is its own, for a share of a merge."""
        self.rounds += 1
        begin, self.position = self.position, self.position + 80 * (kind != "initial")
        work = [[self.slot, 1, begin, self.position, 10]] if work is None else work
        gradient = {
            "fragment": 0, "round": self.rounds, "kind": kind, "version": [1, self.rounds - 1], "direction": direction,
            "scale": np.ones(len(PARTS[0].units), np.float32), "clock": [[self.slot, 1, self.position]],
            "positions": [[self.slot, self.position // 8]], "totals": [], "lives": [], "work": work, "lengths": [],
            "merging": {"refused": [], "voters": [self.slot], "weights": [share]},
        }  # fmt: skip
        return dict(self.step(gradient=gradient))

    def answer(self, round_number: int, kind: str = "merge") -> Any:
        request = pull(0, round_number, kind=kind, members=[[self.slot, 1]])
        emitted = dict(self.step(pull={(Replica("syncer", 0), 0): request}))
        return emitted.get("answer")

    def adopt(self, update: Any) -> dict[str, Any]:
        return dict(self.step(above={(Replica("syncer", 0), 0): update}))

    @property
    def theta(self) -> Any:
        return self.step._outer.values(0)


class Syncer:
    """The global merge and outer step."""

    def __init__(self, lr: float = 1.0) -> None:
        of_regions: Any = {"rules": (Dissent(), RegionShares(2), OwnersAmong()), "answers": RegionAnswers()}
        self.merge = Merge(PARTS, method="average", lr=lr, momentum=0.0, step_tokens=8, **of_regions)
        self.outer = OuterStep(PARTS, lr=lr, momentum=0.0)
        for body in (self.merge, self.outer):
            body.open(Context("syncer"))

    def fire(self, round_number: int, *answers: Any, kind: str = "merge") -> dict[str, Any]:
        votes: Any = {(Replica("region", vote["slot"]), 0): vote for vote in answers}
        emitted: Any = self.merge(round=pull(0, round_number, kind=kind), answer=votes, decision=DECISION)
        return self.outer(gradient=emitted["gradient"])


def begun(push: Format = "float32") -> tuple[Syncer, Region, Region]:
    syncer, one = Syncer(), Region(0, spread(0), push)
    update = syncer.fire(1, one.answer(1, kind="initial"), kind="initial")["update"]
    two = Region(1, None, push)
    emitted = two.adopt(update)
    assert (emitted["update"]["kind"], emitted["update"]["version"]) == ("initial", [1, 0])
    assert emitted["begun"]["version"] == [1, 0]
    one.adopt(update)
    np.testing.assert_array_equal(one.theta, two.theta)
    return syncer, one, two


def test_what_comes_back_from_above_moves_no_bit_of_a_region_that_is_alone() -> None:
    syncer, one, _ = begun()
    is_rounded = False
    for seed in range(1, 6):
        one.merged(one.theta)  # To 0, and from there to values on a finer grid than that of the anchor.
        one.merged(spread(seed) * np.float32(1e-9 if seed % 2 else 1.0))
        held = one.theta.copy()
        update = syncer.fire(seed + 1, one.answer(seed + 1))["update"]
        is_rounded |= bool((update["values"] != held).any())
        one.adopt(update)
        np.testing.assert_array_equal(one.theta, held)
        assert update["clock"] == [[0, 1, 160 * seed]]
    assert is_rounded  # G - (G - Theta) is: adopting it would change bits.


@pytest.mark.parametrize("push", ["float32", "int4", "int1"])
def test_a_region_keeps_what_it_merged_since_it_answered(push: Format) -> None:
    """Theta = G' + own since: by float64 sums over all that was merged, with what coding took from the answers."""
    syncer, one, two = begun(push)
    one.merged(spread(1))
    two.merged(spread(2))
    answers = [one.answer(2), two.answer(2)]
    before = one.theta.astype(np.float64)
    later = spread(3)
    one.merged(later)
    update = syncer.fire(2, *answers)["update"]
    own = one.step._held[0].sent[1].vector.astype(np.float64)
    anchor = one.step._held[0].anchor.astype(np.float64)
    one.adopt(update)
    expected = update["values"] + (before - (anchor - own)) - later
    np.testing.assert_allclose(one.theta, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    answer = one.answer(3)
    assert (answer["work"], answer["base"]) == ([[0, 1, 80, 160, 10]], [1, 1])
    assert (answer["begin"], answer["end"], answer["steps"]) == (0, 80, 10)


def test_an_answer_that_was_not_merged_stays_and_is_in_the_next_one() -> None:
    syncer, one, two = begun()
    one.merged(spread(1))
    two.merged(spread(2))
    lost, other = one.answer(2), two.answer(2)
    one.adopt(syncer.fire(2, other)["update"])
    one.merged(spread(3))
    again = one.answer(3)
    assert again["work"] == [[0, 1, 0, 80, 10], [0, 1, 80, 160, 10]]
    # The late answer counts in the next round; then the one with the same work is refused.
    emitted = syncer.fire(3, lost)
    assert emitted["merged"]["voters"] == [0]
    assert syncer.fire(4, again)["merged"]["refused"] == [[0, "already merged"]]
    one.adopt(emitted["update"])
    assert one.answer(5)["work"] == [[0, 1, 80, 160, 10]]


def test_a_second_answer_with_the_same_work_has_the_same_bits() -> None:
    """Either of the two may be merged. A version between them moves anchor and Theta, and rounds their difference."""
    syncer, one, two = begun()
    one.merged(spread(1))
    two.merged(spread(2))
    first = one.answer(2)
    before = one.step._held[0].anchor - one.theta
    one.adopt(syncer.fire(2, two.answer(2))["update"])
    assert (one.step._held[0].anchor - one.theta != before).any()
    second = one.answer(3)
    assert second["work"] == first["work"]
    assert second["base"] != first["base"]
    for name in ("gradient", "norms"):
        np.testing.assert_array_equal(second[name], first[name])
    one.merged(spread(3))
    assert (one.answer(4)["gradient"] != first["gradient"]).any()


def test_a_region_holds_the_vectors_of_open_answers_alone() -> None:
    syncer, one, two = begun()
    two.merged(spread(2))
    held = one.step._held[0]
    for number in range(2, ANSWERS_OPEN_MAX + 5):
        one.merged(spread(number))
        answer = one.answer(number)
        assert list(held.sent) == held.work.open_answers()
    assert len(held.sent) == ANSWERS_OPEN_MAX
    one.adopt(syncer.fire(2, answer, two.answer(2))["update"])
    assert held.sent == {}


def test_an_unchanged_version_is_published_again_as_it_was() -> None:
    """A global version moves Theta between two versions of the region: learners get it with the next of these."""
    syncer, one, two = begun()
    one.merged(spread(1))
    two.merged(spread(2))
    update = syncer.fire(2, one.answer(2), two.answer(2))["update"]
    shown = one.merged(spread(3))["update"]["values"].copy()
    one.adopt(update)
    assert (one.theta != shown).any()
    np.testing.assert_array_equal(one.merged(None, kind="final", work=[])["update"]["values"], shown)


def test_a_final_pull_waits_for_the_last_merge_of_the_region() -> None:
    _, one, _ = begun()
    one.merged(spread(1))
    assert one.answer(2, kind="final") is None
    request = pull(0, 2, kind="final", members=[[0, 1]])
    emitted = dict(one.step(pull={(Replica("syncer", 0), 0): request}))
    assert "answer" not in emitted
    assert one.merged(spread(2), kind="final")["answer"]["work"] == [[0, 1, 0, 80, 10], [0, 1, 80, 160, 10]]


def test_a_region_gives_its_anchor_to_a_global_syncer_that_comes_back() -> None:
    syncer, one, two = begun()
    one.merged(spread(1))
    update = syncer.fire(2, one.answer(2))["update"]
    two.merged(spread(2))
    two.adopt(update)
    given = two.answer(1 << 32, kind="recover")
    np.testing.assert_array_equal(given["gradient"], update["values"])
    assert (given["base"], given["clock"], given["work"]) == ([1, 1], [[0, 1, 80]], [])


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        ([[0, 1, 0, 80, 10]], "already merged"),
        ([[1, 1, 0, 80, 10], [1, 1, 40, 120, 10]], "already merged"),
        ([[1, 2, 0, 80, 10], [1, 1, 80, 160, 10]], "former incarnation"),
        ([[1, 1, 80, 80, 10]], "inconsistent"),
        ([[1, 1, 0, 80, 10], [0, 1, 80, 160, 10]], None),
    ],
)
def test_the_global_account_refuses_work_that_it_has(work: list[list[int]], reason: str | None) -> None:
    account = FragmentAccount((1, 0), 24, [[0, 1, 80]])
    assert account.refusal_of_work((1, 0), work) == reason
    assert account.refusal_of_work((1, 3), work) == "unknown base"


def test_work_is_closed_by_the_clock_of_a_version() -> None:
    work = RegionWork()
    work.merged([[0, 1, 0, 80, 10], [2, 1, 0, 80, 10]])
    first = work.answered()
    assert work.answered() == first  # The same rows: one answer.
    work.merged([[0, 1, 90, 160, 10]])
    second = work.answered()
    assert work.adopted([[1, 1, 500]]) is None
    assert work.adopted([[0, 1, 80], [2, 1, 80]]) == first
    assert (work.pending(), work.open_answers()) == ([[0, 1, 90, 160, 10]], [])
    with pytest.raises(ValueError, match="expected those of an answer"):
        work.adopted([[0, 1, 160]])
    assert second != work.answered()
    for end in range(200, 2000, 100):
        work.merged([[0, 1, end - 40, end, 10]])
        work.answered()
    assert len(work.open_answers()) == ANSWERS_OPEN_MAX


def test_every_format_is_answered_in() -> None:
    for push in CODED:
        syncer, one, two = begun(push)
        one.merged(spread(1))
        two.merged(spread(2))
        answer = one.answer(2)
        assert answer["format"] == push
        assert syncer.fire(2, answer, two.answer(2))["merged"]["refused"] == []


def test_an_answer_has_the_format_that_its_pull_asks_for() -> None:
    _, one, _ = begun("auto")  # type: ignore[arg-type]
    one.merged(spread(1))
    request = pull(0, 2, kind="merge", members=[[0, 1]])
    request["asked"] = {"push": [[0, "int4"], [1, "bf16"]], "update": "float32", "interval": 8, "overlap": 2}
    emitted = dict(one.step(pull={(Replica("syncer", 0), 0): request}))
    assert emitted["answer"]["format"] == "int4"


def test_a_region_alone_in_a_round_counts_for_its_share_of_the_runs_tokens() -> None:
    syncer, one, _ = begun()
    one.merged(spread(1))
    own, anchor = one.answer(2)["gradient"], one.step._held[0].anchor
    votes: Any = {(Replica("region", 0), 0): one.answer(3)}
    asked = pull(0, 3, members=[[0, 1], [1, 1]])
    asked["totals"] = [[0, 1, 300], [1, 1, 60], [2, 1, 0], [3, 1, 40]]
    emitted: Any = syncer.merge(round=asked, answer=votes, decision=DECISION)
    update = syncer.outer(gradient=emitted["gradient"])["update"]
    np.testing.assert_allclose(update["values"], anchor - np.float32(0.75) * own, rtol=1e-6, atol=1e-7)
    assert emitted["gradient"]["merging"]["weights"] == [0.75]
    assert emitted["gradient"]["merging"]["capped"] == []


def test_an_answer_says_what_bounded_owners_have_of_it() -> None:
    _, one, two = begun()
    one.context.owners["learner", 0] = MachineOwner("ann", 0.4)
    one.merged(spread(1), share=0.8)
    one.merged(spread(2), share=0.6)
    two.merged(spread(1))
    assert one.answer(2)["owners"] == [["ann", pytest.approx(0.7), 0.4]]
    assert "owners" not in two.answer(2)  # Nobody's share there is bounded.


def test_what_an_owner_has_of_the_merges_to_come_is_said_alone() -> None:
    syncer, one, two = begun()
    one.context.owners["learner", 0] = MachineOwner("ann", 0.9)
    one.merged(spread(1), share=0.2)
    answer = one.answer(2)
    one.merged(spread(2), share=0.8)
    one.adopt(syncer.fire(2, answer, two.answer(2))["update"])
    assert one.answer(3)["owners"] == [["ann", pytest.approx(0.8), 0.9]]


def test_over_all_regions_an_owner_has_its_most_and_what_is_missing_is_zero() -> None:
    syncer, one, two = begun()
    for region, share in ((one, 0.9), (two, 0.5)):
        region.context.owners["learner", region.slot] = MachineOwner("ann", 0.35)
        region.merged(spread(1 + region.slot), share=share)
    anchor, answers = one.step._held[0].anchor, [one.answer(2), two.answer(2)]
    own, other = (answer["gradient"] for answer in answers)
    asked = pull(0, 2, members=[[0, 1], [1, 1]])
    asked["totals"] = [[0, 1, 300], [1, 1, 100]]
    votes: Any = {(Replica("region", answer["slot"]), 0): answer for answer in answers}
    emitted: Any = syncer.merge(round=asked, answer=votes, decision=DECISION)
    # Of three quarters she has .9, of one quarter half: .8 in all, and may have .35.
    record, factor = emitted["gradient"]["merging"], 0.35 / 0.8
    assert record["capped"] == [["ann", pytest.approx(0.8), pytest.approx(0.35)]]
    assert record["weights"] == pytest.approx([0.75 * factor, 0.25 * factor])
    merged = np.float32(0.75 * factor) * own + np.float32(0.25 * factor) * other
    update = syncer.outer(gradient=emitted["gradient"])["update"]
    np.testing.assert_allclose(update["values"], anchor - merged, rtol=1e-5, atol=1e-6 * np.abs(merged).max())
