"""What every channel must do, whatever it is made of: tests over ends that an adapter makes.

To try a channel, derive from `ChannelConformance` in a test module and give it a fixture `ends`, which makes an `Ends`
with a window of so many bytes and closes it afterwards:

    class TestMine(ChannelConformance):
        @pytest.fixture
        def ends(self) -> Iterator[MakeEnds]:
            ...

No test depends on how long anything takes: `until` waits for what must happen, at most so long as the adapter says, and
`rest` gives what must not happen the time to happen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from isthmus.runtime.channels.contract import Channel, Parcel
from isthmus.runtime.cores.scheduler_events import Fields
from isthmus.runtime.ids import Member, Replica
from isthmus.runtime.items.encoding import encode

A, B, C = Member(Replica("left", 0), 1), Member(Replica("right", 0), 1), Member(Replica("right", 1), 1)
_STRANGER = Member(Replica("nobody", 0), 1)
QUEUE, OTHER_QUEUE, LATEST, OTHER_LATEST = 0, 1, 2, 3
KIB, MIB = 1 << 10, 1 << 20


class RecordingReceiver:
    """A receiver that remembers what it got; `on_item` is called after each item."""

    def __init__(self) -> None:
        self.items: list[tuple[Member, Parcel]] = []
        self.credits: list[tuple[Member, int, int]] = []
        self.on_item: Callable[[Member, Parcel], None] = lambda source, parcel: None

    def item_arrived(self, source: Member, parcel: Parcel) -> None:
        self.items.append((source, parcel))
        self.on_item(source, parcel)

    def credit_granted(self, target: Member, edge: int, count: int) -> None:
        self.credits.append((target, edge, count))

    def values(self, edge: int | None = None) -> list[Any]:
        """The items of an edge, or all."""
        return [parcel.item for _, parcel in self.items if edge in (None, parcel.edge)]

    def numbers(self, edge: int | None = None) -> list[int]:
        """The field 'number' of the items of an edge, or of all."""
        return [item["number"] for item in self.values(edge)]


class Ends(ABC):
    """Channels of members that know each other."""

    @abstractmethod
    def join(self, member: Member, receiver: RecordingReceiver | None) -> Channel:
        """The channel of a new member, which everybody knows from now on; opened if there is a receiver."""

    @abstractmethod
    def leave(self, member: Member) -> None:
        """Close a member's channel; everybody knows that it has left."""

    @abstractmethod
    def until(self, holds: Callable[[], bool]) -> None:
        """Let time pass until `holds()`; AssertionError if it does not within some seconds."""

    @abstractmethod
    def rest(self) -> None:
        """Let so much time pass that everything that can arrive has arrived."""


class MakeEnds(Protocol):
    """Makes ends with a window of so many bytes."""

    def __call__(self, window_bytes: int) -> Ends:
        """The ends."""


def parcel(edge: int, item: Any, key: int | str | None = None, fields: Fields = None) -> Parcel:
    """An item as a host hands it over."""
    encoded = encode(item)
    return Parcel(edge, key, item, fields, encoded.digest, encoded.size_bytes, encoded)


def block(number: int, size_bytes: int = 64 * KIB) -> dict[str, Any]:
    """An item of a size, with a number."""
    return {"number": number, "data": np.full(size_bytes, number % 251, np.uint8)}


def same(left: Any, right: Any) -> bool:
    """Whether two items are equal to the last bit: types, dtypes, shapes, order of dicts, NaNs and signs of zeros."""
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        kinds = [(type(each), getattr(each, "dtype", None), getattr(each, "shape", None)) for each in (left, right)]
        return kinds[0] == kinds[1] and left.tobytes() == right.tobytes()
    if isinstance(left, dict):
        return isinstance(right, dict) and list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and repr(left) == repr(right)


