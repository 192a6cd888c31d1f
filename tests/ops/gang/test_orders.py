"""The calls of a leader, and what the other processes of its island make of its orders."""

from __future__ import annotations

import socket
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.positions import Step
from isthmus.ops.gang.orders import Following, Leader, LeaderOrders, follow

FORMS = {"local": 2, "lent": 1, "own": 3, "whole": 4}
"""The number of leaves of each form."""


class Part:
    """A process's part: notes the calls that it is asked for, with the sizes of leaves."""

    device_kind = "cpu"

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        def noted(*arguments: Any, **named: Any) -> Any:
            self.calls.append(
                (name, *(len(each) if isinstance(each, list) else each for each in arguments), *named.items())
            )
            return True

        return noted

    def fits(self, what: str, leaves: Any) -> bool:
        """Whether there are as many."""
        return len(leaves) == FORMS[what]

    def forms(self, what: str) -> list[Any]:
        """As many single numbers."""
        return [SimpleNamespace(shape=(1,), dtype=np.dtype(np.float32))] * FORMS[what]


def made_by_both(ask: Any) -> tuple[list[Any], list[Any]]:
    """The calls that leader and follower make for a call of the leader."""
    near, far = socket.socketpair()
    with near, far:
        own, other = Part(), Part()
        following = Following(far)
        ask(Leader(own, LeaderOrders([near]), lambda: Step(7, (5, np.frombuffer(b"state", np.uint8)))))
        near.shutdown(socket.SHUT_WR)
        batches: Any = SimpleNamespace(batch=lambda position: f"batch {position}", know=other.know)
        with suppress(EOFError):  # At the end of the orders.
            while (order := following.next(1.0)) is not None:
                follow(other, order, batches, following)
        return own.calls, other.calls


def leaves(count: int) -> list[Any]:
    return [np.ones(1, np.float32)] * count


@pytest.mark.parametrize(
    ("ask", "call"),
    [
        (lambda leader: leader.begin(), ("begin",)),
        (lambda leader: leader.extract(3), ("extract", 3)),
        (lambda leader: leader.restart(), ("restart",)),
        (lambda leader: leader.count_from(9), ("count_from", 9)),
        (lambda leader: leader.local(), ("local",)),
        (lambda leader: leader.lend(), ("lend",)),
        (lambda leader: leader.own(whole=True), ("own", ("whole", True))),
        (lambda leader: leader.take_local(leaves(2)), ("take_local", 2)),
        (lambda leader: leader.borrow(leaves(1)), ("borrow", 1)),
        (lambda leader: leader.take_own(leaves(3)), ("take_own", 3)),
        (lambda leader: leader.take_own(leaves(4)), ("take_own", 4)),
    ],
)
def test_a_call_is_made_by_all(ask: Any, call: Any) -> None:
    assert made_by_both(ask) == ([call], [call])


@pytest.mark.parametrize("name", ["adopt", "replace"])
def test_values_of_fragments_stay_with_the_leader(name: str) -> None:
    values = np.ones(2, np.float32)
    [(_, fragment, given)], others = made_by_both(lambda leader: getattr(leader, name)(1, values))
    assert (fragment, given is values, others) == (1, True, [(name, 1, None)])


@pytest.mark.parametrize("name", ["take_local", "borrow", "take_own"])
def test_leaves_of_another_form_are_taken_by_nobody(name: str) -> None:
    def ask(leader: Any) -> None:
        assert getattr(leader, name)(leaves(5)) is False

    assert made_by_both(ask) == ([], [])


def test_a_step_is_made_of_the_batch_at_its_position() -> None:
    own, others = made_by_both(lambda leader: (leader.step("batch", 0.5), leader.step("batch", 0.5)))
    assert own == [("step", "batch", 0.5)] * 2
    (_, position, state), *steps = others
    assert (position, state.tobytes(), steps) == (5, b"state", [("step", "batch 7", 0.5)] * 2)


@pytest.mark.parametrize(
    "order",
    [
        ["end"],
        ["begin", 1],
        ["extract"],
        ["extract", "1"],
        ["adopt", True],
        ["own", 1],
        ["take", "all"],
        ["fits", 1],
        [7],
        [],
    ],
)
def test_nothing_else_is_an_order(order: Any) -> None:
    part, unused = Part(), Any
    with pytest.raises(ValueError, match="no order of a leader"):
        follow(part, order, unused, unused)  # type: ignore[arg-type]
    assert part.calls == []
