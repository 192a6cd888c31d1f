"""Which exceptions of a worker mean that its form is broken, and which are the task's own.

What a leader's worker orders and answers, with a learner and orders that are scripted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import jax
import pytest

from isthmus.programs.wings.elastic import copies
from isthmus.programs.wings.elastic.copies import NOTHING, Stored
from isthmus.programs.wings.elastic.worker import _Worker, is_of_execution

GLOO = "Gloo all-reduce failed: [external/gloo/gloo/transport/tcp/pair.cc:538] Read error: Connection reset by peer"


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"UNKNOWN: {GLOO}"),  # As a function raises it that runs in the thread of its caller (0.10 to 0.12).
        jax.errors.JaxRuntimeError(f"UNKNOWN: {GLOO}"),  # As reading the result raises it.
        jax.errors.JaxRuntimeError("anything"),
    ],
)
def test_a_peer_that_is_gone_breaks_the_form(error: Exception) -> None:
    assert is_of_execution(error)


@pytest.mark.parametrize("error", [ValueError("mine: no"), ValueError("INVALID_ARGUMENT: shape"), KeyError("UNKNOWN")])
def test_what_a_task_raises_does_not(error: Exception) -> None:
    assert not is_of_execution(error)


class Orders:
    """What a leader orders; `copies` are those of all processes, its own first."""

    def __init__(self, *names: tuple[int, int]) -> None:
        self.copies, self.given = [*names], list[tuple[Any, ...]]()

    def give_one(self, number: int, *order: Any) -> None:
        self.given.append((number, *order))

    def give(self, *order: Any) -> None:
        self.given.append(order)

    def wait(self) -> None:
        self.given.append(("wait",))


@pytest.fixture
def files() -> Iterator[tuple[int, ...]]:
    opened = copies.open_files()
    yield opened
    for file in opened:
        os.close(file)


def leading(orders: Orders, files: tuple[int, ...] = ()) -> Any:
    """A leader's worker that has been made so far, without jax."""
    worker = cast(Any, object.__new__(_Worker))
    worker._spec, worker._files, worker._orders = SimpleNamespace(basis=None), files, orders
    worker._learner, worker.has_state = SimpleNamespace(device_kind="toy", begin=lambda: None), False
    return worker


def test_processes_without_a_copy_begin_empty_and_others_hold_the_newest(files: tuple[int, ...]) -> None:
    orders = Orders(NOTHING, NOTHING)
    assert leading(orders, files)._chosen() is None
    assert orders.given == [(1, "empty")]
    copies.write(copies.oldest(files), Stored(2, 5, 50, 1, 0), [])
    orders = Orders((2, 5), (2, 5))
    assert leading(orders, files)._chosen()[0].name == (2, 5)
    assert orders.given == [(1, "hold", 2, 5)]


def test_a_leader_answers_its_host_until_that_is_gone() -> None:
    class Host:
        asked, sent = [("local_",), ("begin",), ("begin",)], list[Any]()

        def recv(self) -> Any:
            return self.asked.pop()

        def send(self, answer: Any) -> None:
            self.sent.append(answer)

    orders, host = Orders(), Host()
    with pytest.raises(ValueError, match="nothing that a host asks: 'local_'"):
        leading(orders)._lead(host)
    assert host.sent == [("formed", "toy", False), ("done", None), ("done", None)]
    assert orders.given == [("wait",), ("begin",), ("begin",)]