def arrays(item: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of an item."""
    if isinstance(item, np.ndarray):
        return [item]
    within = list(item.values()) if isinstance(item, dict) else item if isinstance(item, list | tuple) else []
    return [array for each in within for array in arrays(each)]


class ConnectedPair:
    """Members A and B, with what each got."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.at_a, self.at_b = RecordingReceiver(), RecordingReceiver()
        self.a, self.b = ends.join(A, self.at_a), ends.join(B, self.at_b)

    def queue(self, number: int, size_bytes: int = 64 * KIB, edge: int = QUEUE) -> None:
        self.a.send(B, parcel(edge, block(number, size_bytes)), replaces=False)

    def latest(self, number: int, key: int | str | None = None, size_bytes: int = 64 * KIB, edge: int = LATEST) -> None:
        self.a.send(B, parcel(edge, block(number, size_bytes), key), replaces=True)

    def arrive(self, count: int) -> None:
        """Wait until B has got `count` items in all."""
        self.ends.until(lambda: len(self.at_b.items) >= count)

    def stall(self) -> None:
        """Let B take nothing, with two items on their way that fill a window of 128 KiB."""
        self.b.pause()
        self.queue(-1, 60 * KIB, OTHER_QUEUE)
        self.queue(-2, 60 * KIB, OTHER_QUEUE)
        self.ends.until(lambda: self.a.statistics()["items_sent"] >= 1)
        self.ends.rest()


DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
ITEMS: dict[str, Any] = {
    "integer": 7,
    "integers": [0, -1, (1 << 63) - 1, -(1 << 63)],
    "floats": [0.0, -0.0, 1e-320, 0.1, float("inf"), float("-inf"), float("nan")],
    "texts": ["", "a", "naïve ∂", "\x00"],
    "nothing": {"a": None, "b": [], "c": {}},
    "truth": [True, False],
    "nested": {"z": {"y": [1, {"x": [np.arange(3), [2.5]]}]}, "a": "order counts"},
    "array": np.arange(12, dtype=np.float32).reshape(3, 4),
    "scalar array": np.array(2.5, np.float64),
    "empty arrays": {"none": np.empty(0, np.float32), "rows": np.empty((0, 3), np.int8), "columns": np.empty((3, 0))},
    "dtypes": [np.array([0, 1, 100], kind) for kind in DTYPES],
    "floating dtypes": [np.array([0, -1.5, np.nan], kind) for kind in (np.float16, np.float32, np.float64)],
    "brain floats": np.array([0, -1.5, 3e38], ml_dtypes.bfloat16),
    "strides": [np.arange(24, dtype=np.int32).reshape(4, 6)[::2, ::-3], np.arange(6.0).reshape(2, 3).T],
    "many arrays": {f"tensor/{i}": np.full(i, i, np.float32) for i in range(200)},
    "chunks": np.arange(3 * MIB, dtype=np.uint32),
}


class ChannelConformance:
    """The tests. `ends` comes from whoever derives."""

    # -- items ---------------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", ITEMS)
    def test_an_item_arrives_as_it_was_and_cannot_be_written(self, ends: MakeEnds, name: str) -> None:
        pair = ConnectedPair(ends(64 * MIB))
        sent = parcel(QUEUE, {"item": ITEMS[name]} if name != "array" else ITEMS[name], None, {"key": 1, "list": [[1]]})
        pair.a.send(B, sent, replaces=False)
        pair.arrive(1)
        [(source, got)] = pair.at_b.items
        assert source == A
        assert same(got.item, sent.item)
        assert replace(got, item=None, encoded=None) == replace(sent, item=None, encoded=None)
        assert encode(got.item).digest == sent.digest
        assert not any(array.flags.writeable for array in arrays(got.item))

    @pytest.mark.parametrize("key", [None, 0, -5, "", "a key"])
    def test_keys_arrive(self, ends: MakeEnds, key: int | str | None) -> None:
        pair = ConnectedPair(ends(MIB))
        pair.latest(1, key)
        pair.arrive(1)
        assert pair.at_b.items[0][1].key == key
        assert type(pair.at_b.items[0][1].key) is type(key)

    def test_an_item_may_be_larger_than_the_window(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(4 * MIB))
        data = np.arange(16 * MIB, dtype=np.float32)
        pair.queue(1)
        pair.a.send(B, parcel(QUEUE, {"number": 2, "data": data}), replaces=False)
        pair.queue(3)
        pair.arrive(3)
        assert pair.at_b.numbers() == [1, 2, 3]
        assert same(pair.at_b.values()[1]["data"], data)

    # -- order ---------------------------------------------------------------------------------------------------------

    def test_queue_items_arrive_once_and_in_order(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(256 * KIB))
        for number in range(600):
            pair.queue(number, (number * 7919) % 5000)
        pair.arrive(600)
        pair.ends.rest()
        assert pair.at_b.numbers() == list(range(600))

    def test_queue_items_keep_their_order_on_each_edge_and_in_both_directions(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(256 * KIB))
        for number in range(200):
            pair.queue(number, 3000, edge=(QUEUE, OTHER_QUEUE)[number % 2])
            pair.b.send(A, parcel(QUEUE, block(number, 100)), replaces=False)
        pair.arrive(200)
        pair.ends.until(lambda: len(pair.at_a.items) == 200)
        assert pair.at_b.numbers(QUEUE) == list(range(0, 200, 2))
        assert pair.at_b.numbers(OTHER_QUEUE) == list(range(1, 200, 2))
        assert pair.at_a.numbers() == list(range(200))
        assert {source for source, _ in pair.at_a.items} == {B}

    def test_items_that_are_sent_before_the_receiver_opens_wait(self, ends: MakeEnds) -> None:
        channels = ends(MIB)
        at_b = RecordingReceiver()
        a = channels.join(A, RecordingReceiver())
        b = channels.join(B, None)
        for number in range(3):
            a.send(B, parcel(QUEUE, block(number)), replaces=False)
        channels.rest()
        b.open(at_b)
        channels.until(lambda: len(at_b.items) == 3)
        assert at_b.numbers() == [0, 1, 2]

    def test_what_a_receiver_sends_from_within_arrives(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(MIB))
        pair.at_b.on_item = lambda source, got: pair.b.send(source, parcel(got.edge, got.item), replaces=False)
        for number in range(20):
            pair.queue(number)
        pair.ends.until(lambda: len(pair.at_a.items) == 20)
        assert pair.at_a.numbers() == list(range(20))

    # -- credit --------------------------------------------------------------------------------------------------------

    def test_credit_arrives_in_full_for_each_edge(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(MIB))
        pair.queue(0)
        pair.arrive(1)
        for _ in range(10):
            pair.b.grant(A, QUEUE, 1)
            pair.b.grant(A, OTHER_QUEUE, 3)
        pair.ends.until(lambda: sum(count for _, _, count in pair.at_a.credits) == 40)
        pair.ends.rest()
        totals = {edge: sum(c for _, e, c in pair.at_a.credits if e == edge) for edge in (QUEUE, OTHER_QUEUE)}
        assert totals == {QUEUE: 10, OTHER_QUEUE: 30}
        assert {target for target, _, _ in pair.at_a.credits} == {B}
        assert pair.at_b.credits == []

    def test_credit_passes_items_that_are_stalled_on_the_way_back(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(128 * KIB))
        pair.b.pause()
        for number in range(8):
            pair.queue(number)
        pair.b.grant(A, QUEUE, 2)
        pair.ends.until(lambda: sum(count for _, _, count in pair.at_a.credits) == 2)

    # -- latest --------------------------------------------------------------------------------------------------------

    def test_a_newer_item_supersedes_one_that_waits(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(128 * KIB))
        pair.stall()
        for number in range(10):
            pair.latest(number)
        pair.ends.rest()
        superseded = pair.a.statistics()["superseded"]
        pair.b.resume()
        pair.arrive(12 - superseded)
        pair.ends.rest()
        assert superseded >= 8
        assert pair.at_b.numbers(LATEST)[-1] == 9
        assert pair.at_b.numbers(LATEST) == sorted(pair.at_b.numbers(LATEST))
        assert len(pair.at_b.items) == 12 - superseded

    def test_keys_edges_and_targets_do_not_supersede_each_other(self, ends: MakeEnds) -> None:
        channels = ends(128 * KIB)
        pair = ConnectedPair(channels)
        at_c = RecordingReceiver()
        c = channels.join(C, at_c)
        pair.stall()
        c.pause()
        for number, key in enumerate((0, "0", 1, None)):
            pair.latest(number, key)
            pair.latest(number + 10, key, edge=OTHER_LATEST)
            pair.a.send(C, parcel(LATEST, block(number + 20), key), replaces=True)
        pair.b.resume()
        c.resume()
        pair.arrive(10)
        channels.until(lambda: len(at_c.items) == 4)
        assert sorted(pair.at_b.numbers(LATEST)) == [0, 1, 2, 3]
        assert sorted(pair.at_b.numbers(OTHER_LATEST)) == [10, 11, 12, 13]
        assert sorted(at_c.numbers()) == [20, 21, 22, 23]
        assert pair.a.statistics()["superseded"] == 0

    def test_a_transfer_that_has_begun_is_finished(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(4 * MIB))
        pair.b.pause()
        pair.latest(1, size_bytes=16 * MIB)
        pair.ends.until(lambda: pair.a.statistics()["items_sent"] == 1)
        pair.latest(2, size_bytes=16 * MIB)
        pair.latest(3, size_bytes=16 * MIB)
        pair.b.resume()
        pair.arrive(2)
        pair.ends.rest()
        assert pair.at_b.numbers() == [1, 3]
        assert all(same(item["data"], block(item["number"], 16 * MIB)["data"]) for item in pair.at_b.values())

    def test_sending_never_waits_for_a_receiver_that_takes_nothing(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(128 * KIB))
        pair.stall()
        for number in range(3000):
            pair.latest(number, number % 3, size_bytes=8)
        pair.b.resume()
        pair.ends.until(lambda: {2997, 2998, 2999} <= set(pair.at_b.numbers(LATEST)))

    # -- fairness ------------------------------------------------------------------------------------------------------

    def test_a_key_that_is_always_new_starves_no_other(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(128 * KIB))
        pair.stall()
        count = 0

        def renew(source: Member, got: Parcel) -> None:
            nonlocal count
            count += 1
            if count < 200:
                pair.latest(count, "hot")

        pair.at_b.on_item = renew
        for number in range(4):
            pair.latest(number, "hot")
        for key in range(5):
            pair.latest(key, key)
        pair.b.resume()
        pair.ends.until(lambda: count >= 30)
        keys = [got.key for _, got in pair.at_b.items if got.edge == LATEST]
        assert set(keys[:12]) == {"hot", 0, 1, 2, 3, 4}
        assert [key for key in keys if key != "hot"] == [0, 1, 2, 3, 4]

    def test_an_edge_that_is_always_full_starves_no_other(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(128 * KIB))
        count = 0

        def refill(source: Member, got: Parcel) -> None:
            nonlocal count
            count += 1
            if count < 300:
                pair.queue(count)

        pair.stall()
        pair.at_b.on_item = refill
        for number in range(20):
            pair.queue(number)
        pair.latest(1)
        pair.queue(1, edge=OTHER_QUEUE)
        pair.b.resume()
        pair.ends.until(lambda: count >= 60)
        assert LATEST in [got.edge for _, got in pair.at_b.items[:30]]
        assert 1 in pair.at_b.numbers(OTHER_QUEUE)

    def test_a_peer_that_takes_nothing_holds_up_no_other(self, ends: MakeEnds) -> None:
        channels = ends(128 * KIB)
        pair = ConnectedPair(channels)
        at_c = RecordingReceiver()
        channels.join(C, at_c)
        pair.stall()
        for number in range(20):
            pair.queue(number)
            pair.a.send(C, parcel(QUEUE, block(number)), replaces=False)
        channels.until(lambda: len(at_c.items) == 20)
        assert at_c.numbers() == list(range(20))
        assert pair.at_b.items == []

    def test_what_is_beyond_the_pace_of_a_link_waits_where_it_is_superseded(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(64 * MIB))
        pair.queue(0)
        pair.arrive(1)
        pair.ends.rest()
        pair.a.pace(B, 100 * KIB)
        pair.b.pause()
        for number in range(1, 5):
            pair.latest(number, key=number)
            pair.ends.rest()
        pair.latest(9, key=4)
        pair.b.resume()
        pair.arrive(5)
        assert pair.at_b.numbers() == [0, 1, 2, 3, 9]

    # -- the window ----------------------------------------------------------------------------------------------------

    def test_no_more_is_under_way_than_the_window_allows(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(256 * KIB))
        pair.b.pause()
        for number in range(20):
            pair.queue(number)
        pair.ends.until(lambda: pair.a.statistics()["items_sent"] >= 3)
        pair.ends.rest()
        assert 3 * 64 * KIB <= pair.a.statistics()["bytes_sent"] <= 256 * KIB
        pair.b.resume()
        pair.arrive(20)
        assert pair.at_b.numbers() == list(range(20))

    def test_nothing_arrives_while_a_receiver_pauses(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(MIB))
        pair.queue(0)
        pair.arrive(1)
        pair.b.pause()
        pair.queue(1)
        pair.latest(2)
        pair.ends.rest()
        assert pair.at_b.numbers() == [0]
        pair.b.resume()
        pair.arrive(3)
        assert sorted(pair.at_b.numbers()) == [0, 1, 2]

    def test_a_receiver_may_pause_at_any_item(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(256 * KIB))
        pair.at_b.on_item = lambda source, got: pair.b.pause()
        for number in range(5):
            pair.queue(number)
        for count in range(1, 6):
            pair.arrive(count)
            pair.ends.rest()
            assert pair.at_b.numbers() == list(range(count))
            pair.b.resume()

    # -- coming and going ----------------------------------------------------------------------------------------------

    def test_nothing_arrives_at_a_member_that_has_left(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(256 * KIB))
        pair.b.pause()
        for number in range(8):
            pair.queue(number)
        pair.ends.until(lambda: pair.a.statistics()["items_sent"] >= 1)
        pair.ends.leave(B)
        pair.queue(9)
        pair.ends.rest()
        assert pair.at_b.items == []
        assert pair.a.statistics()["dropped"] == 9

    def test_nothing_arrives_from_a_member_that_has_left(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(256 * KIB))
        pair.queue(0)
        pair.arrive(1)
        pair.b.pause()
        for number in range(8):
            pair.queue(number)
        pair.ends.rest()
        pair.ends.leave(A)
        pair.b.resume()
        pair.b.grant(A, QUEUE, 1)
        pair.b.send(A, parcel(QUEUE, block(9)), replaces=False)
        pair.ends.rest()
        assert pair.at_b.numbers() == [0]
        assert pair.at_a.items == []
        assert pair.at_a.credits == []

    def test_the_others_go_on_when_a_member_leaves(self, ends: MakeEnds) -> None:
        channels = ends(256 * KIB)
        pair = ConnectedPair(channels)
        at_c = RecordingReceiver()
        channels.join(C, at_c)
        for number in range(6):
            pair.queue(number)
            pair.a.send(C, parcel(QUEUE, block(number)), replaces=False)
        channels.leave(B)
        for number in range(6, 12):
            pair.a.send(C, parcel(QUEUE, block(number)), replaces=False)
        channels.until(lambda: len(at_c.items) == 12)
        assert at_c.numbers() == list(range(12))

    def test_a_receiver_may_leave_at_any_item(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(256 * KIB))
        pair.at_b.on_item = lambda source, got: pair.ends.leave(B)
        for number in range(8):
            pair.queue(number)
        pair.arrive(1)
        pair.ends.rest()
        assert pair.at_b.numbers() == [0]
        assert pair.a.statistics()["dropped"] >= 4

    def test_a_new_incarnation_gets_only_what_is_meant_for_it(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(256 * KIB))
        pair.b.pause()
        for number in range(8):
            pair.queue(number)
        pair.ends.until(lambda: pair.a.statistics()["items_sent"] >= 1)
        pair.ends.leave(B)
        again, got = Member(B.replica, 2), RecordingReceiver()
        back = pair.ends.join(again, got)
        pair.queue(8)
        pair.a.send(again, parcel(QUEUE, block(9)), replaces=False)
        pair.ends.until(lambda: len(got.items) == 1)
        back.grant(A, QUEUE, 1)
        pair.ends.until(lambda: bool(pair.at_a.credits))
        pair.ends.rest()
        assert got.numbers() == [9]
        assert pair.at_a.credits == [(again, QUEUE, 1)]
        assert pair.at_b.items == []

    def test_an_item_for_nobody_is_dropped_and_counted(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(MIB))
        pair.a.send(_STRANGER, parcel(QUEUE, block(1)), replaces=False)
        pair.a.grant(_STRANGER, QUEUE, 1)
        pair.queue(2)
        pair.arrive(1)
        assert pair.at_b.numbers() == [2]
        assert pair.a.statistics()["dropped"] == 1

    def test_a_closed_channel_does_nothing(self, ends: MakeEnds) -> None:
        pair = ConnectedPair(ends(MIB))
        pair.ends.leave(A)
        pair.a.close()
        pair.queue(1)
        pair.a.grant(B, QUEUE, 1)
        pair.a.pause()
        pair.a.resume()
        pair.ends.rest()
        assert pair.at_b.items == []
        assert pair.at_b.credits == []

    # -- statistics ----------------------------------------------------------------------------------------------------

    def test_statistics_add_up(self, ends: MakeEnds) -> None:
        channels = ends(128 * KIB)
        pair = ConnectedPair(channels)
        at_c = RecordingReceiver()
        c = channels.join(C, at_c)
        pair.stall()
        for number in range(10):
            pair.latest(number)
            pair.a.send(C, parcel(QUEUE, block(number)), replaces=False)
        pair.b.resume()
        channels.until(lambda: bool(pair.at_b.numbers(LATEST)) and pair.at_b.numbers(LATEST)[-1] == 9)
        channels.until(lambda: len(at_c.items) == 10)
        channels.leave(C)
        pair.a.send(C, parcel(QUEUE, block(10)), replaces=False)
        channels.rest()
        sent, got = pair.a.statistics(), [pair.b.statistics(), c.statistics()]
        received = sum(each["items_received"] for each in got)
        assert received == len(pair.at_b.items) + len(at_c.items) == sent["items_sent"]
        assert received + sent["superseded"] + sent["dropped"] == 2 + 10 + 10 + 1
        sizes = [got.size_bytes for recorder in (pair.at_b, at_c) for _, got in recorder.items]
        assert sent["bytes_sent"] == sum(each["bytes_received"] for each in got) == sum(sizes)
        assert sent["items_received"] == got[0]["items_sent"] == 0
