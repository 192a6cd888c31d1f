"""An answer is told ahead, and its values follow when they are wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange import schemas
from isthmus.ops.kernels import coding
from isthmus.ops.learner.fragment_offer import FragmentOffer
from isthmus.ops.learner.fragment_send import FragmentSend
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.schemas import compiled
from tests.ops.bodies import Context, SmallTask, fragments_of

PARTS = fragments_of(SmallTask(), 2)


def capture(number: int, *, kind: str = "merge", fragment: int = 0) -> dict[str, Any]:
    size = PARTS[fragment].size
    return {
        "fragment": fragment,
        "round": number,
        "kind": kind,
        "slot": 3,
        "incarnation": 2,
        "base": [1, 0],
        "begin": 0,
        "end": 80,
        "steps": 10,
        "clock": [],
        "values": np.full(size, -number, np.float32),
        "anchor": None if kind == "initial" else np.zeros(size, np.float32),
        "positions": [],
        "state": None,
        "push": "int4",
    }


def wanted(number: int, *, fragment: int = 0, slot: int = 3, life: int = 2) -> dict[Any, Any]:
    return {("syncer", fragment): {"fragment": fragment, "round": number, "slot": slot, "incarnation": life}}


class Sending:
    def __init__(self, push: Any = "int4") -> None:
        self.body = FragmentOffer(PARTS, push=push)
        self.body.open(Context("learner", 3, incarnation=2))

    def __call__(self, *captures: dict[str, Any], wants: Any = None) -> list[tuple[str, Any]]:
        given = {each["fragment"]: each for each in captures} or None
        return [pair for emitted in self.body(fragment=given, wanted=wants) for pair in emitted]


@pytest.mark.parametrize("push", ["float32", "int4"])
def test_what_is_told_and_what_follows_are_the_answer_together(push: Any) -> None:
    sending, whole = Sending(push), FragmentSend(PARTS, push=push)
    whole.open(Context())
    [[(_, expected)]] = list(whole(fragment={0: capture(1)}))
    [(port, told)] = sending(capture(1))
    assert (port, told["gradient"].size, "scales" in told) == ("answer", 0, False)
    [(port, values)] = sending(wants=wanted(1))
    assert port == "values"
    both = {**told, **values}
    assert both.keys() == expected.keys()
    assert all(np.array_equal(both[name], expected[name]) for name in expected)
    # Both are of the form that the other end demands.
    for item, form in ((told, schemas.told(schemas.answer(PARTS, 8), PARTS)), (values, schemas.answer_values(PARTS))):
        assert compiled(form)(item, item, Member(Replica("learner", 3), 2)) is None


def test_values_are_sent_once_and_those_that_were_replaced_are_none() -> None:
    sending = Sending()
    sending(capture(1))
    sending(capture(2))
    [(_, gone)] = sending(wants=wanted(1))
    [(_, there)] = sending(wants=wanted(2))
    [(_, again)] = sending(wants=wanted(2))
    assert [each["gradient"].size > 0 for each in (gone, there, again)] == [False, True, False]
    assert [each["round"] for each in (gone, there, again)] == [1, 2, 2]


def test_what_is_wanted_of_another_life_is_not_answered() -> None:
    sending = Sending()
    sending(capture(1))
    assert sending(wants=wanted(1, life=1)) == []
    assert sending(wants=wanted(1, slot=4)) == []


@pytest.mark.parametrize("kind", ["initial", "recover"])
def test_first_and_recovered_versions_come_whole(kind: str) -> None:
    sending = Sending()
    [(_, answer)] = sending({**capture(1, kind=kind), "anchor": None})
    np.testing.assert_array_equal(coding.as_sent(answer, "gradient"), np.full(PARTS[0].size, -1, np.float32))
