"""The line, what is under way, and what is sent again."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.runtime.channels.contract import Parcel
from isthmus.runtime.channels.in_process import Line
from isthmus.runtime.errors import LocalProtocolError
from isthmus.runtime.items.layout import RefusalError
from isthmus.runtime.wire import protocol_transfers
from isthmus.runtime.wire.protocol_credit import (
    CHARGE_MIN,
    EDGES_MAX,
    PACE_BYTES_MIN,
    WINDOW_BYTES_MAX,
    Grants,
    Intake,
    Window,
    charge,
    claim,
)
from isthmus.runtime.wire.protocol_transfers import Inbound, Load, Outbound, Shipment

CHUNK = 1 << 20
WINDOW = 8 << 20


def latest(edge: int, key: int | None = None, sizes: Sequence[int] = (), item: Any = None) -> Shipment:
    return Shipment(Parcel(edge, key, item, None, 0, 0), True, 100, sizes, None)


def queued(edge: int, sizes: Sequence[int] = (), item: Any = None) -> Shipment:
    return Shipment(Parcel(edge, None, item, None, 0, 0), False, 100, sizes, None)


def outbound(window_bytes: int = WINDOW) -> Outbound:
    lane = Outbound()
    lane.open(Window(window_bytes), {})
    return lane


def load(lane: Outbound) -> Load | None:
    """The next load, paid for like a message."""
    found = lane.load(CHUNK, 64, 16)
    if found is not None:
        assert lane.window is not None
        raw = sum(shipment.sizes[piece] for shipment, piece in found.pieces)
        lane.window.spend(charge(raw + sum(shipment.head_bytes for shipment in found.begun), 0))
    return found


def loaded(lane: Outbound) -> tuple[list[Any], list[tuple[Any, int]]]:
    found = load(lane)
    assert found is not None
    return [s.parcel.item for s in found.begun], [(s.parcel.item, piece) for s, piece in found.pieces]


operations = st.lists(st.tuples(st.sampled_from(["put", "queue", "back", "take"]), st.integers(0, 3)), max_size=40)


@given(operations)
def test_the_line_is_an_ordered_dict_whose_newcomers_take_their_predecessors_turn(operations: Any) -> None:
    line: Line[int] = Line()
    model: list[tuple[object, int]] = []
    for number, (name, key) in enumerate(operations):
        at = next((i for i, (place, _) in enumerate(model) if place == key), None)
        if name == "put":
            superseded = line.put(number, (key,))
            assert superseded == (model[at][1] if at is not None else None)
            if at is not None:
                model[at] = (key, number)
            else:
                model.append((key, number))
        elif name == "queue":
            assert line.put(number, None) is None
            model.append((object(), number))
        elif name == "back":
            assert line.put_back(number, (key,)) == (at is None)
            if at is None:
                model.insert(0, (key, number))
        elif model:
            assert line.first() == model[0][1]
            assert line.pop() == model.pop(0)[1]
        else:
            assert line.first() is None
    assert list(line) == [number for _, number in model]
    assert len(line) == len(model)


def test_what_waits_together_goes_together() -> None:
    lane = outbound()
    for i in range(5):
        lane.put(queued(1, [1000], item=i))
    assert loaded(lane) == ([0, 1, 2, 3, 4], [(i, 0) for i in range(5)])
    assert load(lane) is None


def test_a_message_is_bounded_in_records_pieces_and_bytes() -> None:
    lane = outbound()
    for i in range(20):
        lane.put(queued(1, item=i))
    assert len(loaded(lane)[0]) == 16
    assert len(loaded(lane)[0]) == 4
    lane.put(queued(1, [10] * 100, item="many"))
    assert [len(loaded(lane)[1]) for _ in range(2)] == [64, 36]
    lane.put(queued(1, [CHUNK - 10, 20, CHUNK], item="large"))
    assert [loaded(lane)[1] for _ in range(3)] == [[("large", 0)], [("large", 1)], [("large", 2)]]


def test_a_transfer_that_has_begun_is_finished_before_another_begins() -> None:
    lane = outbound()
    lane.put(latest(1, 7, [CHUNK, CHUNK], item="old"))
    assert loaded(lane) == (["old"], [("old", 0)])
    assert lane.put(latest(1, 7, [10], item="new")) is None
    assert loaded(lane) == ([], [("old", 1)])
    assert loaded(lane) == (["new"], [("new", 0)])


def test_a_newer_item_of_a_mailbox_takes_the_turn_of_the_older() -> None:
    lane = outbound()
    first = latest(1, 7, item="old")
    lane.put(first)
    lane.put(latest(1, 8, item="other"))
    assert lane.put(latest(1, 7, item="new")) is first
    assert loaded(lane)[0] == ["new", "other"]


def test_no_key_starves_however_often_another_one_is_sent() -> None:
    lane = outbound(window_bytes=CHUNK)
    lane.put(latest(1, 0, [CHUNK]))
    for key in range(1, 6):
        lane.put(latest(1, key, [CHUNK], item=key))
    served = []
    assert lane.window is not None
    for _ in range(12):
        lane.put(latest(1, 1, [CHUNK], item=1))
        found = load(lane)
        assert found is not None
        served += [shipment.parcel.key for shipment in found.begun]
        lane.window.acknowledge(lane.window._sent)
    assert served[:6] == [0, 1, 2, 3, 4, 5]


def test_nothing_goes_beyond_the_window_but_one_message_alone() -> None:
    lane = outbound(window_bytes=3 * CHUNK)
    lane.put(queued(1, [CHUNK] * 5, item="x"))
    assert [load(lane) is None for _ in range(3)] == [False, False, True]
    assert lane.window is not None
    lane.window.acknowledge(lane.window._sent)
    assert load(lane) is not None
    small = outbound(window_bytes=10)
    for i in range(2):
        small.put(queued(1, [CHUNK], item=i))
    assert loaded(small)[0] == [0]
    assert load(small) is None


def test_an_item_is_charged_for_what_it_claims() -> None:
    lane = outbound(window_bytes=100_000)
    for i in range(3):
        lane.put(Shipment(Parcel(1, None, i, None, 0, 60_000), False, 100, (), None))
    assert loaded(lane)[0] == [0]
    assert load(lane) is None
    assert claim(60_000, 50_000) == 10_000
    assert charge(10, 60_000) == 60_000
    assert charge(10, 20) == CHARGE_MIN


def test_what_was_not_delivered_is_sent_again_in_order_and_before_the_rest() -> None:
    lane = outbound()
    for i in range(4):
        lane.put(queued(1, item=i))
    load(lane)
    lane.put(queued(1, item=4))
    done, superseded = lane.open(Window(WINDOW), {1: 2})
    assert [s.parcel.item for s in done] == [0, 1]
    assert superseded == []
    found = load(lane)
    assert found is not None
    assert [(s.parcel.item, s.sequence) for s in found.begun] == [(2, 3), (3, 4), (4, 5)]
    assert (found.transfer, found.piece) == (0, 0)


def test_a_transfer_cut_in_the_middle_begins_anew() -> None:
    lane = outbound()
    lane.put(queued(1, [CHUNK] * 3, item="x"))
    load(lane)
    load(lane)
    lane.open(Window(WINDOW), {})
    assert [loaded(lane)[1] for _ in range(3)] == [[("x", 0)], [("x", 1)], [("x", 2)]]


def test_of_a_mailbox_the_newest_is_sent_again_with_a_number_that_grows() -> None:
    lane = outbound()
    lane.put(latest(1, "a", item="a1"))
    lane.put(latest(1, "b", item="b1"))
    load(lane)
    lane.put(latest(1, "a", item="a2"))
    done, superseded = lane.open(Window(WINDOW), {})
    assert (done, [s.parcel.item for s in superseded]) == ([], ["a1"])
    found = load(lane)
    assert found is not None
    assert [(s.parcel.item, s.sequence) for s in found.begun] == [("b1", 3), ("a2", 4)]


def test_acknowledged_items_are_let_go_and_a_false_acknowledgement_is_refused() -> None:
    lane = outbound()
    for i in range(3):
        lane.put(queued(1, item=i))
    lane.put(queued(1, [CHUNK] * 2, item="long"))
    load(lane)
    assert [s.parcel.item for s in lane.acknowledge(2)] == [0, 1]
    assert lane.acknowledge(2) == []
    for total in (1, 4, 5):
        with pytest.raises(RefusalError, match="acknowledged"):
            lane.acknowledge(total)
    assert [s.parcel.item for s in lane.acknowledge(3)] == [2]


def test_nothing_goes_without_a_connection_nor_after_the_peer_has_left() -> None:
    lane = Outbound()
    lane.put(queued(1))
    assert load(lane) is None
    lane.open(Window(WINDOW), {})
    load(lane)
    lane.put(queued(1))
    assert lane.close() == 2
    assert load(lane) is None


def test_the_newest_message_may_be_beyond_the_pace_and_what_waits_is_superseded() -> None:
    lane = outbound(window_bytes=100 * CHUNK)
    for key in range(5):
        lane.put(latest(1, key, [CHUNK], item=key))
    lane.keep(2 * CHUNK + CHARGE_MIN)
    assert [loaded(lane)[0] for _ in range(4)] == [[0], [1], [2], [3]]
    assert load(lane) is None
    assert lane.put(latest(1, 4, [CHUNK], item="newer")) is not None
    assert lane.window is not None
    lane.window.acknowledge(2 * CHUNK)
    assert loaded(lane)[0] == ["newer"]


def test_of_messages_larger_than_the_pace_two_are_under_way() -> None:
    lane = outbound(window_bytes=100 * CHUNK)
    lane.put(queued(1, [CHUNK] * 4, item="large"))
    lane.keep(0)
    assert [loaded(lane)[1] for _ in range(2)] == [[("large", 0)], [("large", 1)]]
    assert load(lane) is None
    assert lane.window is not None
    lane.window.acknowledge(CHUNK // 2)
    assert load(lane) is None
    lane.window.acknowledge(CHUNK + 100)
    assert loaded(lane)[1] == [("large", 2)]
    assert load(lane) is None


def test_a_message_of_many_items_keeps_to_the_pace() -> None:
    lane = outbound()
    for number in range(40):
        lane.put(queued(1, [CHARGE_MIN], item=number))
    lane.keep(4 * CHARGE_MIN)
    assert [loaded(lane)[0] for _ in range(3)] == [[0, 1, 2], [3], [4]]
    assert load(lane) is None
    lane.keep(WINDOW_BYTES_MAX)
    assert loaded(lane)[0] == list(range(5, 21))


def test_a_pace_is_at_least_some_messages_and_at_most_none() -> None:
    lane = Outbound()
    assert lane.pace == WINDOW_BYTES_MAX
    for asked, kept in ((0, PACE_BYTES_MIN), (1 << 40, WINDOW_BYTES_MAX), (100_000, 100_000)):
        lane.keep(asked)
        assert lane.pace == kept


def test_too_much_that_waits_is_our_own_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol_transfers, "WAITING_MAX", 3)
    lane = outbound()
    for _ in range(3):
        lane.put(queued(1))
    with pytest.raises(LocalProtocolError, match="edge 1"):
        lane.put(queued(1))


def test_items_of_a_queue_come_in_order_without_gaps_and_of_a_mailbox_in_order() -> None:
    inbound = Inbound()
    inbound.arrive([(1, 1, False), (1, 2, False), (2, 5, True)])
    for bad in [(1, 2, False)], [(1, 4, False)], [(2, 5, True)], [(1, 3, False), (1, 3, False)]:
        with pytest.raises(RefusalError, match="came after"):
            inbound.arrive(bad)
    inbound.arrive([(1, 3, False), (2, 9, True)])
    assert inbound.delivered == {1: 3, 2: 9}
    with pytest.raises(RefusalError, match="edges"):
        inbound.arrive([(edge, 1, True) for edge in range(10, EDGES_MAX + 10)])


def test_the_receiver_checks_the_credit_that_the_sender_keeps() -> None:
    window, intake = Window(100), Intake(100)
    assert not window.under_way
    intake.receive(1000)
    with pytest.raises(RefusalError, match="under way"):
        intake.receive(1)
    assert intake.consume(1000)
    assert intake.announce() == 1000
    intake.receive(60)
    intake.receive(40)
    with pytest.raises(RefusalError, match="under way"):
        intake.receive(1)
    assert intake.consume(60)
    assert intake.announce() == 1060
    window.spend(1000)
    for total in (1001, -1):
        with pytest.raises(RefusalError, match="taken"):
            window.acknowledge(total)
    window.acknowledge(400)
    with pytest.raises(RefusalError, match="taken"):
        window.acknowledge(399)
    assert not window.may_go(1, WINDOW)


def test_grants_are_totals() -> None:
    consumer, producer = Grants(), Grants()
    assert not consumer.news
    consumer.give(1, 2)
    lost = consumer.tell()
    consumer.give(1, 3)
    consumer.give(2, 1)
    assert (lost, consumer.tell(), consumer.tell()) == ({1: 2}, {1: 5, 2: 1}, {})
    assert producer.receive({1: 5, 2: 1}) == [(1, 5), (2, 1)]
    assert producer.receive({1: 5}) == []
    with pytest.raises(RefusalError, match="shrink"):
        producer.receive({1: 6, 2: 0})
    assert producer.receive({1: 6}) == [(1, 1)]
    with pytest.raises(RefusalError, match="edges"):
        producer.receive(dict.fromkeys(range(EDGES_MAX + 1), 1))


@given(st.data())
def test_every_item_goes_once_whatever_is_cut(data: Any) -> None:
    """Outbound and Inbound against each other, over connections that end at any point."""
    lane, inbound = outbound(), Inbound()
    sent: dict[int, list[int]] = {1: [], 2: []}
    got: dict[int, list[int]] = {1: [], 2: []}
    newest: OrderedDict[tuple[int, int], int] = OrderedDict()
    wire: deque[Load] = deque()
    arrived = 0

    def deliver() -> None:
        nonlocal arrived
        found = wire.popleft()
        ended = {id(s): s for s, piece in found.pieces if piece == len(s.sizes) - 1}
        complete = list(ended.values()) + [s for s in found.begun if not s.sizes]
        complete.sort(key=lambda s: order[id(s)])
        inbound.arrive([(s.parcel.edge, s.sequence, s.replaces) for s in complete])
        arrived += len(complete)
        for s in complete:
            if s.replaces:
                newest[s.parcel.edge, s.parcel.key] = s.parcel.item  # type: ignore[index]
            else:
                got[s.parcel.edge].append(s.parcel.item)

    last: dict[tuple[int, int], int] = {}
    order: dict[int, int] = {}
    every: list[Shipment] = []
    for number in range(data.draw(st.integers(1, 30))):
        action = data.draw(st.sampled_from(["queue", "latest", "load", "load", "deliver", "acknowledge", "cut"]))
        sizes = [CHUNK] * data.draw(st.integers(0, 2))
        if action == "queue":
            edge = data.draw(st.sampled_from([1, 2]))
            sent[edge].append(number)
            every.append(queued(edge, sizes, item=number))
            lane.put(every[-1])
        elif action == "latest":
            edge, key = data.draw(st.sampled_from([3, 4])), data.draw(st.integers(0, 2))
            last[edge, key] = number
            every.append(latest(edge, key, sizes, item=number))
            lane.put(every[-1])
        elif action == "load" and (found := load(lane)) is not None:
            for shipment in found.begun:
                order[id(shipment)] = len(order)
            wire.append(found)
        elif action == "deliver" and wire:
            deliver()
        elif action == "acknowledge":
            lane.acknowledge(arrived)
        elif action == "cut":
            wire.clear()
            lane.open(Window(WINDOW), inbound.delivered)
            arrived = 0
            order.clear()
    wire.clear()
    lane.open(Window(100 * WINDOW), inbound.delivered)
    order.clear()
    while (found := load(lane)) is not None:
        for shipment in found.begun:
            order[id(shipment)] = len(order)
        wire.append(found)
        deliver()
    assert got == sent
    assert dict(newest) == last


class Copying:
    """Shared memory in which the first `copied` pieces of every item are there."""

    has_ended_leases = False
    number = 1

    def __init__(self) -> None:
        self.copied = 0

    def lodge(self, encoded: Any) -> Copying:
        return self

    def has_piece(self, piece: int) -> bool:
        return piece < self.copied

    def offset_of(self, piece: int) -> int | None:
        return 64 * piece

    def lease_of(self, segment: int) -> Any:
        raise AssertionError

    def settle(self) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError


def test_a_lent_item_begins_at_once_and_its_pieces_follow_as_they_are_copied() -> None:
    lane, copying = outbound(), Copying()
    large, small = latest(1, sizes=[10, 20, 30]), queued(2)
    large.cargo = b"", None
    lane.put(large)
    lane.put(small)

    def next_pieces() -> list[int] | None:
        found = lane.load(CHUNK, 64, 16, copying)
        return None if found is None else [piece for _, piece in found.pieces]

    assert next_pieces() == []
    assert lane.has_more()
    assert next_pieces() is None
    copying.copied = 2
    assert next_pieces() == [0, 1]
    assert next_pieces() is None
    copying.copied = 3
    assert next_pieces() == [2]
    assert small.sequence == 1
    assert not lane.has_more()
