"""The syncer's bodies: merge books and refuses, outer-step publishes; together they follow the equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange import schemas
from isthmus.ops.exchange.formats import CODED, FORMATS
from isthmus.ops.exchange.messages import withdrawn
from isthmus.ops.kernels import coding
from isthmus.ops.learner.fragment_send import FragmentSend, norms
from isthmus.ops.recovery.hold import digest_of
from isthmus.ops.syncer.answer_rules import usual_rules
from isthmus.ops.syncer.merge import Merge
from isthmus.ops.syncer.merge_books import NOT_FINITE
from isthmus.ops.syncer.outer_step import OuterStep
from isthmus.runtime.ids import MachineOwner, Member, Replica
from isthmus.runtime.items.schemas import compiled
from tests.ops.bodies import Context, SmallTask, fragments_of, pull

PARTS = fragments_of(SmallTask(), 2)
DECISION = {"reason": "all 2 members voted", "opened_at": 1, "quorum_at": 2, "closed_at": 3, "left_out": []}


def answer(slot: int, gradient: Any, *, base: Any = (1, 0), begin: int = 0, end: int = 80, steps: int = 10) -> Any:
    values = np.broadcast_to(np.asarray(gradient, np.float32), (PARTS[0].size,)).copy()
    return {
        "fragment": 0,
        "round": 1,
        "kind": "merge",
        "slot": slot,
        "incarnation": 1,
        "base": None if base is None else list(base),
        "begin": begin,
        "end": end,
        "steps": steps,
        "clock": [],
        "positions": [[slot, end // 8]],
        "state": None,
        "gradient": values,
        "norms": norms(values, PARTS[0]),
    }


class Syncer:
    """Merge and outer-step, opened, with the first version published."""

    def __init__(self, method: Any = "rda", lr: float = 0.5, momentum: float = 0.5, **more: Any) -> None:
        self.merge = Merge(PARTS, method=method, lr=lr, momentum=momentum, **more)
        self.outer = OuterStep(PARTS, lr=lr, momentum=momentum)
        self.context = Context("syncer")
        self.merge.open(self.context)
        self.outer.open(Context("syncer"))
        self.round = 0
        self.first = np.linspace(-1, 1, PARTS[0].size).astype(np.float32)
        self.fire({**answer(0, self.first, base=None), "kind": "initial"}, kind="initial")

    def fire(self, *answers: Any, kind: str = "merge", **inputs: Any) -> dict[str, Any]:
        self.round += 1
        votes = {(Replica("learner", vote["slot"]), self.round): vote for vote in answers}
        emitted = self.merge(round=pull(0, self.round, kind=kind), answer=votes, decision=DECISION)
        return self.outer(gradient=emitted["gradient"], **inputs)


def test_an_answer_to_a_fragment_that_has_not_begun_is_refused() -> None:
    merge = Merge(PARTS, method="rda", lr=0.5, momentum=0.5)
    merge.open(Context("syncer"))
    emitted: Any = merge(round=pull(0, 1), answer={(Replica("learner", 0), 1): answer(0, 1.0)}, decision=DECISION)
    assert emitted["gradient"]["merging"]["refused"] == [[0, "unknown base"]]


def test_a_version_that_is_wanted_for_a_cut_leaves_a_second_time() -> None:
    syncer = Syncer()
    wanted = {(Replica("recorder", 0), "wanted"): {"counts": [2, 0]}}
    assert "cut" not in syncer.fire(answer(0, 0.1), wanted=wanted)
    emitted = syncer.fire(answer(0, 0.1, base=(1, 1), begin=80, end=160))
    assert emitted["cut"] is emitted["state"]
    assert emitted["cut"]["version"] == [1, 2]


def test_the_first_version_is_published_bit_for_bit() -> None:
    syncer = Syncer()
    emitted = syncer.fire(kind="final")
    np.testing.assert_array_equal(emitted["update"]["values"], syncer.first)
    assert emitted["update"]["version"] == [1, 0]
    assert emitted["merged"]["version"] is None


def test_two_rounds_follow_nesterov_on_the_weighted_mean() -> None:
    syncer = Syncer(method="average")
    theta, momentum = syncer.first.astype(np.float64), np.zeros(PARTS[0].size)
    for count, (one, two) in enumerate([(0.5, 1.5), (2.0, -1.0)], 1):
        begin, end = 80 * (count - 1), 80 * count
        votes = (answer(0, one, base=(1, count - 1), begin=begin, end=end),
                 answer(1, two, base=(1, count - 1), begin=begin, end=begin + 40, steps=10))  # fmt: skip
        emitted = syncer.fire(*votes)
        weights = np.array([80 * 80 / 10, 40 * 40 / 10])
        gradient = np.average([one, two], weights=weights)
        momentum = 0.5 * momentum + gradient
        theta = theta - 0.5 * (gradient + 0.5 * momentum)
        np.testing.assert_allclose(emitted["update"]["values"], theta, rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(emitted["merged"]["weights"], weights / weights.sum())
        assert emitted["update"]["version"] == [1, count]
        if count == 1:
            assert emitted["update"]["clock"] == [[0, 1, 80], [1, 1, 40]]
            assert emitted["merged"]["merged_tokens"] == [[0, 1, 80], [1, 1, 40]]
            break


def test_a_fragment_that_is_not_finite_is_refused_and_the_others_are_merged() -> None:
    syncer = Syncer()
    emitted = syncer.fire(answer(0, np.nan), answer(1, 1.0))
    assert emitted["merged"]["refused"] == [[0, "not finite"]]
    assert emitted["merged"]["voters"] == [1]
    assert np.isfinite(emitted["update"]["values"]).all()


def test_what_would_step_beyond_float32_is_refused_before_it_is_booked() -> None:
    syncer = Syncer()
    syncer.fire(answer(0, 1.0))
    loud = np.where(np.arange(PARTS[0].size) == 0, 3e38, 0.0)  # Finite, and its norm is; one and a half of it is not.
    emitted = syncer.fire(answer(0, loud, base=(1, 1), begin=80, end=160))
    assert emitted["merged"]["refused"] == [[0, NOT_FINITE]]
    assert (emitted["merged"]["voters"], emitted["merged"]["version"]) == ([], None)
    assert emitted["merged"]["merged_tokens"] == [[0, 1, 80]]
    assert (emitted["update"]["version"], emitted["update"]["clock"]) == ([1, 1], [[0, 1, 80]])
    emitted = syncer.fire(answer(0, 1.0, base=(1, 1), begin=160, end=240), answer(1, loud, base=(1, 1)))
    assert (emitted["merged"]["voters"], emitted["merged"]["version"]) == ([0], [1, 2])
    assert emitted["merged"]["merged_tokens"] == [[0, 1, 160]]


def test_steps_add_up_and_the_last_that_fits_is_made() -> None:
    syncer = Syncer(lr=1.0, momentum=0.0)
    row = np.where(np.arange(PARTS[0].size) == 0, -5e37, 0.0)
    told = [syncer.fire(answer(0, row, base=(1, at), begin=80 * at, end=80 * at + 80)) for at in range(2)]
    assert [each["merged"]["refused"] for each in told] == [[], [[0, NOT_FINITE]]]
    assert np.isfinite(told[1]["update"]["values"]).all()


def test_an_outer_step_publishes_nothing_that_is_not_finite() -> None:
    syncer = Syncer()
    gradient = syncer.merge(round=pull(0, 2), answer={(Replica("learner", 0), 2): answer(0, 1.0)})["gradient"]
    gradient["direction"][0] = np.inf
    with pytest.raises(ArithmeticError, match="fragment 0: expected finite values, found 1 of"):
        syncer.outer(gradient=gradient)


def test_the_same_work_is_never_merged_twice() -> None:
    syncer = Syncer()
    syncer.fire(answer(0, 1.0, begin=0, end=80))
    emitted = syncer.fire(answer(0, 1.0, begin=0, end=160, steps=20))
    assert emitted["merged"]["refused"] == [[0, "already merged"]]
    assert emitted["merged"]["version"] is None
    assert emitted["update"]["version"] == [1, 1]  # It is sent again: the learner missed it.


@pytest.mark.parametrize(
    ("vote", "reason"),
    [
        (answer(0, 1.0, base=(7, 7)), "unknown base"),
        (answer(0, 1.0, base=None), "unknown base"),
        (answer(0, 1.0, steps=0), "inconsistent"),
    ],
)
def test_wrong_answers_are_refused_with_their_reason(vote: Any, reason: str) -> None:
    emitted = Syncer().fire(vote)
    assert emitted["merged"]["refused"] == [[0, reason]]


def test_a_round_without_weight_closes_without_an_outer_step() -> None:
    syncer = Syncer()
    emitted = syncer.fire(answer(0, 0.0, begin=0, end=0, steps=0))
    assert emitted["merged"]["version"] is None
    assert "update" not in emitted
    assert syncer.fire()["merged"]["voters"] == []


def test_one_contributor_is_returned_untouched() -> None:
    syncer = Syncer(lr=1.0, momentum=0.0)
    gradient = np.random.default_rng(0).normal(size=PARTS[0].size).astype(np.float32)
    emitted = syncer.fire(answer(2, gradient))
    np.testing.assert_array_equal(emitted["update"]["values"], syncer.first - gradient)


def test_how_far_each_slot_is_merged_is_told_with_the_newest_state_of_its_stream() -> None:
    syncer = Syncer()
    state = np.frombuffer(b"state", np.uint8)
    syncer.fire({**answer(2, 1.0), "state": [9, state]})
    decision, votes = (
        DECISION,
        [answer(0, 1.0, base=(1, 1), begin=0), {**answer(2, 1.0, base=(1, 1), begin=80, end=80)}],
    )
    told = syncer.merge(
        round=pull(0, 3), answer={(slot, 3): vote for slot, vote in enumerate(votes)}, decision=decision
    )
    clock = [[0, 1, 80], [2, 1, 80]]
    expected = {"fragment": 0, "clock": clock, "positions": [[0, 10], [2, 10]], "states": [[2, 9, state]]}
    assert told["reached"] == expected
    assert told["gradient"]["positions"] == [[0, 10], [2, 10]]


def test_a_new_buffer_is_published_each_time() -> None:
    syncer = Syncer()
    one = syncer.fire(answer(0, 1.0))["update"]["values"]
    copy = one.copy()
    two = syncer.fire(answer(0, 1.0, base=(1, 1), begin=80, end=160))["update"]["values"]
    assert not np.shares_memory(one, two)
    np.testing.assert_array_equal(one, copy)


def test_the_final_model_is_told_once_by_the_names_of_its_tensors() -> None:
    emitted = Syncer().fire(answer(0, 1.0), kind="final")
    assert {name: array.shape for name, array in emitted["final"]["tensors"].items()} == {
        unit.name: unit.values_shape for unit in PARTS[0].units
    }


def test_what_is_sent_is_anchor_minus_values_with_its_norms() -> None:
    send = FragmentSend(PARTS)
    values = np.arange(PARTS[0].size, dtype=np.float32)
    capture = {**answer(3, 0.0), "values": values, "anchor": np.ones(PARTS[0].size, np.float32)}
    (((port, sent),),) = send(fragment={("learner/3", 0): capture})
    assert port == "answer"
    np.testing.assert_array_equal(sent["gradient"], 1.0 - values)
    np.testing.assert_allclose(np.sum(sent["norms"].astype(np.float64) ** 2), np.sum((1.0 - values) ** 2), rtol=1e-6)


def test_a_shard_that_comes_back_refuses_what_is_not_as_it_was_published() -> None:
    merge, context = Merge(PARTS, method="average", lr=1.0, momentum=0.9), Context("syncer", incarnation=2)
    merge.open(context)
    true, forged, early = (
        {**answer(slot, value, base=(epoch, 7)), "kind": "recover", "positions": []}
        for slot, value, epoch in ((0, -7.0, 1), (1, 7.0, 1), (2, 7.0, 2))
    )
    true, forged = forged, true
    known = [[1, 7, digest_of(true["gradient"], true["clock"], true["positions"]), []]]
    votes = {(Replica("learner", each["slot"]), 1): each for each in (true, forged, early)}
    emitted = merge(round=pull(0, 1, kind="recover", known=known), answer=votes, decision=DECISION)
    np.testing.assert_array_equal(emitted["gradient"]["direction"], true["gradient"])
    assert emitted["gradient"]["merging"]["refused"] == [[0, "not as published"], [2, "unknown base"]]
    assert [(port, sender, field) for port, sender, field, *_ in context.refused] == [("answer", (0, 1), "gradient")]


def test_what_no_learner_holds_begins_with_the_newest_copy_that_a_holder_has_told_of() -> None:
    merge = Merge(PARTS, method="average", lr=1.0, momentum=0.0)
    merge.open(Context("syncer", incarnation=2))

    def copy(value: float, count: int) -> dict[Any, Any]:
        values = np.full(PARTS[0].size, value, np.float32)
        held = {**withdrawn(0), "version": [1, count], "values": values, "clock": [[0, 1, 80]], "positions": [[0, 10]]}
        return {(Replica("recorder", 0), 0): held}

    known = [[1, 6, "", []], [1, 7, "", []]]

    def begun(number: int, **copies: Any) -> Any:
        return merge(round=pull(0, number, kind="recover", known=known), answer={}, decision=DECISION, **copies)

    assert begun(1)["gradient"]["direction"] is None
    assert begun(2, copy=copy(6.0, 6))["gradient"]["direction"] is None  # The other holder's is on its way.
    assert begun(3, copy={("evaluator/0", 0): withdrawn(0)})["gradient"]["direction"] is None
    gradient = begun(4, copy=copy(7.0, 7))["gradient"]
    assert set(gradient["direction"]) == {7.0}
    assert (gradient["version"], gradient["positions"]) == ([1, 7], [[0, 10]])
    assert gradient["merging"]["voters"] == []


def test_what_only_its_neighbour_has_is_waited_for_and_begun_with() -> None:
    """Learners that came back later have an older version, of a copy of somebody else."""
    merge = Merge(PARTS, method="average", lr=1.0, momentum=0.0)
    merge.open(Context("syncer", incarnation=2))
    old = {**answer(0, 5.0, base=(1, 6)), "kind": "recover", "positions": []}
    values = np.full(PARTS[0].size, 7.0, np.float32)
    copy = {**withdrawn(0), "version": [1, 7], "values": values, "clock": [[0, 1, 80]], "positions": [[0, 10]]}
    known = [[1, 6, digest_of(old["gradient"], old["clock"], []), []], [1, 7, digest_of(values, [[0, 1, 80]], []), []]]

    def begun(number: int, **more: Any) -> Any:
        asked = {**pull(0, number, kind="recover", known=known), "given": [1, 7]}
        return merge(round=asked, answer={(Replica("learner", 0), 1): old}, decision=DECISION, **more)["gradient"]

    waiting = begun(1)
    assert (waiting["direction"], waiting["merging"]["voters"]) == (None, [])
    gradient = begun(2, copy={(Replica("syncer", 1), 0): copy})
    assert (gradient["version"], set(gradient["direction"])) == ([1, 7], {7.0})
    assert gradient["merging"]["voters"] == []


def test_a_newer_version_of_a_learner_goes_before_the_copy_of_the_neighbour() -> None:
    merge = Merge(PARTS, method="average", lr=1.0, momentum=0.0)
    merge.open(Context("syncer", incarnation=2))
    new = {**answer(0, 5.0, base=(1, 8)), "kind": "recover", "positions": []}
    copy = {**withdrawn(0), "version": [1, 7], "values": np.zeros(PARTS[0].size, np.float32)}
    asked = {**pull(0, 1, kind="recover", known=[[1, 7, "", []]]), "given": [1, 7]}
    emitted: Any = merge(
        round=asked,
        answer={(Replica("learner", 0), 1): new},
        decision=DECISION,
        copy={(Replica("syncer", 1), 0): copy},
    )
    assert (emitted["gradient"]["version"], emitted["gradient"]["merging"]["voters"]) == ([1, 8], [0])


def test_a_shard_that_comes_back_takes_the_newest_version_with_its_clock_and_no_momentum() -> None:
    settings = {"lr": 1.0, "momentum": 0.9}
    merge, outer = Merge(PARTS, method="average", **settings), OuterStep(PARTS, **settings)
    merge.open(Context("syncer", incarnation=2))
    outer.open(Context("syncer", incarnation=2))
    old = {**answer(0, 5.0, base=(1, 6)), "kind": "recover", "clock": [[0, 1, 80]]}
    new = {
        **answer(1, 7.0, base=(1, 7)),
        "kind": "recover",
        "clock": [[0, 1, 160], [1, 1, 80]],
        "positions": [[0, 20], [1, 10]],
    }
    emitted = merge(
        round=pull(0, 1, kind="recover"),
        answer={(Replica("learner", old["slot"]), 1): old, (Replica("learner", new["slot"]), 1): new},
        decision=DECISION,
    )
    told = outer(gradient=emitted["gradient"])
    assert told["update"]["positions"] == emitted["reached"]["positions"] == [[0, 20], [1, 10]]
    assert (told["update"]["kind"], told["update"]["version"]) == ("recover", [1, 7])  # For whoever does not hold it.
    assert told["merged"]["version"] == [1, 7]
    stale = merge(
        round=pull(0, 2),
        answer={(Replica("learner", 0), 2): answer(0, 1.0, base=(1, 6), begin=80, end=240)},
        decision=DECISION,
    )
    assert stale["gradient"]["merging"]["refused"] == [[0, "unknown base"]]
    assert outer(gradient=stale["gradient"])["update"]["version"] == [1, 7]
    fresh = answer(0, 1.0, base=(1, 7), begin=160, end=240)
    emitted = outer(
        gradient=merge(round=pull(0, 3), answer={(Replica("learner", 0), 3): fresh}, decision=DECISION)["gradient"]
    )
    assert emitted["update"]["version"] == [2, 8]
    assert emitted["merged"]["epoch"] == 2
    np.testing.assert_allclose(emitted["update"]["values"], 7.0 - 1.0 * (1.0 + 0.9 * 1.0), rtol=1e-6)
    twice = merge(
        round=pull(0, 4),
        answer={(Replica("learner", 1), 4): answer(1, 1.0, base=(2, 8), begin=0, end=80)},
        decision=DECISION,
    )
    assert twice["gradient"]["merging"]["refused"] == [[1, "already merged"]]


def test_a_learner_has_no_more_of_a_merge_than_a_participant_may() -> None:
    syncer = Syncer(method="average", lr=1.0, momentum=0.0, rules=usual_rules(share_max=0.5))
    emitted = syncer.fire(answer(0, 1.0, end=320), answer(1, -1.0), answer(2, -1.0))
    assert emitted["merged"]["weights"] == pytest.approx([0.5, 0.25, 0.25])
    assert emitted["merged"]["capped"] == [["learner 0", pytest.approx(16 / 18), 0.5]]
    np.testing.assert_allclose(emitted["update"]["values"], syncer.first, atol=1e-6)


def test_a_lone_learner_moves_the_model_by_its_share() -> None:
    syncer = Syncer(method="average", lr=1.0, momentum=0.0, rules=usual_rules(share_max=0.25))
    emitted = syncer.fire(answer(0, 1.0))
    assert emitted["merged"]["weights"] == [0.25]
    np.testing.assert_allclose(emitted["update"]["values"], syncer.first - 0.25, rtol=1e-6)


def test_learners_of_one_machine_are_one_participant() -> None:
    syncer = Syncer(method="average", lr=1.0, momentum=0.0, rules=usual_rules(share_max=0.5))
    syncer.context.owners = {
        ("learner", 0): MachineOwner("a"),
        ("learner", 1): MachineOwner("a"),
        ("learner", 2): MachineOwner("b"),
    }
    emitted = syncer.fire(*(answer(slot, 1.0) for slot in range(3)))
    assert emitted["merged"]["weights"] == pytest.approx([0.25, 0.25, 0.5])
    assert emitted["merged"]["capped"] == [["a", pytest.approx(2 / 3), 0.5]]


def test_an_owner_may_have_less_than_the_others() -> None:
    syncer = Syncer(method="average", lr=1.0, momentum=0.0)
    syncer.context.owners = {("learner", 0): MachineOwner("a", 0.1)}
    emitted = syncer.fire(*(answer(slot, 1.0) for slot in range(3)))
    assert emitted["merged"]["weights"] == pytest.approx([0.1, 0.45, 0.45])
    assert emitted["merged"]["capped"] == [["a", pytest.approx(1 / 3), 0.1]]


def coded(vote: Any, form: Any) -> Any:
    return {**vote, **coding.item_fields("gradient", coding.encode(vote["gradient"], PARTS[0], form))}


@pytest.mark.parametrize("form", CODED)
def test_coded_answers_are_merged_as_what_they_stand_for(form: Any) -> None:
    rows = np.linspace(-1, 2, PARTS[0].size), np.linspace(2, -1, PARTS[0].size)
    plain, other = Syncer(), Syncer()
    votes = [answer(slot, row) for slot, row in enumerate(rows)]
    whole = plain.fire(*votes)
    emitted = other.fire(*(coded(vote, form) for vote in votes))
    assert emitted["merged"]["voters"] == [0, 1]
    allowed = {"int2": 1.0, "int1": 1.2}.get(form, 0.15)
    np.testing.assert_allclose(emitted["update"]["values"], whole["update"]["values"], atol=allowed)
    other.fire(coded(answer(0, rows[0], base=(1, 1), begin=80, end=160), form), answer(1, rows[1], base=(1, 1)))


def test_one_coded_answer_of_any_length_keeps_the_length_that_it_had() -> None:
    syncer = Syncer(lr=1.0, momentum=0.0)
    row = np.where(np.arange(PARTS[0].size) == 0, 1.0, 0.4 / 7)  # All but the first are coded as 0.
    emitted = syncer.fire(coded(answer(0, row), "int4"))
    moved = emitted["update"]["values"].astype(np.float64) - syncer.first
    assert np.linalg.norm(moved) == pytest.approx(np.linalg.norm(row), rel=1e-5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"scales": np.full(len(PARTS[0].units), np.nan, np.float32)}, "not finite"),
        ({"scales": np.full(len(PARTS[0].units), -1.0, np.float32)}, "not finite"),
        ({"scales": np.full(len(PARTS[0].units), 3e38, np.float32)}, "not finite"),
        ({"scales": np.full(len(PARTS[0].units), 1e3, np.float32)}, "norms of other values"),
        ({"norms": np.full(len(PARTS[0].units), 1e-3, np.float32)}, "norms of other values"),
        ({"scales": np.empty(0, np.float32)}, "codes without their scales"),
        ({"format": "int2"}, "codes without their scales"),
        ({"format": "int8"}, "codes without their scales"),
        ({"format": "float32"}, "codes without their scales"),
    ],
)
def test_codes_that_no_sound_learner_sends_are_refused(change: Any, reason: str) -> None:
    emitted = Syncer().fire({**coded(answer(0, 1.0), "int4"), **change}, answer(1, 1.0))
    assert emitted["merged"]["refused"] == [[0, reason]]
    assert emitted["merged"]["voters"] == [1]


def test_codes_are_no_version_of_a_fragment() -> None:
    merge = Merge(PARTS, method="rda", lr=0.5, momentum=0.5)
    merge.open(Context("syncer"))
    vote = {**coded(answer(0, 1.0, base=None), "int4"), "kind": "initial"}
    emitted = merge(round=pull(0, 1, kind="initial"), answer={(Replica("learner", 0), 1): vote}, decision=DECISION)
    assert emitted["gradient"]["version"] is None


def test_a_coded_answer_that_is_too_long_is_shortened() -> None:
    syncer = Syncer(method="average", lr=1.0, momentum=0.0)
    votes = [coded(answer(slot, value), "int4") for slot, value in enumerate([1.0, 1.0, 100.0])]
    emitted = syncer.fire(*votes)
    assert emitted["merged"]["shortened"] == [[2, pytest.approx(0.1)]]
    np.testing.assert_allclose(emitted["update"]["values"], syncer.first - 12 / 3, rtol=1e-5)


@pytest.mark.parametrize("push", FORMATS)
def test_answers_leave_in_the_format_that_was_asked_for(push: Any) -> None:
    send = FragmentSend(PARTS, push=push)
    send.open(Context("learner"))
    values, check = np.linspace(-1, 1, PARTS[0].size).astype(np.float32), compiled(schemas.answer(PARTS, 8))
    capture = {**answer(0, 0.0), "values": values, "anchor": np.ones(PARTS[0].size, np.float32)}
    for each in (capture, {**capture, "kind": "recover", "anchor": None}):
        (((_, sent),),) = send(fragment={("learner/0", 0): each})
        assert check(sent, sent, Member(Replica("learner", 0), 1)) is None
        is_coded = push != "float32" and each is capture
        assert (sent["gradient"].dtype != np.float32) == is_coded
        assert ("scales" in sent) == (is_coded and push != "bf16")
        assert sent.get("format") == (push if is_coded else None)
        np.testing.assert_array_equal(sent["norms"], norms(1 - values if each is capture else values, PARTS[0]))


def test_codes_of_any_other_size_follow_no_schema() -> None:
    check, sender = compiled(schemas.answer(PARTS, 8)), Member(Replica("learner", 0), 1)
    vote = coded(answer(0, 1.0), "int4")
    assert check(vote, vote, sender) is None
    for change in ({"gradient": np.tile(vote["gradient"], 2)}, {"gradient": b"x"}, {"scales": np.ones(99, np.float32)}):
        wrong = {**vote, **change}
        assert check(wrong, wrong, sender) is not None


def test_positions_and_states_of_streams_never_go_back() -> None:
    """A later life of a slot begins at them: from an older one it would train batches again."""
    syncer = Syncer()
    ahead = {**answer(0, 0.1), "positions": [[0, 10]], "state": [9, [1]]}
    behind = {**answer(0, 0.1, base=(1, 1), begin=80, end=160), "positions": [[0, 4]], "state": [3, [2]]}
    syncer.fire(ahead)
    syncer.round += 1
    votes = {(Replica("learner", 0), syncer.round): behind}
    reached: Any = syncer.merge(round=pull(0, syncer.round), answer=votes, decision=DECISION)["reached"]
    assert (reached["positions"], reached["states"]) == ([[0, 10]], [[0, 9, [1]]])
