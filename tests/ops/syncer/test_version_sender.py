"""The node that gives the evaluator versions: which it gives, and how long one that has been replaced stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.exchange.messages import ShardState, WantedVersion
from isthmus.ops.syncer.version_sender import VersionSender
from isthmus.runtime.ids import Member, Replica
from tests.ops.bodies import Context

EVALUATOR = Replica("evaluator", 0)


def state(count: int, *, fragment: int = 0, epoch: int = 1, kind: Any = "merge") -> dict[Any, Any]:
    values = np.full(5, 10.0 * epoch + count, np.float32)
    item = ShardState(
        fragment=fragment,
        version=[epoch, count],
        kind=kind,
        values=values,
        clock=[[0, 1, count]],
        positions=[[0, count]],
        totals=[[0, 1, 8 * count]],
        refused=[],
        tensors={"momentum": -values},
        lengths=[0.5],
    )
    return {(Replica("syncer", 0), fragment): item}


def wanted(count: int, number: int = 0, *, fragment: int = 0, epoch: int = 1) -> dict[Any, Any]:
    wish = WantedVersion(fragment=fragment, version=[epoch, count], number=number)
    return {(EVALUATOR, fragment): wish}


def sender_of(*, has_evaluator: bool = True) -> VersionSender:
    sender, context = VersionSender(), Context("syncer")
    context.live = {Member(EVALUATOR, 1)} if has_evaluator else set()
    sender.open(context)
    return sender


def sent(sender: VersionSender, **items: Any) -> list[tuple[list[int], int, int]]:
    """(version, transfer, size) of what is sent."""
    emitted = sender(**items) or []
    assert all(port == "version" for port, _ in emitted)
    assert all("tensors" not in item for _, item in emitted)
    return [(item["version"], item["number"], len(item["values"])) for _, item in emitted]


def test_of_versions_that_nobody_asks_for_nothing_is_sent() -> None:
    sender = sender_of()
    for count in range(3):
        assert sent(sender, state=state(count)) == []
        assert sent(sender, wanted=wanted(count)) == []


def test_what_is_asked_for_is_sent_once_and_then_taken_back() -> None:
    sender = sender_of()
    sender(state=state(2))
    assert sent(sender, wanted=wanted(2, 7)) == [([1, 2], 7, 5)]
    assert sent(sender, state=state(3)) == []
    assert sent(sender, wanted=wanted(3)) == [([1, 3], 0, 0)], "so that none is kept for an evaluator that joins"
    assert sent(sender, wanted=wanted(3)) == []
    assert sent(sender, wanted=wanted(3, 8)) == [([1, 3], 8, 5)]


def test_a_version_that_was_known_stays_until_a_later_one_is() -> None:
    sender = sender_of()
    sender(state=state(2))
    sender(wanted=wanted(2))
    for count in range(3, 6):
        sender(state=state(count))
    [(_, item)] = sender(wanted=wanted(2, 7)) or []
    assert (item["version"], item["values"].tolist(), item["totals"]) == ([1, 2], [12.0] * 5, [[0, 1, 16]])
    sender(wanted=wanted(5))
    assert sent(sender, wanted=wanted(2, 8)) == [([1, 5], 8, 5)], "it is gone, and the newest comes"


def test_what_was_known_last_is_kept_where_it_is_the_newest_but_one() -> None:
    sender = sender_of()
    sender(state=state(2))
    sender(wanted=wanted(2))
    sender(state=state(3))
    sender(wanted=wanted(3))
    sender(state=state(4))
    assert sent(sender, wanted=wanted(3, 7)) == [([1, 3], 7, 5)]


@pytest.mark.parametrize("has_evaluator", [True, False])
def test_nothing_is_kept_for_an_evaluator_that_is_not_there(*, has_evaluator: bool) -> None:
    sender = sender_of(has_evaluator=has_evaluator)
    sender(state=state(2))
    sender(wanted=wanted(2))
    sender(state=state(3))
    assert sent(sender, wanted=wanted(2, 7)) == [([1, 2 if has_evaluator else 3], 7, 5)]


def test_a_version_that_was_told_of_and_is_not_here_yet_is_awaited() -> None:
    """The outer step tells of it, and hands its state over, at once; which comes first is not known."""
    sender = sender_of()
    assert sent(sender, wanted=wanted(2, 7)) == []
    sender(state=state(1))
    assert sent(sender, wanted=wanted(2, 7)) == []
    assert sent(sender, state=state(2)) == [([1, 2], 7, 5)]


def test_the_last_version_again_is_no_other_one() -> None:
    sender = sender_of()
    sender(state=state(2))
    sender(wanted=wanted(2))
    sender(state=state(2, kind="final"))
    [(_, item)] = sender(wanted=wanted(2, 7)) or []
    assert (item["version"], item["kind"]) == ([1, 2], "final")


def test_each_fragment_is_for_itself() -> None:
    sender = sender_of()
    sender(state=state(1) | state(4, fragment=3))
    assert sent(sender, wanted=wanted(1, 7) | wanted(4, 8, fragment=3)) == [([1, 1], 7, 5), ([1, 4], 8, 5)]
    assert sent(sender, wanted=wanted(1) | wanted(4, 8, fragment=3)) == [([1, 1], 0, 0)]
