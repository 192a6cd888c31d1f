"""How many batches a firing makes, and that they come in order whatever their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.batches import EMPTY_MAX, At, Tokens, packed
from isthmus.ops.data.batches_node import Batches, InOrder, _Streamed
from isthmus.ops.data.corpus import DataError
from isthmus.ops.learner.answers import Feed
from tests.ops.bodies import Context


class Loader:
    """A task whose batches have a size (24 bytes of it three numbers) and take a time, by the test's clock."""

    tokens_per_batch = 1

    def __init__(self, duration_us: int, size_bytes: int = 1000) -> None:
        self.duration_us, self.size_bytes = duration_us, size_bytes
        self.now_ns = 0

    def batch(self, at: At) -> Any:
        self.now_ns += self.duration_us * 1000
        return {"at": (at.seed, at.slot, at.position), "array": np.zeros(self.size_bytes - 24, np.uint8)}


def opened(loader: Loader, slot: int = 0) -> Batches:
    context = Context(slot=slot, seed=7)
    context.now = lambda: loader.now_ns  # type: ignore[method-assign]
    batches = Batches(loader, learners=4, slots=16)
    batches.open(context)
    return batches


def counts(batches: Batches, firings: int = 4) -> list[int]:
    return [len(batches()) for _ in range(firings)]


@pytest.mark.parametrize(
    ("duration_us", "count"), [(0, 8), (1, 8), (125, 8), (126, 7), (300, 3), (500, 2), (501, 1), (1001, 1), (10**6, 1)]
)
def test_a_firing_makes_as_many_as_take_a_millisecond(duration_us: int, count: int) -> None:
    assert counts(opened(Loader(duration_us))) == [1, count, count, count]


MIB = 1 << 20


@pytest.mark.parametrize(
    ("size_bytes", "count"),
    [(24, 8), (MIB // 8, 8), (MIB // 4, 5), (MIB // 2, 3), (MIB, 2), (MIB + 1, 1), (9 * MIB, 1)],
)
def test_a_firing_makes_no_more_than_a_mebibyte_beyond_the_first(size_bytes: int, count: int) -> None:
    assert counts(opened(Loader(0, size_bytes))) == [1, count, count, count]


def test_the_number_follows_what_the_last_firing_took() -> None:
    loader = Loader(200)
    batches = opened(loader)
    assert counts(batches, 2) == [1, 5]
    loader.duration_us = 50
    assert counts(batches, 2) == [5, 8]
    loader.duration_us = 10_000
    assert counts(batches, 2) == [8, 1]
    loader.duration_us = 250
    assert counts(batches, 2) == [1, 4]


def test_batches_come_in_order_each_once_and_each_of_its_position() -> None:
    loader = Loader(300)
    batches = opened(loader, slot=3)
    emitted = []
    for duration_us in (300, 100, 900, 0, 0, 400):
        loader.duration_us = duration_us
        emitted += batches()
    assert {port for port, _ in emitted} == {"batch"}
    assert [batch["at"] for _, batch in emitted] == [(7, 3, position) for position in range(len(emitted))]
    assert len(emitted) == 1 + 3 + 8 + 1 + 8 + 8


def test_every_kind_of_tree_has_a_size() -> None:
    class Task:
        tokens_per_batch = 1

        def __init__(self, batch: Any) -> None:
            self.batch = lambda at: batch

    half = np.zeros(MIB // 2, np.uint8)
    for tree, count in ((half, 3), ([half, (half, 5)], 1), ({"x": {"y": half}, "n": 1.0}, 2), ({}, 8), (3, 8)):
        batches = Batches(Task(tree), learners=1, slots=1)
        context = Context()
        context.now = lambda: 0  # type: ignore[method-assign]
        batches.open(context)
        assert counts(batches, 2) == [1, count], tree


class Numbers:
    """A stream of numbers that counts how many were read."""

    def __init__(self) -> None:
        self.at = self.read = 0

    def __next__(self) -> int:
        self.at, self.read = self.at + 1, self.read + 1
        return self.at - 1

    def get_state(self) -> int:
        return self.at

    def set_state(self, state: int) -> None:
        self.at = state


@pytest.mark.parametrize(("known", "read"), [(4, 5), (6, 3), (7, 9)])
def test_batches_in_order_start_from_a_state_that_is_not_beyond_them(known: int, read: int) -> None:
    stream = Numbers()
    batches = InOrder(_Streamed(stream))
    state = packed(known)
    assert state is not None
    batches.know(known, state)
    assert [batches.batch(6), batches.batch(8)] == [6, 8]
    assert stream.read == read


class Masked:
    """A task whose batches have as many tokens as `tokens(position)` says."""

    def __init__(self, tokens: Any) -> None:
        self.tokens = tokens
        self.tokens_per_batch = Tokens(lambda batch: batch["tokens"], at_most=8)

    def batch(self, at: At) -> Any:
        return {"position": at.position, "tokens": self.tokens(at.position)}


def test_empty_batches_are_left_out_and_the_learner_knows_the_position_of_each_other() -> None:
    source, feed = Batches(Masked(lambda position: position % 5 // 2), learners=1, slots=1), Feed()
    source.open(Context(seed=7))
    seen = []
    for _ in range(20):
        for port, item in source():
            if port == "cursor":
                feed.accept(item)
            else:
                feed.advance()
                seen.append((item["position"], feed.latest, feed.reached))
    assert [position for position, _, _ in seen] == [p for p in range(seen[-1][0] + 1) if p % 5 >= 2]
    assert all(position == latest == reached - 1 for position, latest, reached in seen)


def test_a_slot_without_tokens_ends_with_the_reason_after_a_bound() -> None:
    source = Batches(Masked(lambda position: int(position < 3)), learners=1, slots=1)
    source.open(Context(seed=7))
    with pytest.raises(DataError, match=f"a batch with tokens, found {EMPTY_MAX + 1} without"):
        [source() for _ in range(EMPTY_MAX + 4)]


@pytest.mark.parametrize("counted", [9, -1, 1.0, True, None])
def test_a_count_that_is_no_number_of_tokens_is_an_error_of_the_task(counted: Any) -> None:
    source = Batches(Masked(lambda position: counted), learners=1, slots=1)
    source.open(Context(seed=7))
    with pytest.raises(DataError, match="an integer from 0 to 8"):
        source()
