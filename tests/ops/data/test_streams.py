"""Streams: what they have to offer, which states travel, and how a life goes on where the one before was merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from isthmus.ops.data.batches import first_batch, next_batch, opened, packed, unpacked
from isthmus.ops.data.batches_node import Batches
from isthmus.ops.data.corpus import DataError
from isthmus.ops.data.positions import STATE_SIZE_BYTES_MAX
from isthmus.ops.learner.answers import STATES_MAX, Feed
from tests.ops.bodies import Context


class Numbers:
    """A stream of its slot and the position; `skipped` counts the batches that were made."""

    def __init__(self, slot: int, slots: int, seed: int, state: Any = None) -> None:
        self.of, self.position, self.made = (seed, slot, slots), 0, 0
        self.more = state

    def __next__(self) -> Any:
        self.position, self.made = self.position + 1, self.made + 1
        return {"x": np.array([*self.of, self.position - 1])}

    def get_state(self) -> Any:
        return {"position": self.position, "more": self.more}

    def set_state(self, state: Any) -> None:
        self.position = state["position"]


class Task:
    tokens_per_batch = 1

    def __init__(self, state: Any = None) -> None:
        self.streams: list[Numbers] = []
        self.state = state

    def stream(self, slot: int, slots: int, seed: int) -> Numbers:
        self.streams.append(Numbers(slot, slots, seed, self.state))
        return self.streams[-1]


def place(position: int, state: Any = None, at: int = 0, shard: int = 0) -> Any:
    told = {"slot": 1, "incarnation": 2, "shard": shard, "shards": 2, "position": position}
    return {("syncer", shard): {**told, "state_position": at, "state": state}}


def life(task: Any, incarnation: int) -> Batches:
    context = Context(slot=1, seed=7, incarnation=incarnation)
    context.connected = frozenset({"batch", "cursor", "place"})
    data = Batches(task, learners=2, slots=16)
    data.open(context)
    return data


def positions(emitted: Any) -> list[int]:
    return [int(item["x"][3]) for port, item in emitted if port == "batch"]


def cursors(emitted: Any) -> list[Any]:
    return [item for port, item in emitted if port == "cursor"]


def test_a_first_life_begins_at_once_and_tells_its_states() -> None:
    data, feed, task = life(Task(), 1), Feed(), Task()
    assert first_batch(task, 7, 1)["x"].tolist() == [7, 1, 2, 0]
    assert not data.is_idle
    emitted = data()
    assert positions(emitted) == [0]
    (cursor,) = cursors(emitted)
    assert (cursor["begin"], cursor["position"]) == (0, 1)
    assert unpacked(cursor["state"]) == {"position": 1, "more": None}
    feed.accept(cursor)
    assert feed.reached_state() is None  # It is of a batch that was not taken yet.
    feed.advance()
    assert feed.reached_state() == [1, cursor["state"]]


def test_a_later_life_waits_for_all_shards_and_goes_on_from_the_state_that_they_have() -> None:
    task = Task()
    data = life(task, 2)
    assert data.is_idle
    assert data() == []
    assert data(place=place(9)) == []
    assert data() == []
    state = packed({"position": 8, "more": None})
    emitted = data(place=place(11, state, 8, shard=1))  # A firing finds only what is new.
    while not cursors(emitted):
        emitted = data()
    assert cursors(emitted)[0]["begin"] == 11
    assert task.streams[0].made == 3  # 8, 9 and 10 are read, and nobody trains on them.
    assert positions(data())[0] == 11


def test_a_stream_whose_state_nobody_has_is_wound_forward_a_few_batches_a_firing() -> None:
    task = Task()
    data = life(task, 2)
    told, firings = data(place=place(30) | place(0, shard=1)), 1
    while not cursors(told):
        assert positions(told) == []
        told, firings = data(), firings + 1
    assert firings >= 30 // 8
    assert task.streams[0].made == 30
    assert positions(data())[0] == 30


def test_states_that_msgpack_does_not_give_back_do_not_travel() -> None:
    assert unpacked(packed({"a": [1, b"x", None]})) == {"a": [1, b"x", None]}
    assert packed(b"x" * (STATE_SIZE_BYTES_MAX + 1)) is None
    assert packed({"a": (1, 2)}) is None
    assert packed(object()) is None
    assert packed(np.zeros(3)) is None
    data = life(Task(state=(1, 2)), 1)
    assert cursors(data()) == []


def test_a_learner_keeps_a_bounded_number_of_states() -> None:
    feed = Feed()
    for position in range(1, 100):
        feed.accept({"begin": 0, "position": position, "state": np.array([position], np.uint8), "left_out": []})
    for _ in range(99):
        feed.advance()
    told = feed.reached_state()
    assert told is not None
    assert told[0] == 99
    feed = Feed()
    for position in range(1, 100):
        feed.accept({"begin": 0, "position": position, "state": np.array([position], np.uint8), "left_out": []})
    for _ in range(99 - STATES_MAX):
        feed.advance()
    assert feed.reached_state() is None


class Stateless:
    def __next__(self) -> Any:
        return 0


def test_a_stream_that_lacks_something_is_refused() -> None:
    class Wrong(Task):
        def stream(self, slot: int, slots: int, seed: int) -> Any:
            return Stateless()

    with pytest.raises(DataError, match="found a Stateless without get_state, set_state"):
        opened(Wrong(), 0, 1, 0)


def test_a_stream_that_ends_and_batches_of_another_form_are_refused() -> None:
    class Short(Numbers):
        def __next__(self) -> Any:
            if self.position == 2:
                raise StopIteration
            return super().__next__()

    class Odd(Numbers):
        def __next__(self) -> Any:
            super().__next__()
            return {"x": np.zeros(self.made)}

    short = Short(0, 1, 0)
    with pytest.raises(DataError, match="batches without end, found the end after 2"):
        [next_batch(short, position) for position in range(3)]
    task = Task()
    task.stream = Odd  # type: ignore[method-assign, assignment]
    data = life(task, 1)
    data()
    with pytest.raises(
        DataError, match=r"float64\[1\] at batch/x, as in the first batch, found float64\[2\] at position 1"
    ):
        data()


def test_a_batch_on_which_nothing_is_trained_is_passed_over_and_not_reached() -> None:
    feed = Feed()
    feed.advance()
    feed.advance(is_trained=False)
    assert feed.reached == 1
    feed.advance()
    assert feed.reached == 3
